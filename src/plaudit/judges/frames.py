"""Judges that give every frame a number, and the rule that turns their numbers into labels.

    log-odds of each frame --temperature, bias--> P(success) --rule--> labels

    cutoff     the single moment that makes all the numbers most likely, success from there on, or never: most tasks
               succeed once and stay so, and a flicker does not fool it
    confirm    frames are called at the threshold, and count once k of the last n are: what a robot could have known
    frames     frames are called at the threshold, each by itself

A model (`FrameScorer`) knows nothing of rules, a rule nothing of models; `FrameLabeler` is the `Labeler` made of both.
A probability always stands on the label, so another rule needs no second look at the images.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field, PositiveFloat

from plaudit.config import Config
from plaudit.errors import PlauditError
from plaudit.judges.calibration import Calibration
from plaudit.judges.cutoffs import ConfirmKey, confirmed, decode_cutoff
from plaudit.judges.scored import called_success
from plaudit.protocols import Labeler
from plaudit.types import Episode, FloatArray, Labels

Decode = Literal["cutoff", "confirm", "frames"]


class Rule(Config):
    """From log-odds to labels; fitted by `plaudit judge calibrate` and stored with the judge."""

    temperature: PositiveFloat = 1.0  # log-odds are divided by it; above 1 for a judge that is surer than it should be
    bias: float = 0.0  # and this is added
    threshold: float = Field(default=0.5, gt=0)  # from which P(success) a frame is called
    decode: Decode = "cutoff"
    confirm: ConfirmKey = (2, 3)  # (k, n), for `confirm`
    shift: int = 0  # frames that this judge's cutoffs are late by, for `cutoff`

    def probability(self, log_odds: FloatArray) -> FloatArray:
        """[F]; NaN stays NaN."""
        return Calibration(self.temperature, self.bias)(log_odds)

    def success(self, probability: FloatArray) -> FloatArray:
        """[F] 1 or 0 for each frame, from P(success) of each."""
        if self.decode == "cutoff":
            cutoff = decode_cutoff(probability, self.shift, self.threshold)
            return (np.arange(len(probability)) >= (len(probability) if cutoff is None else cutoff)).astype(np.float32)
        called = called_success(probability, self.threshold)
        return (called if self.decode == "frames" else confirmed(called, self.confirm)).astype(np.float32)

    @property
    def exact(self) -> str:
        """How labels are made of log-odds, all but the threshold, as JSON: labels of equal rules are comparable."""
        how: dict[str, dict[str, Any]] = {
            "confirm": {"confirm": self.confirm},
            "frames": {},
            "cutoff": {"shift": self.shift},
        }
        fitted = {"temperature": self.temperature, "bias": self.bias}
        return json.dumps({"decode": self.decode, **how[self.decode], **fitted}, sort_keys=True)

    @property
    def words(self) -> str:
        """The same for a person to read."""
        k, n = self.confirm
        how = {"confirm": f"{k} of {n} frames", "frames": "by frame", "cutoff": f"one cutoff, shift {self.shift}"}
        fitted = (self.temperature, self.bias) != (1, 0)
        return how[self.decode] + (f", temperature {self.temperature:.4g}, bias {self.bias:.4g}" if fitted else "")


EpisodeJudge = Labeler


class FrameScorer(Protocol):
    """A model that looks at episodes."""

    source: str  # the name that stands on its labels: "vlm", "classifier"

    @property
    def fingerprint(self) -> str:
        """Of all that decides its numbers: weights, question, cameras, size."""
        ...

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """Log-odds of success of each recorded frame, [len(recorded frames)] each; the error where one could not be
        judged. They are causal: a frame's number depends on no later frame."""
        ...


class FrameLabeler:
    """An `EpisodeJudge` of a scorer and a rule."""

    def __init__(self, scorer: FrameScorer, rule: Rule, notes: Sequence[str] = ()):
        """notes: what to tell of it before it is asked"""
        self.scorer, self.rule, self.notes = scorer, rule, tuple(notes)
        self.source = scorer.source

    @property
    def fingerprint(self) -> str:
        return self.scorer.fingerprint

    @property
    def facts(self) -> dict[str, Any]:
        said = {"note": self.rule.words, "rule": self.rule.exact}
        return {"model": self.fingerprint, "threshold": self.rule.threshold, **said}

    def label(self, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
        return [
            said if isinstance(said, Exception) else self.verdict(episode, said)
            for episode, said in zip(episodes, self.scorer.score(episodes), strict=True)
        ]

    def verdict(self, episode: Episode, log_odds: FloatArray) -> Labels:
        """Labels of one episode from the log-odds of its recorded frames."""
        probability = self.rule.probability(log_odds)
        frames = np.full((2, episode.steps + 1), np.nan, np.float32)
        frames[:, episode.recorded] = probability, self.rule.success(probability)
        return labels_of(*frames, source=self.source, **self.facts)


def labels_of(probability: FloatArray, success: FloatArray, **who: Any) -> Labels:
    """Of P(success) and the verdict, 1 or 0, on each frame, [T+1] both; NaN where nothing was said of a frame.

    A label has one number for frame 0, which is read at the threshold. It is the probability where that says the same
    as the verdict, and the verdict where a rule decided otherwise.
    """
    success = np.where(np.isnan(probability), np.float32(np.nan), success)
    labels = Labels(
        reward=success[1:].copy(),
        success=success[1:] == 1,
        probability=probability[1:].copy(),
        start=float(probability[0]),
        **who,
    )
    return labels if labels.start_success == (success[0] == 1) else replace(labels, start=float(success[0]))
