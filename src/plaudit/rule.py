"""The decision rule: the only place where P(success) of frames becomes success.

    rule = DecisionRule(threshold=0.9)               # 2 of the last 3 frames at 0.9 or more
    rule.decide(scores.success_prob)                 # [T+1] of a whole episode
    tracker = rule.tracker(num_envs)                 # the same while it happens
    tracker.reset(); tracker.update(success_prob)    # [N] -> [N]

`decide` runs the tracker, so that an episode gets the same labels live, when it is labeled afterwards and when a judge
is evaluated. A single frame above the threshold is no success yet: one false frame in a hundred, here and there, would
end half of all failing episodes of 70 steps.

A cutoff is the single moment that makes all the scores of an episode most likely, with success from there on, or never.
It sees the whole episode, so it is for annotating data sets; anything live refuses it.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import PlainSerializer, ValidationError, model_validator

from plaudit.config import Config, FrameOffset, PositiveFloat, SmallInt
from plaudit.errors import JudgeError
from plaudit.types import TRUSTED, AnyArray, BoolArray, Episode, FloatArray, JudgeId, Labels, Scores

Decode = Literal["per_frame", "k_of_n", "cutoff"]
OodAction = Literal["accept", "audit", "abstain", "escalate"]


class DecisionRule(Config):
    """From P(success) of frames to success."""

    threshold: PositiveFloat = 0.5  # a frame at or above it speaks for success
    decode: Decode = "k_of_n"  # per_frame: each frame by itself; cutoff: one moment, for annotating data only
    k: SmallInt = 2  # k_of_n: of the last n frames, how many must reach the threshold
    n: SmallInt = 3  # k_of_n: how many frames are looked at
    cutoff_offset: FrameOffset = 0  # cutoff: frames that this judge's cutoffs are late by
    # What happens to an out-of-distribution episode. accept: it is labeled as any other; audit: withheld until an audit
    # agrees; abstain: not labeled; escalate: passed on by a cascade. None: accept; in a training run, audit if a person
    # audits, otherwise abstain.
    ood: OodAction | None = None

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if self.k > self.n:
            raise ValueError(f"{self.k} of the last {self.n} frames can never be above the threshold; k is at most n")
        return self

    @property
    def causal(self) -> bool:
        """Whether success of a frame depends on no later one."""
        return self.decode != "cutoff"

    @property
    def withholds(self) -> bool:
        """Whether an episode that is out of distribution gets no labels at first."""
        return self.ood not in (None, "accept")

    @property
    def window(self) -> tuple[int, int]:
        """(k, n) of the frames that decide."""
        return (self.k, self.n) if self.decode == "k_of_n" else (1, 1)

    def decide(self, success_prob: FloatArray) -> BoolArray:
        """[F] -> [F] success of the frames of a whole episode; NaN never speaks for it."""
        if not self.causal:
            cutoff = decode_cutoff(success_prob, self.cutoff_offset, self.threshold)
            return np.arange(len(success_prob)) >= (len(success_prob) if cutoff is None else cutoff)
        tracker = self.tracker(1)
        return np.array([tracker.update(success_prob[t : t + 1])[0] for t in range(len(success_prob))], bool)

    def episode_score(self, success_prob: FloatArray) -> float:
        """The highest threshold that k of n frames in a row reach; a frame without a score counts as 0."""
        k, n = self.window
        padded = np.concatenate([np.zeros(n - 1, np.float32), np.nan_to_num(success_prob)])
        windows = np.sort(np.lib.stride_tricks.sliding_window_view(padded, n), axis=1)
        return float(windows[:, n - k].max())

    def tracker(self, num_envs: int) -> "DecisionTracker":
        """For N environments while they run; a rule that is not causal is refused."""
        if not self.causal:
            raise JudgeError(
                "decode 'cutoff' needs the whole episode, and here success is decided while it runs; set the judge's "
                "rule.decode to k_of_n or per_frame"
            )
        return DecisionTracker(self, num_envs)

    def key(self) -> Self:
        """The rule without what is not in use: rules of equal keys give equal labels."""
        used = {"k_of_n": ("k", "n"), "per_frame": (), "cutoff": ("cutoff_offset",)}[self.decode]
        ood = ("ood",) if self.withholds else ()
        return type(self)(**{name: getattr(self, name) for name in ("threshold", "decode", *used, *ood)})

    @classmethod
    @lru_cache(maxsize=256)
    def parse(cls, text: str) -> "DecisionRule | None":
        """From JSON; None if it is empty, or no rule of this version."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None

    def describe(self) -> str:
        """For people."""
        how = {
            "k_of_n": f"{self.k} of {self.n} frames",
            "per_frame": "each frame",
            "cutoff": f"one cutoff, offset {self.cutoff_offset}",
        }
        return f"{how[self.decode]} at {self.threshold:.4g}"


# A rule in a config: what was not set is the judge's own, and is still not set when the config is written and read.
PartialRule = Annotated[DecisionRule, PlainSerializer(lambda rule: rule.model_dump(mode="json", exclude_unset=True))]


class DecisionTracker:
    """A causal rule over N environments, whose episodes may be at different steps."""

    def __init__(self, rule: DecisionRule, num_envs: int):
        self._threshold = rule.threshold
        self._k, self._n = rule.window
        self._above = np.zeros((self._n, num_envs), bool)  # of the last n frames, in turn
        self._frame = np.zeros(num_envs, int)

    def reset(self, mask: BoolArray | None = None) -> None:
        """Forget the frames so far: of all environments, or of those [N] that start anew."""
        rows = slice(None) if mask is None else mask
        self._above[:, rows] = False
        self._frame[rows] = 0

    def update(self, success_prob: FloatArray, mask: BoolArray | None = None) -> BoolArray:
        """[N] success, from P(success) [N] of the next frames. mask: [N] the environments that have a next one."""
        rows = np.arange(len(self._frame)) if mask is None else np.flatnonzero(mask)
        self._above[self._frame[rows] % self._n, rows] = above_threshold(success_prob[rows], self._threshold)
        self._frame[rows] += 1
        return self._above.sum(axis=0) >= self._k


def above_threshold(success_prob: AnyArray | float, threshold: float) -> BoolArray:
    """In float32 on both sides: a threshold that was rounded would let through the frame it was chosen to keep out."""
    return np.asarray(success_prob, np.float32) >= np.float32(threshold)


def decode_cutoff(success_prob: AnyArray, offset: int = 0, threshold: float = 0.5) -> int | None:
    """The cutoff that makes the probabilities most likely: failure before it, success from it on; None for never.

    Moving the cutoff one frame earlier turns log(1 - p) of that frame into log p, so the best one has the largest sum
    of log-odds from it on, if any sum is positive; of two equal ones it is the later. NaN counts for neither. Where
    success ends before the episode does, pass the part before.

    offset: frames that this judge's cutoffs are late by
    threshold: the probability that speaks neither for success nor against it; a strict judge has a high one
    """
    low, high = 1e-4, 1 - 1e-4  # no single frame decides for all
    p, even = np.clip(np.asarray(success_prob, np.float64), low, high), min(max(threshold, low), high)
    evidence = np.nan_to_num(np.log(p / even) - np.log((1 - p) / (1 - even)))
    gain = np.cumsum(evidence[::-1])  # of the last frame, of the last two, ...
    if not len(gain) or gain.max() <= 1e-9:
        return None
    cutoff = len(gain) - 1 - int(np.argmax(gain >= gain.max() - 1e-9))
    return min(max(cutoff - offset, 0), len(gain) - 1)


def labels_from_scores(judge: JudgeId, rule: DecisionRule, episode: Episode, scores: Scores) -> Labels:
    """The one place where labels are made: what the rule decides about the frames that were recorded and scored.

    An episode that shows success before anything was done is not labeled, and a person should review it.
    """
    prob = np.full(episode.steps + 1, np.nan, np.float32)
    prob[episode.observed] = scores.success_prob[episode.observed]
    success = np.zeros(len(prob), bool)
    success[episode.observed] = rule.decide(prob[episode.observed])
    scored = ~np.isnan(prob)
    review = begins_with_success(success[scored], rule, judge)
    labeled = scored & (not (review or (scores.ood and rule.withholds)))
    note = "success from the first frame on, to be reviewed" if review else scores.note
    note = note or (f"out of distribution: {scores.ood}" if scores.ood else "")
    scores = replace(scores, success_prob=prob)
    return Labels(success & labeled, labeled, judge, scores, note=note, review=review, labeler=scores.labeler)


def begins_with_success(success: BoolArray, rule: DecisionRule, judge: JudgeId) -> bool:
    """Whether a judge finds success in the scored frames of an episode as early as its rule can decide it.

    Nothing was done by then: either the object already is where it usually ends, or the judge uses some other cue.
    """
    return judge.source not in TRUSTED and bool(success[: rule.window[0]].any())


def release(labels: Labels, rule: DecisionRule | None = None) -> Labels:
    """The decisions of a judge on an episode that it withheld; other labels as they are.

    rule: of the judge; None: as its id has it
    """
    rule = rule or labels.judge.rule
    if rule is None or not labels.withheld or labels.scores is None:
        return labels
    prob = labels.scores.success_prob
    success = rule.decide(prob) & ~np.isnan(prob)
    return replace(labels, success=success, labeled=~np.isnan(prob), time=0.0)


def awaits_audit(labels: Labels) -> bool:
    """Whether these are withheld until a person has labeled the episode."""
    return labels.withheld and labels.judge.rule is not None and labels.judge.rule.ood == "audit"


def without_ood(judge: JudgeId) -> JudgeId:
    """The same judge, whatever it does with out-of-distribution episodes."""
    rule = None if judge.rule is None else judge.rule.model_copy(update={"ood": None})
    return replace(judge, rule=rule, ood_detector="")


def threshold_of(judge: JudgeId) -> float | None:
    """The threshold by which labels of this judge were decided; None where there was none."""
    return None if judge.rule is None else judge.rule.threshold
