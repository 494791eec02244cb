"""`plaudit train-reward`: a classifier that tells success from its images, and how far to trust it."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from plaudit.cli.common import AllowCode, AllowHost, epochs_bar, finite, out, progress, stop, store_and_keys, tell
from plaudit.cli.data import StateOption
from plaudit.errors import DataError

if TYPE_CHECKING:
    from plaudit.data.store import Store
    from plaudit.judges.classifier.fit import TrainResult
    from plaudit.judges.classifier.recipes import RewardTrainJob

# Flags that are keys of a RewardTrainJob by the same name and are handed on as they are.
_KEYS = (
    *("image_keys", "batch_size", "epochs", "lr", "hidden_dim", "latent_dim", "num_spatial_blocks", "members"),
    *("use_state", "history", "history_stride", "progress", "target_fpr", "seed", "device"),
)


def train_reward(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE] [KEY=VALUE]...",
            help="A store or a data set of another layout; then keys of the config, like augment.shift=0.1.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML or JSON: our keys, or the config of another stack (docs/reward_model.md).")
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output-dir", "-o", help="The folder to write; runs/reward_model when not given.")
    ] = None,
    positive_dir: Annotated[
        Path | None, typer.Option(help="A folder of .npy trajectories that succeed, in place of a store.")
    ] = None,
    negative_dir: Annotated[Path | None, typer.Option(help="A folder of .npy trajectories that fail.")] = None,
    output_checkpoint: Annotated[Path | None, typer.Option(help="Also write the model as one .pt file.")] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="resnet10, efficientnet_lite0, small, torchvision:NAME or transformers:NAME_OR_FOLDER.",
            show_default="efficientnet_lite0; resnet10 with --positive-dir",
        ),
    ] = None,
    pretrained_encoder_path: Annotated[
        Path | None, typer.Option(help="Pretrained weights of the backbone; for resnet10, any of the published files.")
    ] = None,
    freeze_encoder: Annotated[
        Literal["true", "body", "false"] | None,
        typer.Option(help="Freeze the encoder, its first layers (body) or nothing."),
    ] = None,
    image_keys: Annotated[
        list[str] | None,
        typer.Option("--image-key", help="Camera to use; may be given several times. All cameras when not given."),
    ] = None,
    image_size: Annotated[
        tuple[int, int, int] | None,
        typer.Option(metavar="C H W", help="Resize images to this; not resized when not given."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Frames in a batch, half of them successes.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Maximum number; training stops early when the validation loss stops falling.")
    ] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate; follows a cosine schedule to zero.", callback=finite)
    ] = None,
    hidden_dim: Annotated[int | None, typer.Option(help="Width of the classifier head.")] = None,
    latent_dim: Annotated[int | None, typer.Option(help="Size of one camera's embedding.")] = None,
    num_spatial_blocks: Annotated[
        int | None, typer.Option(help="Number of learned spatial embeddings of each channel.")
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="Ensemble size; the lowest probability of its members counts.")
    ] = None,
    use_state: Annotated[
        bool | None, typer.Option("--use-state", help="Use the robot's state as an input too.")
    ] = None,
    state: StateOption = None,
    history: Annotated[int | None, typer.Option(help="Number of earlier frames to use as input too.")] = None,
    history_stride: Annotated[int | None, typer.Option(help="Steps between these frames.")] = None,
    progress_: Annotated[
        bool | None, typer.Option("--progress", help="Also predict task progress, for reward shaping.")
    ] = None,
    target_fpr: Annotated[
        float | None,
        typer.Option(help="False-positive rate (frames) that the threshold is chosen for.", callback=finite),
    ] = None,
    sources: Annotated[str | None, typer.Option(help="Sources of the labels to train on, like 'human,cutoff'.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:1; a GPU if there is one when not given.")
    ] = None,
    visualize_positive: Annotated[
        bool, typer.Option("--visualize-positive", help="Write every success frame as an image before training.")
    ] = False,
    vis_output_dir: Annotated[Path, typer.Option(help="Folder of these images.")] = Path("positive_samples_vis"),
    allow_code: AllowCode = None,
    allow_host: AllowHost = None,
) -> None:
    """Train a reward model: a classifier of success, from labeled episodes.

    Some episodes are held out to choose its threshold, others to test it; report.html in its folder shows how far to
    trust it. Ctrl-C stops after the current epoch; the same command resumes. All keys: docs/reward_model.md.
    """
    from plaudit.judges.classifier.recipes import load_reward_train_job
    from plaudit.training.reward_model import check_free

    store, overrides = store_and_keys(words or [])
    folders = positive_dir is not None or negative_dir is not None
    flags = _flags(context.params) | _data(store, positive_dir, negative_dir)
    recipe, notes = load_reward_train_job(config, flags, overrides, folders=folders)
    check_free(recipe.out, "--output-dir")
    if recipe.output_checkpoint is not None:
        check_free(recipe.output_checkpoint, "--output-checkpoint")
    for note in notes:
        tell("note", note)
    try:
        with _episodes(recipe, state or ()) as episodes:
            if visualize_positive:
                _visualize(episodes, recipe, vis_output_dir)
            fitted = _train(episodes, recipe)
    except KeyboardInterrupt:
        stop("interrupted; run the same command to resume")
    _tell_result(fitted, recipe)


def _data(store: str | None, positive: Path | None, negative: Path | None) -> dict[str, Any]:
    if (positive is None) != (negative is None):
        raise DataError("--positive-dir and --negative-dir belong together; give both")
    if positive is not None and store is not None:
        raise DataError(f"name {store}, or --positive-dir and --negative-dir, not both")
    given = [str(path) for path in (store, positive, negative) if path is not None]
    return {"data": given} if given else {}


def _flags(params: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the keys of a recipe."""
    from plaudit.judges.classifier.recipes import encoder_of

    params = {**params, "progress": params["progress_"]}
    flags = {key: params[key] for key in _KEYS if params[key] not in (None, [])}
    for flag, key in (("output_dir", "out"), ("output_checkpoint", "output_checkpoint")):
        if params[flag] is not None:
            flags[key] = str(params[flag])
    if params["sources"] is not None:
        flags["sources"] = [source.strip() for source in params["sources"].split(",")]
    if params["freeze_encoder"] is not None:
        flags["freeze_encoder"] = {"true": True, "false": False}.get(params["freeze_encoder"], "body")
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
def _episodes(recipe: "RewardTrainJob", state: Sequence[str]) -> Iterator["Store"]:
    """The store; a data set of another layout as one that is there for as long as it is needed."""
    from plaudit.data.store import Store, is_store
    from plaudit.judges.classifier.fit import existing_parent

    stores = [path for path in recipe.data if is_store(path)]
    if not recipe.data:
        raise DataError("name a store or a data set to learn from, or --positive-dir and --negative-dir")
    if stores and len(recipe.data) > 1:
        raise DataError(f"{stores[0]} is a store, and one store at a time is learned from; name it alone")
    if stores:
        yield Store.open(stores[0])
        return
    scratch = existing_parent(recipe.out) / f".{recipe.out.name}.import"
    shutil.rmtree(scratch, ignore_errors=True)  # of a command that was killed
    try:
        yield _imported(recipe, state, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _imported(recipe: "RewardTrainJob", state: Sequence[str], scratch: Path) -> "Store":
    """Into a folder under the first source's name, which is what messages call it; no more than is learned from."""
    from plaudit.data.formats import ReadOptions
    from plaudit.data.store import Store
    from plaudit.data.transfer import import_dataset

    sources = recipe.data
    options = ReadOptions(
        state=state if recipe.use_state else ("none",), action=("none",), cameras=recipe.image_keys or ()
    )
    folder, labelled = scratch / sources[0].name, 0
    for source in sources:
        report = import_dataset(source, folder, options, progress(f"importing {source.name}"))
        labelled += report.labelled
        for sentence in report.notes:
            tell("note", sentence)
        for sentence in report.failed:
            tell("warning", sentence)
    if not labelled:
        raise DataError(
            f"{sources[0]} has no labels; import it (plaudit data import {sources[0]} STORE), label it (plaudit data "
            "label) and name the store"
        )
    return Store.open(folder)


def _visualize(episodes: "Store", recipe: "RewardTrainJob", folder: Path) -> None:
    from plaudit.report.positives import save_positives

    cameras = recipe.image_keys or sorted(episodes.episode(episodes.ids[0]).frames)
    count = save_positives(episodes, folder, cameras, recipe.sources, progress("drawing"))
    out.print(f"{folder} shows {count} success frames")


def _train(episodes: "Store", recipe: "RewardTrainJob") -> "TrainResult":
    from plaudit.judges.classifier.rlinf import save_rlinf_checkpoint
    from plaudit.judges.classifier.training import TrainingInterrupted
    from plaudit.training.reward_model import train_and_save, work_folder

    if len(episodes):
        recipe.check_cameras(sorted(episodes.episode(episodes.ids[0]).frames))
    try:
        with epochs_bar(recipe.members, recipe.epochs) as (watch, _):
            fitted = train_and_save(episodes, recipe.out, recipe.training, watch, progress)
    except TrainingInterrupted:
        stop(f"stopped; run the same command to resume from {work_folder(recipe.out)}")
    if recipe.output_checkpoint is not None:
        save_rlinf_checkpoint(recipe.output_checkpoint, fitted)
    return fitted


def _tell_result(fitted: "TrainResult", recipe: "RewardTrainJob") -> None:
    from plaudit.report.judge import first_frame_warning
    from plaudit.report.tables import judge_table

    scores, problems = fitted.scores, fitted.model.facts.problems
    held = f"{recipe.out}: measured on {scores.episodes:,} held-out episodes, {scores.frames:,} frames"
    out.print(judge_table(held, scores, fitted.controls))
    if scores.start_false:
        tell("warning", first_frame_warning(scores))
    for problem in problems:
        tell("problem", f"a negative control failed, {problem}")
    if problems:
        how = "plaudit train: reward.force=true; plaudit online: judge.force=true"
        out.print(Text(f"the model is saved and marked: it is refused as a judge unless forced ({how})", "red"))
    file = "" if recipe.output_checkpoint is None else f" and {recipe.output_checkpoint}"
    out.print(f"the model is in {recipe.out}{file}; look at {recipe.out / 'report.html'} before you trust it")
