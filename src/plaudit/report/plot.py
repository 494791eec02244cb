"""Charts as SVG: enough for learning curves and for a judge, sharp at any size, and nothing to install."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

import numpy as np

YES, NO = "#2e8b57", "#5c6670"  # success and failure, as on a contact sheet
COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e08e0b", "#6b4c9a", "#5c6670")
FEW = 40  # points that are drawn as dots too
_ALARM = "#b3261e"
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 44

Series = Sequence[tuple[float, float]]  # x, y


class Moment(NamedTuple):
    """Something that happened, as a line upright."""

    x: float
    said: str
    bad: bool = True


def line_chart(
    lines: Mapping[str, Sequence[Series]],
    *,
    title: str,
    x: str,
    y: str,
    size: tuple[int, int] = (640, 320),
    y_range: tuple[float, float] | None = None,
    marks: Sequence[float] = (),
    moments: Sequence[Moment] = (),
) -> str:
    """Each name has one or several curves of one colour.

    marks: heights of dashed lines across
    """
    width, height = size
    points = np.array([p for curves in lines.values() for curve in curves for p in curve] or [(0, 0)], float)
    x_max = float(points[:, 0].max()) or 1.0
    low, high = y_range or (float(points[:, 1].min()), float(points[:, 1].max()))
    high = high if high > low else low + 1.0
    across, down = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def at(px: float, py: float) -> str:
        share = (min(max(py, low), high) - low) / (high - low)
        return f"{_LEFT + px / x_max * across:.1f},{_TOP + (1 - share) * down:.1f}"

    parts = [_text(_LEFT, 18, title, size=14, weight=600)]
    for tick in _ticks(low, high):
        parts += [_rule(at(0, tick), at(x_max, tick)), _text(_LEFT - 6, _y(at(0, tick)) + 4, _short(tick), "end")]
    for tick in _ticks(0, x_max):
        parts.append(_text(_x(at(tick, low)), height - _BOTTOM + 16, _short(tick), "middle"))
    parts.append(_text(_LEFT + across / 2, height - 8, x, "middle"))
    parts.append(_text(_LEFT - 44, 18, y) if y else "")
    parts += [_rule(at(0, mark), at(x_max, mark), "#444", "4 4") for mark in marks]
    for moment in moments:
        place, colour = _x(at(moment.x, low)), _ALARM if moment.bad else NO
        parts.append(_rule(f"{place:.1f},{_TOP}", at(moment.x, low), colour, thick=2 if moment.bad else 1))
        side, anchor = (5, "start") if place < _LEFT + across / 2 else (-5, "end")
        parts.append(_text(place + side, _TOP + 12, moment.said, anchor, weight=600, colour=colour))
    for number, (name, curves) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        for curve in curves:
            path = " ".join(at(px, py) for px, py in curve)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
            if len(curve) <= FEW:
                dots = (at(px, py).split(",") for px, py in curve)
                parts += [f'<circle cx="{cx}" cy="{cy}" r="2.6" fill="{colour}"/>' for cx, cy in dots]
        if len(lines) > 1:  # the title names a single one
            left = width - _RIGHT - 130 * (len(lines) - number)
            parts.append(f'<rect x="{left}" y="9" width="10" height="10" fill="{colour}"/>')
            parts.append(_text(left + 15, 18, name))
    return _svg(width, height, parts)


def reliability_diagram(
    said: Sequence[float],
    was: Sequence[float],
    count: Sequence[int],
    *,
    title: str,
    size: tuple[int, int] = (420, 360),
) -> str:
    """A dot a bin: what the judge said, mean probability, against the share that was a success; counts stand on top.

    The line from each dot to the diagonal is how far the judge is off there.
    """
    width, height = size
    top = _TOP + 20  # room for the counts
    across, down = width - _LEFT - _RIGHT, height - top - _BOTTOM

    def at(px: float, py: float) -> str:
        return f"{_LEFT + px * across:.1f},{top + (1 - py) * down:.1f}"

    parts = [_text(_LEFT, 18, title, size=14, weight=600), _text(_LEFT - 8, top - 10, "frames", "end", size=10)]
    for tick in np.linspace(0, 1, 6):
        parts += [_rule(at(0, tick), at(1, tick)), _rule(at(tick, 0), at(tick, 1))]
        parts.append(_text(_LEFT - 8, _y(at(0, tick)) + 4, f"{tick:.0%}", "end"))
        parts.append(_text(_x(at(tick, 0)), height - _BOTTOM + 18, f"{tick:.0%}", "middle"))
    parts.append(_rule(at(0, 0), at(1, 1), "#444", "4 4"))
    parts.append(_text(_LEFT + across / 2, height - 8, "the judge said", "middle"))
    parts.append(_text(14, top + down / 2, "was a success", "middle", turned=True))
    most = max(count, default=0)
    for place, (px, py, frames) in enumerate(zip(said, was, count)):
        middle = _LEFT + (place + 0.5) / len(count) * across
        parts.append(_text(middle, top - 10, _short(frames), "middle", size=10))
        if frames:
            radius = 3 + 9 * (frames / most) ** 0.5
            parts.append(_rule(at(px, py), at(px, px), COLOURS[1], thick=2))
            cx, cy = at(px, py).split(",")
            hint = f"{frames:,} frames: said {px:.1%}, was {py:.1%}"
            parts.append(
                f'<circle cx="{cx}" cy="{cy}" r="{radius:.1f}" fill="{COLOURS[0]}" fill-opacity="0.85">'
                f"<title>{hint}</title></circle>"
            )
    return _svg(width, height, parts)


def histogram(
    bars: Mapping[str, Sequence[int]],
    colours: Sequence[str],
    *,
    title: str,
    x: str,
    mark: tuple[float, str] | None = None,
    size: tuple[int, int] = (420, 360),
) -> str:
    """Counts in bins of equal width from 0 to 1, the bars of each name side by side; `mark` is a line upright there.

    Heights are logarithms: the few frames on the wrong side are what one looks for, beside thousands on the right one.
    """
    width, height = size
    across, down = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM
    bins = max(len(counts) for counts in bars.values())
    most = max(10, *(count for counts in bars.values() for count in counts))
    top = np.log10(1 + most) * 1.08

    def at(px: float, count: float) -> str:
        return f"{_LEFT + px * across:.1f},{_TOP + (1 - np.log10(1 + count) / top) * down:.1f}"

    parts = [_text(_LEFT, 18, title, size=14, weight=600)]
    for tick in [0] + [10**power for power in range(int(np.log10(most)) + 1)]:
        parts += [_rule(at(0, tick), at(1, tick)), _text(_LEFT - 8, _y(at(0, tick)) + 4, _short(tick), "end")]
    for tick in np.linspace(0, 1, 6):
        parts.append(_text(_x(at(tick, 0)), height - _BOTTOM + 18, f"{tick:.0%}", "middle"))
    parts.append(_text(_LEFT + across / 2, height - 8, x, "middle"))
    thick = 0.8 / bins / len(bars)
    for number, (name, counts) in enumerate(bars.items()):
        for place, count in enumerate(counts):
            left, y = at((place + 0.1) / bins + number * thick, count).split(",")
            shape = f'x="{left}" y="{y}" width="{thick * across - 1:.1f}" height="{_y(at(0, 0)) - float(y):.1f}"'
            hint = f"{name}, {place / bins:.0%} to {(place + 1) / bins:.0%}: {count:,}"
            parts.append(f'<rect {shape} fill="{colours[number]}"><title>{escape(hint)}</title></rect>')
        corner = width - _RIGHT - 80 * (len(bars) - number)
        parts.append(f'<rect x="{corner}" y="9" width="10" height="10" fill="{colours[number]}"/>')
        parts.append(_text(corner + 15, 18, name))
    if mark is not None:
        place, said = mark
        parts.append(_rule(f"{_LEFT + place * across:.1f},{_TOP}", at(place, 0), "#444", "4 4"))
        side, anchor = (5, "start") if place < 0.5 else (-5, "end")
        parts.append(_text(_LEFT + place * across + side, _TOP + 12, said, anchor))
    return _svg(width, height, parts)


def timeline(
    probability: Sequence[float],
    truth: Sequence[float],
    *,
    title: str,
    threshold: float,
    size: tuple[int, int] = (420, 118),
) -> str:
    """One episode: what the judge said of each frame, over a strip of what is true; the threshold is dashed.

    truth: 1, 0, or NaN where nobody knows; the judge is not drawn there
    """
    width, height = size
    left, top, bottom = 36, 26, 34
    across, down = width - left - _RIGHT, height - top - bottom
    wide = across / max(len(truth), 1)

    def at(frame: float, p: float) -> str:
        return f"{left + (frame + 0.5) * wide:.1f},{top + (1 - p) * down:.1f}"

    parts = [_text(left, 16, title, size=12, weight=600)]
    for tick in (0, 1):
        parts += [
            _rule(at(-0.5, tick), at(len(truth) - 0.5, tick)),
            _text(left - 6, _y(at(0, tick)) + 4, f"{tick:.0%}", "end"),
        ]
    for first, last, value in _runs(truth):
        colour = "#e4e4e0" if np.isnan(value) else YES if value else NO
        x, span = left + first * wide, (last - first) * wide
        parts.append(f'<rect x="{x:.1f}" y="{height - bottom + 5}" width="{span:.1f}" height="9" fill="{colour}"/>')
    for first, last, known in _runs([not np.isnan(value) for value in truth]):
        if known:
            path = " ".join(at(frame, probability[frame]) for frame in range(first, last))
            parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.6"/>')
    parts.append(_rule(at(-0.5, min(threshold, 1)), at(len(truth) - 0.5, min(threshold, 1)), "#444", "4 4"))
    parts.append(_text(left, height - 6, "0"))
    parts.append(_text(width - _RIGHT, height - 6, f"frame {len(truth) - 1}", "end"))
    return _svg(width, height, parts)


def barcode(rows: Mapping[str, Sequence[float]], *, title: str, x: str, first: int = 0, width: int = 1076) -> str:
    """One above the other, a stripe an episode: 1 success, 0 failure, NaN where nobody knows.

    first: the number of the first one
    """
    left, top, tall, gap = 76, 30, 22, 5
    count = max(len(values) for values in rows.values())
    across, height = width - left - _RIGHT, top + len(rows) * (tall + gap) + 24
    wide = across / max(count, 1)
    parts = [_text(left, 18, title, size=14, weight=600)]
    for number, (name, values) in enumerate(rows.items()):
        y = top + number * (tall + gap)
        parts.append(_text(left - 8, y + 15, name, "end"))
        for start, end, value in _runs(values):
            colour = "#e4e4e0" if np.isnan(value) else YES if value else NO
            shape = f'x="{left + start * wide:.2f}" y="{y}" width="{(end - start) * wide:.2f}" height="{tall}"'
            parts.append(f'<rect {shape} fill="{colour}"/>')
    for tick in _ticks(0, max(count - 1, 1)):
        if tick == int(tick):
            parts.append(_text(left + (tick + 0.5) * wide, height - 8, _short(first + tick), "middle"))
    parts.append(_text(width - _RIGHT, 18, x, "end"))
    return _svg(width, height, parts)


def _runs(values: Sequence[float]) -> list[tuple[int, int, float]]:
    """First, last + 1 and value of each run of one value; NaN is one too."""
    array = np.nan_to_num(np.asarray(values, float), nan=-1)
    edges = [0, *(np.flatnonzero(np.diff(array)) + 1).tolist(), len(array)]
    return [(first, last, values[first]) for first, last in pairwise(edges) if last > first]


def _svg(width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="system-ui, sans-serif"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers."""
    raw = (high - low) / 5
    power = 10 ** np.floor(np.log10(raw))
    step = power * min((m for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999), default=10)
    return [float(v) for v in np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step + 0.0]


def _short(number: float) -> str:
    return f"{number / 1000:.4g}k" if abs(number) >= 10_000 else f"{number:g}"


def _x(point: str) -> float:
    return float(point.split(",")[0])


def _y(point: str) -> float:
    return float(point.split(",")[1])


def _text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    size: int = 11,
    weight: int = 400,
    turned: bool = False,
    colour: str = "#333",
) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}"'
    style += f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _rule(start: str, end: str, colour: str = "#e4e4e0", dash: str = "", thick: float = 1) -> str:
    (x1, y1), (x2, y2) = start.split(","), end.split(",")
    style = f'stroke="{colour}" stroke-dasharray="{dash}" stroke-width="{thick}"'
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>'
