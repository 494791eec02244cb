"""The three lines that pages and commands begin with, and the colors of both."""

import json
import math
import re
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from command import check_command
from plaudit.judges.calibration import CalibrationRecord
from plaudit.judges.certificate import MAX_FPR, ControlResult
from plaudit.judges.guarantee import Guarantee, GuaranteeStep
from plaudit.judges.human import palette
from plaudit.judges.metrics import EpisodePrediction, compute_metrics
from plaudit.judges.stats import Interval, wilson
from plaudit.report import page
from plaudit.report.run_data import RunData
from plaudit.report.verdict import (
    Verdict,
    calibration_verdict,
    format_frames_interval,
    judge_verdict,
    policy_verdict,
    progress_verdict,
    run_verdict,
    train_further,
)
from plaudit.rule import DecisionRule

SINGLE = DecisionRule(decode="per_frame")
FAILED = ControlResult(name="blank white", episodes=1, frames=8, fpr=Interval(1, 0, 1), max_fpr=MAX_FPR)


def run(folder: Path, *lines: dict[str, float], online: bool = False, **limits: int) -> RunData:
    """A run with these metrics, a line for each 100 steps."""
    config = {"schedule": "online" if online else "train", "run": limits, "robot": {"type": "sim"}}
    config |= {"audit": {"max_false": 0.1, "max_missed": 0.2}, "evaluation": {"stop_success_rate": None}}
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(json.dumps(config))
    metrics = [
        {"step": 100 * n, "time/elapsed_s": 1.0 * n, "rollout/episodes": n, **one} for n, one in enumerate(lines)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    return RunData.load(folder)


def judged(found: int, passed: int = 0, **options) -> Verdict:
    """Of a judge that finds so many of 9 successes, and passes so many of 9 failures."""
    scored = [([0.1, 0.9 if n < found else 0.1], [0, 1]) for n in range(9)]
    scored += [([0.1, 0.9 if n < passed else 0.1], [0, 0]) for n in range(9)]
    metrics = compute_metrics([EpisodePrediction(*one, n) for n, one in enumerate(scored)], SINGLE)
    options = {"judge": "my judge", "store": "my data", "controls": (), **options}
    return judge_verdict(metrics.causal, **options)


def calibrated(fpr: float, recall: float = 0.9) -> Verdict:
    numbers = {"episodes": 9, "successes": 3, "target_fpr": 0.01, "fpr_low": 0.0, "fpr_high": 0.5, "recall": recall}
    record = CalibrationRecord(date="", fingerprint="f", reference=("human",), fpr=fpr, **numbers)
    return calibration_verdict(record, "my judge.yaml", "my data")


def guarantee() -> Guarantee:
    step = GuaranteeStep(rate=0.2, needed=20, threshold=None, recall=None)
    return Guarantee(rate=0.01, confidence=0.9, episodes=9, labeled=9, needed=300, threshold=None, steps=(step,))


def verdicts(folder: Path) -> dict[str, Verdict]:
    alarm = {"audit/alarm": 1.0, "audit/false_successes": 0.4}
    good, bad, few = {"eval/success_once": 0.95}, {"eval/success_once": 0.4}, wilson(4, 10)
    lived = run(folder / "one run", bad, bad, max_steps=100)
    return {
        "usable": judged(9),
        "guaranteed later": judged(9, guarantee=guarantee()),
        "control": judged(9, controls=(FAILED,)),
        "blind": judged(0),
        "fooled": judged(9, 5),
        "progress": progress_verdict(0.95, 5, (), "my model", "my data"),
        "no progress": progress_verdict(0.2, 5, (), "my model", "my data"),
        "progress not measured": progress_verdict(math.nan, 0, (), "my model", "my data"),
        "calibrated": calibrated(0.0),
        "badly calibrated": calibrated(0.3),
        "policy": policy_verdict(wilson(98, 100), "98 of 100.", "my run", task="lift"),
        "weak policy": policy_verdict(few, "4 of 10.", "my run"),
        "policy of a run": policy_verdict(few, "4 of 10.", "my run", train_further(lived)),
        "empty run": run_verdict(run(folder / "r0")),
        "good run": run_verdict(run(folder / "r1", good)),
        "finished run": run_verdict(lived),
        "short run": run_verdict(run(folder / "r2", bad, max_steps=1000)),
        "finished loop": run_verdict(run(folder / "r3", bad, bad, online=True, max_episodes=1)),
        "alarm": run_verdict(run(folder / "r4", alarm)),
        "alarm of a loop": run_verdict(run(folder / "r5", alarm, online=True)),
    }


def test_every_next_command_is_one(tmp_path):
    for name, verdict in verdicts(tmp_path).items():
        assert verdict.command, name
        for line in verdict.command.split(" && "):
            check_command(line)


def test_good_bad_and_open(tmp_path):
    tones: dict[str, set[str]] = {}
    for name, verdict in verdicts(tmp_path).items():
        tones.setdefault(verdict.tone, set()).add(name)
    good = {"usable", "guaranteed later", "progress", "calibrated", "policy", "good run"}
    assert tones["good"] == good and tones["open"] == {"empty run"}


def test_a_run_at_its_end_is_continued_to_twice_its_length(tmp_path):
    shown = verdicts(tmp_path)
    assert shown["finished run"].command.endswith("run.max_steps=200")
    assert shown["finished loop"].command.endswith("run.max_episodes=2")
    assert shown["short run"].command == f"plaudit train --resume {tmp_path / 'r2'}"
    assert "Not good enough yet: 40% success" in shown["short run"].result


def test_a_run_in_progress_waits(tmp_path):
    verdict = run_verdict(run(tmp_path, {"judge/success_once": 0.5}), live=True)
    assert (verdict.tone, verdict.command) == ("open", "") and "by the judge alone" in verdict.why


def test_a_page_and_a_terminal_show_the_same_three_lines_first():
    verdict = Verdict("Usable.", "It is good.", "Go on", "plaudit env list", "good")
    html = page.render_page("Title", verdict, [page.section("One"), page.section("Two"), page.section("Three")])
    assert html.index("<h1>") < html.index("Usable.") < html.index('<a href="#s1">One</a>') < html.index('id="s1"')
    assert "Go on:<code>plaudit env list</code>" in html
    with (console := Console(width=200)).capture() as shown:
        console.print(verdict)
    assert shown.get().splitlines() == ["result: Usable.", "why: It is good.", "next: Go on: plaudit env list"]


def test_a_rule_that_finds_no_success_is_not_usable():
    assert calibrated(0.0).tone == "good"
    blind = calibrated(0.0, recall=0.0)
    assert blind.tone == "bad" and blind.result == "Not usable yet: it detects no success."


def test_long_errors_are_written_out():
    assert format_frames_interval(Interval(1.0, 0.0, 1234.5)) == "1 frame (0 to 1,234)"
    assert format_frames_interval(Interval(2.5, 0.333333, math.inf)) == "2.5 frames (0.333 or more)"


def test_a_page_has_no_script_and_loads_nothing():
    html = page.render_page("Title", Verdict("Usable.", "It is good.", "Go on"), [page.section("One")])
    assert "<script" not in html and "@import" not in html and "url(" not in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)', html)


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [value / 255 for value in palette.rgb(color)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


@pytest.mark.parametrize("colors", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_all_text_has_enough_contrast(colors):
    for text, back in product(palette.TEXTS, palette.BACKGROUNDS):
        dark, bright = sorted((luminance(colors[text]), luminance(colors[back])))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {back}"


def test_pages_and_charts_know_no_other_colors():
    """The live pages and the reports take their colors from one palette."""
    source = Path(page.__file__).parents[1]
    sheets = [*source.glob("web/static/*.css"), source / "report/page.html.j2", source / "report/plots.py"]
    for sheet in sheets:
        assert not re.findall(r"#[0-9a-f]{6}\b", sheet.read_text()), sheet
    assert palette.LIGHT.keys() == palette.DARK.keys()
