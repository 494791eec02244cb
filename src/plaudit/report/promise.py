"""The parts of a judge's page about new episodes: what they will show, what is guaranteed, and by what evidence."""

import math
from collections.abc import Sequence

from plaudit.judges.forecast import FIGURES, Forecast
from plaudit.judges.promise import Promise, PromiseStep
from plaudit.judges.stats import Interval
from plaudit.report.page import Cell, Section, Span, Table, Text
from plaudit.report.text import (
    format_count,
    format_frames_interval,
    format_interval,
    format_percent,
    format_target,
    sentence_case,
)
from plaudit.report.verdict import describe_target

_ABOUT = (
    "The guarantee is about the share of an episode's failure frames that are predicted a success, averaged over new "
    "episodes. It assumes that new episodes are independent and recorded like the labeled ones: same task, scene, "
    "cameras and policies. A policy that has learned since makes other episodes; for these, audit the judge. An "
    "episode counts once, however long it is (Learn-then-Test with a betting test)."
)


def promise_section(promise: Promise) -> Section:
    """What is guaranteed, and a line for each rate, the one that takes the fewest episodes first."""
    asked = f"{format_target(promise.rate)} or less is not guaranteed. {describe_target(promise)}."
    text = _guarantee(promise) if promise.kept else asked
    if promise.bound is not None:
        episodes = format_count(promise.bound_episodes, "episode")
        text += f" {episodes} that did not choose the threshold bound its rate to {format_percent(promise.bound)}."
    header = ("rate", "proven threshold", "its recall (frames)", "episodes it takes", "more to label")
    rows = [_row(promise, step) for step in reversed(promise.steps)]
    return Section("False positives on new episodes", [Text(text), Table(rows, header), Text(_ABOUT, "muted")])


def _guarantee(promise: Promise) -> str:
    episodes = format_count(promise.episodes, "held-out episode")
    rate = format_target(promise.rate)
    return f"Guaranteed with {promise.confidence:.0%} confidence: a rate of {rate} or less, proven on {episodes}."


def _row(promise: Promise, step: PromiseStep) -> Sequence[Cell]:
    asked = " (asked for)" if step.rate == promise.rate else ""
    proven: Cell = Span("not proven", "muted")
    recall = "-" if step.recall is None else format_percent(step.recall)
    if step.threshold is not None:
        proven = Span(f"{step.threshold:.4g}", "good")
    more = promise.more_for(step.needed)
    missing = "-" if step.threshold is not None or more is None else f"{more:,} or more"
    return f"{format_target(step.rate)}{asked}", proven, recall, f"{step.needed:,}", missing


_ABOUT_FORECAST = (
    "Brackets: 95% prediction intervals for new episodes that are independent and recorded like the measured ones. "
    "They are wider than the confidence intervals of this page, which are about the mean of all such episodes. They "
    "allow for a new episode unlike all measured ones. An error has no upper end where possibly no success is found."
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
    evidence = Text(sentence_case(forecast.describe()))
    return Section(f"What {ahead} will show", [evidence, Table(rows, header), Text(_ABOUT_FORECAST, "muted")])


def format_figure(name: str, figure: Interval, bare: bool = False) -> str:
    """1.2% (0% to 20%), or 3 frames (1 to 8), or no success found (0 or more); bare: the interval alone."""
    if math.isnan(figure.low):
        return "-"
    none_found = math.isnan(figure.value)
    figure = Interval(figure.low, figure.low, figure.high) if none_found else figure
    text = format_interval(figure) if name in ("fpr", "recall") else format_frames_interval(figure)
    brackets = text[text.index("(") :]
    return brackets[1:-1] if bare else f"no success found {brackets}" if none_found else text
