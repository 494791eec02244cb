"""Intervals that count episodes, of figures that are no rate: of a ROC AUC, a mean, a quantile, a calibration error.

    auc(concordant, pairs)          # [E, E], of the success frames of one episode and the failure frames of another
    quantile(errors, 0.9)           # distribution-free; no upper end where there are too few episodes for one

Frames of an episode are right or wrong together, so episodes are drawn again, never frames. A bootstrap alone says
"without doubt" where nothing went wrong; an AUC is bounded as the rates of metrics.py are, and a quantile is bounded by
order statistics, which hold for any distribution.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from plaudit.judges.metrics import EpisodeMetrics, RateCI, wilson
from plaudit.types import AnyArray, FloatArray

DRAWS = 1000
_AT_CHANCE = 0.5  # of an episode that a judge gets wrong, how many pairs it orders wrongly


def episode_weights(episodes: int, seed: int = 0) -> AnyArray:
    """[D, E] how often each draw of a bootstrap has each episode; the first draw has each once."""
    draws = np.random.default_rng(seed).multinomial(episodes, np.full(episodes, 1 / episodes), size=DRAWS)
    return np.concatenate([np.ones((1, episodes)), draws])


def percentile_interval(draws: AnyArray, episodes: int, limits: tuple[float, float] = (0.0, 1.0)) -> RateCI:
    """Of a figure in each draw of `episode_weights`; a draw without it is passed over.

    Percentiles of a bootstrap are too narrow with few episodes, as a normal interval is beside Student's: they are
    widened by as much, within the limits.
    episodes: that decide it; limits: of the figure
    """
    from scipy.special import ndtri, stdtrit  # scipy.stats has them as classes that take a second to import

    defined = draws[1:][~np.isnan(draws[1:])]
    if np.isnan(draws[0]) or not len(defined):
        return RateCI(math.nan, math.nan, math.nan)
    value = float(draws[0])
    if episodes < 2:
        return RateCI(value, *limits)
    widened = stdtrit(episodes - 1, 0.975) / ndtri(0.975) * math.sqrt(episodes / (episodes - 1))
    low, high = value + widened * (np.quantile(defined, (0.025, 0.975)) - value)
    return RateCI(value, float(max(min(low, value), limits[0])), float(min(max(high, value), limits[1])))


def auc(concordant: AnyArray, pairs: AnyArray, seed: int = 0) -> RateCI:
    """[E, E] pairs of a success frame of one episode and a failure frame of another, and how many are in order (half
    where the two scores are equal).

    The lower end is bounded by Wilson's interval for the share of episodes with a wrong pair, times the share of wrong
    pairs in these; where none is wrong, an episode to come may be ordered at chance. Both for episodes that show
    success and for those that show failure.
    """
    weights = episode_weights(len(pairs), seed)
    fewest = min(int((pairs.sum(axis) > 0).sum()) for axis in (0, 1))
    with np.errstate(invalid="ignore"):
        found = percentile_interval(_quadratic(weights, concordant) / _quadratic(weights, pairs), fewest)
    low = min([found.low, *(1 - _wrong_share((pairs - concordant).sum(axis), pairs.sum(axis)) for axis in (0, 1))])
    return RateCI(found.value, low, found.high)


def _quadratic(weights: AnyArray, matrix: AnyArray) -> AnyArray:
    return np.einsum("de,de->d", weights @ matrix, weights)


def _wrong_share(wrong: AnyArray, pairs: AnyArray) -> float:
    wrong, pairs = wrong[pairs > 0], pairs[pairs > 0]
    hit = wrong > 0
    share = wrong[hit].sum() / pairs[hit].sum() if hit.any() else _AT_CHANCE
    return float(share * wilson(int(hit.sum()), len(hit)).high)


def count_pairs(success: Sequence[FloatArray], failure: Sequence[FloatArray]) -> tuple[AnyArray, AnyArray]:
    """What `auc` takes, from the scores of each episode's success frames and of its failure frames."""
    sizes = np.array([len(one) for one in success])
    scores, starts = np.concatenate(success), np.concatenate([[0], np.cumsum(sizes)])
    concordant = np.zeros((len(success), len(failure)))
    for column, others in enumerate(failure):
        others = np.sort(others)
        below = (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / 2
        concordant[:, column] = np.diff(np.concatenate([[0], np.cumsum(below)])[starts])
    return concordant, np.outer(sizes, [len(one) for one in failure]).astype(float)


def count_same_time_pairs(scores: Sequence[FloatArray], targets: Sequence[FloatArray]) -> tuple[AnyArray, AnyArray]:
    """The same of pairs of frames with the same number: what a clock cannot tell apart."""
    length = max(len(one) for one in scores)
    padded = [np.pad(one, (0, length - len(one)), constant_values=np.nan) for one in scores]
    target = np.array([np.pad(one, (0, length - len(one)), constant_values=np.nan) for one in targets])
    success, failure = np.where(target == 1, padded, np.nan), np.where(target == 0, padded, np.nan)
    concordant, pairs = np.zeros((2, len(scores), len(scores)))
    for row, one in enumerate(success):
        concordant[row] = (one > failure).sum(axis=1) + (one == failure).sum(axis=1) / 2
        pairs[row] = (~np.isnan(one) & ~np.isnan(failure)).sum(axis=1)
    return concordant, pairs


def mean_correlation(values: Sequence[float], seed: int = 0) -> RateCI:
    """Of a correlation in each episode."""
    if not len(values):
        return RateCI(math.nan, math.nan, math.nan)
    weights = episode_weights(len(values), seed)
    return percentile_interval(weights @ np.asarray(values, float) / len(values), len(values), (-1.0, 1.0))


def quantile(values: Sequence[float], q: float) -> RateCI:
    """Of a figure of each episode that is 0 or more, by order statistics.

    The true quantile lies between the r-th and the s-th smallest in at least 95 of 100 data sets, whatever the
    distribution. There is no upper end where even the largest is not above it so often: of a 90th percentile with fewer
    than 36 episodes.
    """
    from scipy.special import bdtr

    if not len(values):
        return RateCI(math.nan, math.nan, math.nan)
    ordered, below = np.sort(np.asarray(values, float)), np.arange(len(values) + 1)
    chance = bdtr(below, len(values), q)  # that at most so many values are below the quantile
    lower, upper = int((chance < 0.025).sum()), int((chance < 0.975).sum()) + 1
    low = ordered[lower - 1] if lower else 0.0
    high = ordered[upper - 1] if upper <= len(ordered) else math.inf
    value = float(np.quantile(ordered, q))
    return RateCI(value, float(min(low, value)), float(max(high, value)))


def onset_intervals(outcome: EpisodeMetrics) -> tuple[RateCI, RateCI]:
    """The median and the 90th percentile of the success-onset error."""
    errors = [abs(error) for error in outcome.errors if error is not None]
    return quantile(errors, 0.5), quantile(errors, 0.9)


def bootstrap_rate(statistic: Callable[[AnyArray], float], episodes: int, seed: int = 0) -> RateCI:
    """Of a rate that is computed from how often each episode counts, [E]."""
    return percentile_interval(np.array([statistic(one) for one in episode_weights(episodes, seed)]), episodes)
