"""The time that a training on a CPU may take, and the settings that follow from it.

With a GPU the encoder itself learns. On two cores that takes hours, so a pretrained encoder is frozen: the features of
each image are computed once, and only the small networks after it learn. A short history of frames and three members
make up for some of the loss. Image size and augmented copies are chosen last, by timing the encoder on a few images. An
encoder that has to learn, because its weights are random or the user does not freeze it, is timed by a few steps.

`max_minutes` is a guide unless `enforce_max_minutes` is set. Then members and epochs are reduced if needed, a budget
too small for one epoch is refused before training, and training ends when its share of the time is used up.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.data.disk import write_atomic
from plaudit.devices import AdamW, resolve_device, to_channels_last
from plaudit.errors import JudgeError, format_count
from plaudit.files import read_json_object
from plaudit.judges.calibration import NUM_FOLDS
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Size, Split, rows_to_learn
from plaudit.judges.classifier.model import build_member
from plaudit.judges.classifier.ood import FRAMES
from plaudit.types import AnyArray, ProgressFn

HISTORY_FRAMES, HISTORY_S = 3, 0.2  # earlier frames that the model sees, and the time between them
MEMBERS = 3
PIXELS = (192 * 256, 144 * 192, 96 * 128)  # of an image at most, the best first
VIEWS = (4, 3, 2)  # of each training image, the best first
GRID = 32  # sides of resized images are multiples of this, as encoders halve them five times
SAMPLE = 24  # images to time the encoder on
STEP_SAMPLE = 16  # images of a step that is timed where the encoder learns
MARGIN = 1.3  # for measuring the model, which nothing cuts short
EPOCHS = 0.8  # of all, before a member gets no better


@dataclass(frozen=True)
class Choice:
    """Settings, and how long a training with them will take."""

    settings: Mapping[str, Any]
    seconds: float
    score_s: float = 0.0  # of these, what measuring the model takes after it was trained

    def __str__(self) -> str:
        size = self.settings.get("image_size")
        words = [
            "a frozen encoder" if self.settings.get("freeze_encoder") else "",
            f"{n} history frames" if (n := self.settings.get("num_history_frames")) else "",
            format_count(n, "ensemble member") if (n := self.settings.get("ensemble_size")) else "",
            f"images of {size[0]}x{size[1]}" if size else "",
            f"{n} augmented views" if (n := self.settings.get("num_augmented_views")) else "",
            f"at most {format_count(n, 'epoch')}" if (n := self.settings.get("epochs")) else "",
        ]
        return f"{', '.join(filter(None, words)) or 'the settings you gave'}; about {_minutes(self.seconds)}"


def _minutes(seconds: float) -> str:
    """In whole minutes, rounded up."""
    count = max(1, ceil(seconds / 60))
    return format_count(count, "minute")


def largest_image_size(config: RewardTrainConfig, cameras: Mapping[str, Size]) -> Size | None:
    """What images are read at, of cameras with these sizes: no larger than any training on a CPU uses."""
    if config.image_size is not None or not _chooses(config):
        return config.image_size
    return _size_of(cameras, PIXELS[0])


def choose_settings(
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    work_dir: Path,
    progress: ProgressFn = iter,
    elapsed_s: float = 0.0,
) -> Choice | None:
    """The settings for a training of about `config.max_minutes`; None if no time is given, or there is a GPU.

    They are kept in `work_dir`, so a resumed training goes on with the settings that it began with.
    elapsed_s: the used part of an enforced budget
    """
    if not _on_cpu(config):
        return None
    kept = work_dir / "chosen_settings.json"
    if kept.exists():
        tree = read_json_object(kept)
        size = tree["settings"].get("image_size")
        return Choice(**tree | {"settings": tree["settings"] | ({"image_size": tuple(size)} if size else {})})
    choice = _first_that_fits(config, table, splits, progress, elapsed_s)
    write_atomic(kept, json.dumps(vars(choice)).encode())
    return choice


def member_seconds(config: RewardTrainConfig, choice: Choice | None, elapsed_s: float) -> float:
    """How long each network may train: its share of what is left of an enforced budget."""
    if config.max_minutes is None or not config.enforce_max_minutes:
        return inf
    left = _left_s(config, elapsed_s) - (0.0 if choice is None else MARGIN * choice.score_s)
    return left / (config.ensemble_size * (1 + NUM_FOLDS * config.cross_fit))


def _left_s(config: RewardTrainConfig, elapsed_s: float) -> float:
    """Seconds left of the budget; settings that follow from a guide do not depend on the time used."""
    assert config.max_minutes is not None
    return 60 * config.max_minutes - (elapsed_s if config.enforce_max_minutes else 0.0)


def _on_cpu(config: RewardTrainConfig) -> bool:
    return config.max_minutes is not None and resolve_device(config.device).type == "cpu"


def _chooses(config: RewardTrainConfig) -> bool:
    """Whether settings are chosen: only a pretrained encoder can be frozen."""
    return _on_cpu(config) and config.encoder.pretrained and config.head == "serl"


def _first_that_fits(
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    progress: ProgressFn,
    elapsed_s: float,
) -> Choice:
    """The best of the settings that were not given which fits the budget.

    If none does, the last one; with an enforced budget, one member and as many epochs as fit.
    """
    budget_s, settings, estimate, speed = _left_s(config, elapsed_s), {}, None, None
    # The candidates: the best first, those of one image size together.
    wanted: dict[str, Any] = {"freeze_encoder": True, "num_history_frames": HISTORY_FRAMES, "ensemble_size": MEMBERS}
    if "num_history_frames" not in config.model_fields_set:
        wanted["history_stride"] = max(1, round(HISTORY_S * (float(np.median(table.fps)) or 10.0)))
    sizes = dict.fromkeys(_size_of(table.cameras, pixels) for pixels in PIXELS)
    ladders = [[_unset(config, {**wanted, "image_size": s, "num_augmented_views": v}) for v in VIEWS] for s in sizes]
    for ladder in progress(ladders if _chooses(config) else [[{}]]):
        speed = measure_speed(config.model_copy(update=ladder[0]), table)
        for settings in ladder:
            estimate = _estimate(config.model_copy(update=settings), table, splits, speed)
            if estimate.seconds <= budget_s:
                return Choice(settings, estimate.seconds, estimate.score_s)
    assert estimate is not None and speed is not None
    if not config.enforce_max_minutes:
        return Choice(settings, estimate.seconds, estimate.score_s)
    settings = {**settings, **_unset(config, {"ensemble_size": 1})}
    estimate = _estimate(config.model_copy(update=settings), table, splits, speed)
    if estimate.least_s > budget_s:
        raise JudgeError(
            f"max_minutes is {config.max_minutes:g}, and one epoch on this CPU with all around it would take about "
            f"{_minutes(elapsed_s + estimate.least_s)}; nothing was trained. Allow that (--minutes), or use fewer "
            "episodes, a smaller image_size or train_fps, or a GPU"
        )
    epochs = int((budget_s - estimate.encode_s - estimate.score_s) / (EPOCHS * estimate.epoch_s))
    settings |= _unset(config, {"epochs": min(config.epochs, max(1, epochs))})
    shorter = _estimate(config.model_copy(update=settings), table, splits, speed)
    return Choice(settings, shorter.seconds, estimate.score_s)


def _unset(config: RewardTrainConfig, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Of what is wanted, what was not given."""
    return {name: value for name, value in wanted.items() if name not in config.model_fields_set}


def _size_of(cameras: Mapping[str, Size], pixels: int) -> Size | None:
    """One size for all cameras with at most this many pixels; None if none has more."""
    height, width = max(cameras.values(), key=lambda size: size[0] * size[1])
    if height * width <= pixels:
        return None
    shrink = sqrt(pixels / (height * width))
    return max(GRID, GRID * round(shrink * height / GRID)), max(GRID, GRID * round(shrink * width / GRID))


@dataclass(frozen=True)
class Speed:
    """Training speed of a machine with one setting."""

    image_s: float  # to encode one frame of every camera
    step_s: float  # a gradient step of what learns


def measure_speed(config: RewardTrainConfig, table: RewardDataset) -> Speed:
    """Measured on a few images and one step; the first run of each is slower and does not count."""
    model = build_member(config, config.classifier_config(table.cameras, table.state_dim), 0)
    to_channels_last(model, torch.device("cpu")).eval()
    rows = np.linspace(0, len(table) - 1, SAMPLE).astype(int)
    frames = {camera: torch.from_numpy(table.images[camera][rows]) for camera in model.config.cameras}

    def encode(pixels: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {camera: model.encode(images, camera) for camera, images in pixels.items()}

    with torch.inference_mode():
        encode(frames)
        began = time.monotonic()
        features = encode(frames)
        image_s = (time.monotonic() - began) / SAMPLE
    size = config.batch_size if config.frozen else min(config.batch_size, STEP_SAMPLE)
    batch = torch.arange(size * model.config.num_frames) % SAMPLE
    given = {camera: grid.clone().contiguous() for camera, grid in features.items()} if config.frozen else frames
    shown = {camera: values[batch] for camera, values in given.items()}
    state = torch.zeros(len(batch), model.config.state_dim) if model.config.state_dim else None
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    model.train()
    began = 0.0
    for _ in range(2):
        began = time.monotonic()
        embeddings = model.embed(shown if config.frozen else encode(shown), state)
        model.classify(embeddings.unflatten(0, (-1, model.config.num_frames))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return Speed(image_s, (time.monotonic() - began) * config.batch_size / size)


@dataclass(frozen=True)
class Estimate:
    """Seconds of a training, by its parts."""

    encode_s: float  # to compute the features of a frozen encoder, once
    epoch_s: float  # one epoch of all networks that are trained
    score_s: float  # to measure the model
    epochs: int  # at most

    @property
    def seconds(self) -> float:
        return self.encode_s + EPOCHS * self.epochs * self.epoch_s + self.score_s

    @property
    def least_s(self) -> float:
        """Minimum training time in seconds: one epoch."""
        return self.encode_s + self.epoch_s + self.score_s


def _estimate(
    config: RewardTrainConfig, table: RewardDataset, splits: Mapping[Split, AnyArray], speed: Speed
) -> Estimate:
    """Of frames to learn from in every view, others to measure on, and the steps."""
    rows = rows_to_learn(table, splits, config.train_fps, cross_fit=config.cross_fit)
    learned = np.unique(table.history_indices(rows, 1 + config.num_history_frames, config.history_stride))
    cached = len(learned) * config.num_augmented_views + len(np.setdiff1d(splits["validation"], learned))
    compared = FRAMES * len(np.unique(table.episode[table.episode >= 0]))
    scored = len(splits["validation"]) + len(splits["test"]) + compared
    steps, trainings = ceil(len(splits["train"]) / config.batch_size), 1
    if config.cross_fit:
        fold = (1 - 1 / NUM_FOLDS) * (1 - config.val_fraction) * len(rows)
        steps += NUM_FOLDS * ceil(fold / config.batch_size)
        trainings += NUM_FOLDS
    validated = 0 if config.frozen else trainings * len(splits["validation"])  # images that are encoded in each epoch
    return Estimate(
        encode_s=cached * speed.image_s if config.frozen else 0.0,
        epoch_s=config.ensemble_size * (steps * speed.step_s + validated * speed.image_s),
        score_s=scored * speed.image_s,
        epochs=config.epochs,
    )
