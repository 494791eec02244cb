"""Line charts as SVG: enough for learning curves, sharp at any size, and nothing to install."""

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

COLOURS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e08e0b", "#6b4c9a", "#5c6670")
FEW = 40  # points that are drawn as dots too
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 34, 44

Series = Sequence[tuple[float, float]]  # x, y


def line_chart(
    lines: Mapping[str, Sequence[Series]],
    *,
    title: str,
    x: str,
    y: str,
    size: tuple[int, int] = (640, 320),
    y_range: tuple[float, float] | None = None,
    mark: float | None = None,
) -> str:
    """Each name has one or several curves of one colour; `mark` draws a dashed line across at that height."""
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
        parts.append(_text(float(at(tick, low).split(",")[0]), height - _BOTTOM + 16, _short(tick), "middle"))
    parts.append(_text(_LEFT + across / 2, height - 8, x, "middle"))
    parts.append(_text(_LEFT - 44, 18, y) if y else "")
    if mark is not None:
        parts.append(_rule(at(0, mark), at(x_max, mark), "#444", "4 4"))
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
    return f"{number / 1000:g}k" if abs(number) >= 10_000 else f"{number:g}"


def _y(point: str) -> float:
    return float(point.split(",")[1])


def _text(x: float, y: float, words: str, anchor: str = "start", size: int = 11, weight: int = 400) -> str:
    style = f'text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="#333"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(words)}</text>'


def _rule(start: str, end: str, colour: str = "#e4e4e0", dash: str = "") -> str:
    (x1, y1), (x2, y2) = start.split(","), end.split(",")
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-dasharray="{dash}"/>'
