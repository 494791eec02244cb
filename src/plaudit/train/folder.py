"""The folder of a run: its config, metrics, checkpoints, episodes and report.

runs/lift_sac_0/
  config.json           what was asked, complete
  metrics.jsonl         one line a round and one an evaluation
  tensorboard/          the same as event files
  checkpoints/          the last two, each whole
  episodes/  demos/     stores
  policy.safetensors    the actor's weights of the newest evaluation
  policy.yaml           what a robot builds to act with them
  first.mp4  last.mp4   the policy before it learned anything, and the newest
  demos.labels          with a reward model in charge: what it says of the demonstrations
  reward_models.jsonl   those that were in charge before the one in config.json, and up to which step
  collecting            where episodes are collected: the name by which the store knows this run
  report.html
"""

import json
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from torch.utils.tensorboard import SummaryWriter

from plaudit.checkpoint import Checkpointed, load_checkpoint, save_checkpoint
from plaudit.config import load
from plaudit.data.journal import write_atomic
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, RewardError, TargetNotEmpty
from plaudit.policies.loader import save_policy
from plaudit.rewards.model import RewardModel
from plaudit.train.config import TrainConfig
from plaudit.train.referee import introduced
from plaudit.types import Weights

KEPT = 2  # checkpoints


def open_demos(config: TrainConfig) -> Store | None:
    """The store that is named in the config. A reward model needs no labels there, it gives its own."""
    if config.demos is None:
        return None
    store = Store.open(config.demos)
    if not len(store.ledger) and config.reward.model_path is None:
        raise DataError(f"{config.demos} has no labels; label it first (plaudit data label)")
    return store


class RunFolder:
    """Where a run writes. Metrics of steps that a resumed run will do again are taken back."""

    def __init__(self, path: Path, config: TrainConfig):
        self.path, self.config = path, config
        self._writer: SummaryWriter | None = None

    @classmethod
    def create(cls, path: Path, config: TrainConfig) -> "RunFolder":
        if path.exists() and any(path.iterdir()):
            raise TargetNotEmpty(
                f"{path} holds a run already; go on with it (plaudit train --resume {path}) or give this one a name="
            )
        run = cls(path, config)
        run.check()
        path.mkdir(parents=True, exist_ok=True)
        run._write_config()
        return run

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        if not (path / "config.json").is_file():
            raise BadFile(path, "this is not a run: it has no config.json; runs are made by 'plaudit train'")
        return cls(path, load(TrainConfig, path / "config.json"))

    def check(self) -> None:
        """Tell a mistake before anything is made."""
        open_demos(self.config)
        if self.config.collect is not None:
            self.config.collect.check()
        _ = self.introduction

    @cached_property
    def introduction(self) -> tuple[str, ...]:
        """The reward model in charge and what to know of it, in sentences; () where there is none."""
        return introduced(self.config)

    def hand_over(self, model: Path) -> "RunFolder":
        """Put another reward model in charge from the newest checkpoint on; returns the run as it is to go on.

        What the last one judged, this one then judges again, and the alarm begins anew.
        """
        before = self.config.reward
        if before.model_path is None:
            raise RewardError(
                f"the simulator gives the rewards of {self.path}; begin a new run with reward.model={model}"
            )
        named = before.model_copy(update={"model": model, "reward_model": None, "resnet": None})
        after = RunFolder(self.path, self.config.model_copy(update={"reward": named}))
        after.check()
        facts = self._newest_facts()
        fingerprint = facts["referee"]["model"] if facts else None
        if fingerprint == RewardModel.load(model, "cpu", force=named.force).fingerprint:
            raise RewardError(f"{model} is the reward model that is in charge of {self.path} already; train another")
        past = {"step": facts["step"] if facts else 0, "model": str(before.model_path), "fingerprint": fingerprint}
        history = self.path / "reward_models.jsonl"
        lines = history.read_text().splitlines() if history.exists() else []
        if json.dumps(past) not in lines[-1:]:  # it is, where this was killed before the next line
            write_atomic(history, "".join(f"{line}\n" for line in (*lines, json.dumps(past))).encode())
        after._write_config()
        return after

    def _write_config(self) -> None:
        write_atomic(self.path / "config.json", self.config.model_dump_json(indent=1).encode())

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Metrics by the names in docs/metrics.md."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, **numbers}) + "\n")
        if self._writer is None:
            self._writer = SummaryWriter(str(self.path / "tensorboard"), purge_step=step)
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def metrics(self) -> list[dict[str, float]]:
        path = self.path / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def checkpoint(self, step: int, learner: Checkpointed, facts: Mapping[str, Any]) -> None:
        save_checkpoint(self._checkpoints / f"{step:012d}", learner, facts)
        for old in sorted(self._checkpoints.glob("[0-9]*"))[:-KEPT]:
            shutil.rmtree(old)

    def load(self, learner: Checkpointed) -> dict[str, Any] | None:
        """The newest checkpoint's facts, its learner put back; None where there is none yet."""
        return load_checkpoint(self._newest, learner) if self._newest else None

    def restore(self, learner: Checkpointed) -> dict[str, Any] | None:
        """The same, to go on from there: what was logged of later steps is taken back."""
        facts = self.load(learner)
        step = facts["step"] if facts else -1
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        (self.path / "metrics.jsonl").write_text("".join(kept))
        return facts

    def save_policy(self, config: BaseModel, weights: Weights) -> None:
        save_policy(self.path, config, weights)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _newest_facts(self) -> dict[str, Any] | None:
        return json.loads((self._newest / "facts.json").read_text()) if self._newest else None

    @property
    def _newest(self) -> Path | None:
        """The newest checkpoint."""
        return max(self._checkpoints.glob("[0-9]*"), default=None)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"
