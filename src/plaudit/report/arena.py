"""The page of an arena: that of an exam of several judges, with the judges next to each other on top.

runs/judge_arena/bottle_0/
  report.html     the page
  arena.json      all figures, controls, pairs and disagreements for a program
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from plaudit.data.transfer import new_folder
from plaudit.judges.arena import Disagreement, Entry, PairwiseWins
from plaudit.judges.stats import Interval
from plaudit.report import page
from plaudit.report.exam import write_exam_report
from plaudit.report.text import format_count, format_percent, format_short_interval
from plaudit.report.verdict import Verdict

_ABOUT_PAIRS = (
    "Share of episodes in which the judge of the row gets more frames right than the judge of the column; equal ones "
    "count half. Brackets: 95% intervals over episodes. Colored where the interval excludes 50%."
)
_ABOUT_CONTROLS = (
    "Share of frames of each negative control that are called a success. No frame of them shows one, so the share "
    "should be near zero: at most 5%. Where only the images change (brighter, darker, cropped, shifted, one camera "
    "dark), the limit is the judge's own false-positive rate plus 5%."
)
_ABOUT_BASELINES = (
    "clock and constant look at nothing: the clock says success from the median onset of these episodes on, the "
    "constant always. A judge is only as good as the distance of its figures from theirs."
)


def save_arena(
    target: Path,
    entries: Sequence[Entry],
    pairs: Sequence[PairwiseWins],
    frames: Sequence[Disagreement],
    failed: Mapping[str, str],
    verdict: Verdict,
) -> None:
    """Write the folder, which appears complete or not at all.

    entries: the best first
    failed: judges that did not run, and why
    """
    with new_folder(target) as folder:
        tree = {
            "format": "plaudit arena",
            "version": 1,
            "judges": [entry.to_json() for entry in entries],
            "pairwise_wins": [pair.to_json() for pair in pairs],
            "disagreements": [frame.to_json() for frame in frames],
            "failed": dict(failed),
        }
        (folder / "arena.json").write_text(json.dumps(tree, indent=1, allow_nan=False))
        more = [*_failed_section(failed), _pairs_section(entries, pairs), _frames_section(frames), _controls(entries)]
        write_exam_report(
            folder / "report.html",
            [(entry.certificate, entry.evaluation) for entry in entries],
            verdict,
            title=f"Arena of {format_count(sum(not entry.baseline for entry in entries), 'judge')} and 2 baselines",
            columns=arena_columns(entries),
            more=more,
        )


def arena_columns(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """What an arena adds to the ranking of an exam."""
    figures = [entry.certificate.figures for entry in entries]
    return {
        "frames right": [format_short_interval(entry.frame_accuracy) for entry in entries],
        "episodes right": [format_short_interval(entry.episode_accuracy) for entry in entries],
        "value order": [_number(one["value_order"]) for one in figures],
        "calibration error": [_number(one["ece"]) for one in figures],
        "time per episode": [_seconds(entry.seconds) for entry in entries],
    }


def _number(rate: Interval) -> str:
    return "-" if math.isnan(rate.value) else f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"


def _seconds(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{1000 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _failed_section(failed: Mapping[str, str]) -> list[Markup]:
    rows = list(failed.items())
    return [page.section("Judges that did not run", page.table(rows, ("judge", "reason")))] if rows else []


def _pairs_section(entries: Sequence[Entry], pairs: Sequence[PairwiseWins]) -> Markup:
    rates = {(pair.first, pair.second): pair.rate for pair in pairs}
    names = [entry.name for entry in entries]

    def cell(first: str, second: str) -> Markup | str:
        rate = rates.get((first, second))
        if rate is None:
            return ""
        style = "good" if rate.low > 0.5 else "bad" if rate.high < 0.5 else ""
        return page.span(format_short_interval(rate), style)

    rows = [(name, *(cell(name, other) for other in names)) for name in names]
    about = [page.text(_ABOUT_PAIRS, "muted"), page.text(_ABOUT_BASELINES, "muted")]
    return page.section("Pairwise wins", page.table(rows, ("", *names)), *about)


def _frames_section(frames: Sequence[Disagreement]) -> Markup:
    if not frames:
        return page.section("Largest disagreement", page.text("No two judges differ by 5% or more.", "muted"))
    shown = []
    for one in frames:
        target = one.frame.target
        label = page.span("success", "good") if target == 1 else page.span("failure", "bad")
        label = page.span("no label", "muted") if math.isnan(target) else label
        place = page.span(f"episode {one.frame.episode}, frame {one.frame.frame}", "muted")
        lines = (f"{name}: {format_percent(prob)}" for name, prob in sorted(one.probs.items(), key=lambda p: -p[1]))
        shown.append(page.thumbnail(one.frame.image, place, label, *lines))
    about = "P(success) of each judge; the reference label is in color. One frame of an episode."
    return page.section("Largest disagreement", page.row(shown), page.text(about, "muted"))


def _controls(entries: Sequence[Entry]) -> Markup:
    results = {entry.name: {one.name: one for one in entry.certificate.controls} for entry in entries}
    longest = sorted(results.values(), key=len, reverse=True)  # a judge of the simulator has few controls
    names = dict.fromkeys(name for own in longest for name, one in own.items() if one.frames)

    def cell(judge: str, control: str) -> Markup | str:
        one = results[judge].get(control)
        if one is None or not one.frames:
            return "-"
        return page.span(f"{one.fpr.value:.0%}", "good" if one.passed else "bad")

    rows = [(page.span(control, "muted"), *(cell(judge, control) for judge in results)) for control in names]
    return page.section("Negative controls", page.table(rows, ("", *results)), page.text(_ABOUT_CONTROLS, "muted"))
