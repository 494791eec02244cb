import base64
import io
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from plaudit.judges.controls import ControlResult
from plaudit.judges.metrics import Scores, measure, reliability
from plaudit.judges.scored import JudgedFrame, Scored
from plaudit.report.judge import percent, write_judge_report
from plaudit.report.plot import NO, YES, histogram, reliability_diagram

TRUTH, PROBABILITY = [0, 0, 0, 1, 1], [0.1, 0.2, 0.7, 0.8, 0.9]
PASSED, FAILED = ControlResult("still", 500, 0, 0.05), ControlResult("blank white", 8, 8, 0.05)


def scores() -> Scores:
    return measure([Scored(PROBABILITY, TRUTH, 3), Scored([0.1, 0.2], [0, 0], 4)], 0.5)


def report(folder: Path, *, of: Scores | None = None, controls=(PASSED,), worst=(), curve=(), facts=None) -> str:
    path = folder / "judge.html"
    table = reliability(PROBABILITY, TRUTH)
    write_judge_report(path, "The <judge>", of or scores(), controls, table, worst, curve, facts or {})
    return path.read_text()


def charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def shapes(svg: ElementTree.Element, name: str, colour: str = "") -> list[ElementTree.Element]:
    return [e for e in svg.iter() if e.tag.endswith("}" + name) and colour in e.get("fill", "")]


def test_the_headline_says_what_was_called_and_on_what(tmp_path):
    page = report(tmp_path)
    assert "Calls 1 of 1 successes and 0 of 1 failures" in page
    assert "off by 1 frame (median); 20.0% of failure frames get through" in page
    assert "2 held-out episodes, 7 frames" in page
    assert "<title>The &lt;judge&gt;</title>" in page


def test_the_page_stands_alone(tmp_path):
    page = report(tmp_path, worst=[JudgedFrame(3, 2, 0.0, 0.7, np.zeros((8, 8, 3), np.uint8))])
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "@import" not in page and "<script" not in page


def test_a_failed_control_is_red_and_named_on_top(tmp_path):
    page = report(tmp_path, controls=[PASSED, FAILED])
    assert "Control failed: blank white: 100% of 8 frames called success" in page
    assert '<span class="bad">failed</span>' in page and '<span class="good">passed</span>' in page
    assert "Control failed" not in report(tmp_path, controls=[PASSED])


def test_a_control_that_asked_nothing_is_not_said_to_have_passed(tmp_path):
    page = report(tmp_path, controls=[ControlResult("truncated", 0, 0, 0.05)])
    assert "not asked" in page and "passed" not in page


def test_a_threshold_that_calls_nothing_is_said_so(tmp_path):
    assert "No frame is ever called" in report(tmp_path, of=replace(scores(), threshold=1.0000001))


def test_numbers_that_could_not_be_measured_are_dashes(tmp_path):
    page = report(tmp_path, of=measure([Scored([0.1, 0.2], [0, 0], 4)], 0.5))
    assert "nan" not in page
    assert "<td>-</td>" in page


def test_worst_frames_are_inside_the_page_with_their_captions(tmp_path):
    image = np.full((480, 640, 3), (200, 100, 50), np.uint8)
    page = report(tmp_path, worst=[JudgedFrame(12, 43, 1.0, 0.03, image)])
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert shown.shape == (240, 320, 3)
    assert np.abs(shown.astype(int) - [200, 100, 50]).max() <= 3
    assert "episode 12, frame 43" in page and "judged 3.0%" in page


def test_curves_of_one_group_share_a_chart_and_a_judge_without_training_has_none(tmp_path):
    curve = [{"epoch": s, "loss/train": 1 / s, "loss/held out": 2 / s, "roc_auc": 0.9} for s in (1, 2, 3)]
    bars, loss, auc = (len(shapes(chart, "polyline")) for chart in charts(report(tmp_path, curve=curve))[1:])
    assert (bars, loss, auc) == (0, 2, 1)
    assert len(charts(report(tmp_path))) == 2


def test_facts_are_escaped(tmp_path):
    assert "a &lt; b" in report(tmp_path, facts={"note": "a < b"})


def test_a_reliability_diagram_has_a_dot_for_each_bin_that_is_not_empty():
    svg = ElementTree.fromstring(
        reliability_diagram([0.1, math.nan, 0.9], [0.0, math.nan, 1.0], [30, 0, 10], title="t")
    )
    low, high = shapes(svg, "circle")
    assert float(low.get("cx")) < float(high.get("cx"))
    assert float(low.get("cy")) > float(high.get("cy"))  # more successes is higher up
    assert float(low.get("r")) > float(high.get("r"))
    assert [t.text for t in svg.iter() if t.text in ("30", "10")] == ["30", "10"]


def test_a_histogram_shows_one_frame_beside_thousands():
    svg = ElementTree.fromstring(histogram({"failure": [5000, 1], "success": [0, 9]}, (NO, YES), title="t", x="p"))
    many, one = (float(bar.get("height")) for bar in shapes(svg, "rect", NO)[:2])
    assert one > 0.05 * many > 0
    assert float(shapes(svg, "rect", YES)[0].get("height")) == 0


def test_the_histogram_counts_frames_by_truth(tmp_path):
    _, bars = charts(report(tmp_path))
    hints = [e.text for e in bars.iter() if e.tag.endswith("}title")]
    assert "failure, 70% to 80%: 1" in hints
    assert "success, 90% to 100%: 1" in hints


def test_percentages_are_sharper_near_the_ends():
    assert [percent(p) for p in (0, 0.0004, 0.012, 0.85, 0.9997, 1)] == [
        "0%",
        "0.04%",
        "1.2%",
        "85.0%",
        "99.97%",
        "100%",
    ]
    assert percent(math.nan) == "-"
