import math
import re
from xml.etree import ElementTree

import pytest

from drawn import drawn_figures, overlaps
from plaudit.report import page
from plaudit.report.plots import (
    FAILURE,
    SMALL,
    SUCCESS,
    EventMarker,
    calibration_chart,
    histogram,
    interval_chart,
    line_chart,
    outcome_strip,
    score_timeline,
)

pytestmark = pytest.mark.usefixtures("written_charts")


def points(svg: str, gid: str) -> list[str]:
    """The path of the element with this id."""
    group = re.search(rf'<g id="{gid}">.*?<path d="(.*?)"', svg, re.DOTALL)
    return re.findall(r"[ML] \S+ \S+", group[1])


def colors(svg: str) -> list[str]:
    """Of what is filled with the color of an outcome, in order."""
    return re.findall(r"fill: var\(--(failure|success|none)\)", svg)


def test_a_line_chart_has_its_title_axis_names_legend_marks_and_events():
    curves = {"judge": [[(0, 0.1), (10_000, 0.9)]], "simulator": [[(0, 0.1), (10_000, 0.8)]]}
    svg = line_chart(
        curves, title="Success", x="env steps", percent=True, marks=(0.9,), events=[EventMarker(5, "alarm")]
    )
    texts = {element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")}
    assert {"Success", "env steps", "judge", "simulator", "alarm", "10k", "100%"} <= texts
    assert svg.count("stroke-dasharray") == 1


WIDE = [(0, -1234.5), (100_000, 2345.25)]
RARE = [(0, 1e-6), (1, 3e-6)]  # by default matplotlib writes 1e-6 above the axis, where the title is
LONG = "Errors of the judge, with intervals and limits, and more than fits in a line"
CHARTS = {
    "a wide axis": lambda: line_chart({"": [WIDE]}, title="t", x="env steps", y="seconds", size=SMALL),
    "small numbers": lambda: line_chart({"": [RARE]}, title="loss/critic", x="env steps", size=SMALL),
    "a long title": lambda: line_chart({"false": [WIDE], "missed": [WIDE]}, title=LONG, x="steps", size=SMALL),
    "many names": lambda: line_chart({f"number {n}": [WIDE] for n in range(8)}, title="t", x="env steps"),
    "long names": lambda: line_chart({f"{n}{'name' * 20}": [WIDE] for n in range(9)}, title="t", x="x", size=SMALL),
    "close events": lambda: line_chart(
        {"": [WIDE]}, title="t", x="x", events=[EventMarker(1000 * n, f"judge v{n}") for n in range(45, 55)]
    ),
    "intervals": lambda: interval_chart({f"{'a judge ' * 20}": (0.1, 0, 0.3)}, [True], title=LONG * 3, mark=None),
    "a histogram": lambda: histogram(
        {"failure": [5000, 1], "success": [0, 9]},
        (FAILURE, SUCCESS),
        title="Frames",
        x="p",
        mark=(0.5, "threshold 0.924"),
    ),
    "a timeline": lambda: score_timeline([0.1, 0.9], [0, 1], title="episode 123,456, error 12.3%", threshold=0.5),
}


@pytest.mark.parametrize("chart", CHARTS)
def test_no_text_of_a_chart_overlaps_another_or_is_cut_off(chart, monkeypatch):
    figures = drawn_figures(monkeypatch)
    CHARTS[chart]()
    (figure,) = figures
    assert overlaps(figure) == []
    for axes in figure.axes:
        drawn, (width, height) = axes.get_tightbbox(), figure.bbox.size
        assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= width and drawn.y1 <= height


def test_only_fractions_are_drawn_in_percent():
    zeros = {"": [[(0, 0.0), (1, 0.0)]]}
    assert "%" not in line_chart(zeros, title="Judge latency", x="minutes", y="s per episode", y_range=(0, 1))
    assert ">100%</text>" in line_chart(zeros, title="Success rate", x="minutes", percent=True)


def test_names_with_dollars_and_tags_are_text():
    svg = line_chart({"a$_{b}$": [[(0, 1)]], "<b>": [[(0, 2)]]}, title="$\\frac", x="&")
    assert {"a$_{b}$", "<b>", "$\\frac", "&"} <= {e.text for e in ElementTree.fromstring(svg).iter()}


def test_a_calibration_chart_has_a_dot_for_each_bin_that_is_not_empty():
    svg = calibration_chart([0.1, math.nan, 0.9], [0.0, math.nan, 1.0], [30, 0, 10], title="t")
    assert re.findall(r'id="bin-(\d+)"', svg) == ["30", "10"]


def test_a_histogram_shows_one_frame_beside_thousands():
    svg = histogram({"failure": [5000, 1], "success": [0, 9]}, (FAILURE, SUCCESS), title="t", x="p")

    def height(gid: str) -> float:
        ys = [float(point.split()[2]) for point in points(svg, gid)]
        return max(ys) - min(ys)

    assert height("failure-1") > 0.05 * height("failure-5000") > 0
    assert height("success-0") == 0


def test_a_timeline_has_a_strip_of_the_reference_and_a_gap_where_there_is_none():
    svg = score_timeline([0.1, 0.9, 0.9, 0.5], [0, 1, 1, math.nan], title="episode 3", threshold=1.5)
    assert colors(svg) == ["failure", "success", "none"]
    assert len(points(svg, "score")) == 3


def test_an_outcome_strip_joins_equal_neighbors():
    svg = outcome_strip({"judge": [1, 1, 0], "reference": [math.nan] * 3}, title="t", x="episode", first=7)
    assert sorted(colors(svg)) == ["failure", "none", "success"]


def test_a_chart_that_is_not_a_wide_one_fits_on_a_phone():
    """A column of a phone of 360 pixels has 332."""
    small = line_chart({"": [[(0, 1), (1, 2)]]}, title="loss", x="step", size=SMALL)
    for svg in (small, interval_chart({"a": (0.5, 0.4, 0.6)}, [True], title="rate", mark=None)):
        assert int(re.findall(r"min-width: (\d+)px", page.chart(svg))[0]) <= 332
