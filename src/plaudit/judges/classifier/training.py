"""Training a reward classifier: learn on some episodes, keep the epoch that is best on others.

Classes are balanced where batches are drawn and nowhere else.

A model of progress alone learns from successes: pairs of frames of one episode, which came first and how much of the
way lies between them. It sees single frames, so that it cannot go by time: an episode backwards has the same values
backwards, and what stands still has one.
"""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.devices import AdamW, autocast_bf16, resolve_device, to_channels_last
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split
from plaudit.judges.classifier.features import CachedFeatures, FeatureSource, OnlineFeatures, predict_logits
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.epochs import EpochMetrics, EpochTrainer, StepMetrics, never_stop, train_epochs
from plaudit.types import AnyArray


class EnsembleMember(EpochTrainer):
    """One classifier in training, and the best it has been."""

    def __init__(self, number: int, config: RewardTrainConfig, table: RewardDataset, rows: AnyArray):
        """rows: of the table, to learn from"""
        self.device = resolve_device(config.device)
        seed = config.member_seed(number)
        model = config.build_member(config.classifier_config(table.cameras, table.state_dim), number)
        if model.config.state_dim:
            model.state_mean.copy_(torch.from_numpy(table.state.mean(axis=0)))
            model.state_std.copy_(torch.from_numpy(np.maximum(table.state.std(axis=0), 1e-3)))
        to_channels_last(model, self.device)
        self.net = nn.ModuleDict({"now": model, "best": copy.deepcopy(model)})
        self.model = model
        self.config, self.table, self.rows = config, table, rows
        self.rng = torch.Generator().manual_seed(seed)
        self.dropout_seed = seed
        super().__init__(
            AdamW(self._groups(), lr=config.lr, weight_decay=config.weight_decay),
            epochs=config.epochs,
            patience=config.patience,
            steps=math.ceil(len(rows) / config.batch_size),
            number=number,
            members=config.ensemble_size,
        )

    def _groups(self) -> list[dict[str, Any]]:
        """An encoder that was trained elsewhere moves more slowly than what is new."""
        config, encoder = self.config, set(self.model.encoder.parameters())
        rest = [p for p in self.model.parameters() if p not in encoder]
        learning = [p for p in self.model.encoder.parameters() if p.requires_grad]
        rate = config.lr * (config.encoder_lr_scale if config.encoder.pretrained else 1.0)
        return [{"params": rest}, *([{"params": learning, "lr": rate}] if learning else [])]

    def train_step(self, features: FeatureSource) -> StepMetrics:
        """One gradient step on a balanced batch of the training rows, or on pairs of them."""
        self.model.train()
        draw = balanced_batch if self.config.predict_success else paired_batch
        batch = draw(self.table, self.rows, self.config.batch_size, self.rng)
        with torch.random.fork_rng(devices=[]):
            # A seed of its own for every step, so that a training may be stopped after any of them.
            torch.manual_seed(self.dropout_seed + 7919 * self.step)
            self.step_lr()
            logits = self._logits(features, batch)
            loss, right = (self._loss if self.config.predict_success else self._pair_loss)(logits, batch)
            found = float(loss.detach())
            self.check_loss(found, self.version + 1)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
        return self.count_step(found, right)

    def end_epoch(self, features: FeatureSource, rows: AnyArray) -> EpochMetrics:
        """After its last step: measure on these rows, and keep the model if it is the best so far."""
        return self.count_epoch(lambda: self.validate(features, rows))

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

    @property
    def best(self) -> BinaryRewardClassifier:
        found = self.net["best"]
        assert isinstance(found, BinaryRewardClassifier)
        return found


def train_member(
    number: int,
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    cached: CachedFeatures | None,
    work_dir: Path,
    on_epoch_end: Callable[[EpochMetrics], bool],
    on_step: Callable[[StepMetrics], bool] = never_stop,
    max_seconds: float = math.inf,
) -> tuple[EnsembleMember, FeatureSource, list[EpochMetrics]]:
    """Train one classifier, from where an earlier run stopped; with a frozen encoder on cached features.

    max_seconds: it ends after these, and has one epoch at least
    """
    member = EnsembleMember(number, config, table, splits["train"])
    member.max_seconds = max_seconds
    checkpoints = work_dir / f"member_{number}"
    features = OnlineFeatures(member.model, table, config) if cached is None else cached
    history = train_epochs(
        member,
        lambda: member.train_step(features),
        lambda: member.end_epoch(features, splits["validation"]),
        checkpoints,
        on_epoch_end,
        on_step,
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
