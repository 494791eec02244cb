"""A judge that scores what it was told to, of any episode and live: probabilities you can count on your fingers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plaudit.rule import DecisionRule
from plaudit.types import BoolArray, Episode, JudgeId, Observation, Scores


class Told:
    """A `LiveJudge` of one environment: frame 0 first."""

    def __init__(self, *prob: float, progress: tuple[float, ...] = (), **rule: Any):
        self.scores = Scores(np.array(prob, np.float32), np.array(progress, np.float32) if progress else None)
        self.rule = DecisionRule(**rule)
        self.id = JudgeId("told", "told", self.rule.key())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores]:
        return [self.scores for _ in episodes]

    def stream(self, num_envs: int) -> "ToldStream":
        return ToldStream(self.scores, num_envs)


class ToldStream:
    def __init__(self, scores: Scores, num_envs: int):
        self._scores, self._num_envs, self._frame = scores, num_envs, 0

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        self._frame = -1
        return self.step(observation, {})

    def step(self, observation: Observation, info: Mapping[str, Any]) -> Scores:
        self._frame += 1
        prob, progress = self._scores.success_prob, self._scores.progress
        now = [self._frame] * self._num_envs
        return Scores(prob[now], None if progress is None else progress[now])
