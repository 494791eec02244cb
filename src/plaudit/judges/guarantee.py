"""What labeled episodes prove and predict: a guaranteed false-positive rate, what a judge may decide alone, a forecast.

    guarantee = make_guarantee(episodes, rate=0.01, confidence=0.9)
    guarantee.threshold        # the lowest one that keeps the rate; None if the episodes prove none

    rights = prove_rights(predictions, judge.rule, judge.id.fingerprint, max_error=0.05, confidence=0.9)
    rights.decides(success=True, score=judge.rule.episode_score(success_prob))

    forecast = make_forecast(predictions, rule)
    forecast.figures["fpr"]      # measured, and its 95% prediction interval on ten new episodes

A guarantee is about the share of an episode's failure frames that are predicted a success, averaged over new episodes:
it is at most `rate`, and such a guarantee is true in at least `confidence` of all data sets. It is proven by
Learn-then-Test (Angelopoulos et al. 2021). A threshold is proven if the betting test (stats.py) rejects that it breaks
the rate. Thresholds are tried from the strictest on, and the last one before the first failure is taken. Stricter
thresholds have less loss in every episode, so the many tries need no correction.

Rights are proven in the same way, for whole episodes. The score of an episode is the highest threshold at which the
judge's rule still calls it a success. Of all failing episodes, at most `max_error` have a score at which the judge may
call a success; of all succeeding ones, at most `max_error` have a score at which it may call a failure. Both are shares
of all episodes of that kind, so they do not depend on how often the policy succeeds, and the errors of several judges
asked in turn add up to no more than their sum. The proof needs episodes that the judge has not seen and that were not
chosen by its scores.

A forecast is what a user sees who tries a judge on ten episodes: their rate varies more than the rate over all possible
episodes, which a confidence interval (metrics.py) is about. New episodes are drawn one after the other from the
measured ones, and each drawn episode is put back twice (Pólya's urn), so uncertain rates vary more from draw to draw.
The urn also holds one episode unlike all others: with the highest possible figure for the upper end, with the lowest
for the lower end. The next of n + 1 independent episodes is above all others with a chance of 1 / (n + 1), which is
that episode's share. For quantiles the interval is exact for any distribution (Hill 1968); for rates it is an
approximation, which benchmarks/coverage.py checks. A cross-fitted episode can be counted in two ways: by the threshold
that the other folds choose, which shows the luck of choosing, and by the one in use. Either may be closer to the truth,
so each draw takes one of them. A judge that finds no success has no success-onset error. If that is likely enough, the
error has no upper end.

Files and options call a guarantee `promise`.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

import numpy as np
from pydantic import Field

from plaudit.config import Config, Fraction, NonNegativeInt, Number, PositiveInt, SmallInt
from plaudit.errors import format_count
from plaudit.judges.metrics import EpisodePrediction, causal_metrics, offline_metrics
from plaudit.judges.stats import NOT_MEASURED, Interval, episodes_needed, p_value, upper_bound
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import AnyArray, FloatArray

AHEAD = 10  # other episodes, whose figures are forecast
LEVEL = 0.95
_DRAWS = 4000

FORECAST_FIGURES = {
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
    # Of FORECAST_FIGURES; rates as fractions, errors in frames. A low end of NaN: there is nothing to measure.
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
        return f"measured on {self.episodes:,} test episodes, so the intervals are wide: {self.why_not}"


def make_forecast(
    predictions: Sequence[EpisodePrediction],
    rule: DecisionRule,
    *,
    at_threshold: Sequence[EpisodePrediction] | None = None,
    cross_fitted: int = 0,
    why_not: str = "",
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
        figures=_forecast(tables, longest),
        with_twice=_forecast(np.concatenate([tables, tables], axis=1), longest),
    )


def _forecast(tables: AnyArray, longest: int) -> dict[str, Interval]:
    """tables: [V, E, 6] of the same episodes, counted in V ways"""
    drawn = draw_others(tables.shape[1])
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


def draw_others(num_episodes: int, ahead: int = AHEAD) -> AnyArray:
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
    return dict(zip(FORECAST_FIGURES, [*rates, *unbounded], strict=True))


def _quantile(values: AnyArray, q: float) -> AnyArray:
    """[D] of those in each row [D, n] that are not NaN, as numpy interpolates; nanquantile goes row by row."""
    ordered = np.sort(values, axis=1)  # NaN comes last
    place = q * np.maximum((~np.isnan(values)).sum(axis=1) - 1, 0)
    below = np.floor(place).astype(int)
    rows, above = np.arange(len(values)), np.ceil(place).astype(int)
    return ordered[rows, below] + (place - below) * (ordered[rows, above] - ordered[rows, below])


RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # that are tried besides the one that is asked for


class GuaranteeStep(Config):
    """A rate, and what it takes to guarantee it."""

    rate: Fraction  # of failure frames that may be predicted a success
    needed: NonNegativeInt  # episodes with failure frames that it takes at least
    threshold: Fraction | None  # the lowest that is proven for it and may be used
    recall: Fraction | None  # of success frames there


class Guarantee(Config):
    """The requested rate, the proven threshold, and the data behind the proof."""

    rate: Fraction  # asked for: mean share of an episode's failure frames that may be predicted a success
    confidence: Fraction  # with which it is proven
    episodes: NonNegativeInt  # with failure frames, on which thresholds were tried
    labeled: NonNegativeInt  # episodes in all that it took to have these
    needed: NonNegativeInt | None  # of such episodes, how many it takes at least; None: no number would do
    threshold: Fraction | None  # the lowest that is proven; None: none that predicts any success
    bound: Fraction | None = None  # rate that the threshold in use is proven for, on episodes that did not choose it
    bound_episodes: NonNegativeInt = 0  # how many these are
    steps: tuple[GuaranteeStep, ...] = ()  # other rates

    @property
    def kept(self) -> bool:
        """Whether the threshold in use is the proven one."""
        return self.threshold is not None

    @property
    def more(self) -> int | None:
        """More episodes to label, at least; 0 if more episodes alone do not help, None if no number would do."""
        return None if self.needed is None else self.more_for(self.needed)

    def more_for(self, needed: int) -> int | None:
        """The same for `needed` episodes to try thresholds on; None if no labeled episode has failure frames."""
        if not self.episodes:
            return None
        return max(0, math.ceil(needed * self.labeled / self.episodes) - self.labeled)

    @property
    def next_best(self) -> GuaranteeStep | None:
        """The lowest looser rate for which some threshold is proven."""
        return next((step for step in self.steps if step.rate > self.rate and step.threshold is not None), None)

    def with_bound(self, losses: FloatArray) -> Self:
        """The guarantee with a bound proven by losses [E] on episodes that did not choose the threshold."""
        if not len(losses):
            return self
        return self.model_copy(update={"bound": upper_bound(losses, self.confidence), "bound_episodes": len(losses)})

    def describe(self) -> str:
        """The guarantee as text, or why there is none and what is needed."""
        what = f"a false-positive rate of {_percent(self.rate)}"
        if self.kept:
            sure = f"{self.confidence:.0%} confidence"
            return f"{what} or less is guaranteed for new episodes, with {sure} (by {self.episodes} episodes)"
        if self.more is None:
            return f"{what} cannot be guaranteed by any number of episodes"
        sentences = [
            f"too few episodes to guarantee {what}: label at least {self.more:,} more ({self.episodes} of "
            f"{self.labeled} could be used for it, and it takes {self.needed:,})"
        ]
        if self.more == 0:
            sentences = [
                f"{what} cannot be guaranteed: no threshold that predicts any success keeps it on {self.episodes} "
                "episodes. Look at the largest errors, and train with more episodes like these"
            ]
        if self.bound is not None:
            others = format_count(self.bound_episodes, "episode")
            sentences.append(f"{others} that did not choose the threshold bound its rate to {_percent(self.bound)}")
        step = self.next_best
        proven = f"No threshold is proven to keep even {_percent(RATES[-1])}"
        if step is not None:
            proven = f"A threshold of {step.threshold:.4g} is proven for a rate of {_percent(step.rate)}"
        return ". ".join([*sentences, proven])


def _percent(rate: float) -> str:
    return f"{100 * rate:.2g}%" if rate < 0.995 else "100%"


def make_guarantee(
    episodes: Sequence[EpisodePrediction],
    rate: Fraction,
    confidence: Fraction,
    *,
    labeled: NonNegativeInt | None = None,
    floor: float = 0.0,
) -> Guarantee:
    """
    episodes: that thresholds are tried on
    labeled: how many episodes there are in all, where only some could be used; None: these
    floor: of thresholds; those below are not used, whatever they are proven for
    """
    steps: dict[float, GuaranteeStep] = {}
    for one in sorted(one for one in {*RATES, rate} if 0 < one < 1):
        threshold, recall = proven_threshold(episodes, one, confidence), None
        if threshold is not None:
            threshold = max(threshold, floor)  # a stricter one keeps the rate too
            successes = np.concatenate([e.predicted(threshold)[e.target == 1] for e in episodes])
            recall = float(successes.mean()) if len(successes) else None
        threshold = None if recall == 0 else threshold  # a judge that never predicts success keeps any rate
        needed = episodes_needed(one, confidence)
        steps[one] = GuaranteeStep(rate=one, needed=needed, threshold=threshold, recall=recall)
    own = steps.get(rate)
    return Guarantee(
        rate=rate,
        confidence=confidence,
        episodes=sum(bool((one.target == 0).any()) for one in episodes),
        labeled=len(episodes) if labeled is None else labeled,
        needed=None if own is None else own.needed,
        threshold=None if own is None else own.threshold,
        steps=tuple(steps.values()),
    )


def proven_threshold(episodes: Sequence[EpisodePrediction], rate: float, confidence: float) -> float | None:
    """The lowest at which the episodes prove the rate; None if they do at none. Never below the lowest score."""
    failures = [np.sort(one.success_prob[one.target == 0]) for one in episodes if (one.target == 0).any()]
    if not failures:
        return None
    scores = np.unique(np.concatenate(failures))[::-1]  # from the strictest on

    def fails(passing: int) -> bool:
        """Whether the rate is not proven if the highest `passing` of these pass."""
        lowest = scores[passing - 1] if passing else np.inf
        losses = np.array([1 - np.searchsorted(one, lowest) / len(one) for one in failures])
        return p_value(losses, rate) > 1 - confidence

    passing = bisect_left(range(len(scores) + 1), True, key=fails) - 1  # the most that may pass
    if passing < 0:
        return None
    if passing == len(scores):
        return float(scores[-1])
    return midway(scores[passing], np.concatenate([one.success_prob[one.has_target] for one in episodes]))


def midway(score: np.float32, scores: FloatArray) -> float:
    """Between a score and the next higher one, or 1 where there is none; above it in any case."""
    above = scores[scores > score]
    middle = (float(score) + float(above.min() if len(above) else 1.0)) / 2
    return float(max(np.float32(middle), np.nextafter(score, np.float32(2))))


def episode_losses(episodes: Sequence[EpisodePrediction], threshold: float) -> FloatArray:
    """[E] of each episode that has failure frames, the share of these that is predicted a success."""
    losses = [one.predicted(threshold)[one.target == 0].mean() for one in episodes if (one.target == 0).any()]
    return np.array(losses, np.float32)


# What a judge may decide alone


class Rights(Config):
    """What a judge may decide alone, for one calibration and one window of frames."""

    fingerprint: str  # of the judge that they were proven for
    k: SmallInt  # of its rule: of the last n frames, how many decide
    n: SmallInt  # of its rule: how many frames are looked at
    max_error: float = Field(gt=0, lt=1)  # error rate that is proven for its decisions
    confidence: float = Field(gt=0, lt=1)  # of each of the two
    failures: NonNegativeInt  # episodes that fail, by which `success_from` was tried
    successes: NonNegativeInt  # and that succeed, by which `failure_to` was
    success_from: Number | None = None  # score from which on it may call a success; None: none is proven
    failure_to: Number | None = None  # score up to which it may call a failure

    @property
    def any(self) -> bool:
        """Whether the judge may decide anything alone."""
        return self.success_from is not None or self.failure_to is not None

    def covers(self, other: Self) -> bool:
        """Whether it may call a success, and a failure, where the other may, from whatever score."""
        kinds = ((self.success_from, other.success_from), (self.failure_to, other.failure_to))
        return all(own is not None or theirs is None for own, theirs in kinds)

    def decides(self, success: bool, score: float) -> bool:
        """Whether it may decide alone that an episode of this score is a success, or is none."""
        if success:
            return self.success_from is not None and bool(above_threshold(score, self.success_from))
        return self.failure_to is not None and bool(above_threshold(1 - score, 1 - self.failure_to))

    def describe(self) -> str:
        """As text: what the judge may decide alone, or what is needed."""
        needed = episodes_needed(self.max_error, self.confidence)

        def describe_kind(kind: str, score: float | None, bound: str, episodes: int, others: str) -> str:
            """others: what the episodes do that prove it"""
            if score is not None:
                return (
                    f"decides {kind} alone {bound} a score of {score:.4g}, wrong in at most {self.max_error:.2g} of "
                    f"the episodes that {others} (by {episodes} of them, {self.confidence:.0%} confidence)"
                )
            lack = f"label at least {needed - episodes} more" if episodes < needed else "it errs too often"
            return f"never decides {kind} alone: {lack} ({episodes} that {others} were tried, it takes {needed})"

        success = describe_kind("success", self.success_from, "from", self.failures, "fail")
        failure = describe_kind("failure", self.failure_to, "up to", self.successes, "succeed")
        return f"in a cascade it {success}. It {failure}"


def prove_rights(
    episodes: Sequence[EpisodePrediction], rule: DecisionRule, fingerprint: str, max_error: float, confidence: float
) -> Rights:
    """
    episodes: whole ones, that the judge has not seen, with the probabilities that the rule decides by
    fingerprint: of the judge that has these probabilities
    """
    scores = np.array([rule.episode_score(one.success_prob) for one in episodes])
    success = np.array([bool((one.target == 1).any()) for one in episodes], bool)

    def proven(scores: AnyArray, success: AnyArray) -> float | None:
        """The lowest score of a success that few enough failures reach; each episode counts as one frame."""
        frames = [EpisodePrediction(scores[n : n + 1], success[n : n + 1], n) for n in range(len(scores))]
        threshold = proven_threshold(frames, max_error, confidence)
        return None if threshold is None else min(scores[success & (scores >= threshold)].tolist(), default=None)

    flipped = proven(1 - scores, ~success)
    k, n = rule.window
    return Rights(
        fingerprint=fingerprint,
        k=k,
        n=n,
        max_error=max_error,
        confidence=confidence,
        failures=int((~success).sum()),
        successes=int(success.sum()),
        success_from=proven(scores, success),
        failure_to=None if flipped is None else 1 - flipped,
    )
