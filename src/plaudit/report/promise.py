"""The parts of a judge's page about episodes to come: what they will show, what is promised, by what evidence."""

import math
from collections.abc import Sequence

from plaudit.judges.forecast import FIGURES, Figure, Forecast
from plaudit.judges.metrics import RateCI
from plaudit.judges.promise import Promise, PromiseStep
from plaudit.report.page import Block, Cell, Section, Span, Table, Text
from plaudit.report.text import format_count, format_frames_interval, format_interval, format_percent, sentence_case

_ABOUT = (
    "The rate is the share of an episode's failure frames that are predicted a success, averaged over episodes to "
    "come. An episode counts once, since its frames are right or wrong together, and nothing is "
    "assumed of the mistakes (Learn-then-Test with a betting test). It holds for episodes like these; a policy that "
    "changes makes others."
)


def promise_section(promise: Promise) -> Section:
    """What is promised, and a line for each rate that could be."""
    blocks: list[Block] = [Text(sentence_case(promise.describe()), "" if promise.kept else "warning")]
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


_ABOUT_FORECAST = (
    "In brackets: 95% prediction intervals, between which the figures of other episodes like these will be in 19 of 20 "
    "cases. They are wider than the confidence intervals of this page, which are for the rate of all episodes there "
    "could be. An episode unlike all of these is reckoned with, which few episodes cannot rule out. An error has no "
    "upper end where no success at all may be found."
)


def forecast_section(forecast: Forecast) -> Section:
    """What other episodes will show, and how much more would be known with twice as many episodes."""
    rows = [
        (
            meaning,
            format_figure(name, forecast.figures[name]),
            format_figure(name, forecast.with_twice[name], bare=True),
        )
        for name, meaning in FIGURES.items()
    ]
    ahead = format_count(forecast.ahead, "other episode")
    header = ("figure", f"measured (of {ahead})", "by twice as many episodes")
    evidence = Text(sentence_case(forecast.describe()), "" if forecast.cross_fitted else "warning")
    return Section(f"What {ahead} will show", [evidence, Table(rows, header), Text(_ABOUT_FORECAST, "muted")])


def format_figure(name: str, figure: Figure, bare: bool = False) -> str:
    """1.2% (0% to 20%), or 3 frames (1 to 8), or no success found (0 or more); bare: the interval alone."""
    value, low, high = figure
    if low is None:
        return "-"
    interval = RateCI(low if value is None else value, low, math.inf if high is None else high)
    text = format_interval(interval) if name in ("fpr", "recall") else format_frames_interval(interval)
    brackets = text[text.index("(") :]
    return brackets[1:-1] if bare else f"no success found {brackets}" if value is None else text
