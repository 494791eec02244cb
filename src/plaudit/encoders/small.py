"""A small network for small images, trained from scratch: four strided convolutions, as for Atari and PickCube.

For simulated frames of 64x64 it is as good as a pretrained one and a hundred times cheaper on a CPU.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.config import Width
from plaudit.encoders import Channels, EncoderConfig


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
