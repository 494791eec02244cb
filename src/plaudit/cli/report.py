"""`plaudit report`, `plaudit eval` and `plaudit demo`."""

from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli.common import epochs_bar, free_path, out, progress, stop, tell, training_bar
from plaudit.cli.env import SetOption, keys_by_set
from plaudit.cli.options import AllowCode, AllowHost, argument, option
from plaudit.errors import DataError


def report(run: Annotated[Path, argument("The folder of a run, like runs/lift_sac_0.")]) -> None:
    """Write report.html of a run, also while it is in progress."""
    from plaudit.report.run import write_run_report

    if not (run / "config.yaml").exists():
        raise DataError(f"{run} is not the folder of a run: it has no config.yaml")
    out.print(f"wrote {write_run_report(run)}")


def eval_(
    path: Annotated[Path, argument("A run, or a policy: its folder or file.", metavar="RUN_OR_POLICY")],
    name: Annotated[str | None, option("A task of 'plaudit env list'.", "--env", show_default="the run's own")] = None,
    episodes: Annotated[int, option("Episodes to run.", min=1, max=100_000)] = 100,
    judge: Annotated[
        Path | None, option("A reward model or a judge's file, besides the simulator.", show_default="the run's own")
    ] = None,
    video: Annotated[bool, option("Also write videos; of a run, of the first and the last policy.")] = False,
    settings: SetOption = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Evaluate the latest policy of a run, or any policy, on test seeds of a simulated task.

    No evaluation during training uses these seeds. Prints the success rate with its confidence interval, by the
    simulator and, if there is one, by the judge.
    """
    is_run = (path / "config.yaml").is_file()
    if is_run and name is None and judge is None and not settings:
        _eval_run(path, episodes, video)
    else:
        _eval_policy(path, is_run, name, episodes, judge, video, settings or [])


def _eval_run(run: Path, episodes: int, video: bool) -> None:
    from plaudit.report.run import write_run_report
    from plaudit.training.evaluation import evaluate_run, record_videos
    from plaudit.training.run_folder import RunFolder

    folder = RunFolder.reopen(run)
    out.print(f"{run}: {evaluate_run(folder, episodes).describe()}; {episodes} test seeds")
    if video:
        for path in record_videos(folder):
            out.print(f"wrote {path}")
        out.print(f"wrote {write_run_report(run)}")


def _eval_policy(
    path: Path, is_run: bool, name: str | None, episodes: int, judge: Path | None, video: bool, settings: list[str]
) -> None:
    from plaudit.registry import ENV_REGISTRY
    from plaudit.training.evaluation import (
        env_config_for,
        evaluate_policy,
        film_policy,
        find_judge,
        find_policy,
        run_judge,
    )
    from plaudit.training.run_folder import RunFolder

    policy = find_policy(path)
    run = RunFolder.reopen(path) if is_run else None
    task = None if run is None else run.config.simulation
    if task is not None and name in (None, ENV_REGISTRY.name_of(task)):
        name = ENV_REGISTRY.name_of(task)
    else:
        task = None
    if name is None:
        raise DataError(
            f"name the task that {path} is to be evaluated on: --env lift, or another of 'plaudit env list'"
        )
    own_judge = None if run is None or judge is not None else run_judge(run)
    chosen = own_judge if judge is None else find_judge(judge)
    with keys_by_set():
        env = env_config_for(name, settings, policy, chosen, task)
    result = evaluate_policy(policy, env, episodes, chosen)
    out.print(f"{path} on {name}: {result.describe()}; {episodes} test seeds")
    if video:
        film = free_path(Path("runs/eval"), f"{path.resolve().stem}_{name}", ".mp4")
        out.print(f"wrote {film}" if film_policy(policy, env, chosen, film) else f"{name} has no images to film")


def demo(
    folder: Annotated[Path, option("The folder to write.", "--output-dir", "-o")] = Path("runs/demo"),
    seed: Annotated[int, option("Seed of everything random.", min=0)] = 0,
) -> None:
    """Run the whole pipeline in small, in two to four minutes.

    Collects labeled episodes, trains a reward model on their images, trains a policy on its labels, then measures the
    true success rate on test seeds. Ctrl-C stops; the same command resumes.
    """
    from plaudit.judges.epochs import TrainingInterrupted
    from plaudit.training.demo import MIN_SUCCESS_RATE, DemoDisplay, run_demo

    try:
        result = run_demo(folder, DemoDisplay(out, progress, epochs_bar, training_bar), seed)
    except (KeyboardInterrupt, TrainingInterrupted):
        stop(f"stopped; resume with: plaudit demo --output-dir {folder} --seed {seed}")
    if result.success_rate < MIN_SUCCESS_RATE:
        tell("problem", f"that is below {MIN_SUCCESS_RATE:.0%}")
        raise typer.Exit(1)
