"""`plaudit train-reward` and `plaudit train-progress`."""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from plaudit.cli.common import check_episodes, episodes_folder, epochs_bar, out, progress, stop, store_and_keys, tell
from plaudit.cli.data import StateColumns
from plaudit.cli.options import Flag, Option, app, command, config_command, split_names
from plaudit.errors import DataError, UnclearDataset

if TYPE_CHECKING:
    from plaudit.data.formats import ReadOptions
    from plaudit.data.store import Store
    from plaudit.judges.classifier.budget import Choice
    from plaudit.judges.classifier.fit import TrainResult
    from plaudit.judges.classifier.train_job import RewardTrainJob

_JOB = "plaudit.judges.classifier.train_job:RewardTrainJob"


def _encoder(backbone: str) -> dict[str, Any]:
    from plaudit.judges.classifier.train_job import encoder_of

    return encoder_of(backbone)


def _image_size(size: tuple[int, int, int]) -> tuple[int, int]:
    if size[0] != 3:
        raise DataError(f"--image-size takes channels, height and width; images have 3 channels, not {size[0]}")
    return size[1:]


_SHARED_FLAGS = (
    Flag("image_keys", "Camera to use; repeatable.", "--image-key", default="all cameras"),
    Flag("label_sources", "Sources of the labels to train on, like 'human,cutoff'.", "--sources", "", str, split_names),
    Flag(
        "encoder",
        "resnet10, efficientnet_lite0, small, keypoints, torchvision:NAME or transformers:NAME_OR_FOLDER.",
        "--backbone",
        "efficientnet_lite0; resnet10 for folders of .npy",
        kind=str,
        convert=_encoder,
    ),
    Flag("epochs", "Maximum number of epochs. Training stops early when the validation loss stops falling."),
    Flag("ensemble_size", "Ensemble size; the lowest probability of its members counts.", "--members"),
    Flag("seed", "Random seed."),
    Flag("device", "cpu, cuda or cuda:1.", default="a GPU if there is one"),
    Flag(
        "max_minutes",
        "Maximum time of the command. On a CPU, settings that are not given are chosen to fit. A time that is too "
        "short is refused before training.",
        "--minutes",
        default="about 10 on a CPU, else no limit",
    ),
)
TrainRewardCommand = config_command(
    _JOB,
    *_SHARED_FLAGS,
    Flag("output_checkpoint", "Also write the model as one .pt file.", kind=Path, convert=str),
    Flag(
        "freeze_encoder",
        "Freeze the encoder, its first layers (stem) or nothing.",
        kind=Literal["true", "stem", "false"],
        convert=lambda value: {"true": True, "false": False}.get(value, "stem"),
    ),
    Flag(
        "image_size",
        "Resize images to this; not resized when not given.",
        kind=tuple[int, int, int],
        convert=_image_size,
        metavar="C H W",
    ),
    Flag("batch_size", "Frames in a batch, half of them successes."),
    Flag("lr", "Learning rate; follows a cosine schedule to zero."),
    Flag("hidden_dim", "Width of the classifier head."),
    Flag("latent_dim", "Size of one camera's embedding."),
    Flag("num_spatial_blocks", "Number of learned spatial embeddings of each channel."),
    Flag("use_state", "Use the robot's state as an input too."),
    Flag("reward_frame", "LeRobot: whether next.reward is about the next frame or the row's own.", default="as stored"),
    Flag("num_history_frames", "Number of earlier frames to use as input too.", "--history"),
    Flag("history_stride", "Steps between these frames."),
    Flag("predict_progress", "Also predict task progress, for reward shaping.", "--progress"),
    Flag("target_fpr", "False-positive rate (frames) that the threshold is chosen for."),
    Flag("promise_confidence", "Confidence that this rate holds on new episodes."),
)
# A model of progress learns from no failures and sees single frames; of three members the lowest value counts.
_PROGRESS = {"predict_success": False, "predict_progress": True, "num_history_frames": 0, "ensemble_size": 3}
TrainProgressCommand = config_command(
    _JOB, *(replace(flag, default="3") if flag.key == "ensemble_size" else flag for flag in _SHARED_FLAGS)
)

Words = Annotated[
    list[str] | None,
    Option(
        metavar="[STORE] [KEY=VALUE]...",
        help="A store or a data set of another layout, then keys of the config, like augment.shift=0.1.",
    ),
]
JobFile = Annotated[
    Path | None, Option(help="YAML or JSON: our keys, or the config of another stack (docs/reward_model.md).")
]


@command(app, "train-reward", reads_config=True, cls=TrainRewardCommand)
def train_reward(
    context: typer.Context,
    words: Words = None,
    *,
    config: JobFile = None,
    output_dir: Path | None = None,  # The folder to write; runs/reward_model when not given.
    positive_dir: Path | None = None,  # A folder of successful .npy trajectories, instead of a store.
    negative_dir: Path | None = None,  # A folder of failed .npy trajectories.
    # Pretrained weights of the backbone; for resnet10, any of the published files.
    pretrained_encoder_path: Path | None = None,
    state: StateColumns = None,
    visualize_positive: bool = False,  # Write every success frame as an image before training.
    vis_output_dir: Path = Path("positive_samples_vis"),  # Folder of these images.
) -> None:
    """Train a reward model: a success classifier, from labeled episodes.

    Some episodes are held out to choose its threshold, and others to test it. report.html in its folder shows how
    reliable it is. Ctrl-C stops at once; the same command resumes. All keys: docs/reward_model.md.
    """
    if (positive_dir is None) != (negative_dir is None):
        raise DataError("--positive-dir and --negative-dir belong together; give both")
    store, overrides = store_and_keys(words or [])
    if positive_dir is not None and store is not None:
        raise DataError(f"name {store}, or --positive-dir and --negative-dir, not both")
    flags = dict(context.obj)
    if output_dir is not None:
        flags["output_dir"] = str(output_dir)
    if pretrained_encoder_path is not None:
        flags["encoder"] = {**flags.get("encoder", {}), "weights": str(pretrained_encoder_path)}
    job = _load_job(config, flags, [store, positive_dir, negative_dir], overrides)
    fitted = _train(job, context.meta["began"], state or (), vis_output_dir if visualize_positive else None)
    _print_result(fitted, job)


@command(app, "train-progress", reads_config=True, cls=TrainProgressCommand)
def train_progress(
    context: typer.Context,
    words: Words = None,
    *,
    config: JobFile = None,
    output_dir: Path = Path("runs/progress"),  # The folder to write; it must not exist.
) -> None:
    """Train a progress judge, which returns a value from 0 to 1, from successful episodes alone.

    Labeled episodes are used up to their success. Episodes without labels are used as demonstrations that end with
    success. Failures are left out. Ctrl-C stops at once; the same command resumes. All keys: docs/reward_model.md.
    """
    store, overrides = store_and_keys(words or [])
    job = _load_job(config, _PROGRESS | {"output_dir": str(output_dir)} | context.obj, [store], overrides)
    fitted = _train(job, context.meta["began"])
    from plaudit.training.reward_model import model_verdict

    out.print(model_verdict(fitted, output_dir, job.data[0]))
    out.print(
        f"{output_dir}: value order {fitted.model.config.value_order:.2f} on held-out episodes, up to the success"
    )
    for problem in fitted.model.config.problems:
        tell("problem", f"a negative control failed, {problem}")
    out.print(f"the model is in {output_dir}; look at {output_dir / 'report.html'} first")
    out.print(f"in plaudit train and online: judge.progress={output_dir} reward.shaping=0.3")
    out.print(f"in plaudit label and judge: --config {output_dir}")


def _load_job(
    config: Path | None, flags: dict[str, Any], data: Sequence[str | Path | None], overrides: Sequence[str]
) -> "RewardTrainJob":
    """The job of the file, the flags and the overrides, checked. data: a store, or two folders of trajectories"""
    from plaudit.data.transfer import check_new
    from plaudit.judges.classifier.train_job import load_reward_train_job

    paths = [str(path) for path in data if path is not None]
    flags |= {"data": paths} if paths else {}
    job, notes = load_reward_train_job(config, flags, overrides, folders=len(paths) > 1)
    check_new(job.output_dir, option="--output-dir")
    if job.output_checkpoint is not None:
        check_new(job.output_checkpoint, option="--output-checkpoint")
    if not job.data:
        raise DataError("name a store or a data set to learn from, or --positive-dir and --negative-dir")
    for path in job.data:
        check_episodes(path)
    job.encoder.build()  # its weights are there and fit
    tell("note", *notes)
    return job


def _train(
    job: "RewardTrainJob", begun: float, state: Sequence[str] = (), drawn_to: Path | None = None
) -> "TrainResult":
    """Train and save, with a progress bar; a stop ends the command.

    begun: when the command began, by the monotonic clock: `--minutes` counts from there
    drawn_to: a folder for images of all success frames
    """
    from plaudit.judges.classifier.dataset import check_labels
    from plaudit.judges.classifier.rlinf import save_rlinf_checkpoint
    from plaudit.judges.epochs import TrainingInterrupted
    from plaudit.report.video import visualize_positives
    from plaudit.training.reward_model import train_and_save, work_folder

    def tell_choice(choice: "Choice") -> None:
        how = "--minutes limits the time"
        if job.training.enforce_max_minutes and job.max_minutes and choice.seconds > 60 * job.max_minutes:
            how = f"it ends after {job.max_minutes:g}, with the best epoch so far"
        tell("note", f"training on the CPU with {choice}; {how}")
        if choice.settings.get("freeze_encoder"):
            tell("note", "on a GPU, freeze_encoder=false --members 3 trains the encoder too, and is better")

    try:
        with _training_episodes(job, state) as store, epochs_bar(job.epochs) as (watch, _):
            shares = (job.seed, job.val_fraction, job.test_fraction)
            check_labels(store, job.label_sources, *shares, demonstrations=not job.predict_success)
            cameras = sorted(store.episode(store.ids[0]).frames) if len(store) else []
            if drawn_to is not None:
                chosen = job.image_keys or cameras
                count = visualize_positives(store, drawn_to, chosen, job.label_sources, progress("drawing"))
                out.print(f"{drawn_to} shows {count} success frames")
            if cameras:
                job.check_cameras(cameras)
            fitted = train_and_save(store, job.output_dir, job.training, watch, progress, tell_choice, begun)
    except TrainingInterrupted:
        stop(f"stopped; run the same command to resume from {work_folder(job.output_dir)}")
    except KeyboardInterrupt:
        stop("interrupted; run the same command to resume")
    if job.output_checkpoint is not None:
        save_rlinf_checkpoint(job.output_checkpoint, fitted.model, fitted.history, fitted.optimizers[0])
    return fitted


@contextmanager
def _training_episodes(job: "RewardTrainJob", state: Sequence[str]) -> Iterator["Store"]:
    """The store; a data set of another layout is imported into one that is there for as long as it is needed."""
    from plaudit.data.store import Store, is_store
    from plaudit.judges.classifier.fit import existing_parent

    stores = [path for path in job.data if is_store(path)]
    if stores and len(job.data) > 1:
        raise DataError(f"{stores[0]} is a store, and one store at a time is learned from; name it alone")
    if stores and (job.episodes is not None or job.exclude_episodes):
        raise DataError(
            f"episodes and exclude_episodes choose from a data set, and {stores[0]} is a store. Leave them out, and "
            f"exclude episodes by hand: plaudit label {stores[0]} --judge human"
        )
    if stores:
        yield Store.open(stores[0])
        return
    if (folder := _decoded(job, state)) is not None:
        yield Store.open(folder)
        return
    scratch = existing_parent(job.output_dir) / f".{job.output_dir.name}.import"
    shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
    try:
        yield _imported(job, state, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _decoded(job: "RewardTrainJob", state: Sequence[str]) -> Path | None:
    """The store next to a LeRobot data set, with the labels that were given to it here.

    None where episodes have to be imported for this training alone: folders of trajectories, chosen episodes, a place
    that cannot be written to, a data set that does not say which columns are states and actions.
    """
    from plaudit.data.formats import ReadOptions, layout_of, lerobot
    from plaudit.data.store import is_store
    from plaudit.data.transfer import store_beside

    source, *others = job.data
    if others or layout_of(source) is not lerobot or job.episodes is not None or job.exclude_episodes:
        return None
    options, store = ReadOptions(job.reward_frame, state=state), store_beside(source)
    if not is_store(store):
        if not os.access(store.parent, os.W_OK):
            return None
        _check_labeled(job, options)
    try:
        return episodes_folder(source, options)
    except UnclearDataset:
        return None


def _check_labeled(job: "RewardTrainJob", options: "ReadOptions") -> None:
    """Refuse data sets without labels before an image is decoded. The import reports what cannot be read."""
    from plaudit.data.formats.decoder import open_in_worker

    for source in job.data if job.predict_success else ():
        with open_in_worker(source, options) as dataset:
            try:
                if any(entry.has_labels() for entry in dataset.sources if job.takes(entry.index)):
                    return
            except DataError:
                return
    if job.predict_success:
        raise DataError(_no_labels(job.data[0]))


def _imported(job: "RewardTrainJob", state: Sequence[str], scratch: Path) -> "Store":
    """Into a folder under the first source's name, which is what messages call it; no more than is learned from."""
    from plaudit.data.formats import ReadOptions
    from plaudit.data.store import Store
    from plaudit.data.transfer import import_dataset

    columns = state if job.use_state else ("none",)
    options = ReadOptions(job.reward_frame, state=columns, action=("none",), cameras=job.image_keys or ())
    _check_labeled(job, options)
    folder, labeled = scratch / job.data[0].name, 0
    imported: dict[Path, Sequence[int]] = {}
    for source in job.data:
        report = import_dataset(source, folder, options, progress(f"importing {source.name}"), takes=job.takes)
        imported[source] = report.ids
        labeled += report.labeled
        tell("note", *report.notes)
        tell("warning", *report.failed)
    if not labeled and job.predict_success:
        raise DataError(_no_labels(job.data[0]))
    store = Store.open(folder)
    for source, ids in imported.items():
        labels = [one for i in ids if (one := store.ledger.labels(i)) is not None]
        yes, frames = sum(int(one.success.sum()) for one in labels), sum(int(one.labeled.sum()) for one in labels)
        out.print(
            f"{source}: {len(ids):,} trajectories, {frames:,} frames; label=1: {yes:,}, label=0: {frames - yes:,}"
        )
    return store


def _no_labels(source: Path) -> str:
    return f"{source} has no labels; label it (plaudit label {source} --judge human), then run this again"


def _print_result(fitted: "TrainResult", job: "RewardTrainJob") -> None:
    from plaudit.judges.calibration import SINGLE_FRAMES
    from plaudit.report.judge import first_frame_warning, forecast_table, judge_table
    from plaudit.training.reward_model import model_verdict

    out.print(model_verdict(fitted, job.output_dir, job.data[0]))
    scores, problems = fitted.metrics, fitted.model.config.problems
    if fitted.rule.k == 1:
        tell("note", SINGLE_FRAMES)
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
