"""Memory of batches, and their conversion to torch and TensorDict.

A batch of 256 transitions with two cameras is 50 MB. Allocating that anew costs as much as filling it, because the
kernel zeroes one page at a time. So memory is reused once nothing refers to it any more. With CUDA it comes from
torch's pinned cache instead, which also tracks copies that are still in progress.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.errors import MissingExtra
from plaudit.types import AnyArray, Batch

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict

Allocate = Callable[[tuple[int, ...], Any], AnyArray]  # (shape, dtype) -> array of any content


class BufferPool:
    """Arrays whose memory returns to the pool when the last view of them is gone.

    Each array is a view of a new root array over pooled memory. Numpy keeps the root alive as long as any view of it,
    so the memory is free when the root is deleted.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[AnyArray]] = defaultdict(list)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        dtype = np.dtype(dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if size == 0:
            return np.empty(shape, dtype)
        free = self._free[size]
        memory = free.pop() if free else np.empty(size, np.uint8)
        root = np.frombuffer(memory.data, dtype)
        weakref.finalize(root, free.append, memory).atexit = False
        return root.reshape(shape)


def pinned_empty(shape: tuple[int, ...], dtype: Any) -> AnyArray:
    """Page-locked memory, from which a GPU copies while the program goes on."""
    import torch

    like = torch.from_numpy(np.empty(0, dtype))
    return torch.empty(shape, dtype=like.dtype, pin_memory=True).numpy()


def cuda_available() -> bool:
    import torch

    return torch.cuda.is_available()


def to_torch(batch: Batch[AnyArray], device: "torch.device | str | None" = None) -> "Batch[torch.Tensor]":
    """The same memory as tensors; with a device, copied there (without waiting, where the memory is pinned).

    Images stay `[B, H, W, 3]`: `x.permute(0, 3, 1, 2)` is then a channels-last tensor without a copy.
    """
    import torch

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: convert(array) for name, array in value.items()}
        tensor = torch.from_numpy(value)
        return tensor if device is None else tensor.to(device, non_blocking=True)

    return Batch(**{field.name: convert(getattr(batch, field.name)) for field in fields(batch)})


def to_tensordict(batch: Batch[AnyArray], device: "torch.device | str | None" = None) -> "TensorDict":
    """In torchrl's layout: `observation`, `action`, and under `next` the observation, reward and done."""
    try:
        from tensordict import TensorDict
    except ImportError as error:
        raise MissingExtra("tensordict", "tensordict") from error
    b = to_torch(batch, device)
    done = (b.discount == 0).unsqueeze(-1)
    tree = {
        "observation": {"state": b.state, "images": dict(b.images)},
        "action": b.actions,
        "action_mask": b.action_mask,
        "discount": b.discount.unsqueeze(-1),
        "index": {"episode": b.episode, "step": b.step, "part": b.part},
        "next": {
            "observation": {"state": b.next_state, "images": dict(b.next_images)},
            "reward": b.reward.unsqueeze(-1),
            "done": done,
            "terminated": done,
        },
    }
    return TensorDict(tree, batch_size=[len(b.reward)])
