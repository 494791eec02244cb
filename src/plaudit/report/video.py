"""An episode as an H.264 video that browsers play, or as one image, a contact sheet.

`save_episode_video` shows one episode with its cameras side by side. `save_grid_video` shows several episodes in a grid
with the judge's P(success) under each. The bar has the color of success where the judge predicts it, and the
simulator's result is on the right. An episode that ends early stays on its last frame.

The frames of a contact sheet are evenly spaced and include the first and the last; a column shows one moment, its
cameras one below the other. The edge of a frame has the color of its label (palette.py), and is pale where there is
none. The strip at the bottom has every frame of the episode, so that no flicker between the frames shown is missed,
with P(success) as a curve.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from plaudit.data.disk import write_atomic
from plaudit.data.formats.video import VideoWriter
from plaudit.data.store import Store
from plaudit.errors import DataError, did_you_mean, format_count
from plaudit.files import file_name
from plaudit.judges.human.palette import DARK, LIGHT, rgb
from plaudit.judges.metrics import hstack_images
from plaudit.types import BoolArray, ByteArray, Episode, FloatArray, Labels, ProgressFn, name_of_camera

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


@cache
def _caption_font() -> Any:
    return ImageFont.load_default(12)  # reads a file of 300 KB


def draw_tile(clip: EpisodeClip, t: int) -> ByteArray:
    """Frame t of one clip with its caption."""
    height, width = clip.frames.shape[1:3]
    tile = Image.new("RGB", (width, height + CAPTION_HEIGHT), BACK)
    tile.paste(Image.fromarray(np.ascontiguousarray(clip.frames[t])), (0, 0))
    draw, middle, font = ImageDraw.Draw(tile), height + CAPTION_HEIGHT // 2, _caption_font()
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


_BACKGROUND, _TEXT, _MUTED = (rgb(LIGHT[name]) for name in ("card", "text", "muted"))
_CURVE = rgb(DARK["series-4"])
_SUCCESS, _FAILURE, _UNKNOWN = (rgb(LIGHT[name]) for name in ("success", "failure", "none"))
_MARGIN, _GAP, _EDGE, _CAPTION, _HEADER, _STRIP = 20, 8, 3, 18, 62, 64


def contact_sheet(
    episode: Episode,
    labels: Labels | None,
    *,
    title: str,
    frames: int = 24,
    columns: int = 8,
    cell_width: int = 160,
    target: FloatArray | None = None,
) -> Image.Image:
    """`frames` moments of an episode, `columns` a row.

    target: [T+1] reference label of each frame, 1, 0 or NaN, for a second strip below the labels
    """
    shown = np.arange(episode.steps + 1)[episode.observed]
    chosen = shown[np.unique(np.linspace(0, len(shown) - 1, min(frames, len(shown))).round().astype(int))]
    columns = min(columns, len(chosen))
    label = np.full(episode.steps + 1, np.nan, np.float32) if labels is None else labels.targets
    heights = {c: round(cell_width * f.shape[1] / f.shape[2]) for c, f in episode.frames.items()}
    cell_height = sum(heights.values()) + _GAP // 2 * (len(heights) - 1) + _CAPTION
    rows = -(-len(chosen) // columns)
    width = max(2 * _MARGIN + columns * (cell_width + _GAP) - _GAP, 560)
    height = _HEADER + rows * (cell_height + _GAP) + _STRIP + _MARGIN
    image = Image.new("RGB", (width, height), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    _header(draw, episode, labels, title, width)
    for place, t in enumerate(chosen):
        x = _MARGIN + place % columns * (cell_width + _GAP)
        y = _HEADER + place // columns * (cell_height + _GAP)
        draw.text((x, y + 1), f"{t - shown[0]}", font=_font(12), fill=_MUTED)
        y += _CAPTION
        for camera, cell in heights.items():
            picture = _fit(episode.frames[camera][t], cell_width - 2 * _EDGE, cell - 2 * _EDGE)
            draw.rectangle([x, y, x + cell_width - 1, y + cell - 1], fill=_color(float(label[t])))
            image.paste(picture, (x + _EDGE, y + _EDGE))
            y += cell + _GAP // 2
    scores = None if labels is None or labels.scores is None else labels.scores.success_prob
    curve, reference = (None if one is None else one[episode.observed] for one in (scores, target))
    _strip(draw, label[episode.observed], curve, reference, height - _STRIP - _MARGIN + 14, width - _MARGIN)
    return image


def save_image(image: Image.Image, path: str | Path) -> None:
    """Write a PNG; its folder is created if it does not exist."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(path, format="PNG")


def _header(draw: ImageDraw.ImageDraw, episode: Episode, labels: Labels | None, title: str, width: int) -> None:
    seconds = f", {episode.steps / episode.fps:.1f} s at {episode.fps:g} Hz" if episode.fps else ""
    metadata = f"{format_count(episode.steps, 'step')}{seconds}  ·  cameras: {', '.join(episode.frames) or 'none'}"
    draw.text((_MARGIN, 12), title, font=_font(17), fill=_TEXT)
    draw.text((_MARGIN, 36), metadata, font=_font(12), fill=_MUTED)
    summary = "not labeled"
    if labels is not None:  # `success from frame 31  ·  labels by human`
        frames = labels.targets[episode.observed]
        hits, unlabeled = np.flatnonzero(frames == 1), int(np.isnan(frames).sum())
        outcome = f"success from frame {hits[0]}" if len(hits) else "no success"
        outcome += f", {unlabeled} frames not labeled" if unlabeled else ""
        summary = f"{outcome}  ·  labels by {labels.judge.source}"
    draw.text((width - _MARGIN, 36), summary, font=_font(12), fill=_TEXT, anchor="ra")


def _strip(
    draw: ImageDraw.ImageDraw, label: FloatArray, curve: FloatArray | None, target: FloatArray | None, y0: int, x1: int
) -> None:
    """All frames as stripes, and the legend below. curve: P(success); y0, x1: its top and its right end"""
    x0 = _MARGIN
    edges = np.linspace(x0, x1, len(label) + 1)
    tall = 30 if target is None else 20
    for i, value in enumerate(label):
        draw.rectangle([edges[i], y0, edges[i + 1], y0 + tall], fill=_color(value))
        if target is not None:
            draw.rectangle([edges[i], y0 + tall + 3, edges[i + 1], y0 + 30], fill=_color(target[i]))
    if curve is not None:
        middle = (edges[:-1] + edges[1:]) / 2
        points = [(x, y0 + tall * (1 - p)) for x, p in zip(middle, curve) if not np.isnan(p)]
        draw.line(points, fill=_TEXT, width=4)  # an edge, so that it can be seen on each color
        draw.line(points, fill=_CURVE, width=2)
    draw.text((x0, y0 + 34), "0", font=_font(11), fill=_MUTED)
    draw.text((x1, y0 + 34), f"frame {len(label) - 1}", font=_font(11), fill=_MUTED, anchor="ra")
    legend = [("success", _SUCCESS), ("no success", _FAILURE), ("not labeled", _UNKNOWN)]
    if curve is not None:
        legend.append(("P(success)", _CURVE))
    x = (x0 + x1) / 2 - 45 * len(legend)
    for name, color in legend:
        draw.rectangle([x, y0 + 38, x + 9, y0 + 47], fill=color)
        draw.text((x + 14, y0 + 34), name, font=_font(11), fill=_MUTED)
        x += 90


def _color(label: float) -> tuple[int, int, int]:
    if np.isnan(label):
        return _UNKNOWN
    return _SUCCESS if label >= 0.5 else _FAILURE


def _fit(frame: ByteArray, width: int, height: int) -> Image.Image:
    enlarging = width > frame.shape[1]
    how = Image.Resampling.NEAREST if enlarging and width >= 2 * frame.shape[1] else Image.Resampling.LANCZOS
    return Image.fromarray(np.ascontiguousarray(frame)).resize((width, height), how)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def visualize_positives(
    store: Store, folder: Path, cameras: Sequence[str], sources: Collection[str], progress: ProgressFn = iter
) -> int:
    """`positive_000001_frame049.png` and so on, into a folder that may be there; returns how many.

    An imported episode is named by the folder and the number of its file, another one by its id. With several cameras,
    their names come last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for episode_id in progress(store.ids):
        episode, labels = store.episode(episode_id), store.ledger.labels(episode_id, sources)
        if labels is None:
            continue
        first = episode.observed.start or 0  # frames are counted as they were recorded
        name, file, kind = f"positive_{episode_id:06d}", episode.meta.get("file"), episode.meta.get("folder")
        if isinstance(file, str):
            name = file_name(f"{kind}_{file.removeprefix('episode_')}")
        for frame in np.flatnonzero(labels.targets[episode.observed] == 1):
            for camera in cameras:
                images = episode.frames.get(name_of_camera(camera, episode.frames, cameras))
                if images is None:
                    raise DataError(
                        f"episode {episode_id} has no camera '{camera}'; {did_you_mean(camera, episode.frames)}"
                    )
                tail = f"_{file_name(camera)}" if len(cameras) > 1 else ""
                path = folder / f"{name}_frame{frame:03d}{tail}.png"
                Image.fromarray(np.ascontiguousarray(images[first + frame])).save(path)
                count += 1
    return count
