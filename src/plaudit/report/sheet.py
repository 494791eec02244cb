"""A contact sheet: one episode on one picture, its frames in order with the verdict on each.

Frames are evenly spaced, the first and the last always among them; a column of a row is one moment, its cameras one
below the other. A green edge is a frame judged a success, a dark grey one not, a pale one was not judged. The strip
at the foot has every step of the episode, so that a flicker between the frames shown is not missed, with the
judge's probability drawn over it.
"""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from plaudit.types import ByteArray, Episode, FloatArray, Labels

_PAPER, _INK, _FAINT = (250, 250, 248), (28, 30, 34), (120, 124, 130)
_YES, _NO, _UNKNOWN, _CURVE = (46, 150, 84), (96, 104, 116), (222, 222, 218), (214, 120, 20)
_MARGIN, _GAP, _EDGE, _CAPTION, _HEADER, _STRIP = 20, 8, 3, 18, 62, 64


def draw_sheet(
    episode: Episode,
    labels: Labels | None,
    *,
    title: str,
    frames: int = 24,
    columns: int = 8,
    cell_width: int = 160,
    truth: FloatArray | None = None,
) -> Image.Image:
    """`frames` moments of an episode, `columns` a row.

    truth: [T+1] success of each frame as 0 or 1, for a second strip below that of the verdict
    """
    shown = np.arange(episode.steps + 1)[episode.recorded]
    chosen = shown[np.unique(np.linspace(0, len(shown) - 1, min(frames, len(shown))).round().astype(int))]
    columns = min(columns, len(chosen))
    verdict = np.full(episode.steps + 1, np.nan, np.float32) if labels is None else labels.frames
    heights = {c: round(cell_width * f.shape[1] / f.shape[2]) for c, f in episode.frames.items()}
    cell_height = sum(heights.values()) + _GAP // 2 * (len(heights) - 1) + _CAPTION
    rows = -(-len(chosen) // columns)
    width = max(2 * _MARGIN + columns * (cell_width + _GAP) - _GAP, 560)
    height = _HEADER + rows * (cell_height + _GAP) + _STRIP + _MARGIN
    image = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(image)
    _header(draw, episode, labels, title, width)
    for place, t in enumerate(chosen):
        x = _MARGIN + place % columns * (cell_width + _GAP)
        y = _HEADER + place // columns * (cell_height + _GAP)
        draw.text((x, y + 1), f"{t - shown[0]}", font=_font(12), fill=_FAINT)
        y += _CAPTION
        for camera, cell in heights.items():
            picture = _fit(episode.frames[camera][t], cell_width - 2 * _EDGE, cell - 2 * _EDGE)
            draw.rectangle([x, y, x + cell_width - 1, y + cell - 1], fill=_colour(float(verdict[t])))
            image.paste(picture, (x + _EDGE, y + _EDGE))
            y += cell + _GAP // 2
    _strip(
        draw,
        verdict[episode.recorded],
        _curve(episode, labels),
        None if truth is None else truth[episode.recorded],
        _MARGIN,
        height - _STRIP - _MARGIN + 14,
        width - _MARGIN,
    )
    return image


def save_sheet(image: Image.Image, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    image.save(path, format="PNG")


def _header(draw: ImageDraw.ImageDraw, episode: Episode, labels: Labels | None, title: str, width: int) -> None:
    seconds = f", {episode.steps / episode.fps:.1f} s at {episode.fps:g} Hz" if episode.fps else ""
    facts = f"{episode.steps} steps{seconds}  ·  cameras: {', '.join(episode.frames) or 'none'}"
    draw.text((_MARGIN, 12), title, font=_font(17), fill=_INK)
    draw.text((_MARGIN, 36), facts, font=_font(12), fill=_FAINT)
    said = "not labelled" if labels is None else _summary(episode, labels)
    draw.text((width - _MARGIN, 36), said, font=_font(12), fill=_INK, anchor="ra")


def _summary(episode: Episode, labels: Labels) -> str:
    """`success from frame 31  ·  by human`"""
    frames = labels.frames[episode.recorded]
    hits = np.flatnonzero(frames == 1)
    said = f"success from frame {hits[0]}" if len(hits) else "no success"
    unjudged = int(np.isnan(frames).sum())
    return f"{said}{f', {unjudged} frames not judged' if unjudged else ''}  ·  by {labels.source}"


def _curve(episode: Episode, labels: Labels | None) -> FloatArray | None:
    if labels is None or labels.probability is None:
        return None
    return np.concatenate([[labels.start], labels.probability]).astype(np.float32)[episode.recorded]


def _strip(
    draw: ImageDraw.ImageDraw,
    verdict: FloatArray,
    curve: FloatArray | None,
    truth: FloatArray | None,
    x0: int,
    y0: int,
    x1: int,
) -> None:
    edges = np.linspace(x0, x1, len(verdict) + 1)
    tall = 30 if truth is None else 20
    for i, value in enumerate(verdict):
        draw.rectangle([edges[i], y0, edges[i + 1], y0 + tall], fill=_colour(value))
        if truth is not None:
            draw.rectangle([edges[i], y0 + tall + 3, edges[i + 1], y0 + 30], fill=_colour(truth[i]))
    if curve is not None:
        middle = (edges[:-1] + edges[1:]) / 2
        points = [(x, y0 + tall * (1 - p)) for x, p in zip(middle, curve) if not np.isnan(p)]
        draw.line(points, fill=_CURVE, width=2)
    draw.text((x0, y0 + 34), "0", font=_font(11), fill=_FAINT)
    draw.text((x1, y0 + 34), f"frame {len(verdict) - 1}", font=_font(11), fill=_FAINT, anchor="ra")
    legend = [("success", _YES), ("no success", _NO), ("not judged", _UNKNOWN)]
    if curve is not None:
        legend.append(("probability", _CURVE))
    x = (x0 + x1) / 2 - 45 * len(legend)
    for name, colour in legend:
        draw.rectangle([x, y0 + 38, x + 9, y0 + 47], fill=colour)
        draw.text((x + 14, y0 + 34), name, font=_font(11), fill=_FAINT)
        x += 90


def _colour(verdict: float) -> tuple[int, int, int]:
    if np.isnan(verdict):
        return _UNKNOWN
    return _YES if verdict >= 0.5 else _NO


def _fit(frame: ByteArray, width: int, height: int) -> Image.Image:
    enlarging = width > frame.shape[1]
    how = Image.Resampling.NEAREST if enlarging and width >= 2 * frame.shape[1] else Image.Resampling.LANCZOS
    return Image.fromarray(np.ascontiguousarray(frame)).resize((width, height), how)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
