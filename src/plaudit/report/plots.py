"""Charts for the reports, drawn by matplotlib as SVG that goes into a page.

Figures are made without pyplot: it keeps global state and picks a backend, and reports are written by threads of a
running loop. Text stays text, so that a browser can search it; `$` is no formula, since names come from data. Colors
become those of the page, in light or dark mode.

`_fit_margins` places the texts around a chart so that they neither overlap nor leave the figure. It measures them in
DejaVu Sans, which comes with matplotlib and is wider than most browser fonts. (Rejected: the layouts of matplotlib,
which draw everything to measure it and take as long as the chart itself.)
"""

import io
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from itertools import cycle, pairwise
from typing import Any, Concatenate, NamedTuple, ParamSpec

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from plaudit.judges.human.palette import LIGHT, SERIES
from plaudit.trust import plain

SUCCESS, FAILURE, UNKNOWN = (LIGHT[name] for name in ("success", "failure", "none"))
COLORS = tuple(LIGHT[name] for name in SERIES)
_VARIABLES = {color: f"var(--{name})" for name, color in LIGHT.items()}  # which `to_svg` puts in place of the colors
LARGE, SMALL = (640, 320), (390, 230)  # pixels, width and height; three small ones fit into a window of 1280
_MAX_MARKED_POINTS = 40  # a longer curve is drawn without dots
_MAX_NAME = 36  # letters; a longer name of a curve or a row is shortened

DPI = 72  # one point of an SVG is one pixel
FONT_SIZE, TITLE_SIZE = 11, 13  # pixels
_LETTER, _LINE = 7, 18  # pixels: the width of most letters in a chart, and the height of a line of them
_GAP = 16  # pixels between a title and the legend next to it
_MIN_HEIGHT = 60  # pixels of the axes; a figure whose title and legend leave less grows
_MAX_TITLE_LINES = 2

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
    "text.color": LIGHT["text"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.edgecolor": LIGHT["line"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT["hover"],
    "axes.axisbelow": True,
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.bottom": False,  # no marks; the grid shows where a number is
    "ytick.left": False,
    "legend.frameon": False,
    "legend.fontsize": FONT_SIZE,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.2,
}

_DASHED: dict[str, Any] = {"color": LIGHT["muted"], "linestyle": "--", "linewidth": 1}
P = ParamSpec("P")
Series = Sequence[tuple[float, float]]  # x, y
Band = Sequence[tuple[float, float, float]]  # x, low, high


class EventMarker(NamedTuple):
    """Something that happened at x, drawn as a vertical line."""

    x: float
    text: str
    bad: bool = True


def chart(width: int, height: int) -> Callable[[Callable[Concatenate[Axes, P], None]], Callable[..., Markup]]:
    """Turn a function that draws on axes into one that returns an SVG and also takes a `title` and a `size`.

    width, height: pixels, the default size
    """

    def decorate(draw: Callable[Concatenate[Axes, P], None]) -> Callable[..., Markup]:
        @wraps(draw)
        def make(*args: Any, title: str, size: tuple[int, int] = (width, height), **kwargs: Any) -> Markup:
            return render(lambda axes: draw(axes, *args, **kwargs), title, size)

        return make

    return decorate


def render(draw: Callable[[Axes], None], title: str, size: tuple[int, int]) -> Markup:
    """An SVG of a chart. size: pixels, width and height"""
    with matplotlib.rc_context(_RC):  # type: ignore[arg-type]
        figure = Figure((size[0] / DPI, size[1] / DPI), dpi=DPI)
        axes = figure.add_subplot()
        axes.set_title(plain(title))
        axes.locator_params(nbins=5)  # matplotlib takes as long for every number on an axis as for a curve
        draw(axes)
        return to_svg(figure)


@chart(*LARGE)
def line_chart(
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
    colors: Mapping[str, str] | None = None,
    dashed: Collection[str] = (),
) -> None:
    """Curves over x; the curves of one name share a color.

    percent: whether y is a fraction, drawn from 0 to 100%
    marks: heights of dashed horizontal lines
    bands: intervals around the curves of a name
    colors: of some names, the others get one each
    dashed: names of curves that are drawn with gaps
    """
    for (name, curves), next_color in zip(lines.items(), cycle(COLORS)):
        color = (colors or {}).get(name, next_color)
        for number, curve in enumerate(curves):
            xs, ys = [point[0] for point in curve], [point[1] for point in curve]
            marker = "o" if len(curve) <= _MAX_MARKED_POINTS else ""
            label = _short(name) if number == 0 and name else "_unnamed"
            style = "--" if name in dashed else "-"
            axes.plot(xs, ys, style, color=color, marker=marker, markersize=3.5, linewidth=1.6, label=label)
        if band := (bands or {}).get(name):
            xs, low, high = zip(*band, strict=True)
            axes.fill_between(xs, low, high, color=color, alpha=0.15, linewidth=0, gid="interval")
    for mark in marks:
        axes.axhline(mark, **_DASHED)
    if percent or y_range is not None:
        axes.set_ylim(*(y_range or (0, 1)))
    for event in events:
        color = FAILURE if event.bad else LIGHT["muted"]
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
    heights = FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "\N{MINUS SIGN}"))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0) if percent else heights)


@chart(360, 310)
def calibration_chart(axes: Axes, predicted: Sequence[float], observed: Sequence[float], count: Sequence[int]) -> None:
    """A dot for each bin: mean predicted probability against the fraction of frames that show success.

    The line from a dot to the diagonal is the error there; the area of a dot grows with its number of frames.
    """
    axes.plot([0, 1], [0, 1], **_DASHED)
    bins = [(p, o, n) for p, o, n in zip(predicted, observed, count, strict=True) if n]
    most = max((n for _, _, n in bins), default=1)
    for p, o, n in bins:
        axes.plot([p, p], [p, o], color=COLORS[1], linewidth=1.6)
        axes.scatter([p], [o], s=20 + 180 * n / most, color=COLORS[0], alpha=0.85, zorder=3, gid=f"bin-{n}")
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xlabel="predicted P(success)", ylabel="fraction of successes")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


@chart(360, 310)
def histogram(
    axes: Axes,
    bars: Mapping[str, Sequence[int]],
    colors: Sequence[str],
    *,
    x: str,
    mark: tuple[float, str] | None = None,
) -> None:
    """Counts in bins of equal width from 0 to 1, the bars of each name side by side.

    Counts are on a logarithmic axis: the few frames on the wrong side matter as well as thousands on the right one.
    mark: where to draw a dashed vertical line, and its text
    """
    for number, ((name, counts), color) in enumerate(zip(bars.items(), colors, strict=True)):
        width = 0.8 / len(counts) / len(bars)
        left = (np.arange(len(counts)) + 0.1) / len(counts) + number * width
        for bar, n in zip(axes.bar(left, counts, width, align="edge", color=color, label=name), counts, strict=True):
            bar.set_gid(f"{name}-{n}")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(0, 1.5 * max(10, *(n for counts in bars.values() for n in counts)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set(xlim=(0, 1), xlabel=x, ylabel="frames")
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if mark is not None:
        axes.axvline(mark[0], **_DASHED, label=mark[1])


@chart(440, 66)
def interval_chart(
    axes: Axes, rows: Mapping[str, tuple[float, float, float]], good: Sequence[bool], *, mark: float | None
) -> None:
    """A line for each name: a rate as a dot, its interval as a bar; the first on top.

    good: of each row, which has the color of success then and of failure otherwise
    mark: where to draw a dashed vertical line
    """
    _grow(axes, 32 * len(rows))
    for height, (value, low, high), passed in zip(reversed(range(len(rows))), rows.values(), good, strict=True):
        color = SUCCESS if passed else FAILURE
        axes.plot([low, high], [height, height], color=color, linewidth=6, alpha=0.35, solid_capstyle="round")
        axes.plot([value], [height], "o", color=color, markersize=7)
    axes.set_yticks(range(len(rows)), [_short(name) for name in reversed(list(rows))])
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.6, len(rows) - 0.4))
    if mark is not None:
        axes.axvline(mark, **_DASHED)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


@chart(390, 140)
def score_timeline(axes: Axes, success_prob: Sequence[float], target: Sequence[float], *, threshold: float) -> None:
    """One episode: P(success) of each frame above a strip of the reference labels; the threshold is dashed.

    target: 1, 0, or NaN where there is no label; the curve has a gap there
    """
    scores = np.where(np.isnan(np.asarray(target, float)), np.nan, np.asarray(success_prob, float))
    frames = np.arange(len(scores))
    axes.plot(frames, scores, color=COLORS[0], linewidth=1.5, gid="score")
    axes.axhline(min(threshold, 1), **_DASHED)
    for first, last, value in _runs(target):
        axes.barh(-0.22, last - first, 0.16, first - 0.5, color=_outcome_color(value), gid="target")
    axes.set(xlim=(-0.5, len(scores) - 0.5), ylim=(-0.32, 1.05), xlabel="frame")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_yticks([0, 1], ["0%", "100%"])


@chart(1230, 62)
def outcome_strip(axes: Axes, rows: Mapping[str, Sequence[float]], *, x: str, first: int = 0) -> None:
    """A row of stripes for each name, one stripe an episode: 1 success, 0 failure, NaN unknown.

    first: the number of the first episode
    """
    _grow(axes, 34 * len(rows))
    count = max(len(values) for values in rows.values())
    for height, values in enumerate(reversed(list(rows.values()))):
        for start, end, value in _runs(values):
            axes.barh(height, end - start, 0.8, first + start - 0.5, color=_outcome_color(value))
    axes.set(xlim=(first - 0.5, first + max(count, 1) - 0.5), ylim=(-0.5, len(rows) - 0.5), xlabel=x)
    axes.set_yticks(range(len(rows)), [_short(name) for name in reversed(list(rows))])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)


def _grow(axes: Axes, pixels: int) -> None:
    """Make the figure of a chart with one line per row higher."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + pixels / DPI)


def to_svg(figure: Figure) -> Markup:
    """The SVG element alone, in pixels, in the font of the page."""
    _fit_margins(figure)
    file = io.StringIO()
    figure.savefig(
        file, format="svg", transparent=True, metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
    )
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    svg = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', svg, count=2)
    svg = re.sub("#[0-9a-f]{6}", lambda color: _VARIABLES.get(color[0], color[0]), svg)  # of the page, light or dark
    return Markup(svg.replace("'DejaVu Sans'", "system-ui"))


def _short(name: str) -> str:
    name = plain(name)
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 3]}..."


def _outcome_color(value: float) -> str:
    return UNKNOWN if np.isnan(value) else SUCCESS if value else FAILURE


def _runs(values: Sequence[float]) -> list[tuple[int, int, float]]:
    """First, last + 1 and value of each run of equal values; NaN is a value too."""
    array = np.nan_to_num(np.asarray(values, float), nan=-1)
    edges = [0, *(np.flatnonzero(np.diff(array)) + 1).tolist(), len(array)]
    return [(first, last, values[first]) for first, last in pairwise(edges) if last > first]


def _fit_margins(figure: Figure) -> None:
    """Place the axes so that the texts around it fit into the figure."""
    (axes,) = figure.axes
    numbers = axes.yaxis.get_major_formatter().format_ticks(axes.yaxis.get_majorticklocs().tolist())
    left = 18 + _LETTER * max(map(len, numbers), default=0) + (_LINE if axes.get_ylabel() else 0)
    bottom, room = 4 + _LINE + (_LINE if axes.get_xlabel() else 0), figure.bbox.width - left - 3 * _LETTER
    top = _place_header(axes, room)
    height = max(figure.bbox.height, bottom + top + _MIN_HEIGHT)
    figure.set_figheight(height / DPI)
    pixels = Bbox.from_bounds(left, bottom, room, height - bottom - top)
    axes.set_position(pixels.transformed(figure.transFigure.inverted()))
    _place_events(axes)


def _place_header(axes: Axes, room: float) -> int:
    """Title and legend above the axes; returns their height in pixels.

    The legend, if there is more than one name, is on the right of the title where both fit in a line. Otherwise it is
    below the title, in as many columns as fit.

    room: width of the axes, in pixels
    """
    lines, names = _wrap(axes.get_title(loc="left"), room), axes.get_legend_handles_labels()[1]
    rows = 0
    if len(names) > 1:
        is_beside = _legend_width(names, len(names)) + _GAP <= room - _text_width(lines[-1], TITLE_SIZE, bold=True)
        fitting = [columns for columns in range(len(names), 1, -1) if _legend_width(names, columns) <= room]
        columns = (fitting or [1])[0]
        rows = 0 if is_beside else -(-len(names) // columns)
        corner, anchor = ("lower right", (1, 1)) if is_beside else ("lower left", (0, 1))
        axes.legend(loc=corner, bbox_to_anchor=anchor, ncols=columns, borderaxespad=0.2)
    axes.set_title("\n".join(lines), pad=6 + _LINE * rows)
    return 12 + _LINE * (len(lines) + rows)


def _legend_width(names: Sequence[str], columns: int) -> float:
    """Pixels, by the settings of `plots`: an entry is a line, a gap and a name."""
    widths = [max(_text_width(name, FONT_SIZE) for name in column) for column in np.array_split(names, columns)]
    return sum(widths) + FONT_SIZE * (2.0 * columns + 1.2 * (columns - 1) + 0.8)


def _wrap(title: str, room: float) -> list[str]:
    """A title in lines of at most `room` pixels."""
    lines = [title]
    for letters in range(max(len(title), 10), 9, -1):
        if max(_text_width(line, TITLE_SIZE, bold=True) for line in lines) <= room:
            break
        lines = textwrap.wrap(title, letters, max_lines=_MAX_TITLE_LINES, placeholder=" ...")
    return lines


def _place_events(axes: Axes) -> None:
    """Names of events at the top of the axes, below each other where they would overlap."""
    box = axes.get_window_extent()
    rows: list[float] = []  # the right end of the last name in each
    for text in sorted(axes.texts, key=lambda text: text.xy[0]):  # pyright: ignore[reportAttributeAccessIssue]
        x = float(axes.transData.transform((text.xy[0], 0))[0])  # pyright: ignore[reportAttributeAccessIssue]
        width = _text_width(text.get_text(), FONT_SIZE, bold=True)
        left = x - 5 - width if x > (box.x0 + box.x1) / 2 else x + 5
        row = next((number for number, end in enumerate(rows) if end + 5 < left), len(rows))
        text.xyann = (left - x, -12 - 14 * row)  # pyright: ignore[reportAttributeAccessIssue]
        text.set_visible(12 + 14 * row < box.height)  # the line stays
        rows[row : row + 1] = [left + width]


def _text_width(text: str, size: int, *, bold: bool = False) -> float:
    """Pixels."""
    font = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]
