"""`plaudit report`, `plaudit eval` and `plaudit demo`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from plaudit.cli.common import epochs_bar, free_path, out, progress, stop, training_bar
from plaudit.cli.env import EnvSettings, keys_by_set
from plaudit.cli.options import Count, Option, app, command
from plaudit.errors import DataError


@command(app, "report")
def report(
    run: Path,  # The folder of a run, like runs/lift_sac_0.
) -> None:
    """Write report.html of a run, also while it is in progress."""
    from plaudit.report.run import write_run_report
    from plaudit.report.run_data import RunData
    from plaudit.report.verdict import run_verdict
    from plaudit.training.live import ask

    if not (run / "config.yaml").exists():
        raise DataError(f"{run} is not the folder of a run: it has no config.yaml")
    page = write_run_report(run)
    out.print(run_verdict(RunData.load(run), live=ask(run) is not None))
    out.print(f"wrote {page}")


@command(app, "eval", reads_config=True)
def eval_(
    path: Annotated[Path, Option(metavar="RUN_OR_POLICY")],  # A run, or a policy: its folder or file.
    *,
    env: Annotated[str | None, Option(show_default="the run's own")] = None,  # A task of 'plaudit env list'.
    episodes: Annotated[int, Option(min=1, max=100_000)] = 100,  # Episodes to run.
    # A reward model or a judge's file, besides the simulator.
    judge: Annotated[Path | None, Option(show_default="the run's own")] = None,
    # Also write videos; of a run, of the first and the last policy.
    video: Annotated[bool, Option("--video/--no-video")] = False,
    settings: EnvSettings = None,
) -> None:
    """Evaluate the latest policy of a run, or any policy, on test seeds of a simulated task.

    No evaluation during training uses these seeds. Prints the success rate with its confidence interval, by the
    simulator and, if there is one, by the judge.
    """
    from plaudit.registry import ENV_REGISTRY
    from plaudit.report.run import write_run_report
    from plaudit.report.run_data import RunData
    from plaudit.report.verdict import train_further
    from plaudit.training.evaluation import (
        env_config_for,
        evaluate_policy,
        evaluate_run,
        film_policy,
        find_judge,
        find_policy,
        record_videos,
        run_judge,
    )
    from plaudit.training.run_folder import RunFolder

    run = RunFolder.reopen(path) if (path / "config.yaml").is_file() else None
    if run is not None and env is None and judge is None and not settings:
        result = evaluate_run(run, episodes)
        out.print(result.verdict(path, train_further(RunData.load(path))))
        out.print(f"{path}: {result.describe()}; {episodes} test seeds")
        if video:
            for film in (*record_videos(run), write_run_report(path)):
                out.print(f"wrote {film}")
        return
    policy = find_policy(path)
    task = None if run is None else run.config.simulation
    if task is not None and env in (None, ENV_REGISTRY.name_of(task)):
        env = ENV_REGISTRY.name_of(task)
    else:
        task = None
    if env is None:
        raise DataError(
            f"name the task that {path} is to be evaluated on: --env lift, or another of 'plaudit env list'"
        )
    own_judge = None if run is None or judge is not None else run_judge(run)
    chosen = own_judge if judge is None else find_judge(judge)
    with keys_by_set():
        config = env_config_for(env, settings or [], policy, chosen, task)
    result = evaluate_policy(policy, config, episodes, chosen)
    out.print(result.verdict(path, task=env))
    out.print(f"{path} on {env}: {result.describe()}; {episodes} test seeds")
    if video:
        film = free_path(Path("runs/eval"), f"{path.resolve().stem}_{env}", ".mp4")
        out.print(f"wrote {film}" if film_policy(policy, config, chosen, film) else f"{env} has no images to film")


@command(app, "demo")
def demo(
    *,
    output_dir: Path = Path("runs/demo"),  # The folder to write.
    seed: Count = 0,  # Seed of everything random.
    obs: Literal["cameras", "state"] = "cameras",  # What the policy sees; state: the cube's position, no camera.
) -> None:
    """Run the whole pipeline in small, in two to four minutes.

    Collects labeled episodes, trains a reward model on their images, trains a policy on its labels, then measures the
    true success rate on test seeds. The policy sees two cameras and the arm's joints. Ctrl-C stops; the same command
    resumes.
    """
    from plaudit.judges.epochs import TrainingInterrupted
    from plaudit.training.demo import FROM_CAMERAS, FROM_STATE, MIN_SUCCESS_RATE, DemoDisplay, run_demo

    config = FROM_CAMERAS if obs == "cameras" else FROM_STATE
    try:
        result = run_demo(output_dir, DemoDisplay(out, progress, epochs_bar, training_bar), seed, config)
    except (KeyboardInterrupt, TrainingInterrupted):
        stop(f"stopped; resume with: plaudit demo --output-dir {output_dir} --seed {seed} --obs {obs}")
    if result.success_rate < MIN_SUCCESS_RATE:
        raise typer.Exit(1)
