"""`plaudit train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, corrected_success, out, progress, stop, tell, training_bar
from plaudit.errors import DataError, PlauditError


def train_(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="env=lift learner=sac demos.scripted=20 learner.lr=1e-3 ..."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file to start from, like those in examples/configs.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="The folder of a run to resume; judge.model=MODEL continues with another.", metavar="RUN"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="The folder that run folders are written to.")] = Path("runs"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a policy in simulation.

    Writes a run folder with metrics, checkpoints, the policy and report.html. Ctrl-C stops after the current rollout,
    or the current update of a learner from replay; --resume continues exactly there. Returns 1 when an audit alarm
    stopped the run.
    """
    from plaudit.report.run import write_run_report
    from plaudit.training.config_file import load_training_config
    from plaudit.training.evaluation import record_videos
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.trainer import Trainer, check_run

    if resume is not None:
        run = _resumed(resume, config, overrides or [])
    else:
        wanted = load_training_config("train", config, overrides or [])
        for line in check_run(wanted):
            out.print(line)
        path = wanted.run.resume_dir
        run = RunFolder.resume_named(path, wanted) if path else RunFolder.create(folder / wanted.run_name, wanted)
    try:
        with Trainer(run, progress) as trainer:
            if trainer.judge.warning:
                tell("warning", trainer.judge.warning)
            collected = None if trainer.collection is None else trainer.collection.describe
            with training_bar(run.config, collected) as (callback, stopped):
                end = trainer.run(callback, stopped)
    except KeyboardInterrupt:
        stop(f"interrupted; resume from the last checkpoint with: plaudit train --resume {run.path}")
    except PlauditError:
        run.discard_if_empty()
        raise
    if not stopped():
        record_videos(run)
    write_run_report(run.path)
    success = "not evaluated yet" if end.eval_success is None else f"{end.eval_success:.0%} success on eval seeds"
    success += corrected_success(trainer.audit.metrics())
    out.print(f"{run.path}: {end.step:,} steps, {end.episodes:,} episodes, {success}; see {run.path / 'report.html'}")
    if run.config.collect is not None:
        _tell_collected(run.config.collect)
    if end.alarm is not None:
        _tell_alarm(run, end.alarm)
    if stopped():
        stop(f"stopped; resume with: plaudit train --resume {run.path}")


def _resumed(path: Path, config: Path | None, overrides: list[str]) -> Any:
    """The run in a folder, with another judge or another end where one is named."""
    from plaudit.training.config_file import load_training_config
    from plaudit.training.rollout_judge import with_judge
    from plaudit.training.run_folder import RunFolder

    judge = [one for one in overrides if one.startswith(("judge=", "judge."))]
    end = [one for one in overrides if one.startswith(("run.max_steps=", "run.max_episodes="))]
    if config is not None or len(judge) + len(end) < len(overrides):
        raise DataError(
            "--resume continues a run as it was configured; only judge=, judge.*, run.max_steps and run.max_episodes "
            "may be given with it"
        )
    run = RunFolder.reopen(path, "train")
    if end:
        run = run.with_config(load_training_config("train", run.path / "config.yaml", end))
    return with_judge(run, judge) if judge else run


def _tell_alarm(run: Any, message: str) -> None:
    if run.config.audit.on_alarm == "warn":
        tell("warning", message)
        return
    tell("alarm", message)
    out.print(f"then resume with: plaudit train --resume {run.path} judge.model=NEW")
    raise typer.Exit(1)


_TO_GET = {
    "success": "train longer (run.max_steps), with a dense reward (reward.env_reward=dense) or from demonstrations "
    "(demos.scripted), or let a script collect successes (plaudit collect STORE --env TASK)",
    "failure": "collect earlier in training, or let a script collect failures (plaudit collect STORE --env TASK)",
}


def _tell_collected(config: Any) -> None:
    from plaudit.data.store import Store
    from plaudit.rollout.collector import EpisodeQuota

    quota = EpisodeQuota(Store.open(config.store), config.targets)
    out.print(f"{config.store} has {quota.describe()}")
    for outcome in ("success", "failure"):
        if not quota.kept[outcome] and quota.missing(outcome) != 0:
            tell("warning", f"no {outcome} was collected, and a judge learns from both kinds; {_TO_GET[outcome]}")
    for folders in config.folders:
        out.print(f"they are also files in {folders.success} and {folders.failure}")
    if not config.folders:
        out.print(f"'plaudit data export {config.store} FOLDER --to npy' (or pkl) writes them as two folders")
