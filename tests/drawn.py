"""Figures of the charts that a test draws, and which of their texts overlap."""

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text
from pytest import MonkeyPatch

from plaudit.report import plots


def drawn_figures(monkeypatch: MonkeyPatch) -> list[Figure]:
    """The figure of every chart that is drawn from now on."""
    figures, to_svg = [], plots.to_svg
    monkeypatch.setattr(plots, "to_svg", lambda figure, *rest: figures.append(figure) or to_svg(figure, *rest))
    return figures


def overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that overlap or nearly touch, in DejaVu Sans, which is wider than the font of most pages."""
    figure.canvas.draw()
    ticks = [
        (axis, tick) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_major_ticks()
    ]
    outside = {tick.label1 for axis, tick in ticks if not _contains(axis.get_view_interval(), tick.get_loc())}
    boxes = {
        text: text.get_window_extent().padded(1, 0)
        for text in figure.findobj(Text)
        if text.get_text() and text.get_visible() and text not in outside
    }
    return [(a.get_text(), b.get_text()) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]


def _contains(interval: tuple[float, float], value: float) -> bool:
    return min(interval) <= value <= max(interval)
