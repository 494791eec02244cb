"""Camera images as networks take them."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

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
