"""A training by epochs: learn on some episodes, keep the epoch that is best on others.

    while not trainer.done: its steps, then its end of the epoch        # `train_epochs`

It may be stopped after any step. What takes long is kept in a folder, from where the same training goes on.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from plaudit.data.checkpoint import Stateful, load_checkpoint, save_checkpoint
from plaudit.data.disk import Folder, write_atomic
from plaudit.errors import JudgeError
from plaudit.files import MAX_JSON

KEEP_EVERY = 20.0  # seconds between checkpoints


@dataclass(frozen=True)
class EpochMetrics:
    """One line of the training history."""

    member: int
    epoch: int
    train_loss: float
    train_acc: float  # on augmented frames, classes balanced; of progress alone, pairs in the right order
    validation_loss: float
    best: bool  # so far
    seconds: float
    fold: int = 0  # of cross-fitting, from 1; 0: the model itself


@dataclass(frozen=True)
class StepMetrics:
    """How far a member has come within its epoch."""

    member: int
    members: int
    epoch: int  # at work, from 1
    step: int  # gradient steps of it that are done
    steps: int  # of it
    loss: float  # of the newest
    fold: int = 0  # of cross-fitting, from 1; 0: the model itself


class TrainingInterrupted(Exception):
    """A callback asked to stop. What was done is in the work folder."""


def never_stop(_: object) -> bool:
    """A callback that lets a training continue."""
    return True


class EpochTrainer(Stateful):
    """What is trained by epochs; `version` counts those that are done."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        epochs: int,
        patience: int,
        steps: int,
        warmup: int = 0,
        number: int = 0,
        members: int = 1,
    ):
        """
        patience: epochs without a better validation loss before it stops
        steps: gradient steps of an epoch
        warmup: steps until the learning rate is reached; then it falls along a cosine
        number: of the member that is trained
        """
        self.optimizer, self.optimizers = optimizer, {"all": optimizer}
        self.epochs, self.patience, self.steps, self.warmup = epochs, patience, steps, warmup
        self.number, self.members = number, members
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.version = 0
        self.best_loss = math.inf
        self.best_epoch = 0
        self.epoch_step = 0  # steps done of the epoch at work
        self.loss_sum = self.right_sum = 0.0  # over these
        self.seconds = 0.0  # of the whole training, so far
        self.max_seconds = math.inf  # it ends then, if it has had an epoch

    @property
    def step(self) -> int:
        """Gradient steps done, of all epochs."""
        return self.version * self.steps + self.epoch_step

    @property
    def done(self) -> bool:
        """Whether it has had all its epochs or its time, or has not become better for too many epochs."""
        out_of_time = self.version > 0 and self.seconds >= self.max_seconds
        return out_of_time or self.version >= self.epochs or self.version - self.best_epoch >= self.patience

    def step_lr(self) -> None:
        """The learning rate of the next step."""
        share = 0.5 * (1 + math.cos(math.pi * min(self.step / (self.steps * self.epochs), 1)))
        share *= min(1.0, (self.step + 1) / (self.warmup + 1))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share

    def check_loss(self, loss: float, epoch: int) -> None:
        """Refuse NaN and infinity."""
        if not math.isfinite(loss):
            raise JudgeError(
                f"the loss became {loss} in epoch {epoch}; no model was written, lower the learning rate (it is "
                f"{self.rates[0]:g}) or look at the images (plaudit data sheet)"
            )

    def count_step(self, loss: float, right: float) -> StepMetrics:
        """After a gradient step. right: the share of what it predicted"""
        self.epoch_step += 1
        self.loss_sum += loss
        self.right_sum += right
        return StepMetrics(self.number, self.members, self.version + 1, self.epoch_step, self.steps, loss)

    def count_epoch(self, validate: Callable[[], float]) -> EpochMetrics:
        """After the last step of an epoch. validate: measures, and keeps what is the best so far"""
        loss, accuracy = self.loss_sum / self.steps, self.right_sum / self.steps
        self.version, self.epoch_step, self.loss_sum, self.right_sum = self.version + 1, 0, 0.0, 0.0
        held_out = validate()
        best = self.best_epoch == self.version
        return EpochMetrics(self.number, self.version, loss, accuracy, held_out, best, self.seconds)

    def save(self, folder: Path, history: list[EpochMetrics]) -> None:
        """Write a checkpoint into a folder; it replaces those before it."""
        path, before = folder / f"{self.step:09d}", sorted(folder.glob("[0-9]*"))
        if path in before:
            return
        state = {name: getattr(self, name) for name in _STATE}
        save_checkpoint(path, self, {**state, "history": [vars(epoch) for epoch in history]})
        for old in before:
            shutil.rmtree(old)

    def load(self, folder: Path) -> list[EpochMetrics]:
        """The newest checkpoint of a folder; returns the history so far, [] where there is none."""
        checkpoints = sorted(folder.glob("[0-9]*"))
        if not checkpoints:
            return []
        state = load_checkpoint(checkpoints[-1], self)
        for name in _STATE:
            setattr(self, name, state[name])
        return [EpochMetrics(**epoch) for epoch in state["history"]]


# Of a trainer, besides its tensors.
_STATE = ("best_loss", "best_epoch", "epoch_step", "loss_sum", "right_sum", "seconds")


def prepare_work(work_dir: Path, key: Mapping[str, Any]) -> None:
    """Keep the folder of an earlier training with the same key (its config and data); delete that of another one."""
    data, path = json.dumps(key, sort_keys=True).encode(), work_dir / "resume_key.json"
    if work_dir.exists():
        folder = Folder(work_dir)
        folder.check_no_links()
        if not path.exists() or folder.read(path.name, MAX_JSON) != data:
            shutil.rmtree(work_dir)
    work_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data)


def train_epochs(
    trainer: EpochTrainer,
    train_step: Callable[[], StepMetrics],
    end_epoch: Callable[[], EpochMetrics],
    checkpoints: Path,
    on_epoch_end: Callable[[EpochMetrics], bool],
    on_step: Callable[[StepMetrics], bool] = never_stop,
) -> list[EpochMetrics]:
    """All epochs, from where an earlier run stopped; returns their history."""
    history = trainer.load(checkpoints)
    began, saved = time.monotonic() - trainer.seconds, time.monotonic()
    while not trainer.done:
        if trainer.epoch_step < trainer.steps:
            proceed = on_step(train_step())
            trainer.seconds = time.monotonic() - began
        else:
            history.append(end_epoch())
            proceed = on_epoch_end(history[-1])
        if not proceed or time.monotonic() - saved > KEEP_EVERY:
            trainer.save(checkpoints, history)
            saved = time.monotonic()
        if not proceed:
            raise TrainingInterrupted
    return history
