"""Training a reward classifier: learn on some episodes, keep the epoch that is best on others.

Classes are balanced where batches are drawn and nowhere else. A frozen encoder is run once over every image and a few
augmented copies of it (`Kept`), after which an epoch is a matrix product or two; one that learns runs in every step
(`Live`). What takes long is kept in a work folder: a training that was stopped goes on from there.
"""

import copy
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.checkpoint import load_checkpoint, save_checkpoint
from plaudit.data.journal import write_atomic
from plaudit.errors import RewardError
from plaudit.rewards.augment import Changes
from plaudit.rewards.classifier import BinaryRewardClassifier, ClassifierConfig
from plaudit.rewards.config import RewardTrainConfig
from plaudit.rewards.frames import FrameTable, Part
from plaudit.types import AnyArray, FloatArray

CHUNK = 256  # images encoded at a time
KEEP_EVERY = 20.0  # seconds between checkpoints

Track = Callable[[str], Callable[[Any], Any]]


@dataclass(frozen=True)
class Epoch:
    """What a training tells whoever watches."""

    member: int
    epoch: int
    train_loss: float
    train_acc: float  # on augmented frames, classes balanced
    validation_loss: float
    best: bool  # so far
    seconds: float


class Stopped(Exception):
    """Whoever watches wants no further epoch. What was done is in the work folder."""


def device_of(name: str) -> torch.device:
    return torch.device(name if name != "auto" else ("cuda" if torch.cuda.is_available() else "cpu"))


def precision(device: torch.device) -> torch.autocast:
    """Half the bytes and many times the speed on a GPU; as it is on a processor."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    """On a device, its convolutions in the order of memory that images come in."""
    return module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]


def classifier_config(config: RewardTrainConfig, table: FrameTable) -> ClassifierConfig:
    """The network for these frames."""
    if config.use_state and not table.state.shape[1]:
        raise RewardError("these episodes have no state; leave out --use-state")
    names = ("image_size", "hidden_dim", "latent_dim", "num_spatial_blocks", "dropout", "history", "history_stride")
    shared = {name: getattr(config, name) for name in (*names, "progress")}
    return ClassifierConfig(
        encoder=config.encoder,
        cameras={camera: (height, width) for camera, (height, width) in table.cameras.items()},
        split_encoder=config.split,
        state_dim=table.state.shape[1] if config.use_state else 0,
        **shared,
    )


def build_classifier(shape: ClassifierConfig, config: RewardTrainConfig, number: int) -> BinaryRewardClassifier:
    """A member of an ensemble before its first step. An encoder that does not learn is the same in all of them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed if config.frozen else _seed(config, number))
        encoder = config.encoder.build()
        torch.manual_seed(_seed(config, number))
        model = BinaryRewardClassifier(shape, encoder)
    if config.frozen:
        model.freeze_encoder()
    return model


def _seed(config: RewardTrainConfig, number: int) -> int:
    return config.seed + 1000 * number


class Grids(Protocol):
    """Where the encoder's features of the table's rows come from."""

    def draw(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        """For training, augmented: camera -> [B * moments, C, h, w] of rows [B, moments]."""
        ...

    def clean(self, rows: AnyArray) -> Mapping[str, Tensor]:
        """For measuring, as the images are: camera -> [n, C, h, w] of rows [n]."""
        ...


class Live:
    """Encodes in every step, so that the encoder can learn."""

    def __init__(self, model: BinaryRewardClassifier, table: FrameTable, config: RewardTrainConfig):
        self._model, self._table, self._augment = model, table, config.augment
        self._device = next(model.parameters()).device

    def draw(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        batch, moments = windows.shape
        changes = Changes.draw(batch, self._augment, rng)[torch.arange(batch).repeat_interleave(moments)]
        rows = windows.reshape(-1)
        return {c: self._model.encode(changes.apply(self._pixels(c, rows))) for c in self._model.config.cameras}

    def clean(self, rows: AnyArray) -> Mapping[str, Tensor]:
        return {camera: self._model.encode(self._pixels(camera, rows)) for camera in self._model.config.cameras}

    def _pixels(self, camera: str, rows: AnyArray) -> Tensor:
        return torch.from_numpy(np.take(self._table.images[camera], rows, axis=0)).to(self._device)


class Kept:
    """A frozen encoder's features of every image and of some augmented copies, computed once for all members."""

    def __init__(self, grids: Mapping[str, Tensor], place: Tensor, device: torch.device):
        """
        grids: camera -> [n, C, h, w]
        place: [views, F] which of these a view of a row is, -1 where it was not computed; view 0 is the image as it is
        """
        self._grids = {camera: _near(kept, device) for camera, kept in grids.items()}
        self._place, self._device = place, device

    def draw(self, windows: AnyArray, rng: torch.Generator) -> Mapping[str, Tensor]:
        view = torch.randint(len(self._place), (len(windows), 1), generator=rng)
        return self._take(self._place[view, torch.from_numpy(windows)].flatten())

    def clean(self, rows: AnyArray) -> Mapping[str, Tensor]:
        return self._take(self._place[0, torch.from_numpy(rows)])

    def _take(self, numbers: Tensor) -> Mapping[str, Tensor]:
        return {
            camera: kept.index_select(0, numbers.to(kept.device)).to(self._device).float()
            for camera, kept in self._grids.items()
        }


def _near(kept: Tensor, device: torch.device) -> Tensor:
    """On the GPU, where it takes less than half of what is free there."""
    if device.type != "cuda" or kept.nbytes > torch.cuda.mem_get_info(device)[0] / 2:
        return kept
    return kept.to(device)


def keep_grids(
    table: FrameTable, parts: Mapping[Part, AnyArray], config: RewardTrainConfig, work: Path, track: Track
) -> Kept:
    """Run the encoder over the images it will be asked for: all views of those to learn from, the others as they are.

    Goes on where an earlier try stopped.
    """
    device = device_of(config.device)
    model = build_classifier(classifier_config(config, table), config, 0)
    placed(model, device).eval()
    learned = np.unique(table.windows(parts["train"], model.config.moments, model.config.history_stride))
    measured = np.union1d(np.concatenate([parts["validation"], parts["test"]]), learned)
    wanted = [measured, *[learned] * (config.views - 1)]
    place = np.full((config.views, len(table)), -1)
    for view, rows in enumerate(wanted):
        place[view, rows] = sum(map(len, wanted[:view])) + np.arange(len(rows))
    changes = [_changes(table, config, view) for view in range(config.views)]

    def encode(camera: str, view: int, rows: AnyArray) -> Tensor:
        pixels = torch.from_numpy(table.images[camera][rows]).to(device)
        if view:
            pixels = changes[view][torch.from_numpy(rows)].apply(pixels)
        with torch.inference_mode(), precision(device):
            return model.encode(pixels).half().cpu()

    chunks = [(view, rows[i : i + CHUNK]) for view, rows in enumerate(wanted) for i in range(0, len(rows), CHUNK)]
    found: dict[str, Tensor] = {}
    for camera in model.config.cameras:
        shape = (sum(map(len, wanted)), *encode(camera, 0, measured[:1]).shape[1:])
        pieces = _Pieces(work / f"grids.{camera}", shape)
        try:
            for view, rows in track(f"encoding {camera}")(chunks[pieces.done :]):
                pieces.put(place[view, rows], encode(camera, view, rows).numpy())
        finally:
            pieces.keep()
        found[camera] = torch.from_numpy(pieces.array)
    return Kept(found, torch.from_numpy(place), device)


class _Pieces:
    """An array in a file that is filled piece by piece, from where an earlier try stopped."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self._counter = path.with_name(f"{path.name}.done")
        self.done = int(self._counter.read_text()) if self._counter.exists() else 0
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


def _changes(table: FrameTable, config: RewardTrainConfig, view: int) -> Changes:
    """For each row; with a history all rows of an episode are changed alike, so that what moves in it really moved."""
    rng = torch.Generator().manual_seed(config.seed * 1009 + view)
    drawn = Changes.draw(len(table), config.augment, rng)
    return drawn[torch.from_numpy(table.first)] if config.history else drawn


class Member:
    """One classifier in training, and the best it has been."""

    def __init__(self, number: int, shape: ClassifierConfig, config: RewardTrainConfig, table: FrameTable, steps: int):
        """steps: gradient steps of the whole training, which the learning rate's cosine spans"""
        self.device = device_of(config.device)
        seed = _seed(config, number)
        model = build_classifier(shape, config, number)
        if shape.state_dim:
            model.state_mean.copy_(torch.from_numpy(table.state.mean(axis=0)))
            model.state_std.copy_(torch.from_numpy(np.maximum(table.state.std(axis=0), 1e-3)))
        placed(model, self.device)
        self.net = nn.ModuleDict({"now": model, "best": copy.deepcopy(model)})
        self.model = model
        self.config, self.table = config, table
        self.version = 0  # epochs done
        self.rng = torch.Generator().manual_seed(seed)
        self.dropout_seed = seed
        self.best_loss = math.inf
        self.best_epoch = 0
        self.optimizer = torch.optim.AdamW(self._groups(), lr=config.lr, weight_decay=config.weight_decay)
        self.optimizers = {"all": self.optimizer}
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.steps, self.step = steps, 0

    def _groups(self) -> list[dict[str, Any]]:
        """An encoder that was trained elsewhere moves more slowly than what is new."""
        config, encoder = self.config, set(self.model.encoder.parameters())
        rest = [p for p in self.model.parameters() if p not in encoder]
        learning = [p for p in self.model.encoder.parameters() if p.requires_grad]
        rate = config.lr * (config.encoder_lr if config.encoder.pretrained else 1.0)
        return [{"params": rest}, *([{"params": learning, "lr": rate}] if learning else [])]

    def learn(self, grids: Grids, rows: AnyArray) -> tuple[float, float]:
        """One epoch over balanced batches of the training rows; the mean loss and accuracy."""
        self.model.train()
        losses, right = [], []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.dropout_seed + 7919 * self.version)
            for batch in _balanced(self.table.truth, rows, self.config.batch_size, self.rng):
                self._cool()
                logits = self._logits(grids, batch)
                truth = torch.from_numpy(self.table.truth[batch]).to(self.device)
                loss = self._loss(logits, truth, batch)
                self._check(float(loss.detach()), self.version + 1)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                losses.append(loss.detach())
                right.append(((logits[:, 0].detach() > 0) == (truth > 0.5)).float().mean())
        self.version += 1
        return float(torch.stack(losses).mean()), float(torch.stack(right).mean())

    def _check(self, loss: float, epoch: int) -> None:
        if not math.isfinite(loss):
            raise RewardError(
                f"the loss became {loss} in epoch {epoch}; no model was written, lower the learning rate (it is "
                f"{self.config.lr:g}) or look at the images (plaudit data sheet)"
            )

    def _logits(self, grids: Grids, batch: AnyArray) -> Tensor:
        shape = self.model.config
        windows = self.table.windows(batch, shape.moments, shape.history_stride)
        state = torch.from_numpy(self.table.state[windows.reshape(-1)]).to(self.device) if shape.state_dim else None
        with precision(self.device):
            looks = self.model.look(grids.draw(windows, self.rng), state)
            return self.model.verdict(looks.unflatten(0, (-1, shape.moments))).float()

    def _loss(self, logits: Tensor, truth: Tensor, batch: AnyArray) -> Tensor:
        smooth = self.config.label_smoothing
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], truth * (1 - 2 * smooth) + smooth)
        if self.model.config.progress:
            target = torch.from_numpy(self.table.progress[batch]).to(self.device)
            known = ~target.isnan()
            if known.any():
                loss = loss + F.binary_cross_entropy_with_logits(logits[known, 1], target[known])
        return loss

    def _cool(self) -> None:
        """The learning rate along its cosine."""
        share = 0.5 * (1 + math.cos(math.pi * min(self.step / self.steps, 1)))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        self.step += 1

    def validate(self, grids: Grids, rows: AnyArray) -> float:
        """The loss on frames as they are and as many as there are; keeps the model if it is the best so far."""
        judged = rows[~np.isnan(self.table.truth[rows])]
        logits = judge_rows(self.model, grids, self.table, rows)[np.isin(rows, judged), 0]
        truth = torch.from_numpy(self.table.truth[judged])
        loss = float(F.binary_cross_entropy_with_logits(torch.from_numpy(logits), truth))
        self._check(loss, self.version)
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.version
            self.best.load_state_dict(self.model.state_dict())
        return loss

    @property
    def best(self) -> BinaryRewardClassifier:
        found = self.net["best"]
        assert isinstance(found, BinaryRewardClassifier)
        return found

    def save(self, folder: Path, curve: list[Epoch]) -> None:
        """Among the checkpoints in a folder; it replaces those before it."""
        here, before = folder / f"{self.version:06d}", _checkpoints(folder)
        if here in before:
            return
        facts = {"best_loss": self.best_loss, "best_epoch": self.best_epoch, "step": self.step}
        save_checkpoint(here, self, {**facts, "curve": [vars(epoch) for epoch in curve]})
        for old in before:
            shutil.rmtree(old)

    def load(self, folder: Path) -> list[Epoch]:
        """The newest checkpoint of a folder; returns the curve so far, [] where there is none."""
        found = _checkpoints(folder)
        if not found:
            return []
        facts = load_checkpoint(found[-1], self)
        self.best_loss, self.best_epoch, self.step = facts["best_loss"], facts["best_epoch"], facts["step"]
        return [Epoch(**epoch) for epoch in facts["curve"]]


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*"))


def train_member(
    number: int,
    config: RewardTrainConfig,
    table: FrameTable,
    parts: Mapping[Part, AnyArray],
    kept: Kept | None,
    work: Path,
    watch: Callable[[Epoch], bool],
) -> tuple[Member, Grids, list[Epoch]]:
    """Train one classifier, from where an earlier try stopped; with a frozen encoder on what was kept of the images."""
    learnable = parts["train"]
    steps = config.epochs * math.ceil(len(learnable) / config.batch_size)
    member = Member(number, classifier_config(config, table), config, table, steps)
    checkpoints = work / f"member_{number}"
    curve = member.load(checkpoints)
    grids = Live(member.model, table, config) if kept is None else kept
    seconds = curve[-1].seconds if curve else 0.0
    since, saved = time.monotonic() - seconds, time.monotonic()
    while member.version < config.epochs and member.version - member.best_epoch < config.patience:
        loss, right = member.learn(grids, learnable)
        held = member.validate(grids, parts["validation"])
        new_best = member.best_epoch == member.version
        curve.append(Epoch(number, member.version, loss, right, held, new_best, time.monotonic() - since))
        going = watch(curve[-1])
        if not going or time.monotonic() - saved > KEEP_EVERY:
            member.save(checkpoints, curve)
            saved = time.monotonic()
        if not going:
            raise Stopped
    if number < config.members - 1:  # so that a stop in the next one does not cost this one
        member.save(checkpoints, curve)
    member.model.load_state_dict(member.best.state_dict())
    return member, grids, curve


def judge_rows(model: BinaryRewardClassifier, grids: Grids, table: FrameTable, rows: AnyArray) -> FloatArray:
    """Logits [n, outputs] of rows, which are whole episodes: each frame is looked at once, whatever the history."""
    shape = model.config
    device = next(model.parameters()).device
    model.eval()
    with torch.inference_mode(), precision(device):
        looks = torch.cat([_look(model, grids, table, rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)])
        place = np.zeros(len(table), np.int64)
        place[rows] = np.arange(len(rows))
        windows = place[table.windows(rows, shape.moments, shape.history_stride)]
        pieces = [model.verdict(looks[torch.from_numpy(w)]) for w in np.array_split(windows, -(-len(rows) // CHUNK))]
    return torch.cat(pieces).float().cpu().numpy()


def _look(model: BinaryRewardClassifier, grids: Grids, table: FrameTable, rows: AnyArray) -> Tensor:
    device = next(model.parameters()).device
    state = torch.from_numpy(table.state[rows]).to(device) if model.config.state_dim else None
    return model.look(grids.clean(rows), state)


def _balanced(truth: FloatArray, rows: AnyArray, size: int, rng: torch.Generator) -> Iterator[AnyArray]:
    """Batches of half successes and half failures; together as many frames as there are."""
    kinds = [rows[truth[rows] == value] for value in (1, 0)]
    for _ in range(math.ceil(len(rows) / size)):
        picks = [kind[torch.randint(len(kind), (size // 2,), generator=rng).numpy()] for kind in kinds]
        yield np.concatenate(picks)
