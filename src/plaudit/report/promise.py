"""The part of a judge's page about episodes to come: what is promised, by which evidence, and what more would take."""

from collections.abc import Sequence

from plaudit.judges.promise import Promise, PromiseStep
from plaudit.report.page import Block, Cell, Section, Span, Table, Text
from plaudit.report.text import format_count, format_percent

_ABOUT = (
    "The rate is the share of an episode's failure frames that are predicted a success, averaged over episodes to "
    "come. An episode counts once, since its frames are right or wrong together, and nothing is "
    "assumed of the mistakes (Learn-then-Test with a betting test). It holds for episodes like these; a policy that "
    "changes makes others."
)


def promise_section(promise: Promise) -> Section:
    """What is promised, and a line for each rate that could be."""
    sentence = promise.sentence()
    blocks: list[Block] = [Text(f"{sentence[0].upper()}{sentence[1:]}.", "" if promise.kept else "warning")]
    if promise.kept and promise.bound is not None:
        episodes = format_count(promise.bound_episodes, "episode")
        blocks.append(
            Text(f"{episodes} that did not choose the threshold bound its rate to {format_percent(promise.bound)}.")
        )
    header = ("rate", "proven threshold", "its recall (frames)", "episodes it takes", "more to label")
    rows = [_row(promise, step) for step in promise.steps]
    return Section("False positives on episodes to come", [*blocks, Table(rows, header), Text(_ABOUT, "muted")])


def _row(promise: Promise, step: PromiseStep) -> Sequence[Cell]:
    asked = " (asked for)" if step.rate == promise.rate else ""
    proven: Cell = Span("not proven", "muted")
    recall = "-" if step.recall is None else format_percent(step.recall)
    if step.threshold is not None:
        proven = Span(f"{step.threshold:.4g}", "good")
    more = promise.more_for(step.needed)
    missing = "-" if step.threshold is not None or more is None else f"{more:,} or more"
    return f"{format_percent(step.rate)}{asked}", proven, recall, f"{step.needed:,}", missing
