"""A promise about false positives that holds on episodes to come, or a plain word that there are too few to give one.

    promise = make_promise(episodes, rate=0.01, confidence=0.9)
    promise.threshold        # the lowest that keeps the rate; None where the episodes prove none
    promise.describe()       # "too few episodes to promise ...: label at least 224 more ..."

What is promised: the share of an episode's failure frames that are predicted a success, averaged over episodes to come,
is at most `rate`, and a promise so made is true in at least `confidence` of all data sets. Frames of an episode are
right or wrong together, so an episode counts once, however long it is.

How it is proven (Learn-then-Test, Angelopoulos et al. 2021): a threshold is proven where a test rejects that it breaks
the rate. Thresholds are tried from the strictest on, and the last one before the first that fails is taken; stricter
ones have less loss in every episode, so no correction for the many tries is due. The test bets against "the mean loss
is above the rate" (Waudby-Smith and Ramdas 2023): each episode multiplies a capital by a factor whose mean is at most 1
if that were so, and by Markov's inequality the capital exceeds 1 / (1 - confidence) too seldom to be luck. Nothing is
assumed of the losses but that episodes are alike and independent. Bets of several sizes are averaged: the largest
is the best where hardly anything is wrong, the small ones where single episodes are wrong as a whole.

The price of assuming nothing: without a single mistake it takes 50 episodes for 5% at a confidence of 90%, and 254 for
1%. Nobody could prove more with fewer: an episode that is wrong from its first frame may be one in a hundred.
"""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np

from plaudit.config import Config, Fraction, NonNegativeInt
from plaudit.judges.predictions import EpisodePrediction
from plaudit.types import AnyArray, FloatArray

RATES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # that are looked at beside the one that is asked for
_BETS = np.array((1.0, 0.7, 0.4, 0.15))  # as shares of the largest bet
_WEIGHTS = np.array((0.7, 0.1, 0.1, 0.1))  # of each in the capital; most judges that are worth using make few mistakes
_STEPS = 40  # of a bisection


class PromiseStep(Config):
    """A rate, and what it takes to promise it."""

    rate: Fraction
    needed: NonNegativeInt  # episodes with failure frames that it takes at least
    threshold: Fraction | None  # the lowest that is proven for it and may be used
    recall: Fraction | None  # of success frames there


class Promise(Config):
    """What was asked for, what could be proven, and by what."""

    rate: Fraction  # asked for: mean share of an episode's failure frames that may be predicted a success
    confidence: Fraction
    episodes: NonNegativeInt  # with failure frames, on which thresholds were tried
    labeled: NonNegativeInt  # episodes in all that it took to have these
    needed: NonNegativeInt | None  # of such episodes, how many it takes at least; None: no number would do
    threshold: Fraction | None  # the lowest that is proven; None: none that predicts any success
    bound: Fraction | None = None  # rate that the threshold in use is proven for, on episodes that did not choose it
    bound_episodes: NonNegativeInt = 0  # how many these are
    steps: tuple[PromiseStep, ...] = ()  # other rates

    @property
    def kept(self) -> bool:
        """Whether the threshold in use is the proven one."""
        return self.threshold is not None

    @property
    def more(self) -> int | None:
        """Episodes to label beside those that are labeled, at least; 0 where it is not for want of episodes."""
        return None if self.needed is None else self.more_for(self.needed)

    def more_for(self, needed: int) -> int | None:
        """The same for so many episodes to try thresholds on; None where no labeled episode is of use for that."""
        if not self.episodes:
            return None
        return max(0, math.ceil(needed * self.labeled / self.episodes) - self.labeled)

    @property
    def next_best(self) -> PromiseStep | None:
        """The lowest looser rate for which some threshold is proven."""
        return next((step for step in self.steps if step.rate > self.rate and step.threshold is not None), None)

    def with_bound(self, losses: FloatArray) -> Self:
        """The same with what losses [E] of the threshold in use say of it, in episodes that did not choose it."""
        if not len(losses):
            return self
        return self.model_copy(update={"bound": upper_bound(losses, self.confidence), "bound_episodes": len(losses)})

    def describe(self) -> str:
        """For people: the promise, or why there is none and what it would take."""
        what = f"a false-positive rate of {_percent(self.rate)}"
        if self.kept:
            return (
                f"promised for episodes to come, with {self.confidence:.0%} confidence: {what} or less, by "
                f"{self.episodes} episodes"
            )
        if self.more is None:
            return f"{what} cannot be promised by any number of episodes; the threshold is not proven"
        if self.more == 0:
            why = (
                f"{what} cannot be promised: no threshold that predicts any success keeps it on {self.episodes} "
                "episodes; look at the largest errors, and train with more episodes like these"
            )
        else:
            why = (
                f"too few episodes to promise {what}: label at least {self.more:,} more ({self.episodes} of "
                f"{self.labeled} could be used for it, and it takes {self.needed:,})"
            )
        return f"{why}; {self._instead()}"

    def _instead(self) -> str:
        """What is known of the threshold in use, and which other one is proven."""
        known = "the threshold in use is not proven"
        if self.bound is not None:
            known += (
                f", {self.bound_episodes} episodes that did not choose it only bound its rate to {_percent(self.bound)}"
            )
        if (step := self.next_best) is None:
            return f"{known}, and no threshold is proven to keep even {_percent(RATES[-1])}"
        return f"{known}; {step.threshold:.4g} is, for {_percent(step.rate)}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2g}%" if rate < 0.995 else "100%"


def make_promise(
    episodes: Sequence[EpisodePrediction],
    rate: Fraction,
    confidence: Fraction,
    *,
    labeled: NonNegativeInt | None = None,
    floor: float = 0.0,
) -> Promise:
    """
    episodes: that thresholds are tried on
    labeled: how many episodes there are in all, where only some could be used; None: these
    floor: of thresholds; those below are not used, whatever they are proven for
    """
    scores = [one.success_prob[one.target == 0] for one in episodes if (one.target == 0).any()]
    steps = [_step(episodes, one, confidence, floor) for one in sorted({*RATES, rate}) if 0 < one < 1]
    own = next((step for step in steps if step.rate == rate), None)
    return Promise(
        rate=rate,
        confidence=confidence,
        episodes=len(scores),
        labeled=len(episodes) if labeled is None else labeled,
        needed=None if own is None else own.needed,
        threshold=None if own is None else own.threshold,
        steps=tuple(steps),
    )


def _step(episodes: Sequence[EpisodePrediction], rate: float, confidence: float, floor: float) -> PromiseStep:
    threshold = proven_threshold(episodes, rate, confidence)
    recall = None
    if threshold is not None:
        threshold = max(threshold, floor)  # a stricter one keeps the rate too
        successes = np.concatenate([one.predicted(threshold)[one.target == 1] for one in episodes])
        recall = float(successes.mean()) if len(successes) else None
    threshold = None if recall == 0 else threshold  # a judge that never predicts success keeps any promise
    return PromiseStep(rate=rate, needed=episodes_needed(rate, confidence), threshold=threshold, recall=recall)


def proven_threshold(episodes: Sequence[EpisodePrediction], rate: float, confidence: float) -> float | None:
    """The lowest at which the episodes prove the rate; None where they do at none. Never below the lowest score."""
    failures = [np.sort(one.success_prob[one.target == 0]) for one in episodes if (one.target == 0).any()]
    if not failures:
        return None
    scores = np.unique(np.concatenate(failures))[::-1]  # from the strictest on

    def proven(passing: int) -> bool:
        """Whether the highest `passing` of these may pass."""
        lowest = scores[passing - 1] if passing else np.inf
        losses = np.array([1 - np.searchsorted(one, lowest) / len(one) for one in failures])
        return p_value(losses, rate) <= 1 - confidence

    if not proven(0):
        return None
    low, high = 0, len(scores) + 1  # proven, not proven
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if proven(middle) else (low, middle)
    if low == len(scores):
        return float(scores[-1])
    return midway(scores[low], np.concatenate([one.success_prob[one.has_target] for one in episodes]))


def midway(score: np.float32, scores: FloatArray) -> float:
    """Between a score and the next higher one, or 1 where there is none; above it in any case."""
    above = scores[scores > score]
    middle = (float(score) + float(above.min() if len(above) else 1.0)) / 2
    return float(max(np.float32(middle), np.nextafter(score, np.float32(2))))


def episode_losses(episodes: Sequence[EpisodePrediction], threshold: float) -> FloatArray:
    """[E] of each episode that has failure frames, the share of these that is predicted a success."""
    losses = [one.predicted(threshold)[one.target == 0].mean() for one in episodes if (one.target == 0).any()]
    return np.array(losses, np.float32)


# The test


def p_value(losses: AnyArray, rate: float) -> float:
    """How surprising losses [E] in 0 to 1 are if their mean is `rate` or more; falls with the rate, rises with each."""
    return float(min(1.0, np.exp(-_log_capital(_log_factors(losses, rate).sum(axis=1)))))


def upper_bound(losses: AnyArray, confidence: float) -> float:
    """The mean of the losses to come is at most this, with that confidence."""
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if p_value(losses, middle) <= 1 - confidence else (middle, high)
    return high


def episodes_needed(rate: float, confidence: float, actual: float = 0.0) -> int:
    """To prove a rate without a single mistake, or where as many episodes are wrong as `actual` says, below the rate.

    How many are wrong is a matter of luck: this is where the count is the expected one, which is as likely to be more.
    """
    right, wrong = (_log_factors(np.full(1, loss), rate)[:, 0] for loss in (0.0, 1.0))

    def enough(episodes: int) -> bool:
        mistakes = math.ceil(actual * episodes)
        lost = mistakes * wrong if mistakes else 0.0
        return _log_capital((episodes - mistakes) * right + lost) >= -math.log(1 - confidence)

    low, high = 0, 1  # not enough, enough
    while not enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _log_factors(losses: AnyArray, rate: float) -> AnyArray:
    """[bets, E] by what each episode multiplies the capital of each bet."""
    losses = np.asarray(losses, np.float64)
    with np.errstate(divide="ignore"):
        return np.log1p(_BETS[:, None] * (rate - losses) / (1 - rate))


def _log_capital(log_capitals: AnyArray) -> float:
    """Of all bets together."""
    return float(np.logaddexp.reduce(np.log(_WEIGHTS) + log_capitals))
