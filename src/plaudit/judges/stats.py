"""The statistics of judges: one interval type, one bootstrap over episodes, one betting test.

    wilson(9, 10)                            # a rate of independent trials
    bootstrap(statistic, episodes)           # any figure, resampled by episode
    p_value(losses, rate), upper_bound(...)  # a mean of losses in [0, 1], without assumptions
    ErrorTest(allowed=0.1)                   # the same test, readable at any time of a run

Frames of an episode are right or wrong together, so every interval counts episodes, never frames.

The betting test (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting") bets against a
claim about a mean. While the claim is true, the capital reaches 1 / alpha in at most a fraction alpha of all data sets,
however long they are (Ville's inequality). Bets of several sizes are averaged: large ones win where hardly anything is
wrong, small ones where single episodes are wrong as a whole. Without a single mistake it takes 50 episodes to prove 5%
at a confidence of 90%, and 254 for 1%.

scipy is imported where it is used. It takes as long to import as torch, and most worker processes need none of it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict, Field, PlainSerializer, WrapValidator

from plaudit.types import AnyArray, FloatArray

DRAWS = 1000  # of a bootstrap
RUN_ALPHA = 0.05  # chance of any wrong decision in a whole run


def _missing(value: float) -> WrapValidator:
    """What None in JSON means."""
    return WrapValidator(lambda given, handler: value if given is None else handler(given))


_limits = Field(ge=-1e9, le=1e9, allow_inf_nan=False)
_to_json = PlainSerializer(lambda value: value if math.isfinite(value) else None, when_used="json")


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval. JSON has None for a figure that was not measured and for an open end."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    value: Annotated[float, _limits, _missing(math.nan), _to_json]  # NaN: not measured
    low: Annotated[float, _limits, _missing(math.nan), _to_json]
    high: Annotated[float, _limits, _missing(math.inf), _to_json]

    def __post_init__(self) -> None:
        ends = [end for end in (self.low, self.value, self.high) if not math.isnan(end)]
        if any(upper < lower - 1e-9 for lower, upper in pairwise(ends)):
            raise ValueError(f"{self.value} is not between {self.low} and {self.high}")

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float], name: str) -> Self | None:
        """Read what `to_metrics` returned; None if it is missing."""
        if f"{name}_low" not in metrics:
            return None
        return cls(metrics[name], metrics[f"{name}_low"], metrics[f"{name}_high"])

    def to_metrics(self, name: str) -> dict[str, float]:
        """By the names in docs/metrics.md; empty while the value is not known."""
        if math.isnan(self.value):
            return {}
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def complement(self) -> "Interval":
        """Of the rest, where the figure is a rate."""
        return Interval(1 - self.value, 1 - self.high, 1 - self.low)

    def __str__(self) -> str:
        return f"{self.value:.0%} [{100 * self.low:.0f}-{100 * self.high:.0f}]"


NOT_MEASURED = Interval(math.nan, math.nan, math.inf)


# Rates and counts


def wilson(count: int, total: int) -> Interval:
    """A rate of independent trials, such as episodes, with Wilson's interval."""
    from scipy.stats import binomtest

    if not total:
        return Interval(math.nan, 0.0, 1.0)
    ends: Any = binomtest(count, total).proportion_ci(method="wilson")
    return Interval(count / total, float(ends.low), float(ends.high))


def is_more_often(pairs: Iterable[tuple[float, float]], confidence: float) -> tuple[bool, int, int]:
    """One-sided exact sign test: whether the first of a pair is larger significantly more often than the second; also
    in how many pairs it is larger, and in how many the two differ."""
    from scipy.stats import binomtest

    different = [first > second for first, second in pairs if first != second]
    larger, total = sum(different), len(different)
    significant = bool(total) and binomtest(larger, total, alternative="greater").pvalue <= 1 - confidence
    return bool(significant), larger, total


def quantile(values: Sequence[float], q: float) -> Interval:
    """A quantile of nonnegative values, one per episode, by order statistics: valid for any distribution.

    There is no upper end if even the largest value is below the quantile too often: for a 90th percentile, with fewer
    than 36 episodes.
    """
    from scipy.stats import quantile_test

    if not len(values):
        return NOT_MEASURED
    value = float(np.quantile(values, q))
    ends: Any = quantile_test(values, p=q).confidence_interval(0.95)  # NaN: no order statistic is far enough out
    low, high = np.nan_to_num(ends.low, nan=0.0), np.nan_to_num(ends.high, nan=math.inf)
    return Interval(value, min(float(low), value), max(float(high), value))


# The bootstrap


def bootstrap(
    statistic: Callable[[AnyArray], AnyArray],
    episodes: int,
    *,
    limits: tuple[float, float] = (0.0, 1.0),
    deciding: int | None = None,
) -> Interval:
    """A figure with its percentile interval over resampled episodes.

    Percentiles are too narrow with few episodes, so they are widened by the ratio of Student's t to a normal interval,
    within the limits. Draws in which the figure is undefined are left out.

    statistic: from how often each episode counts in each draw, [D, E], to the figure of each draw, [D]
    deciding: episodes that decide the figure; None: all
    """
    from scipy.special import ndtri, stdtrit

    with np.errstate(invalid="ignore"):
        value, *draws = statistic(_resampled(episodes)).tolist()
    defined = [draw for draw in draws if not math.isnan(draw)]
    if math.isnan(value) or not defined:
        return NOT_MEASURED
    count = episodes if deciding is None else deciding
    if count < 2:
        return Interval(value, *limits)
    factor = stdtrit(count - 1, 0.975) / ndtri(0.975) * math.sqrt(count / (count - 1))
    low, high = value + factor * (np.quantile(defined, (0.025, 0.975)) - value)
    return Interval(value, float(max(min(low, value), limits[0])), float(min(max(high, value), limits[1])))


@lru_cache(maxsize=2)  # the figures of a judge are of the same episodes
def _resampled(episodes: int) -> AnyArray:
    """[1 + D, E] how often each episode counts: once, and then as it is drawn."""
    drawn = np.random.default_rng(0).multinomial(episodes, np.full(episodes, 1 / episodes), size=DRAWS)
    weights = np.concatenate([np.ones((1, episodes)), drawn])
    weights.flags.writeable = False
    return weights


def episode_rate(count: AnyArray, total: AnyArray) -> Interval:
    """A share of frames, with an interval over episodes.

    A bootstrap alone is too narrow if few episodes have a mistake, and [0, 0] if none has. So the interval is at least
    as wide as the bounds of the betting test. Without any mistake the upper end is 63% after 4 episodes, 18% after 20
    and 3.9% after 100.

    count, total: [E] frames of each episode
    """
    count, total = count[total > 0], total[total > 0]
    if not len(total):
        return Interval(math.nan, 0.0, 1.0)
    rate = bootstrap(lambda weights: (weights @ count) / (weights @ total), len(total))
    low, high = 1 - upper_bound(1 - count / total, 0.975), upper_bound(count / total, 0.975)
    return Interval(rate.value, min(rate.low, low), max(rate.high, high))


def mean_correlation(values: Sequence[float]) -> Interval:
    """The mean of one correlation per episode."""
    if not len(values):
        return NOT_MEASURED
    mean = np.asarray(values, float) / len(values)
    return bootstrap(lambda weights: weights @ mean, len(values), limits=(-1.0, 1.0))


# ROC AUC


def auc(concordant: AnyArray, pairs: AnyArray) -> Interval:
    """ROC AUC from pairs of a success frame of one episode and a failure frame of another.

    The lower end is at most 1 minus Wilson's upper end for the share of episodes with a wrong pair, times the share of
    wrong pairs in these. If no pair is wrong, a new episode may still be ordered at chance.

    concordant, pairs: [E, E] pairs in the right order (half for equal scores), and all pairs
    """

    def weighted(weights: AnyArray, matrix: AnyArray) -> AnyArray:
        return np.einsum("de,de->d", weights @ matrix, weights)

    def ratio(weights: AnyArray) -> AnyArray:
        return weighted(weights, concordant) / weighted(weights, pairs)

    deciding = min(int((pairs.sum(axis) > 0).sum()) for axis in (0, 1))
    area = bootstrap(ratio, len(pairs), deciding=deciding)
    if math.isnan(area.value):
        return area
    low = area.low
    for axis in (0, 1):
        wrong, total = (pairs - concordant).sum(axis), pairs.sum(axis)
        wrong, total = wrong[total > 0], total[total > 0]
        hit = wrong > 0
        share = wrong[hit].sum() / total[hit].sum() if hit.any() else 0.5
        low = min(low, float(1 - share * wilson(int(hit.sum()), len(hit)).high))
    return Interval(area.value, low, area.high)


def count_pairs(success: Sequence[FloatArray], failure: Sequence[FloatArray]) -> tuple[AnyArray, AnyArray]:
    """The arguments of `auc`, from the scores of each episode's success frames and of its failure frames."""
    sizes = np.array([len(one) for one in success])
    scores, starts = np.concatenate(success), np.concatenate([[0], np.cumsum(sizes)])
    concordant = np.zeros((len(success), len(failure)))
    for column, others in enumerate(failure):
        others = np.sort(others)
        below = (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / 2
        concordant[:, column] = np.diff(np.concatenate([[0], np.cumsum(below)])[starts])
    return concordant, np.outer(sizes, [len(one) for one in failure]).astype(float)


def count_same_time_pairs(scores: Sequence[FloatArray], targets: Sequence[FloatArray]) -> tuple[AnyArray, AnyArray]:
    """The same for pairs of frames with the same index, which a clock cannot tell apart."""
    length = max(len(one) for one in scores)
    padded, target = (
        np.array([np.pad(one.astype(float), (0, length - len(one)), constant_values=np.nan) for one in rows])
        for rows in (scores, targets)
    )
    success, failure = np.where(target == 1, padded, np.nan), np.where(target == 0, padded, np.nan)
    concordant, pairs = np.zeros((2, len(scores), len(scores)))
    for row, one in enumerate(success):
        concordant[row] = (one > failure).sum(axis=1) + (one == failure).sum(axis=1) / 2
        pairs[row] = (~np.isnan(one) & ~np.isnan(failure)).sum(axis=1)
    return concordant, pairs


# The betting test of a fixed set of episodes: is the mean loss below a rate?

_BETS = np.array((1.0, 0.7, 0.4, 0.15))  # as shares of the largest bet
_WEIGHTS = np.array((0.7, 0.1, 0.1, 0.1))  # most judges worth using make few mistakes


def _log_factors(losses: AnyArray, rate: float) -> AnyArray:
    """[bets, E] log of the factor by which each episode multiplies the capital of each bet."""
    with np.errstate(divide="ignore"):
        return np.log1p(_BETS[:, None] * (rate - np.asarray(losses, np.float64)) / (1 - rate))


def p_value(losses: AnyArray, rate: float) -> float:
    """P-value of losses [E] in [0, 1] under the claim that their mean is `rate` or more."""
    return float(min(1.0, np.exp(-np.logaddexp.reduce(np.log(_WEIGHTS) + _log_factors(losses, rate).sum(axis=1)))))


def halve(holds: Callable[[float], bool], fails: float, high: float, halvings: int = 40) -> float:
    """The bound of the values at which a condition holds, between one at which it fails and one at which it holds."""
    for _ in range(halvings):
        middle = (fails + high) / 2
        fails, high = (fails, middle) if holds(middle) else (middle, high)
    return high


def upper_bound(losses: AnyArray, confidence: float) -> float:
    """Upper confidence bound of the mean loss."""
    return halve(lambda rate: p_value(losses, rate) <= 1 - confidence, 0.0, 1.0)


def episodes_needed(rate: float, confidence: float, actual: float = 0.0) -> int:
    """Episodes that prove a rate if a fraction `actual` of them is wrong, rounded up to whole episodes."""
    right, wrong = (_log_factors(np.full(1, loss), rate)[:, 0] for loss in (0.0, 1.0))

    def enough(episodes: int) -> bool:
        mistakes = math.ceil(actual * episodes)
        factors = (episodes - mistakes) * right + (mistakes * wrong if mistakes else 0.0)
        return bool(np.logaddexp.reduce(np.log(_WEIGHTS) + factors) >= -math.log(1 - confidence))

    most = 1
    while not enough(most):
        most *= 2
    return bisect_left(range(most), True, key=enough)


# The betting test of a run: are errors more frequent than allowed?

FIXED_BETS = np.array([0.025, 0.05, 0.1, 0.2, 0.4, 0.7])  # fractions of the stake, lost with every right answer
MEMORY = 0.9  # of the moving average of errors that the other half of the stake follows, per answer
MAX_BET = 0.75  # fraction of a stake that one answer can lose


class ErrorTest:
    """Tests, at any time of a run, whether answers are wrong more often than allowed.

    Half of the stake is on fixed bets, which detect an error rate that is too high from the start. The other half
    follows the newest errors and bets nothing while they are rare, so it is still there when errors begin late.
    (Rejected: Shiryaev-Roberts and CUSUM, which stop every honest run sooner or later.)
    """

    def __init__(self, allowed: float):
        """allowed: fraction of the answers that may be wrong"""
        self._allowed, self._recent = allowed, allowed
        self._log_stakes = np.log(np.append(np.full(len(FIXED_BETS), 0.5 / len(FIXED_BETS)), 0.5))

    @property
    def log_evidence(self) -> float:
        """Log of the stake, which starts at 1. It ever exceeds log(1/alpha) with probability at most alpha."""
        return float(np.logaddexp.reduce(self._log_stakes))

    def add(self, error: bool, weight: float = 1.0) -> None:
        """Add one checked answer.

        weight: at most 1; probability with which such answers are usually checked, divided by that of this one
        """
        self._bet(weight * error, weight * self._allowed)
        self._recent = MEMORY * self._recent + (1 - MEMORY) * weight * error

    def allow(self, errors: float) -> None:
        """Allow a fraction of an error for something that is not an answer of the tested kind."""
        self._bet(0.0, errors)

    def _bet(self, errors: float, allowed: float) -> None:
        """Bet that there are more errors than allowed. No bet loses more than `MAX_BET` of its stake."""
        if not allowed:
            return
        follow = min(max((self._recent - self._allowed) / (1 - self._allowed), 0.0), MAX_BET)
        bets = np.minimum(np.append(FIXED_BETS, follow) / self._allowed, MAX_BET / allowed)
        self._log_stakes += np.log1p(bets * (errors - allowed))

    def state_dict(self) -> dict[str, Any]:
        """State as JSON."""
        return {"recent": self._recent, "log_stakes": self._log_stakes.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""
        self._recent, self._log_stakes = state["recent"], np.array(state["log_stakes"])


@dataclass(frozen=True)
class ErrorBudget:
    """Chance of a wrong decision in a whole run, by kind of decision; they add up to `RUN_ALPHA`."""

    alarm: float  # an honest judge is stopped
    promotion: float  # a candidate that is no better replaces the judge
    cascade: float  # a retrained stage of a cascade decides alone and is wrong more often than it may be

    @classmethod
    def of(cls, *, retrains: bool, cascade: bool) -> "ErrorBudget":
        """The budget of a run that makes these kinds of decisions besides alarms."""
        shares = (1.0, 0.0, 0.0) if not retrains else (0.4, 0.4, 0.2) if cascade else (0.5, 0.5, 0.0)
        return cls(*(RUN_ALPHA * share for share in shares))


def alpha_spent(budget: float, number: int) -> float:
    """What the `number`-th decision of a kind may spend; over all numbers this adds up to `budget`."""
    return budget * 6 / (math.pi * number) ** 2


# Counts of errors from random checks

STRENGTHS = np.geomspace(0.02, 8, 40)  # of s in `Checks.bounds`, as a multiple of the usual probability of a check


@dataclass
class Checks:
    """Answers, some of them drawn for a check with a known probability; bounds the number of errors among all.

    The draws must be random; nothing is assumed about the errors. For every s, the product over all errors of
    exp(s drawn/p) / (1 - p + p exp(s/p)) is 1 on average at every moment. Counts for which the mean of these products
    over fixed values of s exceeds 1/alpha are ruled out. Checks with probability 1 count as they are.
    """

    answers: int = 0
    waiting: int = 0  # drawn, not answered yet
    sure: int = 0  # checked with probability 1
    sure_errors: int = 0
    drawn: int = 0  # checked with a lower probability
    drawn_errors: int = 0
    weighted: float = 0.0  # the drawn ones, each by 1/probability
    weighted_errors: float = 0.0
    weighted_waiting: float = 0.0
    least: float = 1.0  # lowest probability

    def add(self, probability: float, error: bool | None = None, drawn: bool = True) -> None:
        """Add one answer.

        error: None while it is not known
        drawn: whether it is checked
        """
        self.answers += 1
        self.least = min(self.least, probability)
        if not drawn:
            return
        if error is None:
            self.waiting += 1
            self.weighted_waiting += 1 / probability
        elif probability == 1:
            self.sure, self.sure_errors = self.sure + 1, self.sure_errors + error
        else:
            self.drawn, self.drawn_errors = self.drawn + 1, self.drawn_errors + error
            self.weighted += 1 / probability
            self.weighted_errors += error / probability

    def merge(self, other: "Checks") -> "Checks":
        """Both together."""
        more = asdict(other)
        both = Checks(**{key: value + more[key] for key, value in asdict(self).items()})
        both.least = min(self.least, other.least)
        return both

    @property
    def checked(self) -> int:
        """Answers that are known to be right or wrong."""
        return self.sure + self.drawn

    @property
    def errors(self) -> float:
        """Estimated number of errors among all answers; 0 before anything is checked. Answers that are not checked
        have the error rate of the randomly drawn checks, or of all checks while there are none."""
        if not self.checked:
            return 0.0
        rate = self.weighted_errors / self.weighted if self.drawn else self.sure_errors / self.sure
        return self.sure_errors + (self.answers - self.sure) * rate

    def estimate(self, alpha: float, usual: float = 0.25) -> tuple[float, int, int]:
        """`errors`, inside of its `bounds`, and these."""
        low, high = self.bounds(alpha, usual)
        return min(max(self.errors, low), high), low, high

    def bounds(self, alpha: float, usual: float = 0.25) -> tuple[int, int]:
        """The smallest and the largest number of errors that are not ruled out at `alpha`.

        An answer that is drawn and not known yet may be right or wrong.
        usual: probability of a check for which the bounds are narrowest
        """
        low, high = self._not_ruled_out(alpha, usual, self.drawn_errors, self.weighted_errors)
        if self.waiting:
            errors, weighted = self.drawn_errors + self.waiting, self.weighted_errors + self.weighted_waiting
            _, high = self._not_ruled_out(alpha, usual, errors, weighted)
        return self.sure_errors + low, self.sure_errors + high

    def _not_ruled_out(self, alpha: float, usual: float, errors: int, weighted: float) -> tuple[int, int]:
        unchecked = self.answers - self.sure - self.drawn - self.waiting
        most = errors + unchecked
        if not unchecked or not self.least:
            return errors, most
        counts = np.unique(np.linspace(errors, most, min(most - errors + 1, 2001)).astype(int))
        s = usual * np.concatenate([-STRENGTHS, STRENGTHS])
        p = self.least
        growth = -np.logaddexp(math.log1p(-p), math.log(p) + s / p)
        log_evidence = np.logaddexp.reduce(s * weighted + counts[:, None] * growth, axis=1) - math.log(len(s))
        kept = np.flatnonzero(log_evidence < -math.log(alpha))
        if not len(kept):
            kept = np.array([np.argmin(log_evidence)])
        low = errors if kept[0] == 0 else int(counts[kept[0] - 1]) + 1
        high = most if kept[-1] == len(counts) - 1 else int(counts[kept[-1] + 1]) - 1
        return low, high
