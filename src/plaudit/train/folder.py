"""The folder of a run: its config, metrics, checkpoints, episodes and report.

runs/lift_sac_0/
  config.json           what was asked, complete
  metrics.jsonl         one line a round and one an evaluation
  tensorboard/          the same as event files
  checkpoints/          the last two, each whole
  episodes/  demos/     stores
  policy.safetensors    the actor's weights of the newest evaluation
  first.mp4  last.mp4   the policy before it learned anything, and the newest
  collecting            where episodes are collected: the name by which the store knows this run
  report.html
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file
from torch.utils.tensorboard import SummaryWriter

from plaudit.checkpoint import Checkpointed, load_checkpoint, save_checkpoint
from plaudit.config import load
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, TargetNotEmpty
from plaudit.train.config import TrainConfig
from plaudit.types import Weights

KEPT = 2  # checkpoints


def open_demos(path: Path) -> Store:
    store = Store.open(path)
    if not len(store.ledger):
        raise DataError(f"{path} has no labels; label it first (plaudit data label)")
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
        if config.demos is not None:
            open_demos(config.demos)  # a mistake is told before anything is made
        if config.collect is not None:
            config.collect.check()
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(config.model_dump_json(indent=1))
        return cls(path, config)

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        if not (path / "config.json").is_file():
            raise BadFile(path, "this is not a run: it has no config.json; runs are made by 'plaudit train'")
        return cls(path, load(TrainConfig, path / "config.json"))

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
        found = sorted(self._checkpoints.glob("[0-9]*"))
        return load_checkpoint(found[-1], learner) if found else None

    def restore(self, learner: Checkpointed) -> dict[str, Any] | None:
        """The same, to go on from there: what was logged of later steps is taken back."""
        facts = self.load(learner)
        step = facts["step"] if facts else -1
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        (self.path / "metrics.jsonl").write_text("".join(kept))
        return facts

    def save_policy(self, weights: Weights) -> None:
        new = self.path / ".policy.part"
        save_file(dict(weights.tensors), new, metadata={"version": str(weights.version)})
        new.replace(self.path / "policy.safetensors")

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"
