"""When was the task done? From P(success) of each frame to the first frame that counts, live or seen whole.

    first_success   k of the last n frames are called: what a robot could have known at that moment
    decode_cutoff   the single moment that makes all the frames most likely, success from there on, or never

A success that is called too early or too late ends the episode at the wrong moment, so both are measured against the
first true one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import AfterValidator, PositiveInt

from plaudit.errors import RewardError
from plaudit.judges.scored import Scored, called_success, first_of
from plaudit.types import AnyArray, BoolArray

Confirm = tuple[int, int]  # k of the last n frames must be called before the episode is


def _can_be_met(confirm: Confirm) -> Confirm:
    k, n = confirm
    if k > n:
        raise ValueError(f"{k} of the last {n} frames can never be called; give (k, n) with k <= n")
    return confirm


ConfirmKey = Annotated[tuple[PositiveInt, PositiveInt], AfterValidator(_can_be_met)]  # the same in a config


def first_success(probability: AnyArray, threshold: float, confirm: Confirm = (1, 1)) -> int | None:
    """The first frame at which k of the last n frames are called: what a robot could know at that moment."""
    return first_of(confirmed(called_success(probability, threshold), confirm))


def decode_cutoff(probability: AnyArray, shift: int = 0, even: float = 0.5) -> int | None:
    """The cutoff that makes the probabilities most likely: failure before it, success from it on; None for never.

    Unlike `first_success` it sees the whole episode, so a flicker does not fool it: it is for labels, not for robots.
    Moving the cutoff one frame earlier turns log(1 - p) of that frame into log p, so the best one has the largest sum
    of log-odds from it on, if any sum is positive. Where success ends before the episode does, give it the part before.
    Of two that are alike it is the later. A frame of which nothing was said, NaN, speaks for neither.

    shift: frames that this judge is known to be late by, see `fit_shift`
    even: the probability that speaks neither for success nor against it; a judge that is to be strict has a high one
    """
    least, most = 1e-4, 1 - 1e-4  # no single frame decides for all
    p, even = np.clip(np.asarray(probability, np.float64), least, most), min(max(even, least), most)
    evidence = np.nan_to_num(np.log(p / even) - np.log((1 - p) / (1 - even)))
    gain = np.cumsum(evidence[::-1])  # of the last frame, of the last two, ...
    if not len(gain) or gain.max() <= 1e-9:
        return None
    cutoff = len(gain) - 1 - int(np.argmax(gain >= gain.max() - 1e-9))
    return min(max(cutoff - shift, 0), len(gain) - 1)


def fit_shift(episodes: Sequence[Scored], even: float = 0.5) -> int:
    """How many frames late decoded cutoffs will be, by the median of these episodes; below 0 for early.

    A robot lingers before a grasp and is quick after it, so there are more frames that look almost like success than
    frames that are only just one, and a judge that is right about most of them turns a few frames late; a strict one
    turns later. So it belongs to one `even`. A median of a few episodes is taken with caution: of E, as E / (E + 1).
    """
    errors = [error for error in decoded_errors(episodes, even=even).errors if error is not None]
    return round(float(np.median(errors)) * len(errors) / (len(errors) + 1)) if errors else 0


@dataclass(frozen=True)
class CutoffErrors:
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


def cutoff_errors(episodes: Sequence[Scored], threshold: float, confirm: Confirm = (1, 1)) -> CutoffErrors:
    """Of episodes in which some frame has a truth; a call on a frame without one is passed over."""
    errors: list[int | None] = []
    calls: list[bool] = []
    for episode in episodes:
        call = first_of(confirmed(episode.called(threshold), confirm) & episode.judged)
        if episode.first is not None:
            errors.append(None if call is None else call - episode.first)
        elif episode.judged.any():
            calls.append(call is not None)
    return CutoffErrors.of(errors, calls)


def decoded_errors(episodes: Sequence[Scored], shift: int = 0, even: float = 0.5) -> CutoffErrors:
    """The same with `decode_cutoff`, which is given the known frames until success ends."""
    errors: list[int | None] = []
    calls: list[bool] = []
    for episode in episodes:
        known = np.flatnonzero(episode.judged)
        first = episode.first
        undone = None if first is None else first_of((episode.truth[known] == 0) & (known > first))
        cutoff = decode_cutoff(episode.probability[known[:undone]], shift, even)
        if first is not None:
            errors.append(None if cutoff is None else int(known[cutoff]) - first)
        elif len(known):
            calls.append(cutoff is not None)
    return CutoffErrors.of(errors, calls)


def confirmed(called: BoolArray, confirm: Confirm) -> BoolArray:
    """[F] where k of the last n are called."""
    k, n = confirm
    if not 1 <= k <= n:
        raise RewardError(f"confirm must be (k, n) with 1 <= k <= n, got {confirm}")
    so_far = np.concatenate([np.zeros(n, int), np.cumsum(called)])  # calls up to each frame, none before the first
    return so_far[n:] - so_far[: len(called)] >= k
