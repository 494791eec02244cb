"""What labeled episodes prove about a judge's scores: a guaranteed false-positive rate, and what it may decide alone.

    guarantee = make_guarantee(episodes, rate=0.01, confidence=0.9)
    guarantee.threshold        # the lowest one that keeps the rate; None if the episodes prove none

    rights = prove_rights(predictions, judge.rule, judge.id.fingerprint, max_error=0.05, confidence=0.9)
    rights.decides(success=True, score=judge.rule.episode_score(success_prob))

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

Files and options call a guarantee `promise`.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Self

import numpy as np
from pydantic import Field

from plaudit.config import Config, Fraction, NonNegativeInt, Number, SmallInt
from plaudit.judges.metrics import EpisodePrediction
from plaudit.judges.stats import episodes_needed, p_value, upper_bound
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import AnyArray, FloatArray

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
            return (
                f"guaranteed for new episodes, with {self.confidence:.0%} confidence: {what} or less, by "
                f"{self.episodes} episodes"
            )
        if self.more is None:
            return f"{what} cannot be guaranteed by any number of episodes; the threshold is not proven"
        why = (
            f"too few episodes to guarantee {what}: label at least {self.more:,} more ({self.episodes} of "
            f"{self.labeled} could be used for it, and it takes {self.needed:,})"
        )
        if self.more == 0:
            why = (
                f"{what} cannot be guaranteed: no threshold that predicts any success keeps it on {self.episodes} "
                "episodes; look at the largest errors, and train with more episodes like these"
            )
        why += "; the threshold in use is not proven"
        if self.bound is not None:
            why += f", {self.bound_episodes} episodes that did not choose it bound its rate to {_percent(self.bound)}"
        if (step := self.next_best) is None:
            return f"{why}, and no threshold is proven to keep even {_percent(RATES[-1])}"
        return f"{why}; a threshold of {step.threshold:.4g} is proven for a rate of {_percent(step.rate)}"


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
        parts = []
        for what, score, episodes, kind in (
            ("success", self.success_from, self.failures, "fail"),
            ("failure", self.failure_to, self.successes, "succeed"),
        ):
            needed = episodes_needed(self.max_error, self.confidence)
            lack = f"label at least {needed - episodes} more that {kind}" if episodes < needed else "it errs too often"
            part = f"decides {what} never alone: {lack} ({episodes} were tried, it takes {needed} without a mistake)"
            if score is not None:
                part = (
                    f"decides {what} alone {'from' if what == 'success' else 'up to'} a score of {score:.4g}, wrong in "
                    f"at most {self.max_error:.2g} of the episodes that {kind} (by {episodes} of them, "
                    f"{self.confidence:.0%} confidence)"
                )
            parts.append(part)
        return f"in a cascade it {'; and it '.join(parts)}"


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
