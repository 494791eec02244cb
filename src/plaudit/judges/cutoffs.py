"""When was the task done? From P(success) of each frame to the first frame that counts, live or seen whole.

    onset_errors            by a rule as it decides live: k of the last n frames
    cutoff_decode_errors    by the single moment that makes all the frames most likely

A success that is called too early or too late ends the episode at the wrong moment, so both are measured against the
first true one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from plaudit.judges.scored import EpisodePrediction, first_true
from plaudit.rule import DecisionRule, decode_cutoff


def fit_cutoff_offset(episodes: Sequence[EpisodePrediction], threshold: float = 0.5) -> int:
    """How many frames late decoded cutoffs will be, by the median of these episodes; below 0 for early.

    A robot lingers before a grasp and is quick after it, so there are more frames that look almost like success than
    frames that are only just one, and a judge that is right about most of them turns a few frames late; a strict one
    turns later. So it belongs to one threshold. A median of a few episodes is taken with caution: of E, as E / (E + 1).
    """
    errors = [error for error in cutoff_decode_errors(episodes, threshold=threshold).errors if error is not None]
    return round(float(np.median(errors)) * len(errors) / (len(errors) + 1)) if errors else 0


@dataclass(frozen=True)
class OnsetErrors:
    """How far the first frame called lies from the first that shows success, and which episodes were called at all."""

    errors: tuple[int | None, ...]  # frames, of each episode that succeeds; below 0 is too early, None never called
    median: float  # of |error|, over those that were called; NaN for none
    p90: float  # 90th percentile of the same
    missed: int  # episodes that succeed and were never called
    false_calls: int  # episodes that fail and were called
    failing: int  # episodes that fail

    @classmethod
    def of(cls, errors: Sequence[int | None], calls: Sequence[bool]) -> Self:
        """From the errors of the episodes that succeed, and whether each that fails was called."""
        off = [abs(error) for error in errors if error is not None]
        median, p90 = (float(np.median(off)), float(np.quantile(off, 0.9))) if off else (math.nan, math.nan)
        return cls(tuple(errors), median, p90, list(errors).count(None), sum(calls), len(calls))


def onset_errors(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> OnsetErrors:
    """Of episodes in which some frame has a truth; a call on a frame without one is passed over."""
    errors: list[int | None] = []
    calls: list[bool] = []
    for episode in episodes:
        call = first_true(rule.decide(episode.probability) & episode.judged)
        if episode.first is not None:
            errors.append(None if call is None else call - episode.first)
        elif episode.judged.any():
            calls.append(call is not None)
    return OnsetErrors.of(errors, calls)


def cutoff_decode_errors(episodes: Sequence[EpisodePrediction], offset: int = 0, threshold: float = 0.5) -> OnsetErrors:
    """The same with `decode_cutoff`, which is given the known frames until success ends."""
    errors: list[int | None] = []
    calls: list[bool] = []
    for episode in episodes:
        known = np.flatnonzero(episode.judged)
        first = episode.first
        undone = None if first is None else first_true((episode.truth[known] == 0) & (known > first))
        cutoff = decode_cutoff(episode.probability[known[:undone]], offset, threshold)
        if first is not None:
            errors.append(None if cutoff is None else int(known[cutoff]) - first)
        elif len(known):
            calls.append(cutoff is not None)
    return OnsetErrors.of(errors, calls)
