"""What every run leaves behind in its folder: metrics as lines and as TensorBoard events, and checkpoints."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from plaudit.checkpoint import load_checkpoint, read_facts, save_checkpoint
from plaudit.data.journal import disk_error, write_atomic
from plaudit.protocols import Learner
from plaudit.untrusted import read_metrics

KEPT = 2  # checkpoints
ROOM = 1 << 20  # bytes without which TensorBoard is not bothered


class Record:
    """Of a run in a folder. Metrics of steps that a resumed run will do again are taken back."""

    def __init__(self, path: Path):
        self.path = path
        self._writer: SummaryWriter | None = None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Metrics by the names in docs/metrics.md."""
        path = self.path / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a") as file:
                file.write(json.dumps({"step": step, **numbers}) + "\n")
        except OSError as error:
            os.truncate(path, size)  # half a line
            raise disk_error(error, self.path, "these metrics were not logged") from error
        self._draw(step, numbers)

    def _draw(self, step: int, numbers: Mapping[str, float]) -> None:
        """For TensorBoard, whose writer breaks for good on a full disk; another is made when there is room."""
        if shutil.disk_usage(self.path).free < ROOM:
            self._writer = None
            return
        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self.path / "tensorboard"), purge_step=step)
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, step)
        except OSError:
            self._writer = None

    def metrics(self) -> list[dict[str, float]]:
        return read_metrics(self.path / "metrics.jsonl")

    def checkpoint(self, step: int, learner: Learner, facts: Mapping[str, Any]) -> None:
        save_checkpoint(self._checkpoints / f"{step:012d}", learner, facts)
        for old in sorted(self._checkpoints.glob("[0-9]*"))[:-KEPT]:
            shutil.rmtree(old)

    def load(self, learner: Learner) -> dict[str, Any] | None:
        """The newest checkpoint's facts, its learner put back; None where there is none yet."""
        return load_checkpoint(self._newest, learner) if self._newest else None

    def restore(self, learner: Learner) -> dict[str, Any] | None:
        """The same, to go on from there: what was logged of later steps is taken back."""
        facts = self.load(learner)
        step = facts["step"] if facts else -1
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        try:
            write_atomic(self.path / "metrics.jsonl", "".join(kept).encode())
        except OSError as error:
            raise disk_error(error, self.path, "its metrics were left as they are") from error
        return facts

    def close(self) -> None:
        """Asked twice, does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def newest_facts(self) -> dict[str, Any] | None:
        return read_facts(self._newest) if self._newest else None

    @property
    def _newest(self) -> Path | None:
        """The newest checkpoint."""
        return max(self._checkpoints.glob("[0-9]*"), default=None)

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"
