"""The page and the files of an evaluation."""

import json
import re
from xml.etree import ElementTree

import pytest

from brightness import CUT, STEPS, BrightnessConfig, bright_store
from conftest import counting_episode
from plaudit.judges.evaluation import evaluate
from plaudit.judges.reference import read_truth
from plaudit.report.evaluation import save_evaluation
from plaudit.report.plot import NO, YES, timeline
from plaudit.types import Labels

NAN = float("nan")


@pytest.fixture
def page(tmp_path):
    """Of a judge with this config, on three successes, three failures and one without a task."""
    store = bright_store(tmp_path / "s")
    silent = store.append(counting_episode(STEPS, task=""))
    store.ledger.append(silent, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))

    def page(**judge) -> str:
        found = evaluate(store, BrightnessConfig(**judge).build(), read_truth(store, ("human",)), wrong_task="dance")
        save_evaluation(tmp_path / "out", "brightness", found, {"store": "a < b"})
        return (tmp_path / "out/report.html").read_text()

    return page


def test_a_judge_that_passes_a_control_is_named_in_red(page):
    said = page(brightest=255)
    red = re.findall(r'<p class="bad">(.*?)</p>', said)
    assert red[0] == "brightness passes success on a control: blank white, blank grey, blank noise. Do not trust it."
    assert "Control failed: blank white: 100% of 8 frames called success" in red[1]


def test_a_judge_that_passes_none_is_not(page):
    said = page()
    assert "passes success" not in said and 'class="bad">failed' not in said


def test_the_page_has_what_a_person_asks_for(page):
    said = page(cut=3)
    assert "<h1>Judge: brightness</h1>" in said
    assert "Calls 3 of 3 successes and 0 of 3 failures; the first frame called is off by 1 frame (median)" in said
    for words in (
        "on its labels",
        "(as it happens), 2 of 3 frames",
        "(seen whole), one cutoff",
        "ROC AUC",
        "Calibration",
    ):
        assert words in said
    assert "episode 0, frame 3" in said and "failure</span>, judged 73.1%" in said
    assert "this episode has no task text; give it one" in said and "a &lt; b" in said
    assert not re.findall(r'(?:src|href)="(?!data:)', said)


def test_the_numbers_are_there_for_a_program(page, tmp_path):
    page(brightest=255)
    tree = json.loads((tmp_path / "out/scores.json").read_text())
    assert tree["scores"]["recall"] == 1 and tree["on_labels"]["errors"] == [0, 0, 0]
    assert {c["name"]: c["passed"] for c in tree["controls"]}["blank white"] is False
    assert tree["failed"] == {"6": "this episode has no task text; give it one"}
    lines = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    assert [line["episode"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert lines[0]["truth"] == [0] * CUT + [1] * (STEPS + 1 - CUT)


def test_a_timeline_has_a_strip_of_the_truth_and_no_line_where_it_is_not_known():
    svg = ElementTree.fromstring(
        timeline([0.1, 0.9, 0.9, 0.5], [0, 1, 1, NAN], title="episode 3", threshold=1.5, size=(240, 118))
    )
    _, *rects = [e for e in svg.iter() if e.tag.endswith("}rect")]
    strips = [(e.get("fill"), float(e.get("width"))) for e in rects]
    assert [colour for colour, _ in strips] == [NO, YES, "#e4e4e0"]
    assert strips[1][1] == pytest.approx(2 * strips[0][1], abs=0.11)
    (line,) = [e for e in svg.iter() if e.tag.endswith("}polyline")]
    assert len(line.get("points").split()) == 3
