"""Prediction intervals for a judge's figures on ten new episodes.

    forecast = make_forecast(predictions, rule)
    forecast.figures["fpr"]      # measured, and its 95% prediction interval

A confidence interval (metrics.py) is about the rate over all possible episodes. The rate of ten new episodes varies
more, and that is what a user sees who tries a judge on ten episodes.

New episodes are drawn one after the other from the measured ones, and each drawn episode is put back twice (Pólya's
urn), so uncertain rates vary more from draw to draw. The urn also holds one episode unlike all others: with the highest
possible figure for the upper end, with the lowest for the lower end. The next of n + 1 independent episodes is above
all others with a chance of 1 / (n + 1), which is that episode's share. For quantiles the interval is exact for any
distribution (Hill 1968); for rates it is an approximation, which benchmarks/coverage.py checks.

A cross-fitted episode can be counted in two ways: by the threshold that the other folds choose, which shows the luck of
choosing, and by the one in use. Either may be closer to the truth, so each draw takes one of them.

A judge that finds no success has no success-onset error. If that is likely enough, the error has no upper end.
"""

import math
from collections.abc import Sequence

import numpy as np

from plaudit.config import Config, NonNegativeInt, PositiveInt
from plaudit.judges.metrics import EpisodePrediction, causal_metrics, offline_metrics
from plaudit.judges.stats import NOT_MEASURED, Interval
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray

AHEAD = 10  # other episodes, whose figures are forecast
LEVEL = 0.95
_DRAWS = 4000

FIGURES = {
    "fpr": "false-positive rate (frames)",
    "recall": "recall (frames)",
    "onset_median": "success-onset error, causal: median",
    "onset_p90": "success-onset error, causal: 90th percentile",
    "offline_onset_median": "success-onset error, offline: median",
    "offline_onset_p90": "success-onset error, offline: 90th percentile",
}


class Forecast(Config):
    """Figures as they were measured, and between what they will be on other episodes."""

    episodes: NonNegativeInt  # that it rests on
    # Of these, scored by a model that did not learn from them; the others are test episodes.
    cross_fitted: NonNegativeInt = 0
    why_not: str = ""  # why none was
    ahead: PositiveInt = AHEAD
    # Of FIGURES; rates as fractions, errors in frames. A low end of NaN: these episodes have nothing to measure.
    # A value of NaN with a low end: no success was found in these. No upper end: possibly none is found in others.
    figures: dict[str, Interval]
    with_twice: dict[str, Interval]  # the same if it rested on twice as many episodes like these

    def describe(self) -> str:
        """Which episodes the forecast is based on, as text."""
        if self.cross_fitted:
            return (
                f"measured on {self.episodes:,} episodes, of which {self.cross_fitted:,} were cross-fitted: scored by "
                "a model that did not learn from them, at a threshold that they did not choose"
            )
        return f"measured on {self.episodes:,} test episodes alone, and so with wide intervals: {self.why_not}"


def make_forecast(
    predictions: Sequence[EpisodePrediction],
    rule: DecisionRule,
    *,
    at_threshold: Sequence[EpisodePrediction] | None = None,
    cross_fitted: int = 0,
    why_not: str = "",
    ahead: int = AHEAD,
) -> Forecast:
    """Forecast the metrics on new episodes from episodes that the judge was not trained on.

    predictions: counted by thresholds that these episodes did not choose
    at_threshold: the same episodes, counted by the threshold of the rule; None: they did not choose it
    """
    views = [[one for one in view if one.has_target.any()] for view in (predictions, at_threshold) if view is not None]
    tables = np.stack([_table(view, rule) for view in views])
    num_episodes, longest = len(views[0]), max(len(one.target) for one in views[0])
    return Forecast(
        episodes=num_episodes,
        cross_fitted=cross_fitted,
        why_not="" if cross_fitted else why_not,
        ahead=ahead,
        figures=_forecast(tables, longest, ahead),
        with_twice=_forecast(np.concatenate([tables, tables], axis=1), longest, ahead),
    )


def _forecast(tables: AnyArray, longest: int, ahead: int) -> dict[str, Interval]:
    """tables: [V, E, 6] of the same episodes, counted in V ways"""
    drawn = draw_others(tables.shape[1], ahead)
    way = np.random.default_rng([0, 1]).integers(len(tables), size=len(drawn))
    # [V, 6] an episode with the lowest figures, and one with the highest: every frame is predicted a success, and the
    # errors are as long as the longest episode.
    lowest = np.zeros((len(tables), 6))
    lowest[:, [_FAILURES, _SUCCESSES]] = tables[..., [_FAILURES, _SUCCESSES]].mean(axis=1)
    highest = lowest.copy()
    highest[:, [_PASSED, _FOUND]] = lowest[:, [_FAILURES, _SUCCESSES]]
    highest[:, [_ONSET, _CUTOFF]] = longest
    low, high = (
        _figures(np.concatenate([tables, edge[:, None]], axis=1)[way[:, None], drawn]) for edge in (lowest, highest)
    )
    figures: dict[str, Interval] = {}
    for name, (value,) in _figures(tables[:1]).items():
        figures[name] = NOT_MEASURED
        if not math.isnan(value):  # the ends are draws, the outer ones
            lowest = min(value, float(np.nanquantile(low[name], (1 - LEVEL) / 2, method="lower")))
            highest = max(value, float(np.nanquantile(high[name], (1 + LEVEL) / 2, method="higher")))
            figures[name] = Interval(float(value) if math.isfinite(value) else math.nan, float(lowest), highest)
    return figures


def draw_others(num_episodes: int, ahead: int) -> AnyArray:
    """[D, ahead] which of the measured episodes new ones are like; `num_episodes` where they are like none of them."""
    rng = np.random.default_rng(0)
    drawn = np.empty((_DRAWS, ahead), int)
    for number in range(ahead):
        ball = rng.integers(num_episodes + 1 + number, size=_DRAWS)
        again = np.maximum(ball - num_episodes - 1, 0)
        drawn[:, number] = np.where(ball <= num_episodes, ball, drawn[np.arange(_DRAWS), again])
    return drawn


# The columns of a table of episodes
_PASSED, _FAILURES, _FOUND, _SUCCESSES, _ONSET, _CUTOFF = range(6)


def _table(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> AnyArray:
    """[E, 6] failure frames that pass and all, success frames that are found and all, and errors of the first success,
    causal and offline; NaN for those of an episode that has none."""
    live = rule if rule.causal else rule.model_copy(update={"decode": "k_of_n"})
    rows = []
    for one in episodes:
        above = one.predicted(rule.threshold)
        counts = [n for kind in (0, 1) for n in (above[one.target == kind].sum(), (one.target == kind).sum())]
        errors = [causal_metrics([one], live), offline_metrics([one], rule.cutoff_offset, rule.threshold)]
        rows.append([*counts, *(decode.onset_median for decode in errors)])  # the median of a single episode
    return np.array(rows, float).reshape(-1, 6)


def _figures(drawn: AnyArray) -> dict[str, AnyArray]:
    """Each figure [D] of the rows of drawn episodes [D, n, 6]; an error is infinite where no success is found."""
    passed, failures, detected, successes, onset, cutoff = np.moveaxis(drawn, -1, 0)
    has_success = successes.sum(axis=1) > 0
    with np.errstate(invalid="ignore"):
        rates = [passed.sum(axis=1) / failures.sum(axis=1), detected.sum(axis=1) / successes.sum(axis=1)]
    errors = [_quantile(values, q) for values in (onset, cutoff) for q in (0.5, 0.9)]
    unbounded = [np.where(has_success & np.isnan(error), np.inf, error) for error in errors]
    return dict(zip(FIGURES, [*rates, *unbounded], strict=True))


def _quantile(values: AnyArray, q: float) -> AnyArray:
    """[D] of those in each row [D, n] that are not NaN, as numpy interpolates; nanquantile goes row by row."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    place = q * np.maximum((~np.isnan(values)).sum(axis=1) - 1, 0)
    below = np.floor(place).astype(int)
    rows, above = np.arange(len(values)), np.ceil(place).astype(int)
    return ordered[rows, below] + (place - below) * (ordered[rows, above] - ordered[rows, below])
