"""Charts for the reports, drawn by matplotlib as SVG that goes into a page.

Figures are made without pyplot: it keeps global state and picks a backend, and reports are written by threads of a
running loop. Text stays text, so that a browser can search it; `$` is no formula, since names come from data.
"""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter, ScalarFormatter

from plaudit.report.chart_layout import DPI, FONT_SIZE, TITLE_SIZE, fit_margins
from plaudit.trust import plain

SUCCESS, FAILURE, UNKNOWN = "#2e8b57", "#5c6670", "#e4e4e0"  # the colors of a contact sheet
COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#e08e0b", "#6b4c9a", "#5c6670")
ALARM = "#b3261e"
LARGE, SMALL = (640, 320), (390, 230)  # pixels, width and height; three small ones fit into a window of 1280
_MAX_MARKED_POINTS = 40  # a longer curve is drawn without dots
_MIN_SCALE = 0.8  # a chart shrinks by this with its page; on a narrower page it scrolls, so that text stays legible
_MAX_NAME = 36  # letters; a longer name of a curve or a row is shortened

_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "plaudit",  # ids of clip paths come from their content: equal ids on a page mean equal paths
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, to measure text with; `to_svg` names another
    "font.size": FONT_SIZE,
    "axes.titlesize": TITLE_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # nothing stands above the axes that it would have to give way to
    "axes.labelcolor": "#444444",
    "axes.edgecolor": "#b8bcc2",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e9ebee",
    "axes.axisbelow": True,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.bottom": False,  # no marks; the grid shows where a number is
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": FONT_SIZE,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.2,
}

Series = Sequence[tuple[float, float]]  # x, y
Band = Sequence[tuple[float, float, float]]  # x, low, high


class EventMarker(NamedTuple):
    """Something that happened at x, drawn as a vertical line."""

    x: float
    text: str
    bad: bool = True


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def line_chart(
    lines: Mapping[str, Sequence[Series]],
    *,
    title: str,
    x: str,
    y: str = "",
    size: tuple[int, int] = LARGE,
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    marks: Sequence[float] = (),
    events: Sequence[EventMarker] = (),
    bands: Mapping[str, Band] | None = None,
) -> Markup:
    """Curves over x; the curves of one name share a color.

    percent: whether y is a fraction, drawn from 0 to 100%
    marks: heights of dashed horizontal lines
    bands: intervals around the curves of a name
    """
    figure, axes = make_axes(size, title)
    plot_lines(axes, lines, x=x, y=y, y_range=y_range, percent=percent, marks=marks, events=events, bands=bands)
    return to_svg(figure)


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def line_charts(panels: Sequence[Mapping[str, Any]], *, columns: int = 2, size: tuple[int, int] = LARGE) -> Markup:
    """Several line charts of one size in one drawing; a panel has a `title` and the arguments of `plot_lines`."""
    rows = -(-len(panels) // columns)
    figure = Figure((columns * size[0] / DPI, rows * size[1] / DPI), dpi=DPI)
    for number, panel in enumerate(panels, 1):
        axes = _add_axes(figure, panel["title"], rows, columns, number)
        plot_lines(axes, **{name: value for name, value in panel.items() if name != "title"})
    return to_svg(figure, columns)


def plot_lines(
    axes: Axes,
    lines: Mapping[str, Sequence[Series]],
    *,
    x: str,
    y: str = "",
    y_range: tuple[float, float] | None = None,
    percent: bool = False,
    marks: Sequence[float] = (),
    events: Sequence[EventMarker] = (),
    bands: Mapping[str, Band] | None = None,
) -> None:
    """What `line_chart` draws, on axes of a figure with several."""
    for (name, curves), color in zip(lines.items(), _cycle(len(lines))):
        for number, curve in enumerate(curves):
            xs, ys = [point[0] for point in curve], [point[1] for point in curve]
            marker = "o" if len(curve) <= _MAX_MARKED_POINTS else ""
            label = _short(name) if number == 0 and name else "_unnamed"
            axes.plot(xs, ys, color=color, marker=marker, markersize=3.5, linewidth=1.6, label=label)
        if band := (bands or {}).get(name):
            xs, low, high = zip(*band, strict=True)
            axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0, gid="interval")
    for mark in marks:
        axes.axhline(mark, color="#444444", linestyle="--", linewidth=1)
    if percent or y_range is not None:
        axes.set_ylim(*(y_range or (0, 1)))
    for event in events:
        color = ALARM if event.bad else FAILURE
        axes.axvline(event.x, color=color, linewidth=1.6 if event.bad else 1)
        if event.text:  # placed by `_place_events`
            place, top = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}, (event.x, 1)
            axes.annotate(plain(event.text), top, **place, xytext=(0, 0), color=color, fontweight="bold")
    axes.set_xlabel(plain(x))
    axes.set_ylabel(plain(y))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if all(float(point[0]).is_integer() for curves in lines.values() for curve in curves for point in curve):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))  # there is no frame 2.5
    # One number for each height. The default formatter writes a common factor above the axis, over the title.
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0) if percent else FuncFormatter(_format_height))


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def calibration_chart(
    predicted: Sequence[float], observed: Sequence[float], count: Sequence[int], *, title: str, size=(380, 320)
) -> Markup:
    """A dot for each bin: mean predicted probability against the fraction of frames that show success.

    The line from a dot to the diagonal is the error there; the area of a dot grows with its number of frames.
    """
    figure, axes = make_axes(size, title)
    axes.plot([0, 1], [0, 1], color="#444444", linestyle="--", linewidth=1)
    bins = [(p, o, n) for p, o, n in zip(predicted, observed, count, strict=True) if n]
    most = max((n for _, _, n in bins), default=1)
    for p, o, n in bins:
        axes.plot([p, p], [p, o], color=COLORS[1], linewidth=1.6)
        axes.scatter([p], [o], s=20 + 180 * n / most, color=COLORS[0], alpha=0.85, zorder=3, gid=f"bin-{n}")
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="predicted P(success)", ylabel="fraction of successes")
    _percent_axis(axes, "x")
    _percent_axis(axes, "y")
    return to_svg(figure)


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def histogram(
    bars: Mapping[str, Sequence[int]],
    colors: Sequence[str],
    *,
    title: str,
    x: str,
    mark: tuple[float, str] | None = None,
    size: tuple[int, int] = (380, 320),
) -> Markup:
    """Counts in bins of equal width from 0 to 1, the bars of each name side by side.

    Counts are on a logarithmic axis: the few frames on the wrong side matter, beside thousands on the right one.
    mark: where to draw a dashed vertical line, and its text
    """
    figure, axes = make_axes(size, title)
    for number, ((name, counts), color) in enumerate(zip(bars.items(), colors, strict=True)):
        width = 0.8 / len(counts) / len(bars)
        left = (np.arange(len(counts)) + 0.1) / len(counts) + number * width
        for bar, n in zip(axes.bar(left, counts, width, align="edge", color=color, label=name), counts, strict=True):
            bar.set_gid(f"{name}-{n}")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 1.5 * max(10, *(n for counts in bars.values() for n in counts)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlim=(0, 1), xlabel=x, ylabel="frames")
    _percent_axis(axes, "x")
    if mark is not None:
        axes.axvline(mark[0], color="#444444", linestyle="--", linewidth=1, label=mark[1])
    return to_svg(figure)


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def interval_chart(
    rows: Mapping[str, tuple[float, float, float]], good: Sequence[bool], *, title: str, mark: float | None, width=595
) -> Markup:
    """A line for each name: a rate as a dot, its interval as a bar; the first on top.

    good: of each row, which is green then and red otherwise
    mark: where to draw a dashed vertical line
    """
    figure, axes = make_axes((width, 66 + 32 * len(rows)), title)
    for height, (value, low, high), passed in zip(reversed(range(len(rows))), rows.values(), good, strict=True):
        color = SUCCESS if passed else ALARM
        axes.plot([low, high], [height, height], color=color, linewidth=6, alpha=0.35, solid_capstyle="round")
        axes.plot([value], [height], "o", color=color, markersize=7)
    axes.set_yticks(range(len(rows)), [_short(name) for name in reversed(list(rows))])
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(rows) - 0.4))
    if mark is not None:
        axes.axvline(mark, color="#444444", linestyle="--", linewidth=1)
    _percent_axis(axes, "x")
    return to_svg(figure)


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def score_timeline(
    success_prob: Sequence[float], target: Sequence[float], *, title: str, threshold: float, size=(390, 140)
) -> Markup:
    """One episode: P(success) of each frame above a strip of the reference labels; the threshold is dashed.

    target: 1, 0, or NaN where there is no label; the curve has a gap there
    """
    figure, axes = make_axes(size, title)
    scores = np.where(np.isnan(np.asarray(target, float)), np.nan, np.asarray(success_prob, float))
    frames = np.arange(len(scores))
    axes.plot(frames, scores, color=COLORS[0], linewidth=1.5, gid="score")
    axes.axhline(min(threshold, 1), color="#444444", linestyle="--", linewidth=1)
    for first, last, value in _runs(target):
        axes.barh(-0.22, last - first, 0.16, first - 0.5, color=_outcome_color(value), gid="target")
    axes.set(xlim=(-0.5, len(scores) - 0.5), ylim=(-0.32, 1.05), xlabel="frame")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks([0, 1], ["0%", "100%"])
    return to_svg(figure)


@matplotlib.rc_context(_RC)  # type: ignore[operator]
def outcome_strip(rows: Mapping[str, Sequence[float]], *, title: str, x: str, first: int = 0, width=1230) -> Markup:
    """A row of stripes for each name, one stripe an episode: 1 success, 0 failure, NaN unknown.

    first: the number of the first episode
    """
    figure, axes = make_axes((width, 62 + 34 * len(rows)), title)
    count = max(len(values) for values in rows.values())
    for height, values in enumerate(reversed(list(rows.values()))):
        for start, end, value in _runs(values):
            axes.barh(height, end - start, 0.8, first + start - 0.5, color=_outcome_color(value))
    axes.set(xlim=(first - 0.5, first + max(count, 1) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel=x)
    axes.set_yticks(range(len(rows)), [_short(name) for name in reversed(list(rows))])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    return to_svg(figure)


def make_axes(size: tuple[int, int], title: str) -> tuple[Figure, Axes]:
    """A new figure of this size in pixels, and its axes."""
    figure = Figure((size[0] / DPI, size[1] / DPI), dpi=DPI)
    return figure, _add_axes(figure, title)


def _add_axes(figure: Figure, title: str, rows: int = 1, columns: int = 1, number: int = 1) -> Axes:
    axes = figure.add_subplot(rows, columns, number)
    axes.set_title(plain(title))
    axes.locator_params(nbins=5)  # matplotlib takes as long for every number on an axis as for a curve
    return axes


def to_svg(figure: Figure, columns: int = 1) -> Markup:
    """The SVG element alone, in pixels, in the font of the page.

    columns: of axes in the figure
    """
    fit_margins(figure, columns)
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    svg = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', svg, count=2)
    svg = svg.replace("<svg ", f'<svg style="min-width: {_MIN_SCALE * figure.bbox.width:.0f}px" ', 1)
    return Markup(svg.replace("'DejaVu Sans'", "system-ui"))


def _short(name: str) -> str:
    name = plain(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."


def _format_height(value: float, _: int | None = None) -> str:
    return f"{value:,.6g}".replace("-", "\N{MINUS SIGN}")


def _percent_axis(axes: Axes, which: Literal["x", "y"]) -> None:
    (axes.xaxis if which == "x" else axes.yaxis).set_major_formatter(PercentFormatter(1.0, decimals=0))


def _outcome_color(value: float) -> str:
    return UNKNOWN if np.isnan(value) else SUCCESS if value else FAILURE


def _cycle(count: int) -> list[str]:
    return [COLORS[number % len(COLORS)] for number in range(count)]


def _runs(values: Sequence[float]) -> list[tuple[int, int, float]]:
    """First, last + 1 and value of each run of equal values; NaN is a value too."""
    array = np.nan_to_num(np.asarray(values, float), nan=-1)
    edges = [0, *(np.flatnonzero(np.diff(array)) + 1).tolist(), len(array)]
    return [(first, last, values[first]) for first, last in pairwise(edges) if last > first]
