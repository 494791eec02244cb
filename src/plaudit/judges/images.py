"""Camera images as networks take them."""

import torch
from torch import Tensor
from torch.nn import functional as F


def resize_images(images: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 [B, H, W, 3] to (height, width), rounded as in an image file: the same in training and on the robot."""
    if tuple(images.shape[1:3]) == tuple(size):
        return images
    x = F.interpolate(images.permute(0, 3, 1, 2).float(), size, mode="bilinear", antialias=True)
    return x.round_().clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
