"""Memory of batches, their conversion to torch and TensorDict, and a cache of features of their frames.

A batch of 256 transitions with two cameras is 50 MB. Allocating that anew costs as much as filling it, because the
kernel zeroes one page at a time. So memory is reused once nothing refers to it any more. With CUDA it comes from
torch's pinned cache instead, which also tracks copies that are still in progress.

Features of stored frames by a frozen image encoder are kept in files:

    runs/NAME/features/FINGERPRINT/STORE-EPISODE-CHECKSUM.features

The fingerprint is the encoder's, so features of another encoder are never read. The files are a cache: one that is
missing or damaged is computed again. A resumed run reads the very numbers that it has learned from.
"""

import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic_core import to_json
from safetensors import SafetensorError
from safetensors.numpy import load, save

from plaudit.data.segments import camera_column
from plaudit.data.store import Store
from plaudit.errors import MissingExtra
from plaudit.files import Root
from plaudit.types import AnyArray, Batch, FloatArray

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


MAX_FILE = 1 << 31  # bytes of the features of an episode


Encode = Callable[[Mapping[str, AnyArray]], Mapping[str, FloatArray]]  # frames [N, H, W, 3] of each camera -> features


class FeatureCache:
    """Encodes each episode once."""

    def __init__(
        self, encode: Encode, shapes: Mapping[str, tuple[int, ...]], fingerprint: str, folder: Path | None = None
    ):
        """
        shapes: camera -> shape of the features of one frame
        fingerprint: of the encoder
        folder: for the files; None: nothing is kept
        """
        self.encode, self.shapes = encode, dict(shapes)
        self._folder = None if folder is None else folder / fingerprint

    def features(self, store: Store, episode_id: int) -> Mapping[str, FloatArray]:
        """Features [T+1, ...] of the frames of an episode, of each camera."""
        path = self._path(store, episode_id)
        shapes = {camera: (store.entry(episode_id).rows, *shape) for camera, shape in self.shapes.items()}
        if path is not None:
            with suppress(OSError, ValueError, KeyError, SafetensorError):
                data = Root(path.parent).read(path, MAX_FILE)
                saved = load(data[4:]) if zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4] else {}
                if {camera: saved[camera].shape for camera in shapes} == shapes:
                    return saved
        store.verify(episode_id, [camera_column(camera) for camera in self.shapes])
        features = self.encode(store.episode(episode_id).frames)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            part, data = path.with_suffix(".part"), save(dict(features))
            part.write_bytes(zlib.crc32(data).to_bytes(4, "little") + data)
            part.replace(path)
        return features

    def forget(self, store: Store, episode_id: int) -> None:
        """Remove the file of an episode that was evicted."""
        if self._folder is not None:
            for path in self._folder.glob(f"{store.settings.id}-{episode_id}-*"):
                path.unlink(missing_ok=True)

    def _path(self, store: Store, episode_id: int) -> Path | None:
        """Named by the episode's line in the journal, which has the checksums of its frames."""
        line = zlib.crc32(to_json(store.entry(episode_id).line))
        return self._folder and self._folder / f"{store.settings.id}-{episode_id}-{line:08x}.features"
