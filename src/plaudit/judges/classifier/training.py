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
from torch import Tensor
from torch.nn import functional as F

from plaudit.data.disk import write_atomic
from plaudit.devices import AdamW, autocast_bf16, resolve_device, to_channels_last
from plaudit.files import read_json
from plaudit.judges.classifier.config import AugmentConfig, RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split, check_space, rows_to_learn
from plaudit.judges.classifier.model import GPU_MINI_BATCH, BinaryRewardClassifier, build_member, mini_batch
from plaudit.judges.epochs import KEEP_EVERY, EpochMetrics, EpochTrainer, Watch, never_stop, train_epochs
from plaudit.types import AnyArray, FloatArray

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
        changes = draw_changes(batch, self._augment, rng)
        changes[torch.from_numpy(self._table.episode[windows[:, 0]] < 0)] = 0  # blanks: resampled noise is no noise
        changes = changes.repeat_interleave(num_frames, dim=0)
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

    size = mini_batch(device)
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
        if not self.done:
            check_space(path.parent, 2 * math.prod(shape), "the features of the frames")
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


# One network


@dataclass(frozen=True, eq=False)
class TrainRun:
    """Data and settings that all networks of one training share."""

    config: RewardTrainConfig
    table: RewardDataset
    splits: Mapping[Split, AnyArray]
    cached: CachedFeatures | None  # of a frozen encoder
    work_dir: Path  # for checkpoints, from which the same training resumes
    watch: Watch = never_stop
    max_seconds: float = math.inf  # each network ends after these, and has one epoch at least


class EnsembleMember(EpochTrainer):
    """One classifier in training, and the best it has been."""

    def __init__(self, number: int, run: TrainRun):
        config, table = run.config, run.table
        self.config, self.table, self.splits = config, table, run.splits
        self.device = resolve_device(config.device)
        self.dropout_seed = config.member_seed(number)
        self.rng = torch.Generator().manual_seed(self.dropout_seed)
        model = build_member(config, config.classifier_config(table.cameras, table.state_dim), number)
        if model.config.state_dim:
            state = table.state[run.splits["train"]]
            model.state_mean.copy_(torch.from_numpy(state.mean(axis=0)))
            model.state_std.copy_(torch.from_numpy(np.maximum(state.std(axis=0), 1e-3)))
        to_channels_last(model, self.device)
        self.model = model
        self.features: FeatureSource = run.cached or OnlineFeatures(model, table, config)
        # An encoder that was trained elsewhere learns more slowly than what is new.
        encoder_lr = config.lr * (config.encoder_lr_scale if config.encoder.pretrained else 1.0)
        encoder = set(model.encoder.parameters())
        groups: list[dict[str, Any]] = [{"params": [p for p in model.parameters() if p not in encoder]}]
        if learning := [p for p in model.encoder.parameters() if p.requires_grad]:
            groups.append({"params": learning, "lr": encoder_lr})
        super().__init__(
            model,
            copy.deepcopy(model),
            AdamW(groups, lr=config.lr, weight_decay=config.weight_decay),
            epochs=config.epochs,
            patience=config.patience,
            steps=math.ceil(len(run.splits["train"]) / config.batch_size),
            number=number,
            members=config.ensemble_size,
            max_seconds=run.max_seconds,
        )

    def gradients(self) -> tuple[float, float]:
        """Gradients of a balanced batch of training rows, or of pairs of rows."""
        self.model.train()
        success, shape = self.config.predict_success, self.model.config
        draw = balanced_batch if success else paired_batch
        batch = draw(self.table, self.splits["train"], self.config.batch_size, self.rng)
        windows = self.table.history_indices(batch, shape.num_frames, shape.history_stride)
        with torch.random.fork_rng(devices=[]):
            # Each step has its own seed, so that a training can be resumed after any of them.
            seed_dropout(self.dropout_seed + 7919 * self.step, self.device)
            with autocast_bf16(self.device):
                features = self.features.train_batch(windows, self.rng)
                embeddings = self.model.embed(features, self._state(windows.ravel()))
                logits = self.model.classify(embeddings.unflatten(0, (-1, shape.num_frames))).float()
            loss, right = (self._loss if success else self._pair_loss)(logits, batch)
            self.optimizer.zero_grad()
            loss.backward()
        return float(loss.detach()), right

    def _state(self, rows: AnyArray) -> Tensor | None:
        """The robot's state, where the network sees it."""
        return torch.from_numpy(self.table.state[rows]).to(self.device) if self.model.config.state_dim else None

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

    def validation_loss(self) -> float:
        """Loss on all validation frames, without augmentation or balancing."""
        targets = self.table.target if self.config.predict_success else self.table.progress
        rows = self.splits["validation"]
        has_label = ~np.isnan(self.table.target[rows])
        logits = torch.from_numpy(self.predict(rows)[has_label])
        return float(F.binary_cross_entropy_with_logits(logits, torch.from_numpy(targets[rows[has_label]])))

    def predict(self, rows: AnyArray) -> FloatArray:
        """The first logit of rows [n]: each frame is embedded once, whatever the history."""
        model, shape = self.model, self.model.config
        model.eval()
        with torch.inference_mode(), autocast_bf16(self.device):
            history = self.table.history_indices(rows, shape.num_frames, shape.history_stride)
            shown, places = np.unique(history, return_inverse=True)
            chunks = [shown[i : i + GPU_MINI_BATCH] for i in range(0, len(shown), GPU_MINI_BATCH)]
            embeddings = torch.cat([model.embed(self.features.eval_batch(c), self._state(c)) for c in chunks])
            windows = map(torch.from_numpy, np.array_split(places.reshape(history.shape), len(chunks)))
            logits = torch.cat([model.classify(embeddings[window]) for window in windows])
        return logits[:, 0].float().cpu().numpy()


def train_member(number: int, run: TrainRun) -> tuple[EnsembleMember, list[EpochMetrics]]:
    """Train one network, from where an earlier run stopped."""
    member, checkpoints = EnsembleMember(number, run), run.work_dir / f"member_{number}"
    history = train_epochs(member, checkpoints, run.watch)
    if number < run.config.ensemble_size - 1 or run.config.cross_fit:  # a stop in the next one does not cost this one
        member.save(checkpoints, history)
    member.use_best()
    return member, history


def seed_dropout(seed: int, device: torch.device) -> None:
    """As `torch.manual_seed`, which also keeps a traceback for a GPU that was not used yet: a millisecond each time."""
    (torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed)(seed)


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
