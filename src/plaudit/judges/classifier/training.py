"""Training a reward classifier: learn on some episodes, keep the epoch that is best on others.

An encoder that learns runs in every step (`OnlineFeatures`). A frozen one, or one with a frozen stem, runs once over
every image and a few augmented copies of it (`CachedFeatures`). Batches are balanced between success and failure.

A model of progress alone learns from pairs of frames of one successful episode: which came first, and how far apart
they are. It sees single frames, so it cannot use time.
"""

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.data.disk import write_atomic
from plaudit.devices import AdamW, autocast_bf16, resolve_device, to_channels_last
from plaudit.files import read_json
from plaudit.judges.classifier.config import AugmentConfig, RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split, rows_to_learn
from plaudit.judges.classifier.model import BinaryRewardClassifier, build_member
from plaudit.judges.epochs import KEEP_EVERY, EpochMetrics, EpochTrainer, StepMetrics, never_stop, train_epochs
from plaudit.types import AnyArray, FloatArray

CHUNK = 256  # images encoded at a time, on a GPU
CPU_CHUNK = 32  # a second of work

ProgressBars = Callable[[str], Callable[[Any], Any]]  # description -> progress bar over items


# Features of the images


def draw_changes(count: int, config: AugmentConfig, rng: torch.Generator) -> Tensor:
    """[N, 6] zoom, shift in x and y, brightness, contrast and saturation of `count` images, uniform in the limits."""
    spreads = (config.scale, config.shift, config.shift, *[config.color] * 3)
    drawn = torch.rand(len(spreads), count, generator=rng, device=rng.device) * 2 - 1
    return (drawn * torch.tensor(spreads, device=rng.device)[:, None]).T


def augment(images: Tensor, changes: Tensor) -> Tensor:
    """Images [N, H, W, 3], 0 to 255, changed as drawn [N, 6]; returns floats of the same shape and range."""
    zoom, across, down, brightness, contrast, saturation = changes.to(images.device).T
    zero = torch.zeros_like(zoom)
    rows = ([1 + zoom, zero, 2 * across], [zero, 1 + zoom, 2 * down])
    x = images.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(torch.stack([torch.stack(row, 1) for row in rows], 1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    for share, dims in ((contrast, (1, 2, 3)), (saturation, (1,))):
        middle = x.mean(dim=dims, keepdim=True)
        x = (x - middle) * (1 + share[:, None, None, None]) + middle
    x = x * (1 + brightness[:, None, None, None])
    return x.clamp(0, 255).permute(0, 2, 3, 1)


class OnlineFeatures:
    """The encoder's features of rows, encoded in every step, so that the encoder can learn."""

    def __init__(self, model: BinaryRewardClassifier, table: RewardDataset, config: RewardTrainConfig):
        self._model, self._table, self._augment = model, table, config.augment
        self._device = next(model.parameters()).device

    def train_batch(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        """For training, augmented: camera -> [B * num_frames, C, h, w] of rows [B, num_frames]."""
        batch, num_frames = windows.shape
        changes = draw_changes(batch, self._augment, rng).repeat_interleave(num_frames, dim=0)
        rows = windows.reshape(-1)
        return {c: self._model.encode(augment(self._pixels(c, rows), changes), c) for c in self._model.config.cameras}

    def eval_batch(self, rows: AnyArray) -> Mapping[str, Tensor]:
        """For measuring, as the images are: camera -> [n, C, h, w] of rows [n]."""
        return {camera: self._model.encode(self._pixels(camera, rows), camera) for camera in self._model.config.cameras}

    def _pixels(self, camera: str, rows: AnyArray) -> Tensor:
        return torch.from_numpy(np.take(self._table.images[camera], rows, axis=0)).to(self._device)


class CachedFeatures:
    """The same of a frozen encoder, computed once for all members: of every image and of some augmented copies."""

    def __init__(self, features: Mapping[str, Tensor], place: Tensor, device: torch.device):
        """
        features: camera -> [n, C, h, w]
        place: [views, F] which of these a view of a row is, -1 where it was not computed; view 0 is the image as it is
        """
        self._place, self._device, self._features = place, device, dict(features)
        for camera, cached in features.items():
            if device.type == "cuda" and cached.nbytes <= torch.cuda.mem_get_info(device)[0] / 2:
                self._features[camera] = cached.to(device)

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


FeatureSource = OnlineFeatures | CachedFeatures


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
    model = build_member(config, config.classifier_config(table.cameras, table.state_dim), 0)
    to_channels_last(model, device).eval()
    rows = rows_to_learn(table, splits, config.train_fps, cross_fit=config.cross_fit)
    learned = np.unique(table.history_indices(rows, model.config.num_frames, model.config.history_stride))
    measured = np.union1d(splits["validation"], learned)
    wanted = [measured, *[learned] * (config.num_augmented_views - 1)]
    place = np.full((config.num_augmented_views, len(table)), -1)
    for view, rows in enumerate(wanted):
        place[view, rows] = sum(map(len, wanted[:view])) + np.arange(len(rows))
    changes = []
    for view in range(config.num_augmented_views):
        rng = torch.Generator().manual_seed(config.seed * 1009 + view)
        drawn = draw_changes(len(table), config.augment, rng)
        # With a history, all rows of an episode have the same changes, so that only real motion is seen.
        changes.append(drawn[torch.from_numpy(table.episode_start)] if config.num_history_frames else drawn)

    def encode(camera: str, view: int, rows: AnyArray) -> Tensor:
        pixels = torch.from_numpy(table.images[camera][rows]).to(device)
        if view:
            pixels = augment(pixels, changes[view][torch.from_numpy(rows)])
        with torch.inference_mode(), autocast_bf16(device):
            return model.encode(pixels, camera).half().cpu()

    size = CHUNK if device.type == "cuda" else CPU_CHUNK
    chunks = [(view, rows[i : i + size]) for view, rows in enumerate(wanted) for i in range(0, len(rows), size)]
    features: dict[str, Tensor] = {}
    for camera in model.config.cameras:
        shape = (sum(map(len, wanted)), *encode(camera, 0, measured[:1]).shape[1:])
        pieces = _Pieces(work_dir / f"features.{camera}", shape)
        try:
            for view, rows in progress(f"encoding {camera}")(chunks[pieces.done :]):
                pieces.put(place[view, rows], encode(camera, view, rows).numpy())
        finally:
            pieces.keep()
        features[camera] = torch.from_numpy(pieces.array)
    return CachedFeatures(features, torch.from_numpy(place), device)


class _Pieces:
    """An array in a file that is filled piece by piece and resumed after a stop."""

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
        """Sync the array, then the counter."""
        self.array.flush()
        write_atomic(self._counter, str(self.done).encode())
        self._saved = time.monotonic()


def predict_logits(
    model: BinaryRewardClassifier, features: FeatureSource, table: RewardDataset, rows: AnyArray
) -> FloatArray:
    """Logits [n, outputs] of rows: each frame is embedded once, whatever the history."""
    config = model.config
    device = next(model.parameters()).device

    def embed(rows: AnyArray) -> Tensor:
        state = torch.from_numpy(table.state[rows]).to(device) if config.state_dim else None
        return model.embed(features.eval_batch(rows), state)

    model.eval()
    with torch.inference_mode(), autocast_bf16(device):
        history = table.history_indices(rows, config.num_frames, config.history_stride)
        shown = np.unique(history)
        chunks = [shown[i : i + CHUNK] for i in range(0, len(shown), CHUNK)]
        embeddings = torch.cat([embed(chunk) for chunk in chunks])
        place = np.zeros(len(table), np.int64)
        place[shown] = np.arange(len(shown))
        history = place[history]
        windows = map(torch.from_numpy, np.array_split(history, len(chunks)))
        logits = torch.cat([model.classify(embeddings[window]) for window in windows])
    return logits.float().cpu().numpy()


# One network


class EnsembleMember(EpochTrainer):
    """One classifier in training, and the best it has been."""

    def __init__(self, number: int, config: RewardTrainConfig, table: RewardDataset, rows: AnyArray):
        """rows: of the table, to learn from"""
        self.device = resolve_device(config.device)
        self.dropout_seed = config.member_seed(number)
        model = build_member(config, config.classifier_config(table.cameras, table.state_dim), number)
        if model.config.state_dim:
            model.state_mean.copy_(torch.from_numpy(table.state.mean(axis=0)))
            model.state_std.copy_(torch.from_numpy(np.maximum(table.state.std(axis=0), 1e-3)))
        to_channels_last(model, self.device)
        self.model, self.best = model, copy.deepcopy(model)
        self.net = nn.ModuleDict({"now": self.model, "best": self.best})
        self.config, self.table, self.rows = config, table, rows
        self.rng = torch.Generator().manual_seed(self.dropout_seed)
        # An encoder that was trained elsewhere learns more slowly than what is new.
        encoder_lr = config.lr * (config.encoder_lr_scale if config.encoder.pretrained else 1.0)
        encoder = set(model.encoder.parameters())
        groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if p not in encoder]}]
        if learning := [p for p in model.encoder.parameters() if p.requires_grad]:
            groups.append({"params": learning, "lr": encoder_lr})
        super().__init__(
            AdamW(groups, lr=config.lr, weight_decay=config.weight_decay),
            epochs=config.epochs,
            patience=config.patience,
            steps=math.ceil(len(rows) / config.batch_size),
            number=number,
            members=config.ensemble_size,
        )

    def train_step(self, features: FeatureSource) -> StepMetrics:
        """One gradient step on a balanced batch of the training rows, or on pairs of them."""
        self.model.train()
        draw = balanced_batch if self.config.predict_success else paired_batch
        batch = draw(self.table, self.rows, self.config.batch_size, self.rng)
        with torch.random.fork_rng(devices=[]):
            # Each step has its own seed, so that a training can be resumed after any of them.
            torch.manual_seed(self.dropout_seed + 7919 * self.step)
            self.step_lr()
            logits = self._logits(features, batch)
            loss, right = (self._loss if self.config.predict_success else self._pair_loss)(logits, batch)
            value = float(loss.detach())
            self.check_loss(value, self.version + 1)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return self.count_step(value, right)

    def _logits(self, features: FeatureSource, batch: AnyArray) -> Tensor:
        shape = self.model.config
        windows = self.table.history_indices(batch, shape.num_frames, shape.history_stride)
        state = torch.from_numpy(self.table.state[windows.reshape(-1)]).to(self.device) if shape.state_dim else None
        with autocast_bf16(self.device):
            embeddings = self.model.embed(features.train_batch(windows, self.rng), state)
            return self.model.classify(embeddings.unflatten(0, (-1, shape.num_frames))).float()

    def _loss(self, logits: Tensor, batch: AnyArray) -> tuple[Tensor, float]:
        """And the share of frames that are right."""
        smooth = self.config.label_smoothing
        target = torch.from_numpy(self.table.target[batch]).to(self.device)
        right = float(((logits[:, 0].detach() > 0) == (target > 0.5)).float().mean())
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], target * (1 - 2 * smooth) + smooth)
        if self.model.config.predict_progress:
            target = torch.from_numpy(self.table.progress[batch]).to(self.device)
            has_target = ~target.isnan()
            if has_target.any():
                loss = loss + F.binary_cross_entropy_with_logits(logits[has_target, 1], target[has_target])
        return loss, right

    def _pair_loss(self, logits: Tensor, batch: AnyArray) -> tuple[Tensor, float]:
        """How far each frame is, how far apart the two of a pair are, and which is the later; the share in order."""
        target = torch.from_numpy(self.table.progress[batch]).to(self.device)
        apart = torch.diff(target.view(2, -1), dim=0)
        rise = torch.diff(logits[:, -1].view(2, -1), dim=0)
        offset = torch.diff(logits[:, -1].sigmoid().view(2, -1), dim=0)
        loss = F.binary_cross_entropy_with_logits(logits[:, -1], target) + F.l1_loss(offset, apart)
        differs = apart != 0
        if differs.any():
            loss = loss + F.softplus(-rise * apart.sign())[differs].mean()
        right = float((rise.sign() == apart.sign())[differs].float().mean()) if differs.any() else 1.0
        return loss, right

    def validate(self, features: FeatureSource, rows: AnyArray) -> float:
        """The loss on frames as they are and as many as there are; keeps the model if it is the best so far."""
        targets = self.table.target if self.config.predict_success else self.table.progress
        labeled = rows[~np.isnan(self.table.target[rows])]
        logits = predict_logits(self.model, features, self.table, rows)[np.isin(rows, labeled), 0]
        target = torch.from_numpy(targets[labeled])
        loss = float(F.binary_cross_entropy_with_logits(torch.from_numpy(logits), target))
        self.check_loss(loss, self.version)
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.version
            self.best.load_state_dict(self.model.state_dict())
        return loss


@dataclass(frozen=True, eq=False)
class TrainRun:
    """What the networks of one training share."""

    config: RewardTrainConfig
    table: RewardDataset
    splits: Mapping[Split, AnyArray]
    cached: CachedFeatures | None  # of a frozen encoder
    work_dir: Path  # for checkpoints, from which the same training resumes
    on_epoch_end: Callable[[EpochMetrics], bool] = never_stop
    on_step: Callable[[StepMetrics], bool] = never_stop
    max_seconds: float = math.inf  # each network ends after these, and has one epoch at least


def train_member(number: int, run: TrainRun) -> tuple[EnsembleMember, FeatureSource, list[EpochMetrics]]:
    """Train one network, from where an earlier run stopped."""
    config = run.config
    member = EnsembleMember(number, config, run.table, run.splits["train"])
    member.max_seconds = run.max_seconds
    checkpoints = run.work_dir / f"member_{number}"
    features = run.cached or OnlineFeatures(member.model, run.table, config)
    history = train_epochs(
        member,
        lambda: member.train_step(features),
        lambda: member.count_epoch(lambda: member.validate(features, run.splits["validation"])),
        checkpoints,
        run.on_epoch_end,
        run.on_step,
    )
    if number < config.ensemble_size - 1 or config.cross_fit:  # so that a stop in the next one does not cost this one
        member.save(checkpoints, history)
    member.model.load_state_dict(member.best.state_dict())
    return member, features, history


def balanced_batch(table: RewardDataset, rows: AnyArray, size: int, rng: torch.Generator) -> AnyArray:
    """Rows of a batch: half successes and half failures."""
    kinds = [rows[table.target[rows] == value] for value in (1, 0)]
    return np.concatenate([kind[torch.randint(len(kind), (size // 2,), generator=rng).numpy()] for kind in kinds])


def paired_batch(table: RewardDataset, rows: AnyArray, size: int, rng: torch.Generator) -> AnyArray:
    """Rows of a batch: a first half drawn from all, and for each of them another of the same episode."""
    first = torch.randint(len(rows), (size // 2,), generator=rng).numpy()
    starts = table.episode_start[rows]  # rows of an episode lie together
    begin, end = (np.searchsorted(starts, starts[first], side) for side in ("left", "right"))
    share = torch.rand(size // 2, generator=rng).numpy()
    return np.concatenate([rows[first], rows[begin + (share * (end - begin)).astype(int)]])
