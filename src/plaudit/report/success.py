"""Success rates of a run: by the judge, by the simulator, and as the audit of the judge corrects them.

Rates that are compared are of the same episodes. Where the judge is audited, these are the newest `audit.window`
episodes of the current judge, since the audit reports on no others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from plaudit.report.outcomes import EpisodeOutcome
from plaudit.report.page import Block, Chart, Text
from plaudit.report.plots import LARGE, Series, line_chart
from plaudit.report.run_data import RunData

CORRECTED = "corrected by the audit"
LIMITS = {"audit/false_successes": "max_false", "audit/missed_successes": "max_missed"}  # metric -> key of the config
_SMOOTHING = 5  # rollouts: one of sixteen episodes is a coarse measure
_ABOUT_INTERVALS = (
    "Shaded areas and brackets are 95% intervals about the episodes that the current judge labeled in this run, "
    "estimated from audited episodes that were drawn at random with known probabilities. They say nothing about other "
    "scenes or later policies. Dashed lines are the limits of the config."
)


@dataclass(frozen=True)
class SuccessRates:
    """Success in training over env steps; all curves are of the same episodes unless a name says otherwise."""

    episodes: str  # that each point is about: "the last 200 episodes"
    curves: Mapping[str, Series]

    @classmethod
    def of(cls, run: RunData, outcomes: Sequence[EpisodeOutcome] = ()) -> Self:
        """outcomes: of all stored episodes of an online run"""
        corrected = run.points("audit/corrected_success_rate")
        if not corrected:
            return cls._without_audit(run)
        window = int(run.option("audit", "window"))
        curves = {
            "judge": run.points("audit/judge_success_rate"),
            **_simulator_curve(run, outcomes, window),
            CORRECTED: corrected,
        }
        return cls(f"the last {window} episodes", curves)

    @classmethod
    def _without_audit(cls, run: RunData) -> Self:
        points = {"judge": run.points("judge/success_once"), "simulator": run.points("env/success_once")}
        if run.option("judge", "type") == "simulator":
            points = {"training": points["simulator"] or points["judge"]}
        if run.is_online:  # the run has averaged them already
            return cls("the last 50 episodes", {name: curve for name, curve in points.items() if curve})
        curves = {name: _smooth(curve) for name, curve in points.items() if curve}
        return cls(f"the last {_SMOOTHING} rollouts", curves)

    def latest(self) -> dict[str, float]:
        """The last point of each curve."""
        return {name: curve[-1][1] for name, curve in self.curves.items()}


def success_chart(run: RunData, rates: SuccessRates) -> list[Block]:
    """Success in training and on eval seeds."""
    evaluations = run.points("eval/success_once")
    curves = {**({"eval seeds": evaluations} if evaluations else {}), **rates.curves}
    if not curves:
        return []
    goal = run.option("evaluation", "stop_success_rate")
    title = f"Success rate of {rates.episodes}" if rates.curves else "Success rate"
    chart = line_chart(
        {name: [curve] for name, curve in curves.items()},
        title=f"{title} ({next(iter(curves))})" if len(curves) == 1 else title,
        x="env steps",
        percent=True,
        marks=() if goal is None else (goal,),
        events=run.markers(),
        bands={CORRECTED: run.band("audit/corrected_success_rate")},
        size=(750, LARGE[1]),
    )
    return [Chart(chart)]


def judge_chart(run: RunData) -> list[Block]:
    """How often the judge is wrong according to its audit, and how often it may be."""
    names = {"false, of its successes": "audit/false_successes", "missed, of all episodes": "audit/missed_successes"}
    bands = {label: run.band(name) for label, name in names.items() if run.band(name)}
    if not bands:
        return []
    limits = [run.option("audit", LIMITS[name]) for name in names.values()]
    chart = line_chart(
        {label: [run.points(names[label])] for label in bands},
        title="Errors of the judge",
        x="env steps",
        percent=True,
        marks=[limit for limit in limits if limit is not None],
        events=run.markers(),
        bands=bands,
        size=(440, LARGE[1]),
    )
    return [Chart(chart)]


def guarantee_note(run: RunData) -> list[Block]:
    """What the intervals of the audit cover, where the run has any."""
    return [Text(_ABOUT_INTERVALS, "muted")] if run.band("audit/corrected_success_rate") else []


def _simulator_curve(run: RunData, outcomes: Sequence[EpisodeOutcome], window: int) -> dict[str, Series]:
    """Success by the simulator of the episodes that the audit reports on, where they are known."""
    own = run.points("env/success_once")
    if not own:
        return {}
    ends, totals = _counted_outcomes(outcomes) if run.is_online else _counted_rollouts(run)
    points: list[tuple[float, float]] = []
    first = audited = previous = 0
    for line in run.metrics:
        if "audit/corrected_success_rate" not in line:
            continue
        if line["audit/episodes"] < audited:  # another judge, whose audit begins anew
            first = previous
        audited, previous = line["audit/episodes"], line["rollout/episodes"]
        start = max(previous - window, first)
        if ends and ends[0] <= start < previous <= ends[-1]:
            successes = np.diff(np.interp([start, previous], ends, totals))
            points.append((line["step"], float(successes[0]) / (previous - start)))
    if points:
        return {"simulator": points}
    return {"simulator, last 50 episodes": own} if run.is_online else {}


def _counted_rollouts(run: RunData) -> tuple[list[int], list[float]]:
    """Episodes at the end of each rollout, and successes by the simulator until then."""
    lines = [line for line in run.metrics if "env/success_once" in line]
    ends = [0, *(int(line["rollout/episodes"]) for line in lines)]
    counts = [(end - start) * line["env/success_once"] for (start, end), line in zip(pairwise(ends), lines)]
    return ends, [0.0, *np.cumsum(counts).tolist()]


def _counted_outcomes(outcomes: Sequence[EpisodeOutcome]) -> tuple[list[int], list[float]]:
    """The same for each stored episode; nothing where the outcome of one is not known."""
    if not outcomes or any(outcome.target is None for outcome in outcomes):
        return [], []
    ends = [outcomes[0].episode, *(outcome.episode + 1 for outcome in outcomes)]
    return ends, [0.0, *np.cumsum([bool(outcome.target) for outcome in outcomes]).tolist()]


def _smooth(points: Series) -> Series:
    """The mean of the last few values."""
    windows = [points[max(0, i - _SMOOTHING + 1) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(y for _, y in window) / len(window)) for window in windows]
