"""`plaudit train` and `plaudit demo`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, epochs_bar, folder_name, out, progress, stop, tell, training_bar
from plaudit.errors import DataError
from plaudit.untrusted import understood


def train_(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="learner=sac env=lift scripted_demos=20 learner.lr=1e-3 ..."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file to start from; see examples/configs.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to go on with.", metavar="RUN")] = None,
    reward_model: Annotated[
        Path | None, typer.Option(help="With --resume: go on with another reward model in charge.", metavar="MODEL")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where runs are put.")] = Path("runs"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy in a simulation.

    Writes a run folder with metrics, checkpoints, the policy's weights and a report. Ctrl-C stops after the round at
    hand, and --resume goes on as if it had not. Returns 1 when a run was stopped because its reward model is not to be
    trusted any more.
    """
    from plaudit.report.run import write_report
    from plaudit.training.config import load_train_config
    from plaudit.training.evaluation import film
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.trainer import train

    if resume is not None and (overrides or config):
        raise DataError("--resume goes on with a run as it was configured; leave out the other arguments")
    if resume is None and reward_model is not None:
        raise DataError(f"--reward-model goes with --resume; for a new run write reward.model={reward_model}")
    if resume is not None:
        run = RunFolder.reopen(resume)
        run = run if reward_model is None else run.hand_over(reward_model)
    else:
        asked = load_train_config(config, overrides or [])
        name = asked.name or folder_name(f"{asked.env_name}_{asked.learner_name}_{asked.seed}")
        run = RunFolder.create(folder / name, asked)
    for sentence in run.introduction:
        out.print(sentence)
    try:
        with training_bar(run.config.steps) as (watch, stopped):
            end = train(run, watch, progress)
    except KeyboardInterrupt:
        stop(f"interrupted; go on from the last checkpoint with: plaudit train --resume {run.path}")
    if not stopped():
        film(run)
    with understood(run.path):
        write_report(run.path)
    held = "not evaluated yet" if end.evaluated is None else f"{end.evaluated:.0%} success on seeds held back"
    out.print(f"{run.path}: {end.step:,} steps, {end.episodes:,} episodes, {held}; see {run.path / 'report.html'}")
    if run.config.collect is not None:
        _tell_collected(run.config.collect)
    if end.alarm is not None:
        _tell_alarm(run, end.alarm)
    if stopped():
        stop(f"stopped; go on with: plaudit train --resume {run.path}")


def _tell_alarm(run: Any, sentence: str) -> None:
    if run.config.reward.on_alarm == "warn":
        tell("warning", sentence)
        return
    tell("alarm", sentence)
    out.print(f"then go on with: plaudit train --resume {run.path} --reward-model NEW")
    raise typer.Exit(1)


def _tell_collected(config: Any) -> None:
    from plaudit.data.store import Store
    from plaudit.rollout.collect import Intake

    kept = Intake(Store.open(config.store), config.targets).kept
    out.print(f"{config.store} has {kept['success']} successes and {kept['failure']} failures")
    out.print(f"'plaudit data export {config.store} FOLDER --to npy' (or pkl) writes them as two folders")


def demo(
    folder: Annotated[Path, typer.Option(help="Where to put everything.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everything random.")] = 0,
) -> None:
    """Run the whole way in small, in two to three minutes.

    Collects labelled episodes, trains a reward model on their images, trains a policy with that model in charge, then
    counts its true successes on fresh seeds. Ctrl-C stops, and the same command goes on.
    """
    from plaudit.demo import BAR, Screen, run_demo
    from plaudit.judges.classifier.training import Stopped

    try:
        outcome = run_demo(folder, Screen(out, progress, epochs_bar, training_bar), seed)
    except (KeyboardInterrupt, Stopped):
        stop(f"stopped; go on with: plaudit demo --folder {folder} --seed {seed}")
    if outcome.success < BAR:
        tell("problem", f"that is below the bar of {BAR:.0%}")
        raise typer.Exit(1)
