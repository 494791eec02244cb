"""A small network for small images, trained from scratch: four strided convolutions, as for Atari and PickCube.

For simulated frames of 64x64 it is as good as a pretrained one and a hundred times cheaper on a processor.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from plaudit.config import Width
from plaudit.judges.classifier.encoders import Channels, EncoderConfig


class SmallConfig(EncoderConfig):
    """Strided convolutions from random weights."""

    type: Literal["small"] = "small"
    # Channels of each layer; each halves the image.
    widths: tuple[Width, ...] = Field(default=(16, 32, 64, 64), min_length=1)

    def build(self, *, pretrained: bool = True) -> "SmallEncoder":
        return SmallEncoder(self.widths)


class SmallEncoder(nn.Module):
    """[B, 3, H, W] to [B, C, h, w], halved by each layer."""

    mean: Channels = (127.5, 127.5, 127.5)
    std: Channels = (127.5, 127.5, 127.5)

    def __init__(self, widths: tuple[int, ...]):
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in zip((3, *widths[:-1]), widths, strict=True):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.channels = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)
