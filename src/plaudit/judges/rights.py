"""The right to decide alone: from which scores on a judge's word about an episode is proven good enough.

    rights = prove_rights(predictions, judge.rule, judge.id.fingerprint, max_error=0.05, confidence=0.9)
    rights.decides(success=True, score=episode_score(success_prob, judge.rule))

An episode's score is the highest threshold at which the judge's rule would still call it a success. What is proven, as
promise.py proves a threshold: of all episodes that fail, at most `max_error` have a score from which on the judge may
call them a success; of all that succeed, at most `max_error` have one up to which it may call them a failure. Both are
shares of all episodes of that kind, also of those that it leaves to others, so they do not depend on how often the
policy succeeds, and the errors of several judges who are asked in turn add up to no more than the sum of theirs.

What it takes are episodes that the judge has not seen, which were not chosen by its scores: among those that it was
unsure of, the ones that it is sure and wrong about are missing.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
from pydantic import Field

from plaudit.config import Config, NonNegativeInt, Number, SmallInt
from plaudit.judges.predictions import EpisodePrediction
from plaudit.judges.promise import episodes_needed, proven_threshold
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import FloatArray


class Rights(Config):
    """Of one judge, one calibration and one window of frames."""

    fingerprint: str  # of the judge that they were proven for
    k: SmallInt  # of its rule: of the last n frames, how many decide
    n: SmallInt
    max_error: float = Field(gt=0, lt=1)
    confidence: float = Field(gt=0, lt=1)  # of each of the two
    failures: NonNegativeInt  # episodes that fail, by which `success_from` was tried
    successes: NonNegativeInt  # and that succeed, by which `failure_to` was
    success_from: Number | None = None  # score from which on it may call a success; None: none is proven
    failure_to: Number | None = None  # score up to which it may call a failure

    @property
    def any(self) -> bool:
        """Whether it may decide anything alone."""
        return self.success_from is not None or self.failure_to is not None

    def covers(self, other: Self) -> bool:
        """Whether it may call a success, and a failure, where the other may, from whatever score."""
        kinds = ((self.success_from, other.success_from), (self.failure_to, other.failure_to))
        return all(mine is not None or theirs is None for mine, theirs in kinds)

    def decides(self, success: bool, score: float) -> bool:
        """Whether it may decide alone that an episode of this score is a success, or is none."""
        if success:
            return self.success_from is not None and bool(above_threshold(score, self.success_from))
        return self.failure_to is not None and bool(above_threshold(1 - score, 1 - self.failure_to))

    def describe(self) -> str:
        """For people: what it may decide, or what it takes."""
        parts = [
            self._part("success", "from", self.success_from, self.failures, "fail"),
            self._part("failure", "up to", self.failure_to, self.successes, "succeed"),
        ]
        return f"in a cascade it {'; and it '.join(parts)}"

    def _part(self, what: str, word: str, score: float | None, episodes: int, kind: str) -> str:
        if score is not None:
            return (
                f"decides {what} alone {word} a score of {score:.4g}, wrong in at most {self.max_error:.2g} of the "
                f"episodes that {kind} (by {episodes} of them, {self.confidence:.0%} confidence)"
            )
        needed = episodes_needed(self.max_error, self.confidence)
        lack = f"label at least {needed - episodes} more that {kind}" if episodes < needed else "it errs too often"
        return f"decides {what} never alone: {lack} ({episodes} were tried, it takes {needed} without a mistake)"


def episode_score(success_prob: FloatArray, rule: DecisionRule) -> float:
    """The highest threshold at which k of the last n frames would reach it somewhere; a frame without a score is 0."""
    k, n = rule.window
    padded = np.concatenate([np.zeros(n - 1, np.float32), np.nan_to_num(success_prob)])
    windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, n), axis=1)
    return float(windows[:, n - k].max())


def prove_rights(
    episodes: Sequence[EpisodePrediction], rule: DecisionRule, fingerprint: str, max_error: float, confidence: float
) -> Rights:
    """
    episodes: whole ones, that the judge has not seen, with the probabilities that the rule decides by
    fingerprint: of the judge that has these probabilities
    """
    scores = [episode_score(one.success_prob, rule) for one in episodes]
    success = [bool((one.target == 1).any()) for one in episodes]
    k, n = rule.window
    return Rights(
        fingerprint=fingerprint,
        k=k,
        n=n,
        max_error=max_error,
        confidence=confidence,
        failures=success.count(False),
        successes=success.count(True),
        success_from=_proven(scores, success, max_error, confidence),
        failure_to=_flipped(_proven([1 - s for s in scores], [not s for s in success], max_error, confidence)),
    )


def _proven(scores: Sequence[float], success: Sequence[bool], max_error: float, confidence: float) -> float | None:
    """The lowest score of a success that few enough of the failing episodes reach; where nothing was seen, nobody is
    sure. An episode is a frame of its own here."""
    each = [
        EpisodePrediction(np.array([score]), np.array([float(kind)]), number)
        for number, (score, kind) in enumerate(zip(scores, success, strict=True))
    ]
    threshold = proven_threshold(each, max_error, confidence)
    reached = [] if threshold is None else [s for s, kind in zip(scores, success) if kind and s >= threshold]
    return min(reached, default=None)


def _flipped(threshold: float | None) -> float | None:
    return None if threshold is None else 1 - threshold
