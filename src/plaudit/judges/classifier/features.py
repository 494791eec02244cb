"""The encoder's features of the images to learn from: computed in every step, or once and cached.

An encoder that learns runs in every step (`OnlineFeatures`). One that is frozen, or whose stem is, runs once over
every image and a few augmented copies of it (`CachedFeatures`), after which an epoch is a matrix product or two.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.data.disk import write_atomic
from plaudit.devices import autocast_bf16, resolve_device, to_channels_last
from plaudit.files import read_json
from plaudit.judges.classifier.augment import AugmentParams
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split, rows_to_learn
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.epochs import KEEP_EVERY
from plaudit.types import AnyArray, FloatArray

CHUNK = 256  # images encoded at a time, on a GPU
CPU_CHUNK = 32  # a second of work

ProgressBars = Callable[[str], Callable[[Any], Any]]  # description -> progress bar over items


class FeatureSource(ABC):
    """Where the encoder's features of the data set's rows come from."""

    @abstractmethod
    def train_batch(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        """For training, augmented: camera -> [B * num_frames, C, h, w] of rows [B, num_frames]."""

    @abstractmethod
    def eval_batch(self, rows: AnyArray) -> Mapping[str, Tensor]:
        """For measuring, as the images are: camera -> [n, C, h, w] of rows [n]."""


class OnlineFeatures(FeatureSource):
    """Encodes in every step, so that the encoder can learn."""

    def __init__(self, model: BinaryRewardClassifier, table: RewardDataset, config: RewardTrainConfig):
        self._model, self._table, self._augment = model, table, config.augment
        self._device = next(model.parameters()).device

    def train_batch(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        batch, num_frames = windows.shape
        changes = AugmentParams.draw(batch, self._augment, rng)[torch.arange(batch).repeat_interleave(num_frames)]
        rows = windows.reshape(-1)
        return {c: self._model.encode(changes.apply(self._pixels(c, rows)), c) for c in self._model.config.cameras}

    def eval_batch(self, rows: AnyArray) -> Mapping[str, Tensor]:
        return {camera: self._model.encode(self._pixels(camera, rows), camera) for camera in self._model.config.cameras}

    def _pixels(self, camera: str, rows: AnyArray) -> Tensor:
        return torch.from_numpy(np.take(self._table.images[camera], rows, axis=0)).to(self._device)


class CachedFeatures(FeatureSource):
    """A frozen encoder's features of every image and of some augmented copies, computed once for all members."""

    def __init__(self, features: Mapping[str, Tensor], place: Tensor, device: torch.device):
        """
        features: camera -> [n, C, h, w]
        place: [views, F] which of these a view of a row is, -1 where it was not computed; view 0 is the image as it is
        """
        self._features = {camera: _near(cached, device) for camera, cached in features.items()}
        self._place, self._device = place, device

    def train_batch(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        view = torch.randint(len(self._place), (len(windows), 1), generator=rng)
        return self._take(self._place[view, torch.from_numpy(windows)].flatten())

    def eval_batch(self, rows: AnyArray) -> Mapping[str, Tensor]:
        return self._take(self._place[0, torch.from_numpy(rows)])

    def _take(self, numbers: Tensor) -> Mapping[str, Tensor]:
        return {
            camera: cached.index_select(0, numbers.to(cached.device)).to(self._device).float()
            for camera, cached in self._features.items()
        }


def _near(cached: Tensor, device: torch.device) -> Tensor:
    """On the GPU, where it takes less than half of what is free there."""
    if device.type != "cuda" or cached.nbytes > torch.cuda.mem_get_info(device)[0] / 2:
        return cached
    return cached.to(device)


def cache_features(
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    config: RewardTrainConfig,
    work_dir: Path,
    progress: ProgressBars,
) -> CachedFeatures:
    """Run the encoder over the images it will be asked for: all views of those to learn from, the others as they are.

    Resumes where an earlier run stopped.
    """
    device = resolve_device(config.device)
    model = config.build_member(config.classifier_config(table.cameras, table.state_dim), 0)
    to_channels_last(model, device).eval()
    rows = rows_to_learn(table, splits, config.train_fps, cross_fit=config.cross_fit)
    learned = np.unique(table.history_indices(rows, model.config.num_frames, model.config.history_stride))
    measured = np.union1d(splits["validation"], learned)
    wanted = [measured, *[learned] * (config.num_augmented_views - 1)]
    place = np.full((config.num_augmented_views, len(table)), -1)
    for view, rows in enumerate(wanted):
        place[view, rows] = sum(map(len, wanted[:view])) + np.arange(len(rows))
    changes = [_changes(table, config, view) for view in range(config.num_augmented_views)]

    def encode(camera: str, view: int, rows: AnyArray) -> Tensor:
        pixels = torch.from_numpy(table.images[camera][rows]).to(device)
        if view:
            pixels = changes[view][torch.from_numpy(rows)].apply(pixels)
        with torch.inference_mode(), autocast_bf16(device):
            return model.encode(pixels, camera).half().cpu()

    size = CHUNK if device.type == "cuda" else CPU_CHUNK
    chunks = [(view, rows[i : i + size]) for view, rows in enumerate(wanted) for i in range(0, len(rows), size)]
    found: dict[str, Tensor] = {}
    for camera in model.config.cameras:
        shape = (sum(map(len, wanted)), *encode(camera, 0, measured[:1]).shape[1:])
        pieces = _Pieces(work_dir / f"features.{camera}", shape)
        try:
            for view, rows in progress(f"encoding {camera}")(chunks[pieces.done :]):
                pieces.put(place[view, rows], encode(camera, view, rows).numpy())
        finally:
            pieces.keep()
        found[camera] = torch.from_numpy(pieces.array)
    return CachedFeatures(found, torch.from_numpy(place), device)


class _Pieces:
    """An array in a file that is filled piece by piece, from where an earlier try stopped."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self._counter = path.with_name(f"{path.name}.done")
        self.done = int(read_json(self._counter)) if self._counter.exists() else 0
        self.array = np.memmap(path, np.float16, "r+" if self.done else "w+", shape=shape)
        self._saved = time.monotonic()

    def put(self, where: AnyArray, values: AnyArray) -> None:
        self.array[where] = values
        self.done += 1
        if time.monotonic() - self._saved > KEEP_EVERY:
            self.keep()

    def keep(self) -> None:
        """What is counted is on the disk."""
        self.array.flush()
        write_atomic(self._counter, str(self.done).encode())
        self._saved = time.monotonic()


def _changes(table: RewardDataset, config: RewardTrainConfig, view: int) -> AugmentParams:
    """For each row; with a history all rows of an episode are changed alike, so that what moves in it really moved."""
    rng = torch.Generator().manual_seed(config.seed * 1009 + view)
    drawn = AugmentParams.draw(len(table), config.augment, rng)
    return drawn[torch.from_numpy(table.episode_start)] if config.num_history_frames else drawn


def predict_logits(
    model: BinaryRewardClassifier, features: FeatureSource, table: RewardDataset, rows: AnyArray
) -> FloatArray:
    """Logits [n, outputs] of rows: each frame is embedded once, whatever the history."""
    config = model.config
    device = next(model.parameters()).device
    model.eval()
    with torch.inference_mode(), autocast_bf16(device):
        history = table.history_indices(rows, config.num_frames, config.history_stride)
        shown = np.unique(history)
        chunks = [shown[i : i + CHUNK] for i in range(0, len(shown), CHUNK)]
        embeddings = torch.cat([_embed(model, features, table, chunk) for chunk in chunks])
        place = np.zeros(len(table), np.int64)
        place[shown] = np.arange(len(shown))
        history = place[history]
        windows = map(torch.from_numpy, np.array_split(history, len(chunks)))
        logits = torch.cat([model.classify(embeddings[window]) for window in windows])
    return logits.float().cpu().numpy()


def _embed(model: BinaryRewardClassifier, features: FeatureSource, table: RewardDataset, rows: AnyArray) -> Tensor:
    device = next(model.parameters()).device
    state = torch.from_numpy(table.state[rows]).to(device) if model.config.state_dim else None
    return model.embed(features.eval_batch(rows), state)
