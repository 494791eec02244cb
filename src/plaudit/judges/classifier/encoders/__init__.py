"""Encoders: what turns an image into a feature map. One file each; a config class builds it.

    encoder = Resnet10Config(weights="resnet10_params.pkl").build()
    features = encoder(normalize(frames, torch.tensor(encoder.mean), torch.tensor(encoder.std)))   # [B, C, h, w]

An encoder is an `nn.Module` of normalized images [B, 3, H, W] that says how many channels come out (`channels`) and
carries its own preprocessing: `mean` and `std` of the pixels, 0 to 255, that its weights were trained with. A saved
reward model builds it with `pretrained=False` and fills it from its own weights.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.config import Config, Number
from plaudit.errors import BadFile, JudgeError

Channels = tuple[Number, Number, Number]

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

        A saved reward model carries it beside its own weights.
        """
        return self


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Pixels [B, H, W, 3], 0 to 255 as bytes or floats, to what an encoder of this mean and std, [3] each, takes:
    [B, 3, H, W], channels last."""
    width = images.shape[2]
    rows = images.float().flatten(2)  # of W * 3 numbers, which a processor goes through four times as fast as threes
    return (rows - mean.repeat(width)).div_(std.repeat(width)).unflatten(2, (width, 3)).permute(0, 3, 1, 2)


def feature_map_size(encoder: nn.Module, size: tuple[int, int]) -> tuple[int, int]:
    """(h, w) of the features of images of (H, W); found by trying."""
    try:
        shape = features_of(encoder, size)
    except BadFile:  # of a network that is larger than its weights
        raise
    except (RuntimeError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise JudgeError(
            f"this encoder takes no images of {size[0]}x{size[1]} ({reason}); {_smallest(encoder)}"
        ) from error
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


def _smallest(encoder: nn.Module) -> str:
    """The tail of a sentence: what size would do."""
    for side in (16, 32, 64, 128, 224):
        try:
            features_of(encoder, (side, side))
        except (RuntimeError, ValueError):
            continue
        return f"it takes {side}x{side}: set image_size"
    return "nor squares of 16 to 224 pixels"


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Cells before and after one axis of `size` cells."""
    total = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """[B, C, H, W] with its edges filled with `value`."""
    top, bottom = same_padding(x.shape[2], kernel, stride)
    left, right = same_padding(x.shape[3], kernel, stride)
    return F.pad(x, (left, right, top, bottom), value=value)


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
        padding = [same_padding(size, self.kernel, self.stride) for size in x.shape[2:]]
        if all(before == after for before, after in padding):  # torch pads these itself, without a copy
            return F.max_pool2d(x, self.kernel, self.stride, [before for before, _ in padding])
        if all(pair == (0, 1) for pair in padding):  # a last window that reaches one cell out: no copy either
            return F.max_pool2d(x, self.kernel, self.stride, ceil_mode=True)
        return F.max_pool2d(pad_same(x, self.kernel, self.stride, -math.inf), self.kernel, self.stride)
