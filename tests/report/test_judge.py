import base64
import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from brightness import CUT, STEPS, BrightnessConfig, bright_store
from conftest import counting_episode
from plaudit.judges.controls import ControlResult
from plaudit.judges.evaluation import evaluate, load_reference_labels
from plaudit.judges.metrics import JudgeMetrics, compute_metrics
from plaudit.judges.predictions import EpisodePrediction, FramePrediction
from plaudit.report.judge import save_evaluation, write_judge_report
from plaudit.report.text import format_percent
from plaudit.rule import DecisionRule
from plaudit.types import Labels

TRUTH, PROBABILITY = [0, 0, 0, 1, 1], [0.15, 0.25, 0.75, 0.85, 0.95]
PASSED, FAILED = ControlResult("frozen frame", 500, 0, 0.05), ControlResult("blank white", 8, 8, 0.05)

SINGLE = DecisionRule(decode="per_frame")


def scores() -> JudgeMetrics:
    return compute_metrics([EpisodePrediction(PROBABILITY, TRUTH, 3), EpisodePrediction([0.1, 0.2], [0, 0], 4)], SINGLE)


def report(folder: Path, *, of: JudgeMetrics | None = None, controls=(PASSED,), errors=(), **options) -> str:
    path = folder / "judge.html"
    predictions = options.pop("predictions", [EpisodePrediction(PROBABILITY, TRUTH, 3)])
    write_judge_report(path, "The <judge>", of or scores(), controls, predictions, errors, **options)
    return path.read_text()


def charts(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def test_the_summary_has_the_error_rates_and_the_number_of_episodes(tmp_path):
    page = report(tmp_path)
    assert "Predicts success for 1 of 1 successes and 0 of 1 failures" in page
    assert "median success-onset error 1 frame; false-positive rate 20.0% (frames)" in page
    assert "2 held-out episodes, 7 frames" in page
    assert "<title>The &lt;judge&gt;</title>" in page


def test_the_page_needs_no_other_file(tmp_path):
    page = report(tmp_path, errors=[FramePrediction(3, 2, 0.0, 0.7, np.zeros((8, 8, 3), np.uint8))])
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page and "<script" not in page


def test_a_failed_control_is_red_and_named_on_top(tmp_path):
    page = report(tmp_path, controls=[PASSED, FAILED])
    assert "Negative control failed: blank white: 100% of 8 frames predicted a success" in page
    assert '<span class="bad">failed</span>' in page and '<span class="good">passed</span>' in page
    assert "control failed" not in report(tmp_path, controls=[PASSED])


def test_a_control_without_frames_is_not_shown_as_passed(tmp_path):
    page = report(tmp_path, controls=[ControlResult("truncated", 0, 0, 0.05)])
    assert "not run" in page and "passed" not in page


def test_a_threshold_above_1_is_a_warning(tmp_path):
    assert "No frame is ever predicted a success" in report(tmp_path, of=replace(scores(), threshold=1.0000001))


def test_numbers_that_could_not_be_measured_are_dashes(tmp_path):
    page = report(tmp_path, of=compute_metrics([EpisodePrediction([0.1, 0.2], [0, 0], 4)], SINGLE))
    assert "nan" not in page
    assert "<td>-</td>" in page


def test_the_frames_with_the_largest_errors_are_inside_the_page_with_captions(tmp_path):
    image = np.full((480, 640, 3), (200, 100, 50), np.uint8)
    page = report(tmp_path, errors=[FramePrediction(12, 43, 1.0, 0.03, image)])
    (data,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert shown.shape == (240, 320, 3)
    assert np.abs(shown.astype(int) - [200, 100, 50]).max() <= 3
    assert "episode 12, frame 43" in page and "P(success) 3.0%" in page


def test_metrics_with_one_prefix_share_a_chart_and_a_judge_without_training_has_none(tmp_path):
    history = [{"epoch": s, "loss/train": 1 / s, "loss/val": 2 / s, "roc_auc": 0.9} for s in (1, 2, 3)]
    _, _, _, loss, auc = charts(report(tmp_path, history=history))
    assert ">train</text>" in loss and ">val</text>" in loss and ">roc_auc</text>" in auc
    assert len(charts(report(tmp_path))) == 3  # and the timeline of the episode


def test_metadata_is_escaped(tmp_path):
    assert "a &lt; b" in report(tmp_path, metadata={"note": "a < b"})


def test_the_histogram_counts_frames_by_label(tmp_path):
    _, bars, _ = charts(report(tmp_path))
    assert re.findall(r'id="failure-(\d+)"', bars) == list("0110000100")
    assert re.findall(r'id="success-(\d+)"', bars) == list("0000000011")


def test_percentages_are_sharper_near_the_ends():
    assert [format_percent(p) for p in (0, 0.0004, 0.012, 0.85, 0.9997, 1)] == [
        "0%",
        "0.04%",
        "1.2%",
        "85.0%",
        "99.97%",
        "100%",
    ]
    assert format_percent(math.nan) == "-"


# `plaudit judge eval`


@pytest.fixture
def page(tmp_path):
    """The page of an evaluation on three successes, three failures and one episode without a task."""
    store = bright_store(tmp_path / "s")
    silent = store.append(counting_episode(STEPS, task=""))
    store.ledger.append(silent, Labels.from_cutoff(steps=STEPS, cutoff=None, source="human"))

    def page(**judge) -> str:
        found = evaluate(
            store, BrightnessConfig(**judge).build(), load_reference_labels(store, ("human",)), wrong_task="dance"
        )
        save_evaluation(tmp_path / "out", "brightness", found, {"store": "a < b"})
        return (tmp_path / "out/report.html").read_text()

    return page


def test_a_judge_that_fails_a_control_is_named_in_a_warning(page):
    said = page(brightest=255)
    warnings = re.findall(r'<p class="warning">(.*?)</p>', said)
    assert warnings[0].startswith(
        "brightness failed its checks: it predicts success on the negative control blank white"
    )
    assert "Negative control failed: blank white: 100% of 8 frames predicted a success" in warnings[1]


def test_a_judge_that_passes_its_controls_is_not(page):
    said = page()
    assert "failed its checks" not in said and 'class="bad">failed' not in said


def test_the_page_has_rules_metrics_and_the_largest_errors(page):
    said = page(cut=3)  # a frame before success, and two of three frames decide
    assert "<h1>Judge: brightness</h1>" in said
    assert "Predicts success for 3 of 3 successes and 0 of 3 failures; median success-onset error 0 frames" in said
    for words in (
        "judge&#39;s rule",
        "causal (2 of 3 frames)",
        "offline (cutoff)",
        "ROC AUC",
        "Calibration",
    ):
        assert words in said
    assert "episode 0, frame 3" in said and "failure</span><br>P(success) 73.1%" in said
    assert "this episode has no task text; give it one" in said and "a &lt; b" in said
    assert not re.findall(r'(?:src|href)="(?!data:|#)', said)


def test_the_numbers_are_there_for_a_program(page, tmp_path):
    page(brightest=255)
    tree = json.loads((tmp_path / "out/scores.json").read_text())
    assert tree["scores"]["recall"] == 1 and tree["label_metrics"]["errors"] == [1, 1, 1]  # two of three frames decide
    assert {c["name"]: c["passed"] for c in tree["controls"]}["blank white"] is False
    assert tree["failed"] == {"6": "this episode has no task text; give it one"}
    lines = [json.loads(line) for line in (tmp_path / "out/episodes.jsonl").read_text().splitlines()]
    assert [line["episode"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert lines[0]["target"] == [0] * CUT + [1] * (STEPS + 1 - CUT)


def test_recall_and_the_onset_error_have_intervals_that_count_episodes(tmp_path):
    late = [EpisodePrediction(np.arange(9) >= 3 + n % 3, np.arange(9) >= 3, n) for n in range(8)]
    page = report(tmp_path, of=compute_metrics(late, SINGLE))
    assert "1 frame (0 to 2)" in page  # the median
    assert "2 frames (1 or more)" in page  # the 90th percentile of eight episodes may be anything from there on
    found = compute_metrics(late, SINGLE)
    again = compute_metrics([replace(one, episode=n) for n, one in enumerate([*late] * 10)], SINGLE)
    assert found.recall == pytest.approx(again.recall)
    assert found.recall_low < again.recall_low < found.recall < again.recall_high < found.recall_high
