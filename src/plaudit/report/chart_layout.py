"""Places the texts around a chart so that they neither overlap nor leave the figure.

Texts are measured in DejaVu Sans, which comes with matplotlib and is wider than most fonts of a browser. (Rejected: the
layouts of matplotlib, which draw everything to measure it and take as long as the chart itself.)
"""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Bbox

DPI = 72  # one point of an SVG is one pixel
FONT_SIZE, TITLE_SIZE = 11, 13  # pixels
_LETTER, _LINE = 7, 18  # pixels: the width of most letters in a chart, and the height of a line of them
_GAP = 16  # pixels between a title and the legend next to it
_MIN_HEIGHT = 60  # pixels of the axes; a figure whose title and legend leave less grows
_MAX_TITLE_LINES = 2


def fit_margins(figure: Figure, columns: int = 1) -> None:
    """Place each axes so that the texts around it fit into its cell of the figure, which has so many columns."""
    rows = -(-len(figure.axes) // columns)
    width, height = figure.bbox.width / columns, figure.bbox.height / rows
    margins = [(*_side_margins(axes), _place_header(axes, width)) for axes in figure.axes]
    height = max(height, *(bottom + top + _MIN_HEIGHT for _, bottom, top in margins))
    figure.set_figheight(rows * height / DPI)
    for place, (axes, (left, bottom, top)) in enumerate(zip(figure.axes, margins, strict=True)):
        x, y = place % columns * width + left, (rows - 1 - place // columns) * height + bottom
        pixels = Bbox.from_bounds(x, y, width - left - 3 * _LETTER, height - bottom - top)
        axes.set_position(pixels.transformed(figure.transFigure.inverted()))
        _place_events(axes)


def _side_margins(axes: Axes) -> tuple[int, int]:
    """Pixels on the left and below."""
    numbers = axes.yaxis.get_major_formatter().format_ticks(axes.yaxis.get_majorticklocs().tolist())
    left = 18 + _LETTER * max(map(len, numbers), default=0) + (_LINE if axes.get_ylabel() else 0)
    return left, 12 + _LINE + (_LINE if axes.get_xlabel() else 0)


def _place_header(axes: Axes, width: float) -> int:
    """Title and legend above the axes; returns their height in pixels.

    The legend, if there is more than one name, is on the right of the title where both fit in a line. Otherwise it is
    below the title, in as many columns as fit.
    """
    room = width - _side_margins(axes)[0] - 3 * _LETTER
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
    """Lines of a title that are at most so many pixels wide."""
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
