"""Settings for a processor: what is not set is chosen so that training takes about as long as one is willing to wait.

With a GPU the encoder itself learns. On two cores that takes hours, so here it stands still: what it makes of each
image is computed once, and only the small networks after it learn. What is lost is made up for by what costs little
then: a short history of frames and three members. Larger images and more augmented copies of each are better and
slower, so they are chosen last, by timing the encoder on a few of the images themselves.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, sqrt
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from plaudit.data.disk import write_atomic
from plaudit.devices import resolve_device, to_channels_last
from plaudit.judges.calibration import NUM_FOLDS
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Size, Split, rows_to_learn
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.types import AnyArray, ProgressFn

HISTORY_FRAMES, HISTORY_S = 3, 0.2  # earlier frames that the model sees, and the time between them
MEMBERS = 3
PIXELS = (192 * 256, 144 * 192, 96 * 128)  # of an image at most, the best first
VIEWS = (4, 3, 2)  # of each training image, the best first
GRID = 32  # sides of resized images are multiples of this, as encoders halve them five times
SAMPLE = 24  # images to time the encoder on
CONTROLS = 3  # scorings of a test episode for negative controls
EPOCHS = 0.8  # of all, before a member gets no better

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """Settings, and how long a training with them will take."""

    settings: Mapping[str, Any]
    seconds: float

    def __str__(self) -> str:
        size = self.settings.get("image_size")
        words = [
            "a frozen encoder" if self.settings.get("freeze_encoder") else "",
            f"{n} earlier frames" if (n := self.settings.get("num_history_frames")) else "",
            f"{n} members" if (n := self.settings.get("ensemble_size")) else "",
            f"images of {size[0]}x{size[1]}" if size else "",
            f"{n} augmented views" if (n := self.settings.get("num_augmented_views")) else "",
        ]
        minutes = max(1, round(self.seconds / 60))
        return f"{', '.join(filter(None, words))}; about {minutes} minute{'s' * (minutes > 1)}"


def largest_image_size(config: RewardTrainConfig, cameras: Mapping[str, Size]) -> Size | None:
    """What images are read at, of cameras with these sizes: no larger than any training of a processor uses."""
    if config.image_size is not None or not _applies(config):
        return config.image_size
    return _size_of(cameras, PIXELS[0])


def choose_settings(
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    work_dir: Path,
    progress: ProgressFn = iter,
) -> Choice | None:
    """What to set for a training of about `config.max_minutes`; None where there is nothing to choose.

    Kept in `work_dir`: a training that is resumed goes on with the settings that it began with.
    """
    if not _applies(config):
        return None
    kept = work_dir / "chosen_settings.json"
    if kept.exists():
        tree = json.loads(kept.read_text())
        size = tree["settings"].get("image_size")
        return Choice(tree["settings"] | ({"image_size": tuple(size)} if size else {}), tree["seconds"])
    choice = _first_that_fits(config, table, splits, progress)
    write_atomic(kept, json.dumps(vars(choice)).encode())
    return choice


def _applies(config: RewardTrainConfig) -> bool:
    return (
        config.max_minutes is not None
        and config.encoder.pretrained
        and config.head == "serl"
        and resolve_device(config.device).type == "cpu"
    )


def _first_that_fits(
    config: RewardTrainConfig, table: RewardDataset, splits: Mapping[Split, AnyArray], progress: ProgressFn
) -> Choice:
    """Of the settings that were not given, from the best on; the last where none does."""
    assert config.max_minutes is not None
    fps = float(np.median(table.fps)) or 10.0
    wanted: dict[str, Any] = {
        "freeze_encoder": True,
        "num_history_frames": HISTORY_FRAMES,
        "history_stride": max(1, round(HISTORY_S * fps)),
        "ensemble_size": MEMBERS,
    }
    if "num_history_frames" in config.model_fields_set:
        del wanted["history_stride"]
    sizes = list(dict.fromkeys(_size_of(table.cameras, pixels) for pixels in PIXELS))
    choice = Choice({}, 0.0)
    for size in progress(sizes):
        speed = None
        for views in VIEWS:
            settings = _unset(config, wanted | {"image_size": size, "num_augmented_views": views})
            changed = config.model_copy(update=settings)
            speed = speed or measure_speed(changed, table)
            choice = Choice(settings, _estimate(changed, table, splits, speed))
            if choice.seconds <= 60 * config.max_minutes:
                return choice
    return choice


def _unset(config: RewardTrainConfig, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is wanted, what was not given."""
    return {name: value for name, value in wanted.items() if name not in config.model_fields_set}


def _size_of(cameras: Mapping[str, Size], pixels: int) -> Size | None:
    """One size for all cameras, of so many pixels at most; None where none has more."""
    height, width = max(cameras.values(), key=lambda size: size[0] * size[1])
    if height * width <= pixels:
        return None
    shrink = sqrt(pixels / (height * width))
    return max(GRID, GRID * round(shrink * height / GRID)), max(GRID, GRID * round(shrink * width / GRID))


@dataclass(frozen=True)
class Speed:
    """Of a machine, with one setting."""

    image_s: float  # to encode one frame of every camera
    step_s: float  # a gradient step of what comes after the encoder


def measure_speed(config: RewardTrainConfig, table: RewardDataset) -> Speed:
    """By a few images and one step."""
    model = config.build_member(config.classifier_config(table.cameras, table.state_dim), 0)
    to_channels_last(model, torch.device("cpu")).eval()
    rows = np.linspace(0, len(table) - 1, SAMPLE).astype(int)
    frames = {camera: torch.from_numpy(table.images[camera][rows]) for camera in model.config.cameras}
    with torch.inference_mode():
        encode = partial(_encode, model, frames)
        encode()  # the first time is slower
        seconds, features = _time_call(encode)
    batch = torch.arange(config.batch_size * model.config.num_frames) % SAMPLE
    step = partial(_step, model, {camera: grid.clone().contiguous()[batch] for camera, grid in features.items()})
    step()
    step_s, _ = _time_call(step)
    return Speed(seconds / SAMPLE, step_s)


def _estimate(config: RewardTrainConfig, table: RewardDataset, splits: Mapping[Split, AnyArray], speed: Speed) -> float:
    """Seconds of a training: frames to learn from in every view, others to measure on, and the steps."""
    rows = rows_to_learn(table, splits, config.train_fps, cross_fit=config.cross_fit)
    learned = np.unique(table.history_indices(rows, 1 + config.num_history_frames, config.history_stride))
    cached = len(learned) * config.num_augmented_views + len(np.setdiff1d(splits["validation"], learned))
    times = 1 if config.num_history_frames else 1 + CONTROLS  # a model with a history encodes no test frame twice
    scored = len(splits["validation"]) + times * len(splits["test"])
    steps = ceil(len(splits["train"]) / config.batch_size)
    if config.cross_fit:
        fold = (1 - 1 / NUM_FOLDS) * (1 - config.val_fraction) * len(rows)
        steps += NUM_FOLDS * ceil(fold / config.batch_size)
    epochs = EPOCHS * config.epochs * config.ensemble_size
    return (cached + scored) * speed.image_s + epochs * steps * speed.step_s


def _encode(model: BinaryRewardClassifier, frames: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {camera: model.encode(pixels, camera) for camera, pixels in frames.items()}


def _step(model: BinaryRewardClassifier, features: Mapping[str, Tensor]) -> None:
    state = torch.zeros(len(next(iter(features.values()))), model.config.state_dim)
    embeddings = model.train().embed(features, state if model.config.state_dim else None)
    model.classify(embeddings.unflatten(0, (-1, model.config.num_frames))).sum().backward()


def _time_call(call: Callable[[], T]) -> tuple[float, T]:
    began = time.monotonic()
    result = call()
    return time.monotonic() - began, result
