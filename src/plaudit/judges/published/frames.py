"""Which frames a prompt shows, and how large they are: by the rules of the published models.

The rules differ between an original and its port, and each gives other scores. So a judge names its protocol, and the
protocol is a part of its fingerprint.
"""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from plaudit.judges.vlm.images import TOKEN, Size
from plaudit.types import ByteArray

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


def resize(frames: ByteArray, sizes: Sequence[Size]) -> ByteArray:
    """[N, H, W, 3] to the last of these sizes, through each of them, by the bicubic filter of PIL."""
    for height, width in sizes:
        if frames.shape[1:3] != (height, width):
            images = (Image.fromarray(frame).resize((width, height), Image.Resampling.BICUBIC) for frame in frames)
            frames = np.stack([np.asarray(image) for image in images])
    return frames


def timestamps(frames: Sequence[float]) -> list[str]:
    """How Qwen3-VL writes the time of each pair of video frames: the mean of both, in seconds with one digit.

    frames: seconds of each frame
    """
    times = [*frames, frames[-1]] if len(frames) % 2 else list(frames)
    return [f"<{(one + other) / 2:.1f} seconds>" for one, other in zip(times[::2], times[1::2])]
