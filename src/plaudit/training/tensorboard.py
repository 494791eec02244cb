"""Metrics as TensorBoard's event files, for as long as there is room on the disk."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

MIN_FREE_BYTES = 1 << 20  # of the disk, below which nothing is written


class TensorBoard:
    """The event files of one folder. Its writer breaks for good on a full disk; another is made when there is room."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._writer: SummaryWriter | None = None  # made with the first metrics: it takes a second to import

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step; of a run that was resumed, what was logged from this step on is dropped."""
        if shutil.disk_usage(self.folder.parent).free < MIN_FREE_BYTES:
            self._writer = None
            return
        try:
            if self._writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self.folder), purge_step=step)
            for name, value in metrics.items():
                self._writer.add_scalar(name, value, step)
        except OSError:
            self._writer = None

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
