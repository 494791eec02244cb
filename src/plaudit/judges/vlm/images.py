"""Frames as a Qwen3-VL takes them: to size, to patches, to data: URLs. No torchvision.

A model cuts an image into patches of 16x16 and merges 2x2 of them into a token, so each edge is a multiple of 32.
Frames are brought to such a size here, for an endpoint too, whose own resizing (another filter) then has nothing to do.
"""

import base64
import io
import math
from collections.abc import Sequence
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from plaudit.encoders import resize_images
from plaudit.judges.vlm.prompt import FramePrompt
from plaudit.types import ByteArray

PATCH = 16  # pixels along an edge
MERGE = 2  # patches of a token, along an edge
TIMES = 2  # copies of an image, for a network of videos
TOKEN = PATCH * MERGE  # pixels along the edge of a token

Size = tuple[int, int]  # height, width


def size_of(shape: Sequence[int], edge: int) -> Size:
    """Of frames [N, H, W, 3]: the nearest size in whole tokens with their shape and the area of a square.

    >>> size_of((50, 480, 640, 3), 224)
    (192, 256)
    """
    _, height, width, _ = shape
    scale = edge / math.sqrt(height * width)
    rows, columns = (max(1, round(pixels * scale / TOKEN)) for pixels in (height, width))
    return rows * TOKEN, columns * TOKEN


def resize_frames(prompt: FramePrompt, edge: int, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """camera -> uint8 [F, h, w, 3], the frames that are shown, in whole tokens."""
    frames = {c: torch.from_numpy(prompt.images(c)).to(device, non_blocking=True) for c in prompt.frames}
    return {c: resize_images(images, size_of(images.shape, edge)).contiguous() for c, images in frames.items()}


def patches(frames: Tensor, dtype: torch.dtype, later: Tensor | None = None) -> Tensor:
    """uint8 [N, h, w, 3] -> [N, patches, 3 x TIMES x PATCH x PATCH], -1 to 1; the patches of a token come together.

    later: of videos, whose tokens each show two frames: the second ones; None: images, which are shown twice
    """
    pair = [_patches(moment, dtype) for moment in ((frames,) if later is None else (frames, later))]
    x = torch.stack(pair, dim=6)
    x = x.expand(*x.shape[:6], TIMES, PATCH, PATCH)
    return x.reshape(len(frames), -1, 3 * TIMES * PATCH**2)


def _patches(frames: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, rows, columns, MERGE, MERGE, 3, PATCH, PATCH]"""
    count, height, width, _ = frames.shape
    rows, columns = height // TOKEN, width // TOKEN
    x = (frames.to(torch.float32) / 127.5 - 1).to(dtype)
    return x.view(count, rows, MERGE, PATCH, columns, MERGE, PATCH, 3).permute(0, 1, 4, 2, 5, 7, 3, 6)


def data_url(frame: ByteArray, form: Literal["png", "jpeg"]) -> str:
    """Of one uint8 [h, w, 3] frame."""
    file = io.BytesIO()
    Image.fromarray(frame).save(file, form, **({"quality": 95} if form == "jpeg" else {"compress_level": 1}))
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode()}"
