"""The report of a judge: one HTML page that says how far to trust it, and shows where it is wrong."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from plaudit.judges.calibration import Rate, wilson
from plaudit.judges.controls import ControlResult, failed
from plaudit.judges.cutoffs import CutoffErrors
from plaudit.judges.metrics import Reliability, Scores
from plaudit.judges.scored import JudgedFrame
from plaudit.report.page import facts_table, note, page, picture, row, section, table, warning, words
from plaudit.report.plot import NO, YES, histogram, line_chart, reliability_diagram

_CHART = (420, 360)
_LOSSES = (
    "Training frames are changed at random, half of them show success, and their labels are smoothed, which the "
    "episodes held out are not: look at where each curve goes, not at which is higher."
)


def write_judge_report(
    path: Path,
    title: str,
    scores: Scores,
    controls: Sequence[ControlResult],
    reliability: Reliability,
    worst: Sequence[JudgedFrame],
    curve: Sequence[Mapping[str, float]],
    facts: Mapping[str, str],
) -> None:
    """`curve` has a line an epoch of training: `epoch`, and values by name; `loss/train` and `loss/held out` share one
    chart. A judge that was not trained has none, and its page no such section."""
    path.write_text(
        page(
            title,
            headline(scores),
            trust(scores, controls, reliability),
            section("Worst frames", row(*map(frame_picture, worst)) if worst else note("None was kept.")),
            section("Training", row(*_curves(curve)), note(_LOSSES)) if curve else "",
            section("Facts", facts_table(facts)),
        )
    )


@dataclass(frozen=True)
class Way:
    """One way from frames to a verdict on an episode, and what it makes of them."""

    name: str
    hit: int  # episodes that succeed and are called
    missed: int
    false: int  # that fail and are called
    rejected: int
    median: float  # frames between the first success found and the true one
    p90: float

    @classmethod
    def of(cls, name: str, found: CutoffErrors) -> Self:
        hit, rejected = len(found.errors) - found.missed, found.failing - found.false_calls
        return cls(name, hit, found.missed, found.false_calls, rejected, found.median, found.p90)


def live(scores: Scores) -> Way:
    """As a robot would have known it."""
    k, n = scores.confirm
    name = f"live (as it happens), {k} of {n} frames" if n > 1 else "live (as it happens), the first frame called"
    episodes = (scores.episodes_hit, scores.episodes_missed, scores.episodes_false, scores.episodes_rejected)
    return Way(name, *episodes, scores.cutoff_median, scores.cutoff_p90)


def seen_whole(scores: Scores) -> Way:
    successes = scores.episodes_hit + scores.episodes_missed
    failures = scores.episodes_false + scores.episodes_rejected
    episodes = (successes - scores.decoded_missed, scores.decoded_missed, scores.decoded_false)
    return Way(
        "decoded (seen whole), one cutoff",
        *episodes,
        failures - scores.decoded_false,
        scores.decoded_median,
        scores.decoded_p90,
    )


def trust(
    scores: Scores,
    controls: Sequence[ControlResult],
    reliability: Reliability,
    ways: Sequence[Way] | None = None,
    uncontrolled: str = "Not run.",
) -> str:
    """How far to: what it calls, what its probabilities are worth, and which controls it passed.

    ways: from frames to episodes, of which the first is the one that counts
    uncontrolled: what to say where there are no controls
    """
    return (
        "".join(warning(sentence) for sentence in _warnings(scores, controls))
        + row(
            section("Episodes", _episodes(ways or [live(scores), seen_whole(scores)])),
            section("Frames", _frames(scores)),
            wide=True,
        )
        + row(
            section("Probabilities", row(_diagram(reliability), _histogram(reliability, scores.threshold))),
            section("Controls", _controls(controls, uncontrolled)),
            wide=True,
        )
    )


def headline(scores: Scores, way: Way | None = None, of: str = "held-out episodes") -> str:
    way = way or live(scores)
    said = f"Calls {way.hit} of {way.hit + way.missed} successes and {way.false} of {way.false + way.rejected} failures"
    if not math.isnan(way.median):
        said += f"; the first frame called is off by {_frames_off(way.median)} (median)"
    if not math.isnan(scores.fpr):
        said += f"; {percent(scores.fpr)} of failure frames get through"
    return f"{said}. Measured on {scores.episodes:,} {of}, {scores.frames:,} frames."


def _warnings(scores: Scores, controls: Sequence[ControlResult]) -> list[str]:
    warnings = [f"Control failed: {sentence}." for sentence in failed(controls)]
    if scores.start_false:
        warnings.append(f"{started(scores)}.")
    if scores.threshold > 1:
        warnings.append(
            "No frame is ever called: the surest failure is at 100%, and the threshold had to lie above it."
        )
    return warnings


def _episodes(ways: Sequence[Way]) -> str:
    first = ways[0]
    hit, false = wilson(first.hit, first.hit + first.missed), wilson(first.false, first.false + first.rejected)
    confusion = table(
        [
            ("success", words(f"{first.hit}", "good"), _bad(first.missed), interval(hit)),
            ("failure", _bad(first.false), words(f"{first.rejected}", "good"), interval(false)),
        ],
        header=("truth", "called", "not called", "called, with 95% interval"),
    )
    rows = [(words(w.name), off(w.median), off(w.p90), _bad(w.missed), _bad(w.false)) for w in ways]
    header = ("first success frame", "median off", "90% within", "missed", "false")
    return confusion + table(rows, header=header) + note(f"The upper table: {first.name}.")


def _frames(scores: Scores) -> str:
    rate = Rate(scores.fpr, scores.fpr_low, scores.fpr_high)
    rows = [
        ("threshold", f"{scores.threshold:.4g}", "from here on a frame is called"),
        ("failures called", interval(rate), "false positives, with a 95% interval by episodes"),
        ("precision", percent(scores.precision), "of the frames called, are a success"),
        ("recall", percent(scores.recall), f"of {scores.success_frames:,} success frames, are called"),
        ("accuracy", percent(scores.accuracy), f"of all {scores.frames:,} frames"),
        ("ROC AUC", number(scores.roc_auc), "chance that a success scores above a failure"),
        ("success at first frame", starts(scores), "before anything was done"),
        ("calibration error", percent(scores.ece), "how far probabilities are off, on average"),
        ("Brier score", number(scores.brier), "mean squared error; 0.25 says nothing"),
        ("log loss", number(scores.log_loss), "nats; 0.69 says nothing"),
    ]
    return table([(name, value, words(meaning, "faint")) for name, value, meaning in rows])


def _controls(controls: Sequence[ControlResult], none: str) -> str:
    rows = []
    for control in controls:
        look = "good" if control.passed else "bad"
        verdict = (
            words("passed" if control.passed else "failed", look) if control.frames else words("not asked", "faint")
        )
        rate = words(f"{control.rate:.0%} of {control.frames:,}", look) if control.frames else words("-", "faint")
        rows.append((words(control.name), rate, verdict))
    limits = ", ".join(sorted({f"{control.limit:.0%}" for control in controls}))
    if not rows:
        return note(none)
    told = note(f"Made up so that no frame shows success; at most {limits} may be called.")
    return table(rows, header=("made up", "frames called", "")) + told


def _diagram(reliability: Reliability) -> str:
    said, was, count = (array.tolist() for array in (reliability.probability, reliability.success, reliability.count))
    return reliability_diagram(said, was, count, title="Calibration", size=_CHART)


def _histogram(reliability: Reliability, threshold: float) -> str:
    successes = [round(share * count) if count else 0 for share, count in zip(reliability.success, reliability.count)]
    failures = [int(count) - yes for count, yes in zip(reliability.count, successes)]
    return histogram(
        {"failure": failures, "success": successes},
        (NO, YES),
        title="Frames",
        x="the judge said",
        mark=(min(threshold, 1.0), f"threshold {threshold:.3g}"),
        size=_CHART,
    )


def _curves(curve: Sequence[Mapping[str, float]]) -> list[str]:
    """A chart for each part of the names before the first slash."""
    names = list(dict.fromkeys(name for line in curve for name in line if name != "epoch"))
    charts = []
    for group in dict.fromkeys(name.split("/")[0] for name in names):
        lines = {
            name.removeprefix(f"{group}/"): [[(line["epoch"], line[name]) for line in curve if name in line]]
            for name in names
            if name.split("/")[0] == group
        }
        charts.append(line_chart(lines, title=group, x="epoch", y="", size=_CHART))
    return charts


def frame_picture(shown: JudgedFrame) -> str:
    truth = words("success", "good") if shown.truth == 1 else words("failure")
    where = words(f"episode {shown.episode}, frame {shown.frame}", "faint")
    return picture(shown.image, f"{truth}, judged {percent(shown.probability)}", where)


def _bad(count: int) -> str:
    return words(f"{count}", "bad" if count else "good")


def starts(scores: Scores) -> str:
    """5 of 63 episodes, 4 of them wrongly"""
    wrongly = f", {scores.start_false} of them wrongly" if scores.start_false else ""
    return f"{scores.start_called} of {scores.episodes:,} episodes{wrongly}"


def started(scores: Scores) -> str:
    """A sentence for who believes a judge that calls episodes before anything was done in them."""
    return (
        f"{scores.start_false} of {scores.episodes:,} episodes are called a success at their first frame and do not "
        "begin with one: the object may have been where it usually ends, and no control shows that; look at them, and "
        "train with more episodes that begin so"
    )


def interval(rate: Rate) -> str:
    if math.isnan(rate.value):
        return "-"
    return f"{percent(rate.value)} ({percent(rate.low)} to {percent(rate.high)})"


def percent(share: float) -> str:
    """Sharper near the ends, where judges live: 99.97%, 0.04%, 85%."""
    if math.isnan(share):
        return "-"
    near = min(share, 1 - share)
    return f"{share:.0%}" if near <= 0 else f"{share:.1%}" if near >= 0.001 else f"{share:.2%}"


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def off(frames: float) -> str:
    return "-" if math.isnan(frames) else _frames_off(frames)


def _frames_off(frames: float) -> str:
    return f"{frames:g} frame" if frames == 1 else f"{frames:.3g} frames"
