"""Episodes as H.264 videos that browsers play.

`save_episode_video` shows one episode with its cameras side by side. `save_grid_video` shows several episodes in a grid
with the judge's P(success) under each. The bar has the color of success where the judge predicts it, and the
simulator's result is on the right. An episode that ends early stays on its last frame.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from plaudit.data.disk import write_atomic
from plaudit.data.formats.video import VideoWriter
from plaudit.judges.human.palette import DARK, rgb
from plaudit.judges.metrics import hstack_images
from plaudit.types import BoolArray, ByteArray, Episode, FloatArray

BACK, MUTED, SUCCESS, FAILURE = (rgb(DARK[name]) for name in ("back", "muted", "success", "failure"))
CAPTION_HEIGHT, GAP = 26, 4  # pixels: the caption under an episode, and the space between episodes
_EPISODE_HEIGHT, _GRID_HEIGHT = 320, 240  # pixels that smaller frames are enlarged to, by whole factors
_HOLD_S = 0.8  # how long the last frame of a grid is shown
_GRID_CRF = 26  # H.264 rate factor: rendered frames are flat


@dataclass(frozen=True, eq=False)
class EpisodeClip:
    """One episode of T steps in a grid."""

    frames: ByteArray  # [T+1, H, W, 3]
    success: BoolArray  # [T+1] by the simulator
    predicted: BoolArray | None  # [T+1] by the judge; None where the simulator is the judge
    success_prob: FloatArray  # [T+1] by the judge


def save_episode_video(episode: Episode, path: Path) -> None:
    """All frames at the episode's own speed."""
    cameras = [_enlarge(frames, _EPISODE_HEIGHT) for frames in episode.frames.values()]
    _write(path, hstack_images(cameras), episode.fps or 20.0, None)


def save_grid_video(path: Path, clips: Sequence[EpisodeClip], fps: float, columns: int = 2) -> None:
    """Several episodes of one size at once."""
    clips = [replace(clip, frames=_enlarge(clip.frames, _GRID_HEIGHT)) for clip in clips]
    num_frames = max(len(clip.frames) for clip in clips) + round(_HOLD_S * fps)
    height, width = clips[0].frames.shape[1] + CAPTION_HEIGHT, clips[0].frames.shape[2]
    rows = -(-len(clips) // columns)

    def grid(t: int) -> ByteArray:
        """Frame t of all clips: uint8 [H, W, 3]."""
        image = np.zeros((rows * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3), np.uint8)
        for number, clip in enumerate(clips):
            top, left = number // columns * (height + GAP), number % columns * (width + GAP)
            image[top : top + height, left : left + width] = draw_tile(clip, min(t, len(clip.frames) - 1))
        return image

    _write(path, map(grid, range(num_frames)), fps, _GRID_CRF)


def _write(path: Path, frames: Iterable[ByteArray], fps: float, crf: int | None) -> None:
    frames = iter(frames)
    first = next(frames)
    height, width = first.shape[:2]
    odd = ((0, height % 2), (0, width % 2), (0, 0))  # a video has even sizes
    with TemporaryDirectory() as folder:  # ffmpeg would follow a link that lies at `path`
        file = Path(folder, "video.mp4")
        writer = VideoWriter(file, fps, height + height % 2, width + width % 2, "h264", crf)
        for frame in chain([first], frames):
            writer.append(np.pad(frame, odd)[None])
        writer.close()
        write_atomic(path, file.read_bytes())


def _enlarge(frames: ByteArray, height: int) -> ByteArray:
    factor = max(1, height // frames.shape[1])
    return frames.repeat(factor, axis=1).repeat(factor, axis=2)


def draw_tile(clip: EpisodeClip, t: int) -> ByteArray:
    """Frame t of one clip with its caption."""
    height, width = clip.frames.shape[1:3]
    tile = Image.new("RGB", (width, height + CAPTION_HEIGHT), BACK)
    tile.paste(Image.fromarray(np.ascontiguousarray(clip.frames[t])), (0, 0))
    draw, middle, font = ImageDraw.Draw(tile), height + CAPTION_HEIGHT // 2, ImageFont.load_default(12)
    if clip.predicted is not None:
        prob = float(clip.success_prob[t])
        left, right = 48, width // 2 + 18
        draw.text((8, middle), "judge", font=font, fill=MUTED, anchor="lm")
        draw.rectangle([left, middle - 5, right, middle + 4], outline=MUTED)
        if prob > 0.01:
            color = SUCCESS if clip.predicted[t] else FAILURE
            draw.rectangle([left + 1, middle - 4, left + 1 + prob * (right - left - 2), middle + 3], fill=color)
        draw.text((right + 6, middle), f"{prob:.0%}", font=font, fill="white", anchor="lm")
    if clip.success[: t + 1].any():
        draw.text((width - 8, middle), "success", font=font, fill=SUCCESS, anchor="rm")
    elif t == len(clip.frames) - 1:
        draw.text((width - 8, middle), "no success", font=font, fill=FAILURE, anchor="rm")
    return np.asarray(tile)
