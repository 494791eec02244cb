"""Which frames a prompt shows, and how large they are: by the rules of the published models.

The rules differ between an original and its port, and each gives other scores. So a judge names its protocol, and the
protocol is a part of its fingerprint.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from plaudit.errors import BadFile
from plaudit.files import Root, read_json_object
from plaudit.judges.vlm.images import TOKEN, Size
from plaudit.types import AnyArray

TOGETHER = 64  # frames that are resized together, so that memory stays small
BITS = 22  # after the point of the filter's weights, as in PIL
LEAST, MOST = 65536, 16777216  # pixels of a frame, where preprocessor_config.json says nothing
MAX_RATIO = 200  # of the longer edge to the shorter one, as in Qwen's own preprocessing


def even_frames(last: int, count: int) -> list[int]:
    """At most `count` frames from 0 to `last`, evenly spaced, with the first and the last; all where there are fewer.

    >>> even_frames(10, 4)
    [0, 3, 7, 10]
    """
    return list(range(last + 1)) if last < count else np.rint(np.linspace(0, last, count)).astype(int).tolist()


def fixed_frames(last: int, count: int) -> list[int]:
    """Exactly `count` frames from 0 to `last`: a short prefix shows frames several times, as LeRobot's scoring does.

    >>> fixed_frames(1, 4)
    [0, 0, 1, 1]
    """
    return np.linspace(0, last, count).round().astype(int).tolist()


def frames_by_time(last: int, fps: float, rate: float) -> list[int]:
    """Frames of a recording of `fps` at `rate` per second, from 0 to `last`, and the last one itself.

    >>> frames_by_time(25, 10.0, 1.0)
    [0, 10, 20, 25]
    """
    count = int(last / fps * rate + 1e-6) + 1
    frames = [min(round(number * fps / rate), last) for number in range(count)]
    return frames if frames[-1] == last else [*frames, last]


def pixel_limits(folder: Path, base: str) -> tuple[int, int]:
    """Pixels that a frame has at least and at most, as the folder of a Qwen3-VL or that of its base says."""
    homes = [one for one in (folder, *([Path(base)] if base else [])) if (one / "preprocessor_config.json").is_file()]
    settings = read_json_object(homes[0] / "preprocessor_config.json", Root(homes[0])) if homes else {}
    given = settings.get("size")
    size: dict[str, Any] = given if isinstance(given, dict) else {}
    least = size.get("shortest_edge", settings.get("min_pixels", LEAST))
    most = size.get("longest_edge", settings.get("max_pixels", MOST))
    if not all(isinstance(n, int) and 0 < n <= 1 << 28 for n in (least, most)) or least > most:
        raise BadFile(homes[0], "preprocessor_config.json has no sound limits of pixels (size)")
    return least, most


def fit_pixels(size: Size, least: int, most: int, factor: int = TOKEN) -> Size:
    """Qwen's `smart_resize`: edges in multiples of `factor`, and an area from `least` to `most` pixels."""
    height, width = size
    ratio = max(size) / min(size)
    if ratio > MAX_RATIO:
        raise ValueError(f"a frame of {height}x{width} is too narrow for this model, which takes up to 1:{MAX_RATIO}")
    rows, columns = (max(factor, round(edge / factor) * factor) for edge in size)
    if rows * columns > most:
        shrink = math.sqrt(height * width / most)
        rows, columns = (max(factor, math.floor(edge / shrink / factor) * factor) for edge in size)
    elif rows * columns < least:
        grow = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(edge * grow / factor) * factor for edge in size)
    return rows, columns


def fit_video(frames: int, size: Size, least: int, most: int, factor: int = TOKEN) -> Size:
    """The same of a whole video, whose pixels are counted together: more frames make each of them smaller."""
    height, width = size
    if height < factor or width < factor:
        grow = factor / min(size)
        height, width = int(height * grow), int(width * grow)
    if max(size) / min(size) > MAX_RATIO:
        raise ValueError(f"a frame of {height}x{width} is too narrow for this model, which takes up to 1:{MAX_RATIO}")
    rows, columns = (round(edge / factor) * factor for edge in (height, width))
    total = math.ceil(frames / 2) * 2
    if total * rows * columns > most:
        shrink = math.sqrt(frames * height * width / most)
        rows, columns = (max(factor, math.floor(edge / shrink / factor) * factor) for edge in (height, width))
    elif total * rows * columns < least:
        grow = math.sqrt(least / (frames * height * width))
        rows, columns = (math.ceil(edge * grow / factor) * factor for edge in (height, width))
    return rows, columns


def shrink_longest(size: Size, longest: int) -> Size:
    """With the longer edge no longer than this; never larger."""
    height, width = size
    scale = min(1.0, longest / max(size))
    return max(1, round(height * scale)), max(1, round(width * scale))


def resize(frames: Tensor, sizes: Sequence[Size]) -> Tensor:
    """uint8 [N, H, W, 3] to the last of these sizes, through each of them, by PIL's bicubic filter."""
    for size in sizes:
        if frames.shape[1:3] != size:
            frames = torch.cat([_resize(part, size) for part in frames.split(TOGETHER)])
    return frames


def _resize(frames: Tensor, size: Size) -> Tensor:
    if frames.device.type != "cpu":
        return stretch(stretch(frames, 2, size[1]), 1, size[0])
    images = (Image.fromarray(frame.numpy()).resize((size[1], size[0]), Image.Resampling.BICUBIC) for frame in frames)
    return torch.from_numpy(np.stack([np.asarray(image) for image in images]))


def stretch(frames: Tensor, axis: int, size: int) -> Tensor:
    """The numbers of PIL's bicubic filter along one axis of uint8 [N, H, W, 3], on a GPU in a hundredth of the time.

    PIL stretches the width first. (Its version 13 stretches a height that shrinks before a width that grows.)
    """
    if frames.shape[axis] == size:
        return frames
    places, weights = (torch.from_numpy(part).to(frames.device) for part in _bicubic(frames.shape[axis], size))
    shape = [size if number == axis else 1 for number in range(4)]
    total: Any = sum(frames.index_select(axis, place) * weight.view(shape) for place, weight in zip(places, weights))
    return ((total + (1 << BITS - 1)) >> BITS).clamp(0, 255).to(torch.uint8)


def _bicubic(length: int, size: int) -> tuple[AnyArray, AnyArray]:
    """[taps, size] the pixels that each new pixel is a sum of, and their weights."""
    scale = length / size
    wide = max(scale, 1.0)
    center = (np.arange(size) + 0.5) * scale
    begin = np.maximum((center - 2 * wide + 0.5).astype(np.int64), 0)
    end = np.minimum((center + 2 * wide + 0.5).astype(np.int64), length)
    places = begin + np.arange((end - begin).max())[:, None]
    x = np.abs((places - center + 0.5) / wide)
    near, far = (1.5 * x - 2.5) * x * x + 1, -0.5 * (((x - 5) * x + 8) * x - 4)
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0)) * (places < end)
    weights = weights / weights.sum(0) * (1 << BITS)
    return np.minimum(places, length - 1), np.trunc(weights + np.copysign(0.5, weights)).astype(np.int32)


def timestamps(frames: Sequence[float]) -> list[str]:
    """How Qwen3-VL writes the time of each pair of video frames: the mean of both, in seconds with one digit.

    frames: seconds of each frame
    """
    times = [*frames, frames[-1]] if len(frames) % 2 else list(frames)
    return [f"<{(one + other) / 2:.1f} seconds>" for one, other in zip(times[::2], times[1::2])]
