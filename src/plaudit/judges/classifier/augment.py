"""AugmentParams to training images that do not change their meaning: a little moved and scaled, a little other light.

Without them a classifier of a few hundred episodes learns where the camera stood and what the lamp was that day. What
is drawn is kept apart from applying it, because the moments of one history have to be changed alike.
"""

from dataclasses import dataclass, fields

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from plaudit.config import Config


class AugmentConfig(Config):
    shift: float = Field(default=0.06, ge=0, lt=0.5)  # of the image's size, at most, either way
    scale: float = Field(default=0.1, ge=0, lt=0.5)  # larger or smaller by at most this share
    color: float = Field(default=0.25, ge=0, lt=1)  # brightness, contrast and saturation, by at most this share


@dataclass(frozen=True)
class AugmentParams:
    """What is done to each of N images, [N] each."""

    zoom: Tensor
    across: Tensor
    down: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor

    @classmethod
    def draw(cls, count: int, config: AugmentConfig, rng: torch.Generator) -> "AugmentParams":
        spreads = (config.scale, config.shift, config.shift, *[config.color] * 3)
        drawn = torch.rand(len(spreads), count, generator=rng, device=rng.device) * 2 - 1
        return cls(*(values * spread for values, spread in zip(drawn, spreads, strict=True)))

    def __getitem__(self, numbers: Tensor) -> "AugmentParams":
        return AugmentParams(*(getattr(self, field.name)[numbers] for field in fields(self)))

    def apply(self, images: Tensor) -> Tensor:
        """Pixels [N, H, W, 3], 0 to 255, to floats of the same shape and range."""
        device = images.device
        zoom, across, down = (1 + self.zoom.to(device), 2 * self.across.to(device), 2 * self.down.to(device))
        zero = torch.zeros_like(zoom)
        matrix = torch.stack([torch.stack([zoom, zero, across], 1), torch.stack([zero, zoom, down], 1)], 1)
        x = images.permute(0, 3, 1, 2).float()
        grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        for share, dims in ((self.contrast, (1, 2, 3)), (self.saturation, (1,))):
            middle = x.mean(dim=dims, keepdim=True)
            x = (x - middle) * (1 + share.to(device)[:, None, None, None]) + middle
        x = x * (1 + self.brightness.to(device)[:, None, None, None])
        return x.clamp(0, 255).permute(0, 2, 3, 1)
