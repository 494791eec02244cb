"""Several episodes as one film, side by side, with the judge's probability under each: for people.

An episode that ends before the others stands still on its last frame. The bar is as long as the judge is sure, green
where it calls success; on the right stands what is true, as soon as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from plaudit.data.formats.video import VideoWriter
from plaudit.types import BoolArray, ByteArray, FloatArray

_INK, _FAINT, _YES, _NO = (24, 27, 32), (150, 156, 164), (58, 178, 104), (224, 142, 11)
_STRIP, _GAP = 26, 4  # pixels: what is written under a scene, and between scenes
_HEIGHT = 240  # pixels that smaller frames are enlarged to, in whole steps
_STAY = 0.8  # seconds that the end is shown for
_QUALITY = 26  # rate factor of H.264: drawn scenes are flat


@dataclass(frozen=True, eq=False)
class Scene:
    """One episode of T steps."""

    frames: ByteArray  # [T+1, H, W, 3]
    success: BoolArray  # [T+1] what is true
    called: BoolArray | None  # [T+1] whether the judge calls it a success; None where the simulator is the judge
    probability: FloatArray  # [T+1] P(success) as the judge said


def save_film(path: Path, scenes: Sequence[Scene], fps: float, columns: int = 2) -> None:
    """An H.264 video that browsers play."""
    scenes = [_enlarged(scene) for scene in scenes]
    longest = max(len(scene.frames) for scene in scenes)
    height, width = scenes[0].frames.shape[1:3]
    rows = -(-len(scenes) // columns)
    tall, wide = rows * (height + _STRIP + _GAP) - _GAP, columns * (width + _GAP) - _GAP
    writer = VideoWriter(path, fps, tall + tall % 2, wide + wide % 2, "h264", _QUALITY)  # videos have even sizes
    for t in range(longest + round(_STAY * fps)):
        picture = np.zeros((tall + tall % 2, wide + wide % 2, 3), np.uint8)
        for place, scene in enumerate(scenes):
            top, left = place // columns * (height + _STRIP + _GAP), place % columns * (width + _GAP)
            tile = _tile(scene, min(t, len(scene.frames) - 1))
            picture[top : top + len(tile), left : left + width] = tile
        writer.append(picture[None])
    writer.close()


def _enlarged(scene: Scene) -> Scene:
    times = max(1, _HEIGHT // scene.frames.shape[1])
    return replace(scene, frames=scene.frames.repeat(times, axis=1).repeat(times, axis=2))


def _tile(scene: Scene, t: int) -> ByteArray:
    height, width = scene.frames.shape[1:3]
    tile = Image.new("RGB", (width, height + _STRIP), _INK)
    tile.paste(Image.fromarray(np.ascontiguousarray(scene.frames[t])), (0, 0))
    draw, middle, font = ImageDraw.Draw(tile), height + _STRIP // 2, ImageFont.load_default(12)
    if scene.called is not None:
        said = float(scene.probability[t])
        left, right = 48, width // 2 + 18
        draw.text((8, middle), "judge", font=font, fill=_FAINT, anchor="lm")
        draw.rectangle([left, middle - 5, right, middle + 4], outline=_FAINT)
        if said > 0.01:
            colour = _YES if scene.called[t] else _NO
            draw.rectangle([left + 1, middle - 4, left + 1 + said * (right - left - 2), middle + 3], fill=colour)
        draw.text((right + 6, middle), f"{said:.0%}", font=font, fill="white", anchor="lm")
    if scene.success[: t + 1].any():
        draw.text((width - 8, middle), "success", font=font, fill=_YES, anchor="rm")
    elif t == len(scene.frames) - 1:
        draw.text((width - 8, middle), "no success", font=font, fill=_NO, anchor="rm")
    return np.asarray(tile)
