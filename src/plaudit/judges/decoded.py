"""Any judge, with its verdicts made into one cutoff, or by another rule.

    Decoded(SimulatorLabeler(), Rule(decode="cutoff"))

A judge that gives numbers has a rule already (`FrameLabeler`). This is for the others: those that only say yes and no,
and those whose labels came from elsewhere. What they said of each frame is kept as the probability.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from plaudit.judges.frames import EpisodeJudge, Rule, labels_of
from plaudit.types import Episode, FloatArray, Labels


class Decoded:
    """An `EpisodeJudge` around another."""

    def __init__(self, judge: EpisodeJudge, rule: Rule):
        self.judge, self.rule = judge, rule
        self.source = judge.source

    @property
    def facts(self) -> dict[str, Any]:
        inner = self.judge.facts
        note = f"{inner['note']}; {self.rule.words}" if inner["note"] else self.rule.words
        before = {name: value for name, value in inner.items() if name not in ("model", "note")}
        rule = json.dumps({"of": before, "rule": json.loads(self.rule.exact)}, sort_keys=True)
        return {"model": inner["model"], "threshold": self.rule.threshold, "note": note, "rule": rule}

    def label(self, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
        return [said if isinstance(said, Exception) else self.decode(said) for said in self.judge.label(episodes)]

    def decode(self, labels: Labels) -> Labels:
        """Frames that were not judged stay so, and speak for neither."""
        said = probability_of(labels)
        return labels_of(said, self.rule.success(said), source=self.source, **self.facts)


def probability_of(labels: Labels) -> FloatArray:
    """[T+1] what a judge said of each frame: its P(success), or 1 and 0; NaN where it said nothing."""
    if labels.probability is None:
        return labels.frames
    steps = np.where(labels.judged, labels.probability, np.nan)
    return np.concatenate([[labels.start], steps]).astype(np.float32)
