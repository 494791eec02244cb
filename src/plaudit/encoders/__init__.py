"""Encoders: what turns an image into a feature map. A config class builds it.

    encoder = Resnet10Config(weights="resnet10_params.pkl").build()
    features = encoder(normalize(frames, torch.tensor(encoder.mean), torch.tensor(encoder.std)))   # [B, C, h, w]

    encoded = EncodedFrames.of(encoder)                     # a policy; an equal encoder gets the same object
    maps = encoded(frames, encode)                          # encode is called with the frames that are new

An encoder is an `nn.Module` of normalized images [B, 3, H, W] that says how many channels come out (`channels`) and
carries its own preprocessing: `mean` and `std` of the pixels, 0 to 255, that its weights were trained with. A saved
reward model builds it with `pretrained=False` and fills it from its own weights.

A policy and a judge often have the same frozen encoder and see the same frames, so its feature maps are computed once.
The policy makes the object. A judge looks it up by the encoder's weights, and encodes by itself if no policy has that
encoder.

The small networks (`small`, `keypoints`) are for small images and trained from scratch. For simulated frames of 64x64
they are as good as a pretrained one and a hundred times cheaper on a CPU.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Literal, Self
from weakref import WeakValueDictionary

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.config import Channels, Config, Width
from plaudit.data.formats.decoder import load_pickle
from plaudit.data.weights import read_safetensors, read_torch
from plaudit.errors import BadFile, JudgeError
from plaudit.files import Root, unreadable
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


def weights_digest(encoder: Any) -> bytes:
    """Equal for encoders of equal layers, pixel statistics and weights."""
    digest = hashlib.blake2b(f"{encoder} {encoder.mean} {encoder.std}".encode(), digest_size=16)
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.digest()


Resampling = Literal["antialias", "bilinear"]


def resize_images(images: Tensor, size: tuple[int, int], resampling: Resampling = "antialias") -> Tensor:
    """uint8 [B, H, W, 3] to (height, width), rounded as in an image file: the same in training and on the robot.

    resampling: "bilinear" neither looks beyond the nearest four pixels nor rounds; RLinf resizes so
    """
    if tuple(images.shape[1:3]) == tuple(size):
        return images
    if resampling == "bilinear":
        return F.interpolate(images.permute(0, 3, 1, 2).float(), size, mode="bilinear").permute(0, 2, 3, 1)
    x = F.interpolate(images.permute(0, 3, 1, 2).float(), size, mode="bilinear", antialias=True)
    return x.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)


IMAGENET_MEAN: Channels = (123.675, 116.28, 103.53)
IMAGENET_STD: Channels = (58.395, 57.12, 57.375)

Normalization = Literal["imagenet", "unit"]
NORMALIZATIONS: Mapping[Normalization, tuple[Channels, Channels]] = {  # mean and deviation of pixels, 0 to 255
    "imagenet": (IMAGENET_MEAN, IMAGENET_STD),
    "unit": ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0)),
}


class SplitEncoder(nn.Module):
    """An encoder in two parts, `head(stem(images))`: the stem can be frozen and run once while the head learns."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalized images [B, 3, H, W] to features [B, C, h, w]."""
        return self.head(self.stem(images))

    def stem(self, images: Tensor) -> Tensor:
        """The first part: normalized images to the feature map in the middle."""
        raise NotImplementedError

    def head(self, x: Tensor) -> Tensor:
        """The rest: the feature map in the middle to the last one."""
        raise NotImplementedError

    def head_modules(self) -> list[nn.Module]:
        """The modules that `head` runs through."""
        raise NotImplementedError


class EncoderConfig(Config):
    """Base of every encoder's config. A plugin adds a `type`, what it needs and a `build`."""

    supports_partial_freeze: ClassVar[bool] = False  # whether it builds a `SplitEncoder`

    @property
    def pretrained(self) -> bool:
        """Whether `build()` fills it with weights that were learned elsewhere."""
        return False

    def build(self, *, pretrained: bool = True) -> Any:
        """The module; with `pretrained=False`, of the same shape and with random weights."""
        raise NotImplementedError

    def architecture_config(self) -> Self:
        """The same encoder as a config that needs no other file: `build(pretrained=False)` makes it anywhere.

        A saved reward model has it next to its own weights.
        """
        return self


class PretrainedConfig(EncoderConfig):
    """Base of the configs with a key `weights`: what the encoder begins with; None: random weights."""

    weights: Any = None

    @property
    def pretrained(self) -> bool:
        return self.weights is not None

    def architecture_config(self) -> Self:
        return self.model_copy(update={"weights": None})


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Pixels [B, H, W, 3], 0 to 255 as bytes or floats, to what an encoder of this mean and std, [3] each, takes:
    [B, 3, H, W], channels last."""
    width = images.shape[2]
    rows = images.float().flatten(2)  # of W * 3 numbers, which a CPU processes four times as fast as threes
    return (rows - mean.repeat(width)).div_(std.repeat(width)).unflatten(2, (width, 3)).permute(0, 3, 1, 2)


def feature_map_size(encoder: nn.Module, size: tuple[int, int]) -> tuple[int, int]:
    """(h, w) of the features of images of (H, W); found by trying."""
    try:
        shape = features_of(encoder, size)
    except BadFile:  # of a network that is larger than its weights
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        advice = "nor squares of 16 to 224 pixels"
        for side in (224, 128, 64, 32, 16):
            with suppress(RuntimeError, ValueError):
                features_of(encoder, (side, side))
                advice = f"it takes {side}x{side}: set image_size"
        raise JudgeError(f"this encoder takes no images of {size[0]}x{size[1]} ({reason}); {advice}") from error
    return shape[2], shape[3]


def features_of(encoder: Any, size: tuple[int, int]) -> tuple[int, ...]:
    """The shape of what comes out for one black image of (H, W).

    In evaluation mode: batch norms would learn from it in training mode, and forget some of what they know.
    """
    training = encoder.training
    encoder.eval()
    try:
        with torch.inference_mode():
            return tuple(encoder(torch.zeros(1, 3, *size)).shape)
    finally:
        encoder.train(training)


class SpatialLearnedEmbeddings(nn.Module):
    """F weighted sums over the grid, learned for each channel: [B, C, h, w] to [B, C * F]."""

    def __init__(self, channels: int, grid: tuple[int, int], features: int):
        super().__init__()
        cells = grid[0] * grid[1]
        spread = 1 / math.sqrt(channels * cells)  # lecun normal, as flax counts the fan-in of this kernel
        self.kernel = nn.Parameter(torch.randn(channels, *grid, features) * spread)

    def forward(self, x: Tensor) -> Tensor:
        channels, cells = x.shape[1], x.shape[2] * x.shape[3]
        # One small product a channel: [C, B, cells] x [C, cells, F].
        sums = x.reshape(len(x), channels, cells).transpose(0, 1) @ self.kernel.reshape(channels, cells, -1)
        return sums.transpose(0, 1).reshape(len(x), -1)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Cells before and after one axis of `size` cells."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class SameConv2d(nn.Conv2d):
    """A convolution without bias and with a square kernel."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1):
        super().__init__(channels_in, channels_out, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        vertical = same_padding(input.shape[2], kernel, stride)
        horizontal = same_padding(input.shape[3], kernel, stride)
        if vertical[0] == vertical[1] and horizontal[0] == horizontal[1]:  # torch pads these itself, without a copy
            return F.conv2d(input, self.weight, None, stride, (vertical[0], horizontal[0]), groups=self.groups)
        return F.conv2d(F.pad(input, (*horizontal, *vertical)), self.weight, None, stride, groups=self.groups)


class SameMaxPool2d(nn.Module):
    """The largest of each window; what lies outside of the image never wins."""

    def __init__(self, kernel: int, stride: int):
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = (same_padding(size, self.kernel, self.stride) for size in x.shape[2:])
        if rows == columns == (0, 1):  # windows that reach beyond the end, without a copy
            return F.max_pool2d(x, self.kernel, self.stride, ceil_mode=True)
        return F.max_pool2d(F.pad(x, (*columns, *rows), value=-math.inf), self.kernel, self.stride)


Shape = tuple[int, ...]

_ZIP = b"PK\x03\x04"  # a file of torch is a zip archive
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number as a pickle, before torch 1.6
_PICKLE = b"\x80"


def read_state_dict(path: Path) -> dict[str, Any]:
    """All that a file of weights holds, nested names joined with '/': torch tensors, arrays, and what else there is."""
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir() if file.is_file()))
        raise BadFile(path, f"this is a folder; name the weights file in it (it has: {files or 'none'})")
    if not path.exists():
        raise BadFile(path, "there is no such weights file; download it first and give its path")
    root = Root.of_named_file(path)
    with root.open(path) as file:
        start = file.read(16)
    if start[8:9] == b"{":
        message = "this safetensors file is damaged ({}); copy it again from its source"
        return dict(read_safetensors(path, message, root))
    if start.startswith((_ZIP, _LEGACY)):
        tree = read_torch(path, root)
    elif start.startswith(_PICKLE):
        tree = load_pickle(path, root)
    else:
        raise unreadable(path, f"this is not a weights file (safetensors, torch or pickle); it starts with {start!r}")
    if not isinstance(tree, dict):
        raise BadFile(path, f"this file holds a {type(tree).__name__}; weights are a dictionary of names and tensors")
    while len(tree) == 1 and isinstance(next(iter(tree.values())), dict):  # {"params": ...}, {"state_dict": ...}
        (tree,) = tree.values()
    return _flat(tree)


def select_tensors(
    tensors: Mapping[str, Any], wanted: Mapping[str, Shape], *, path: Path, network: str, skip: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The wanted tensors as 32-bit floats; refuses a file where one is missing, of another shape, or too many.

    skip: what the names of tensors start with that may be there and are left, like the head of the classifier
    """
    taken: dict[str, Tensor] = {}
    for name, shape in wanted.items():
        if name not in tensors:
            raise BadFile(path, f"tensor '{name}' {list(shape)} of {network} is missing; take the file as published")
        tensor = tensors[name]
        if isinstance(tensor, np.ndarray) and tensor.dtype.kind == "f":
            tensor = torch.from_numpy(tensor.astype(np.float32))
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            raise BadFile(path, f"'{name}' should be a tensor of floats {list(shape)} of {network}; take another file")
        if tensor.shape != shape:
            differs = f"tensor '{name}' is {list(tensor.shape)} and {network} has {list(shape)} there"
            raise BadFile(path, f"{differs}; these are the weights of another network; use a file for this one")
        taken[name] = tensor.detach().float()
    surplus = [name for name in tensors if name not in wanted and not name.startswith(tuple(skip))]
    if surplus:
        shape = list(np.shape(tensors[surplus[0]]))
        extra = f"tensor '{surplus[0]}' {shape} has no place in {network}, nor have {len(surplus) - 1} others"
        raise BadFile(path, f"{extra}; these are the weights of another network; use a file for this one")
    return taken


def _flat(tree: Mapping[Any, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{above}{name}/") if isinstance(value, dict) else {f"{above}{name}": value}
    return flat


class SmallConfig(EncoderConfig):
    """Strided convolutions from random weights."""

    type: Literal["small"] = "small"
    # Channels of each layer; each halves the image.
    widths: tuple[Width, ...] = Field(default=(16, 32, 64, 64), min_length=1)

    def build(self, *, pretrained: bool = True) -> "SmallEncoder":
        return SmallEncoder(self.widths)


def strided_convolutions(widths: Sequence[int]) -> list[nn.Module]:
    """Layers with these channels, each of which halves an image."""
    layers: list[nn.Module] = []
    for before, after in pairwise((3, *widths)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
    return layers


class SmallEncoder(nn.Module):
    """[B, 3, H, W] to [B, C, h, w], halved by each layer."""

    mean: Channels = (127.5, 127.5, 127.5)
    std: Channels = (127.5, 127.5, 127.5)

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        self.layers = nn.Sequential(*strided_convolutions(widths))
        self.channels = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class KeypointsConfig(EncoderConfig):
    """Convolutions and a spatial softmax, from random weights."""

    type: Literal["keypoints"] = "keypoints"
    widths: tuple[Width, ...] = Field(default=(16, 32, 32), min_length=2)  # channels; the last is the keypoints'

    def build(self, *, pretrained: bool = True) -> "KeypointsEncoder":
        return KeypointsEncoder(self.widths)


class KeypointsEncoder(nn.Module):
    """[B, 3, H, W] to [B, 3 * K, 1, 1]: x, y and strength of each of K keypoints."""

    mean, std = SmallEncoder.mean, SmallEncoder.std

    def __init__(self, widths: Sequence[int]):
        super().__init__()
        # The last layer has heat maps, with the defaults at a quarter of the image's size.
        last = nn.Conv2d(widths[-2], widths[-1], 3, padding=1)
        self.layers = nn.Sequential(*strided_convolutions(widths[:-1]), last)
        # How sharp each softmax is: of heat maps with unit deviation, so that it is sharp enough to learn from at once.
        self.sharpness = nn.Parameter(torch.full((widths[-1],), 3.0))
        self.channels = 3 * widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        heat = self.layers(images)
        height, width = heat.shape[2:]
        heat = heat.flatten(2)
        unit = F.layer_norm(heat, heat.shape[2:], eps=1e-6)
        share = torch.softmax(unit * self.sharpness[:, None], dim=2)
        y, x = (torch.linspace(-1, 1, count, dtype=heat.dtype, device=heat.device) for count in (height, width))
        grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
        where = share @ torch.stack([grid_x.flatten(), grid_y.flatten()], dim=1)
        strength = (share * heat).sum(dim=2, keepdim=True).tanh()
        return torch.cat([where, strength], dim=2).reshape(len(images), -1, 1, 1)
