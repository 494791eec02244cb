"""Random changes to training images that keep their label: small shifts, zooms and changes of color.

Without them, a classifier trained on a few hundred episodes overfits to that day's camera position and lighting.
Drawing parameters is separate from applying them, because all frames of one history need the same change.
"""

from dataclasses import dataclass, fields

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from plaudit.config import Config


class AugmentConfig(Config):
    """The largest change of each kind, as a fraction."""

    shift: float = Field(default=0.06, ge=0, lt=0.5)  # of the image size, in each direction
    scale: float = Field(default=0.1, ge=0, lt=0.5)  # of the zoom, in or out
    color: float = Field(default=0.25, ge=0, lt=1)  # of brightness, contrast and saturation


@dataclass(frozen=True)
class AugmentParams:
    """The changes of N images, [N] each."""

    zoom: Tensor
    across: Tensor
    down: Tensor
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor

    @classmethod
    def draw(cls, count: int, config: AugmentConfig, rng: torch.Generator) -> "AugmentParams":
        """Draw the changes of `count` images, uniformly within the config's limits."""
        spreads = (config.scale, config.shift, config.shift, *[config.color] * 3)
        drawn = torch.rand(len(spreads), count, generator=rng, device=rng.device) * 2 - 1
        return cls(*(values * spread for values, spread in zip(drawn, spreads, strict=True)))

    def __getitem__(self, numbers: Tensor) -> "AugmentParams":
        return AugmentParams(*(getattr(self, field.name)[numbers] for field in fields(self)))

    def apply(self, images: Tensor) -> Tensor:
        """Change images [N, H, W, 3] with values from 0 to 255; returns floats of the same shape and range."""
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
