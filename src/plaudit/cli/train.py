"""`plaudit train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, folder_name, out, progress, stop, tell, training_bar
from plaudit.errors import DataError


def train_(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="learner=sac env=lift scripted_demos=20 learner.lr=1e-3 ..."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file to start from, like those in examples/configs.")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run to resume.", metavar="RUN")] = None,
    reward_model: Annotated[
        Path | None, typer.Option(help="With --resume: continue with another reward model.", metavar="MODEL")
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder that run folders are written to.")] = Path("runs"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy in simulation.

    Writes a run folder with metrics, checkpoints, the policy's weights and report.html. Ctrl-C stops after the current
    rollout; --resume continues exactly where it stopped. Returns 1 when an audit alarm stopped the run.
    """
    from plaudit.report.run import write_run_report
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
    write_run_report(run.path)
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
    from plaudit.rollout.collector import EpisodeQuota

    kept = EpisodeQuota(Store.open(config.store), config.targets).kept
    out.print(f"{config.store} has {kept['success']} successes and {kept['failure']} failures")
    out.print(f"'plaudit data export {config.store} FOLDER --to npy' (or pkl) writes them as two folders")
