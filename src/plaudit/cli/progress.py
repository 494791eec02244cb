"""`plaudit train-progress`: how far a task has come, learned from demonstrations alone."""

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plaudit.cli.common import AllowCode, AllowHost, out, starting, stop, store_and_keys, tell
from plaudit.cli.reward import (
    BackboneOption,
    ConfigOption,
    DeviceOption,
    EpochsOption,
    ImageKeysOption,
    MembersOption,
    MinutesOption,
    SeedOption,
    SourcesOption,
    WordsArgument,
    check_job,
    train_job,
    training_episodes,
)

if TYPE_CHECKING:
    from plaudit.judges.classifier.fit import TrainResult

# What makes a reward model one of progress: no label of a failure is learned from, single frames are seen, and of three
# members the lowest counts.
_PROGRESS = {"predict_success": False, "predict_progress": True, "num_history_frames": 0, "ensemble_size": 3}

OutputOption = Annotated[Path, typer.Option("--output-dir", "-o", help="The folder to write; it must not exist.")]


def train_progress(
    words: WordsArgument = None,
    output: OutputOption = Path("runs/progress"),
    config: ConfigOption = None,
    backbone: BackboneOption = None,
    image_keys: ImageKeysOption = None,
    epochs: EpochsOption = None,
    members: MembersOption = None,
    sources: SourcesOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    minutes: MinutesOption = None,
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a judge of progress: a value from 0 to 1, from successful episodes alone.

    Episodes that have labels count as far as they come to a success; episodes without labels are demonstrations that
    end with it. Failures are left out. Ctrl-C stops it at once; the same command resumes. All keys:
    docs/reward_model.md.
    """
    begun = monotonic()
    with starting():
        from plaudit.judges.classifier.train_job import encoder_of, load_reward_train_job

    store, overrides = store_and_keys(words or [])
    given: dict[str, Any] = {
        "data": None if store is None else [store],
        "encoder": None if backbone is None else encoder_of(backbone),
        "image_keys": image_keys or None,
        "label_sources": None if sources is None else [source.strip() for source in sources.split(",")],
        "epochs": epochs,
        "ensemble_size": members,
        "seed": seed,
        "device": device,
        "max_minutes": minutes,
    }
    flags = _PROGRESS | {"output_dir": str(output)} | {key: value for key, value in given.items() if value is not None}
    job, notes = load_reward_train_job(config, flags, overrides)
    check_job(job)
    for note in notes:
        tell("note", note)
    try:
        with training_episodes(job) as episodes:
            fitted = train_job(episodes, job, begun)
    except KeyboardInterrupt:
        stop("interrupted; run the same command to resume")
    _print_result(fitted, job.output_dir)


def _print_result(fitted: "TrainResult", folder: Path) -> None:
    order = fitted.model.config.value_order
    out.print(
        f"{folder}: value order {order:.2f} on {len(fitted.predictions)} held-out episodes (the correlation of its "
        "values with time, up to the first success: 1 where they only rise)"
    )
    for problem in fitted.model.config.problems:
        tell("problem", f"a negative control failed, {problem}")
    out.print(
        f"the model is in {folder}: judge.progress={folder} reward.shaping=0.3 in plaudit train and online, --config "
        f"{folder} in plaudit label and judge; look at {folder / 'report.html'} first"
    )
