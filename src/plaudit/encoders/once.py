"""Feature maps of frozen encoders, computed once per frame for all that use the same encoder in this process.

    encoded = EncodedFrames.of(encoder)                     # a policy; an equal encoder gets the same object
    maps = encoded(frames, encode)                          # encode is called with the frames that are new

A policy and a judge often have the same pretrained encoder and see the same frames. The policy makes the object. A
judge looks it up by the encoder's weights, and encodes by itself if no policy has that encoder.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from plaudit.types import ByteArray

MAX_BATCH = 256  # frames at a time
MAX_BYTES = 128_000_000  # of the maps of the newest frames


class EncodedFrames:
    """The feature maps of the newest frames by one frozen encoder, on the CPU."""

    _shared: ClassVar["WeakValueDictionary[bytes, EncodedFrames]"] = WeakValueDictionary()

    def __init__(self) -> None:
        self._maps: OrderedDict[bytes, Tensor] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def of(cls, encoder: nn.Module) -> "EncodedFrames":
        """That of all encoders with these weights."""
        return cls._shared.setdefault(weights_digest(encoder), cls())

    @classmethod
    def find(cls, digest: bytes) -> "EncodedFrames | None":
        """That of encoders with these weights, if there is one. digest: see `weights_digest`"""
        return cls._shared.get(digest)

    def __call__(self, frames: ByteArray, encode: Callable[[ByteArray], Tensor]) -> Tensor:
        """Maps [N, C, h, w] of frames uint8 [N, H, W, 3]. encode: makes those of frames that are not here"""
        keys = [hashlib.blake2b(frame.tobytes(), digest_size=16).digest() for frame in frames]
        with self._lock:
            new = list({key: n for n, key in enumerate(keys) if key not in self._maps}.items())
            for start in range(0, len(new), MAX_BATCH):
                part = new[start : start + MAX_BATCH]
                maps = encode(frames[[n for _, n in part]]).cpu()
                self._maps |= {key: one.clone() for (key, _), one in zip(part, maps, strict=True)}
            result = torch.stack([self._maps[key] for key in keys])
            while len(self._maps) > max(MAX_BYTES // result[0].nbytes, 1):
                self._maps.popitem(last=False)
        return result


def weights_digest(module: nn.Module) -> bytes:
    """Equal for networks of one kind with equal weights."""
    digest = hashlib.blake2b(type(module).__name__.encode(), digest_size=16)
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.digest()
