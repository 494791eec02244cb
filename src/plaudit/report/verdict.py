"""The verdict on a judge, in three lines: whether it is usable, why, and the next command."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from plaudit.judges.controls import ControlResult
from plaudit.judges.metrics import EpisodeMetrics
from plaudit.judges.promise import Promise, PromiseStep
from plaudit.report.page import Span, Table
from plaudit.report.text import format_count, format_percent, format_target

MAX_FALSE, MAX_MISSED = 0.1, 0.2  # the defaults of audit.max_false and audit.max_missed
REACHABLE_RATE = 0.2  # false-positive rate that is aimed for first; a looser one is of little use


@dataclass(frozen=True)
class Verdict:
    """Three lines for the top of a page."""

    usable: bool
    result: str
    reason: str
    next_step: str

    def table(self) -> Table:
        """The lines as a block of a page."""
        result = Span(self.result, "good" if self.usable else "bad")
        return Table([("Result", result), ("Why", self.reason), ("Next", self.next_step)])


def judge_verdict(
    decode: EpisodeMetrics,
    controls: Sequence[ControlResult],
    promise: Promise | None = None,
    *,
    judge: str = "",
    store: str = "STORE",
) -> Verdict:
    """
    decode: held-out episodes by the rule in use
    judge: as `plaudit judge exam` takes it; empty: it cannot be examined
    """
    label = f"plaudit label {shlex.quote(store)} --judge human"
    train = f"{label} && plaudit train-reward {shlex.quote(store)}"
    if judge and promise is not None:  # a trained model, which is not overwritten
        train += f" --output-dir {shlex.quote(f'{judge}_2')}"
    counts = describe_counts(decode)
    if failed := [control for control in controls if not control.passed]:
        many = format_count(len(failed), "negative control")
        shares = ", ".join(f"{control.name} ({control.fpr:.0%} of {control.frames:,} frames)" for control in failed)
        limit = max(control.max_fpr for control in failed)
        reason = f"It predicts success where there is none: {shares}. At most {limit:.0%} is allowed."
        return Verdict(False, f"Not usable: it fails {many}.", reason, f"Label more failures, train again: {train}")
    if missing := _missing_kind(decode):
        reason = f"There are no {missing} to measure on among the held-out episodes."
        return Verdict(False, "Not usable yet: not measured.", reason, f"Record and label {missing}: {label}")
    if problem := _too_wrong(decode):
        return Verdict(False, f"Not usable yet: {problem}.", counts, f"Label more episodes, train again: {train}")
    exam = f"plaudit judge exam {shlex.quote(judge)} {shlex.quote(store)}" if judge else ""
    certify = f"Examine it before it controls a robot: {exam}" if exam else f"Label what it gets wrong: {label}"
    if promise is None:
        return Verdict(True, "Usable while it is audited.", counts, certify)
    if promise.kept:
        rate = format_target(promise.rate)
        return Verdict(True, f"Usable: a false-positive rate of {rate} or less is guaranteed.", counts, certify)
    command = f": {train}" if next_target(promise) else f". {certify}"
    result = f"Usable while it is audited; {format_target(promise.rate)} false positives are not guaranteed."
    return Verdict(True, result, f"{counts}{_describe_bound(promise)}", f"{describe_target(promise)}{command}")


def next_target(promise: Promise) -> tuple[PromiseStep, int] | None:
    """The first rate to aim for, and how many more episodes it takes at least; None where more episodes do not help."""
    top = max(REACHABLE_RATE, promise.rate)
    open_steps = [step for step in promise.steps if step.threshold is None and promise.rate <= step.rate <= top]
    if not open_steps:
        return None
    step = max(open_steps, key=lambda step: step.rate)
    more = promise.more_for(step.needed)
    return (step, more) if more else None


def describe_target(promise: Promise) -> str:
    """`Label at least 60 more episodes for a guarantee of 20% (1,512 for the 1% that was asked for)`"""
    target = next_target(promise)
    if target is None:
        return "Look at the largest errors: more episodes like these alone do not lead to a guarantee"
    step, more = target
    asked = ""
    if step.rate != promise.rate and promise.more:
        asked = f" ({promise.more:,} for the {format_target(promise.rate)} that was asked for)"
    return f"Label at least {format_count(more, 'more episode')} for a guarantee of {format_target(step.rate)}{asked}"


def describe_counts(d: EpisodeMetrics) -> str:
    """`It predicts success for 8 of 9 successes and 0 of 18 failures.`"""
    parts = [f"{d.tp} of {d.tp + d.fn:,} successes"] if d.tp + d.fn else []
    parts += [f"{d.fp} of {d.fp + d.tn:,} failures"] if d.fp + d.tn else []
    missing = _missing_kind(d)
    nothing = f"There are no {missing} to measure on." if missing else ""
    counted = f"It predicts success for {' and '.join(parts)}." if parts else ""
    return " ".join(filter(None, (counted, nothing)))


def _describe_bound(promise: Promise) -> str:
    """What is known of the false-positive rate at the threshold in use."""
    if promise.bound is None or promise.bound >= 1:
        return ""
    bound, confidence = format_percent(promise.bound), f"{promise.confidence:.0%}"
    return f" At most {bound} of failure frames pass on new episodes like these, with {confidence} confidence."


def _missing_kind(d: EpisodeMetrics) -> str:
    """Of the two kinds of episodes, those that there are none of."""
    missing = {"successes": not d.tp + d.fn, "failures": not d.fp + d.tn}
    return " and no ".join(kind for kind, is_missing in missing.items() if is_missing)


def _too_wrong(d: EpisodeMetrics) -> str:
    """What would raise the alarm of a run's audit; empty where nothing would."""
    if not d.tp:
        return "it finds none of the successes"
    false, missed = d.fp / (d.tp + d.fp), d.fn / (d.tp + d.fn + d.fp + d.tn)
    if false > MAX_FALSE:
        return f"{false:.0%} of the successes it predicts are false, and the audit of a run allows {MAX_FALSE:.0%}"
    if missed > MAX_MISSED:
        return f"{missed:.0%} of the episodes are successes it misses, and the audit of a run allows {MAX_MISSED:.0%}"
    return ""
