"""A training by epochs: learn on some episodes, keep the epoch that is best on others.

    while not trainer.done: its steps, then its end of the epoch        # `train_epochs`

It may be stopped after any step. What takes long is kept in a folder, from where the same training goes on.
"""

import json
import math
import platform
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plaudit import __version__
from plaudit.config import Config
from plaudit.data.disk import Folder, write_atomic
from plaudit.data.weights import Stateful, load_checkpoint, save_checkpoint
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
    """Training state of a member after one step."""

    member: int
    members: int
    epoch: int  # at work, from 1
    step: int  # gradient steps of it that are done
    steps: int  # of it
    loss: float  # of the newest
    fold: int = 0  # of cross-fitting, from 1; 0: the model itself


class TrainingInterrupted(Exception):
    """A callback asked to stop. What was done is in the work folder."""


# Called after each step and at the end of each epoch; False stops the training with `TrainingInterrupted`.
Watch = Callable[[EpochMetrics | StepMetrics], bool]


def never_stop(_: object) -> bool:
    """A callback that lets a training continue."""
    return True


class EpochTrainer(Stateful):
    """What is trained by epochs; `version` counts those that are done. A subclass adds a step and a validation."""

    def __init__(
        self,
        now: nn.Module,
        best: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        epochs: int,
        patience: int,
        steps: int,
        warmup: int = 0,
        number: int = 0,
        members: int = 1,
        max_seconds: float = math.inf,
    ):
        """
        now, best: what is trained, and a copy for its weights after the best epoch
        patience: epochs without a better validation loss before it stops
        steps: gradient steps of an epoch
        warmup: steps until the learning rate is reached; then it falls along a cosine
        number: of the member that is trained
        max_seconds: it ends then, if it has had an epoch
        """
        self.net = nn.ModuleDict({"now": now, "best": best})
        self.optimizer, self.optimizers = optimizer, {"all": optimizer}
        self.epochs, self.patience, self.steps, self.warmup = epochs, patience, steps, warmup
        self.number, self.members, self.max_seconds = number, members, max_seconds
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.version = 0
        self.best_loss = math.inf
        self.best_epoch = 0
        self.epoch_step = 0  # steps done of the epoch at work
        self.loss_sum = self.right_sum = 0.0  # over these
        self.seconds = 0.0  # of the whole training, so far

    def gradients(self) -> tuple[float, float]:
        """Compute the gradients of the next step; returns its loss and the share of what it predicted right."""
        raise NotImplementedError

    def validation_loss(self) -> float:
        """The loss on data that is not learned from."""
        raise NotImplementedError

    @property
    def step(self) -> int:
        """Gradient steps done, of all epochs."""
        return self.version * self.steps + self.epoch_step

    @property
    def done(self) -> bool:
        """Whether it has had all its epochs or its time, or has not become better for too many epochs."""
        out_of_time = self.version > 0 and self.seconds >= self.max_seconds
        return out_of_time or self.version >= self.epochs or self.version - self.best_epoch >= self.patience

    def train_step(self) -> StepMetrics:
        """One gradient step."""
        share = 0.5 * (1 + math.cos(math.pi * min(self.step / (self.steps * self.epochs), 1)))
        share *= min(1.0, (self.step + 1) / (self.warmup + 1))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        loss, right = self.gradients()
        self._check_loss(loss, self.version + 1)
        nn.utils.clip_grad_norm_(self.net["now"].parameters(), 1.0)
        self.optimizer.step()
        self.epoch_step += 1
        self.loss_sum += loss
        self.right_sum += right
        return StepMetrics(self.number, self.members, self.version + 1, self.epoch_step, self.steps, loss)

    def end_epoch(self) -> EpochMetrics:
        """After the last step of an epoch: count it and validate."""
        loss, accuracy = self.loss_sum / self.steps, self.right_sum / self.steps
        self.version, self.epoch_step, self.loss_sum, self.right_sum = self.version + 1, 0, 0.0, 0.0
        held_out = self.validate()
        best = self.best_epoch == self.version
        return EpochMetrics(self.number, self.version, loss, accuracy, held_out, best, self.seconds)

    def validate(self) -> float:
        """The validation loss; keeps the weights if they are the best so far."""
        loss = self.validation_loss()
        self._check_loss(loss, self.version)
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.version
            self.net["best"].load_state_dict(self.net["now"].state_dict())
        return loss

    def use_best(self) -> None:
        """Go back to the weights after the best epoch."""
        self.net["now"].load_state_dict(self.net["best"].state_dict())

    def _check_loss(self, loss: float, epoch: int) -> None:
        """Refuse NaN and infinity."""
        if not math.isfinite(loss):
            raise JudgeError(
                f"the loss became {loss} in epoch {epoch}; no model was written, lower the learning rate (it is "
                f"{self.rates[0]:g}) or look at the images (plaudit data sheet)"
            )

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


def training_record(config: Config, begun: float, device: torch.device, **results: Any) -> dict[str, Any]:
    """What a model's folder says about its training, which began at this time of the monotonic clock."""
    return {
        "config": config.model_dump(mode="json"),
        **results,
        "seconds": round(time.monotonic() - begun, 1),
        "device": str(device),
        "versions": {"plaudit": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def train_epochs(trainer: EpochTrainer, checkpoints: Path, watch: Watch) -> list[EpochMetrics]:
    """Train all remaining epochs and return the history. Resumes an earlier run."""
    history = trainer.load(checkpoints)
    began, saved = time.monotonic() - trainer.seconds, time.monotonic()
    while not trainer.done:
        if trainer.epoch_step < trainer.steps:
            proceed = watch(trainer.train_step())
            trainer.seconds = time.monotonic() - began
        else:
            history.append(trainer.end_epoch())
            proceed = watch(history[-1])
        if not proceed or time.monotonic() - saved > KEEP_EVERY:
            trainer.save(checkpoints, history)
            saved = time.monotonic()
        if not proceed:
            raise TrainingInterrupted
    return history
