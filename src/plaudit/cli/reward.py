"""`plaudit train-reward`: a classifier that tells success from its images, and how far to trust it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from plaudit.cli.common import check_episodes, epochs_bar, out, progress, starting, stop, store_and_keys, tell
from plaudit.cli.data import RewardFrameOption, StateOption
from plaudit.cli.options import MAX_SEED, AllowCode, AllowHost, argument, option
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.data.formats import ReadOptions
    from plaudit.data.store import Store
    from plaudit.judges.classifier.budget import Choice
    from plaudit.judges.classifier.fit import TrainResult
    from plaudit.judges.classifier.train_job import RewardTrainJob

# Flags that are handed on as they are, by the keys of a RewardTrainJob.
_SAME = ("image_keys", "batch_size", "epochs", "lr", "hidden_dim", "latent_dim", "num_spatial_blocks", "use_state")
_KEYS = {
    **{
        name: name
        for name in (*_SAME, "history_stride", "target_fpr", "promise_confidence", "seed", "device", "reward_frame")
    },
    "members": "ensemble_size",
    "history": "num_history_frames",
    "progress_": "predict_progress",
    "minutes": "max_minutes",
}


WordsArgument = Annotated[
    list[str] | None,
    argument(
        "A store or a data set of another layout; then keys of the config, like augment.shift=0.1.",
        metavar="[STORE] [KEY=VALUE]...",
    ),
]
ConfigOption = Annotated[
    Path | None, option("YAML or JSON: our keys, or the config of another stack (docs/reward_model.md).")
]
BackboneOption = Annotated[
    str | None,
    option(
        "resnet10, efficientnet_lite0, small, keypoints, torchvision:NAME or transformers:NAME_OR_FOLDER.",
        show_default="efficientnet_lite0; resnet10 for folders of .npy",
    ),
]
ImageKeysOption = Annotated[
    list[str] | None, option("Camera to use; may be given several times. All cameras when not given.", "--image-key")
]
EpochsOption = Annotated[
    int | None, option("Maximum number; training stops early when the validation loss stops falling.", min=1)
]
MembersOption = Annotated[
    int | None, option("Ensemble size; the lowest probability of its members counts.", min=1, max=1000)
]
TargetFprOption = Annotated[
    float | None, option("False-positive rate (frames) that the threshold is chosen for.", min=1e-6, max=1)
]
SourcesOption = Annotated[str | None, option("Sources of the labels to train on, like 'human,cutoff'.")]
SeedOption = Annotated[int | None, option("Seed of everything random.", min=0, max=MAX_SEED)]
DeviceOption = Annotated[str | None, option("cpu, cuda or cuda:1; a GPU if there is one when not given.")]
MinutesOption = Annotated[
    float | None,
    option(
        "Maximum time of the command. On a CPU, settings that are not given are chosen to fit; a time that is too "
        "short is refused before training.",
        min=0,
        max=1e6,
        show_default="about 10 on a CPU, no limit",
    ),
]


def train_reward(
    context: typer.Context,
    words: WordsArgument = None,
    config: ConfigOption = None,
    output_dir: Annotated[
        Path | None, option("The folder to write; runs/reward_model when not given.", "--output-dir", "-o")
    ] = None,
    positive_dir: Annotated[
        Path | None, option("A folder of .npy trajectories that succeed, in place of a store.")
    ] = None,
    negative_dir: Annotated[Path | None, option("A folder of .npy trajectories that fail.")] = None,
    output_checkpoint: Annotated[Path | None, option("Also write the model as one .pt file.")] = None,
    backbone: BackboneOption = None,
    pretrained_encoder_path: Annotated[
        Path | None, option("Pretrained weights of the backbone; for resnet10, any of the published files.")
    ] = None,
    freeze_encoder: Annotated[
        Literal["true", "stem", "false"] | None, option("Freeze the encoder, its first layers (stem) or nothing.")
    ] = None,
    image_keys: ImageKeysOption = None,
    image_size: Annotated[
        tuple[int, int, int] | None, option("Resize images to this; not resized when not given.", metavar="C H W")
    ] = None,
    batch_size: Annotated[int | None, option("Frames in a batch, half of them successes.", min=2, max=65_536)] = None,
    epochs: EpochsOption = None,
    lr: Annotated[float | None, option("Learning rate; follows a cosine schedule to zero.", min=0, max=10)] = None,
    hidden_dim: Annotated[int | None, option("Width of the classifier head.", min=1, max=65_536)] = None,
    latent_dim: Annotated[int | None, option("Size of one camera's embedding.", min=1, max=65_536)] = None,
    num_spatial_blocks: Annotated[
        int | None, option("Number of learned spatial embeddings of each channel.", min=1, max=65_536)
    ] = None,
    members: MembersOption = None,
    use_state: Annotated[bool | None, option("Use the robot's state as an input too.", "--use-state")] = None,
    state: StateOption = None,
    reward_frame: RewardFrameOption = None,
    history: Annotated[int | None, option("Number of earlier frames to use as input too.", min=0, max=1000)] = None,
    history_stride: Annotated[int | None, option("Steps between these frames.", min=1, max=10_000)] = None,
    progress_: Annotated[bool | None, option("Also predict task progress, for reward shaping.", "--progress")] = None,
    target_fpr: TargetFprOption = None,
    promise_confidence: Annotated[
        float | None, option("How sure that rate must be on episodes to come.", min=0.5, max=1, show_default="0.9")
    ] = None,
    sources: SourcesOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    minutes: MinutesOption = None,
    visualize_positive: Annotated[
        bool, option("Write every success frame as an image before training.", "--visualize-positive")
    ] = False,
    vis_output_dir: Annotated[Path, option("Folder of these images.")] = Path("positive_samples_vis"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a reward model: a classifier of success, from labeled episodes.

    Some episodes are held out to choose its threshold, others to test it; report.html in its folder shows how far to
    trust it. Ctrl-C stops it at once; the same command resumes. All keys: docs/reward_model.md.
    """
    begun = monotonic()
    with starting():
        from plaudit.judges.classifier.train_job import load_reward_train_job

    store, overrides = store_and_keys(words or [])
    folders = positive_dir is not None or negative_dir is not None
    flags = _flags(context.params) | _data(store, positive_dir, negative_dir)
    job, notes = load_reward_train_job(config, flags, overrides, folders=folders)
    check_job(job)
    for note in notes:
        tell("note", note)
    try:
        with training_episodes(job, state or ()) as episodes:
            if visualize_positive:
                _visualize(episodes, job, vis_output_dir)
            fitted = train_job(episodes, job, begun)
    except KeyboardInterrupt:
        stop("interrupted; run the same command to resume")
    _print_result(fitted, job)


def check_job(job: "RewardTrainJob") -> None:
    """Refuse, before anything is decoded, outputs that exist and inputs that do not."""
    from plaudit.training.reward_model import check_output_path

    check_output_path(job.output_dir, "--output-dir")
    if job.output_checkpoint is not None:
        check_output_path(job.output_checkpoint, "--output-checkpoint")
    if not job.data:
        raise DataError("name a store or a data set to learn from, or --positive-dir and --negative-dir")
    for path in job.data:
        check_episodes(path)
    job.encoder.build()  # its weights are there and fit


def _data(store: str | None, positive: Path | None, negative: Path | None) -> dict[str, Any]:
    if (positive is None) != (negative is None):
        raise DataError("--positive-dir and --negative-dir belong together; give both")
    if positive is not None and store is not None:
        raise DataError(f"name {store}, or --positive-dir and --negative-dir, not both")
    given = [str(path) for path in (store, positive, negative) if path is not None]
    return {"data": given} if given else {}


def _flags(params: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the keys of a RewardTrainJob."""
    from plaudit.judges.classifier.train_job import encoder_of

    flags = {key: params[flag] for flag, key in _KEYS.items() if params[flag] not in (None, [])}
    for flag in ("output_dir", "output_checkpoint"):
        if params[flag] is not None:
            flags[flag] = str(params[flag])
    if params["sources"] is not None:
        flags["label_sources"] = [source.strip() for source in params["sources"].split(",")]
    if params["freeze_encoder"] is not None:
        flags["freeze_encoder"] = {"true": True, "false": False}.get(params["freeze_encoder"], "stem")
    if params["image_size"] is not None:
        channels, *size = params["image_size"]
        if channels != 3:
            raise DataError(f"--image-size takes channels, height and width; images have 3 channels, not {channels}")
        flags["image_size"] = size
    encoder = {} if params["backbone"] is None else encoder_of(params["backbone"])
    if params["pretrained_encoder_path"] is not None:
        encoder["weights"] = str(params["pretrained_encoder_path"])
    return flags | ({"encoder": encoder} if encoder else {})


@contextmanager
def training_episodes(job: "RewardTrainJob", state: Sequence[str] = ()) -> Iterator["Store"]:
    """The store; a data set of another layout as one that is there for as long as it is needed."""
    from plaudit.data.store import Store, is_store
    from plaudit.judges.classifier.fit import existing_parent

    stores = [path for path in job.data if is_store(path)]
    if stores and len(job.data) > 1:
        raise DataError(f"{stores[0]} is a store, and one store at a time is learned from; name it alone")
    if stores:
        yield _with_labels(Store.open(stores[0]), job)
        return
    scratch = existing_parent(job.output_dir) / f".{job.output_dir.name}.import"
    shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
    try:
        yield _with_labels(_imported(job, state, scratch), job)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _with_labels(store: "Store", job: "RewardTrainJob") -> "Store":
    """The store, if its labels are such that a model can learn from them."""
    from plaudit.judges.classifier.dataset import check_labels

    shares = (job.seed, job.val_fraction, job.test_fraction)
    check_labels(store, job.label_sources, *shares, demonstrations=not job.predict_success)
    return store


def _imported(job: "RewardTrainJob", state: Sequence[str], scratch: Path) -> "Store":
    """Into a folder under the first source's name, which is what messages call it; no more than is learned from."""
    from plaudit.data.formats import ReadOptions
    from plaudit.data.store import Store
    from plaudit.data.transfer import import_dataset

    sources = job.data
    columns = state if job.use_state else ("none",)
    options = ReadOptions(job.reward_frame, state=columns, action=("none",), cameras=job.image_keys or ())
    folder, labeled = scratch / sources[0].name, 0
    if job.predict_success and not any(_has_labels(source, options, job) for source in sources):
        raise DataError(_no_labels(sources[0]))
    imported: dict[Path, Sequence[int]] = {}
    for source in sources:
        report = import_dataset(source, folder, options, progress(f"importing {source.name}"), takes=job.takes)
        imported[source] = report.ids
        labeled += report.labeled
        for sentence in report.notes:
            tell("note", sentence)
        for sentence in report.failed:
            tell("warning", sentence)
    if not labeled and job.predict_success:
        raise DataError(_no_labels(sources[0]))
    store = Store.open(folder)
    for source, ids in imported.items():
        _print_directory(source, store, ids)
    return store


def _has_labels(source: Path, options: "ReadOptions", job: "RewardTrainJob") -> bool:
    """Whether an episode of a data set has labels; no image is decoded. What cannot be read is left to the import,
    which reports it."""
    from plaudit.data.formats.decoder import open_in_worker

    with open_in_worker(source, options) as dataset:
        try:
            return any(entry.has_labels() for entry in dataset.sources if job.takes(entry.index))
        except DataError:
            return True


def _no_labels(source: Path) -> str:
    from plaudit.data.store import is_store
    from plaudit.data.transfer import store_beside

    store = store_beside(source)
    if is_store(store):
        return f"{source} has no labels of its own; those that were given to it here are in {store}, so name that store"
    return f"{source} has no labels; label it (plaudit label {source} --judge human), then name {store}"


def _print_directory(source: Path, store: "Store", ids: Sequence[int]) -> None:
    """How many trajectories and frames a folder had, and how many of each label."""
    labels = [found for i in ids if (found := store.ledger.labels(i)) is not None]
    success = sum(int(found.success.sum()) for found in labels)
    frames = sum(int(found.labeled.sum()) for found in labels)
    out.print(
        f"{source}: {len(ids):,} trajectories, {frames:,} frames; label=1: {success:,}, label=0: {frames - success:,}"
    )


def _visualize(episodes: "Store", job: "RewardTrainJob", folder: Path) -> None:
    from plaudit.report.sheet import visualize_positives

    cameras = job.image_keys or sorted(episodes.episode(episodes.ids[0]).frames)
    count = visualize_positives(episodes, folder, cameras, job.label_sources, progress("drawing"))
    out.print(f"{folder} shows {count} success frames")


def train_job(episodes: "Store", job: "RewardTrainJob", begun: float) -> "TrainResult":
    """Train and save, with a progress bar; a stop ends the command.

    begun: when the command began, by the monotonic clock: `--minutes` counts from there
    """
    from plaudit.judges.classifier.rlinf import save_rlinf_checkpoint
    from plaudit.judges.epochs import TrainingInterrupted
    from plaudit.training.reward_model import train_and_save, work_folder

    if len(episodes):
        job.check_cameras(sorted(episodes.episode(episodes.ids[0]).frames))
    try:
        with epochs_bar(job.epochs) as (watch, _):
            tell_choice = partial(_tell_choice, job)
            fitted = train_and_save(episodes, job.output_dir, job.training, watch, progress, watch, tell_choice, begun)
    except TrainingInterrupted:
        stop(f"stopped; run the same command to resume from {work_folder(job.output_dir)}")
    if job.output_checkpoint is not None:
        save_rlinf_checkpoint(job.output_checkpoint, fitted.model, fitted.history, fitted.optimizers[0])
    return fitted


def _tell_choice(job: "RewardTrainJob", choice: "Choice") -> None:
    how = "--minutes limits the time"
    if job.training.enforce_max_minutes and job.max_minutes and choice.seconds > 60 * job.max_minutes:
        how = f"it ends after {job.max_minutes:g}, with the best epoch so far"
    tell("note", f"training on the CPU with {choice}; {how}")
    if choice.settings.get("freeze_encoder"):
        tell("note", "on a GPU, freeze_encoder=false --members 3 trains the encoder too, and is better")


def _print_result(fitted: "TrainResult", job: "RewardTrainJob") -> None:
    from plaudit.report.judge import first_frame_warning, forecast_table, judge_table

    scores, problems = fitted.metrics, fitted.model.config.problems
    held = f"{job.output_dir}: measured on {scores.episodes:,} held-out episodes, {scores.frames:,} frames"
    out.print(judge_table(held, scores, fitted.controls))
    forecast, promise = fitted.model.config.forecast, fitted.model.config.promise
    if forecast is not None:
        out.print(forecast_table(forecast))
        tell("note" if forecast.cross_fitted else "warning", forecast.describe())
    if promise is not None:
        tell("note" if promise.kept else "warning", promise.describe())
    if scores.first_frame_fp:
        tell("warning", first_frame_warning(scores))
    for problem in problems:
        tell("problem", f"a negative control failed, {problem}")
    if problems:
        how = "judge.force=true"
        out.print(Text(f"the model is saved and marked: it is refused as a judge unless forced ({how})", "red"))
    file = "" if job.output_checkpoint is None else f" and {job.output_checkpoint}"
    out.print(f"the model is in {job.output_dir}{file}; look at {job.output_dir / 'report.html'} before you trust it")


# What makes a reward model one of progress: no label of a failure is learned from, single frames are seen, and of three
# members the lowest counts.
_PROGRESS = {"predict_success": False, "predict_progress": True, "num_history_frames": 0, "ensemble_size": 3}


def train_progress(
    words: WordsArgument = None,
    output: Annotated[Path, option("The folder to write; it must not exist.", "--output-dir", "-o")] = Path(
        "runs/progress"
    ),
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
    _print_progress_result(fitted, job.output_dir)


def _print_progress_result(fitted: "TrainResult", folder: Path) -> None:
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
