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
from drawn import drawn_figures, overlaps
from plaudit.judges.certificate import MAX_FPR, ControlResult
from plaudit.judges.evaluation import evaluate, load_reference_labels
from plaudit.judges.guarantee import make_guarantee
from plaudit.judges.metrics import EpisodePrediction, FramePrediction, JudgeMetrics, compute_metrics
from plaudit.judges.stats import Interval
from plaudit.report.judge import JudgeReport, live_and_offline, save_evaluation, write_judge_report
from plaudit.report.verdict import format_percent, judge_verdict
from plaudit.rule import DecisionRule
from plaudit.types import Labels

TRUTH, PROBABILITY = [0, 0, 0, 1, 1], [0.15, 0.25, 0.75, 0.85, 0.95]


def control(name: str, frames: int, fpr: float = math.nan) -> ControlResult:
    return ControlResult(name=name, episodes=1, frames=frames, fpr=Interval(fpr, 0, 1), max_fpr=MAX_FPR)


PASSED, FAILED = control("frozen frame", 500, 0.0), control("blank white", 8, 1.0)

SINGLE = DecisionRule(decode="per_frame")


def scores() -> JudgeMetrics:
    return compute_metrics([EpisodePrediction(PROBABILITY, TRUTH, 3), EpisodePrediction([0.1, 0.2], [0, 0], 4)], SINGLE)


def report(
    folder: Path,
    *,
    of: JudgeMetrics | None = None,
    controls=(PASSED,),
    errors=(),
    metadata=None,
    judge="",
    store="STORE",
    predictions=(),
    **options,
) -> str:
    path, metrics = folder / "judge.html", of or scores()
    predictions, decodes = predictions or [EpisodePrediction(PROBABILITY, TRUTH, 3)], live_and_offline(metrics)
    shown = JudgeReport("judge", metrics, controls, predictions, errors, decodes, metadata or {}, **options)
    verdict = judge_verdict(shown.decode, shown.controls, shown.guarantee, judge=judge, store=store)
    write_judge_report(path, "The <judge>", shown, verdict)
    return path.read_text()


def test_frames_that_were_not_scored_are_not_drawn_as_zero(tmp_path, written_charts):
    plain = report(tmp_path, standing_still=np.array([0.5] * 5))
    padded = report(
        tmp_path,
        standing_still=np.array([0.5] * 5 + [math.nan]),
        predictions=[EpisodePrediction([*PROBABILITY, 0.0], [*TRUTH, math.nan], 3)],
    )
    start = "<h2>P(success) over time</h2>"
    first, second = (charts(page[page.index(start) :])[0] for page in (plain, padded))
    assert first == second


def charts(page: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", page, re.DOTALL)


def test_the_summary_has_the_error_rates_and_the_number_of_episodes(tmp_path):
    page = report(tmp_path)
    assert "It predicts success for 1 of 1 success and 0 of 1 failure." in page
    assert "Measured on 2 held-out episodes, 7 frames: median success-onset error 1 frame, false-positive rate" in page
    assert "<title>The &lt;judge&gt;</title>" in page


def test_the_page_needs_no_other_file(tmp_path, written_charts):
    page = report(tmp_path, errors=[FramePrediction(3, 2, 0.0, 0.7, np.zeros((8, 8, 3), np.uint8))])
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page and "<script" not in page


def test_a_failed_control_has_the_color_of_failure_and_is_named_on_top(tmp_path):
    page = report(tmp_path, controls=[PASSED, FAILED])
    assert "It predicts success in controls that have none: blank white (100% of 8 frames)" in page
    assert '<span class="bad">failed</span>' in page and '<span class="good">passed</span>' in page
    assert "where there is none" not in report(tmp_path, controls=[PASSED])


def test_a_control_without_frames_is_not_shown_as_passed(tmp_path):
    page = report(tmp_path, controls=[control("truncated", 0)])
    assert "not run" in page and "passed" not in page


def test_a_threshold_above_1_is_explained(tmp_path):
    assert "no frame has it, since P(success)" in report(tmp_path, of=replace(scores(), threshold=1.0000001))


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


def test_metrics_with_one_prefix_share_a_chart_and_a_judge_without_training_has_none(tmp_path, written_charts):
    history = [{"epoch": s, "loss/train": 1 / s, "loss/val": 2 / s, "roc_auc": 0.9} for s in (1, 2, 3)]
    _, _, _, _, loss, auc = charts(report(tmp_path, history=history))
    assert ">train</text>" in loss and ">val</text>" in loss and ">roc_auc</text>" in auc
    assert len(charts(report(tmp_path))) == 4  # and the timeline of the episode


def test_metadata_is_escaped(tmp_path):
    assert "a &lt; b" in report(tmp_path, metadata={"note": "a < b"})


def test_the_histogram_counts_frames_by_label(tmp_path, written_charts):
    _, _, bars, _ = charts(report(tmp_path))
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


# The verdict


def verdict_rows(page: str) -> list[str]:
    """Its three lines, without tags."""
    shown = re.search('<dl class="verdict.*?</dl>', page, re.DOTALL)
    assert shown is not None
    return [re.sub("<.*?>", "", line) for line in re.findall("<dd>(.*?)</dd>", shown[0])]


def held_out(successes: int, failures: int, *, found: int | None = None, passed: int = 0) -> JudgeMetrics:
    """Of a judge that finds so many of the successes, and predicts success for so many of the failures."""
    found = successes if found is None else found
    scored = [([0.1, 0.9 if n < found else 0.1], [0, 1]) for n in range(successes)]
    scored += [([0.1, 0.9 if n < passed else 0.1], [0, 0]) for n in range(failures)]
    return compute_metrics([EpisodePrediction(*one, n) for n, one in enumerate(scored)], SINGLE)


@pytest.mark.parametrize(
    ("of", "result"),
    [
        (held_out(9, 9), "Usable with an audit."),
        (held_out(9, 0), "Not usable yet: it could not be measured."),
        (held_out(0, 9), "Not usable yet: it could not be measured."),
        (held_out(9, 9, found=0), "Not usable yet: it detects no success."),
        (held_out(9, 9, passed=3), "Not usable yet: 25% of the predicted successes are false"),
        (held_out(9, 9, found=4), "Not usable yet: 28% of the episodes are missed successes"),
    ],
)
def test_the_page_opens_with_a_verdict_in_three_lines(tmp_path, of, result):
    lines = verdict_rows(report(tmp_path, of=of, judge="runs/judge", store="my data"))
    assert lines[0].startswith(result) and lines[1].startswith(("It ", "The held-out episodes contain no"))
    assert "plaudit " in lines[2] and "&#39;my data&#39;" in lines[2]


def test_the_next_step_is_a_target_that_can_be_reached(tmp_path):
    episodes = [EpisodePrediction([0.1, 0.2], [0, 0], n) for n in range(2)]
    guarantee = make_guarantee(
        [*episodes, EpisodePrediction(PROBABILITY, TRUTH, 3)], rate=0.01, confidence=0.9, labeled=18
    )
    page = report(tmp_path, of=held_out(9, 9), guarantee=guarantee, judge="runs/judge", store="data")
    result, _, following = verdict_rows(page)
    assert result == "Usable with an audit; a false-positive rate of 1% is not guaranteed."
    assert "Label at least 54 more episodes for a guarantee of 20% (1,506 for the 1% that you requested)" in following
    command = "plaudit label data --judge human &amp;&amp; plaudit train-reward data --output-dir runs/judge_2"
    assert following.endswith(f":{command}")
    rates = re.findall(r"<td>([\d.]+%)(?: \(asked for\))?</td><td><span", page)
    assert rates.index("20%") < rates.index("1%")  # what takes fewer episodes comes first


def test_a_guarantee_says_what_it_covers(tmp_path):
    many = [EpisodePrediction([0.1, 0.2, 0.9 * (n % 2)], [0, 0, n % 2], n) for n in range(60)]
    page = report(tmp_path, of=compute_metrics(many, SINGLE), guarantee=make_guarantee(many, rate=0.05, confidence=0.9))
    assert "Usable: a false-positive rate of 5% or less is guaranteed." in page
    assert "proven on 60 held-out episodes" in page
    assert "assumes that new episodes are independent and recorded like the labeled ones" in page


def test_nothing_is_said_twice_and_in_warnings(tmp_path):
    failed = [control(name, 8, 1.0) for name in ("blank white", "frozen frame", "noise")]
    page = report(tmp_path, controls=failed)
    assert "Not usable: it fails 3 negative controls." in page and '<p class="warning">' not in page
    assert page.count("noise (100% of 8 frames)") == 1


def test_zeros_are_not_marked_as_correct_and_nothing_is_measured_on_no_episodes(tmp_path):
    page = report(tmp_path, of=held_out(9, 0, found=0))
    assert '<span class="good">0</span>' not in page
    assert "0 of 0" not in page and "no failures to measure on" in page


def test_no_texts_of_the_page_overlap(tmp_path, monkeypatch, written_charts):
    figures = drawn_figures(monkeypatch)
    history = [
        {"epoch": s, **{f"loss/{name} {n}": 1e-6 for name in ("train", "held out") for n in "234"}} for s in (1, 2)
    ]
    report(tmp_path, of=replace(scores(), threshold=0.92345), history=history)
    assert len(figures) == 5 and [overlaps(figure) for figure in figures] == [[]] * 5


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
        save_evaluation(tmp_path / "out", "brightness", found, {"store": "a < b"}, "package:Brightness")
        return (tmp_path / "out/report.html").read_text()

    return page


def test_a_judge_that_fails_a_control_is_not_usable(page):
    said = page(brightest=255)
    assert '<dl class="verdict bad"><dt>result</dt><dd>Not usable: it fails 3 negative controls.</dd>' in said
    assert said.count("blank white (100% of 8 frames)") == 1


def test_a_judge_that_passes_its_controls_is_usable(page):
    said = page()
    assert (
        '<dl class="verdict good"><dt>result</dt><dd>Usable with an audit.</dd>' in said
        and 'class="bad">failed' not in said
    )
    assert "plaudit judge exam package:Brightness &#39;a &lt; b&#39;" in said


def test_the_page_has_rules_metrics_and_the_largest_errors(page, written_charts):
    said = page(cut=3)  # a frame before success, and two of three frames decide
    assert "<h1>Judge: brightness</h1>" in said
    assert "It predicts success for 3 of 3 successes and 0 of 3 failures." in said
    assert "median success-onset error 0 frames" in said
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
    assert "1 frame (0\u00a0to\u00a02)" in page  # the median; an interval stays on one line
    assert (
        "2 frames (1\u00a0or\u00a0more)" in page
    )  # the 90th percentile of eight episodes may be anything from there on
    found = compute_metrics(late, SINGLE)
    again = compute_metrics([replace(one, episode=n) for n, one in enumerate([*late] * 10)], SINGLE)
    assert found.recall == pytest.approx(again.recall)
    assert found.recall_low < again.recall_low < found.recall < again.recall_high < found.recall_high
