"""Frames of replay in the memory of a GPU, so that a batch of them is gathered there instead of copied to it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.errors import DataError
from plaudit.types import AnyArray

MIN_SLOTS = 1024


class FramesDoNotFit(DataError):
    """The frames of replay take more of a GPU's memory than they may."""


class DeviceFrames:
    """One buffer per camera, with a slot for each observation. All stores that are sampled together share it."""

    def __init__(self, device: "torch.device | str", *, max_bytes: int | None = None, required: bool = True):
        """
        max_bytes: None: half of the memory that is free now
        required: whether frames that do not fit are an error; False: replay then reads them from the disk
        """
        self.device, self.required = torch.device(device), required
        self._max_bytes = torch.cuda.mem_get_info(self.device)[0] // 2 if max_bytes is None else max_bytes
        self._buffers: dict[str, Tensor] = {}
        self._free: list[int] = []

    def add(self, frames: Mapping[str, AnyArray]) -> AnyArray:
        """Copy the frames [T+1, ...] of an episode, or features of them; returns their slots [T+1]."""
        count = len(next(iter(frames.values())))
        if count > len(self._free):
            self._grow(frames, count)
        slots = np.array(self._free[-count:])
        del self._free[-count:]
        index = torch.from_numpy(slots).to(self.device)
        for camera, array in frames.items():
            self._buffers[camera][index] = torch.from_numpy(np.array(array)).to(self.device)
        return slots

    def remove(self, slots: AnyArray) -> None:
        """Give back the slots of an episode."""
        self._free.extend(slots.tolist())

    def gather(self, slots: AnyArray) -> dict[str, Tensor]:
        """The frames in these slots, of each camera, with the shape of the slots in front."""
        index = torch.from_numpy(slots.reshape(-1)).to(self.device)
        gathered = {camera: buffer.index_select(0, index) for camera, buffer in self._buffers.items()}
        return {camera: frames.view(*slots.shape, *frames.shape[1:]) for camera, frames in gathered.items()}

    def _grow(self, frames: Mapping[str, AnyArray], count: int) -> None:
        before = len(next(iter(self._buffers.values()))) if self._buffers else 0
        slot_bytes = sum(array[0].nbytes for array in frames.values())
        slots = min(max(2 * before, before + count, MIN_SLOTS), self._max_bytes // slot_bytes)
        if slots - before + len(self._free) < count:
            raise FramesDoNotFit(
                f"the frames of replay take more than {self._max_bytes / 1e9:.1f} GB, half of the memory that was free "
                f"on {self.device}; set run.replay_on_gpu=false, or lower run.capacity_gb, or use smaller images"
            )
        for camera, array in frames.items():
            first: Any = torch.from_numpy(np.array(array[0]))
            grown = torch.empty(slots, *first.shape, dtype=first.dtype, device=self.device)
            if before:
                grown[:before] = self._buffers[camera]
            self._buffers[camera] = grown
        self._free.extend(range(before, slots))
