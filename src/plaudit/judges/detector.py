"""Success while it happens: a live judge and its rule over N environments, in simulation and on a robot.

    detector = SuccessDetector(judge, num_envs)
    success = detector.reset(observation)             # [N]
    success = detector.step(observation, info)        # [N]; detector.scores has what the judge measured

The judge scores, the rule decides, and the recorder of the episode keeps the scores: labels are made of them
(`plaudit.rule.labels_from_scores`) without a second look at the images.
"""

import time
from collections.abc import Mapping

import numpy as np

from plaudit.protocols import LiveJudge
from plaudit.types import AnyArray, BoolArray, JudgeId, Observation, Scores


class SuccessDetector:
    """Says whose episode has succeeded. A rule that needs the whole episode is refused."""

    def __init__(self, judge: LiveJudge, num_envs: int):
        self.judge, self.num_envs = judge, num_envs
        self.scores = Scores(np.full(num_envs, np.nan, np.float32))  # of the newest frames
        self._tracker = judge.rule.tracker(num_envs)
        self._stream = judge.stream(num_envs)
        self._seconds, self._calls = 0.0, 0

    @property
    def id(self) -> JudgeId:
        """Id of the judge."""
        return self.judge.id

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> BoolArray:
        """[N] success of first frames. mask: [N] the environments that start anew, where not all do."""
        self._tracker.reset(mask)
        self.scores = self._stream.reset(observation, mask)
        return self._tracker.update(self.scores.success_prob, mask)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> BoolArray:
        """[N] success of the next frames."""
        begun = time.perf_counter()
        self.scores = self._stream.step(observation, info)
        success = self._tracker.update(self.scores.success_prob)
        self._seconds += time.perf_counter() - begun
        self._calls += 1
        return success

    def read_step_ms(self) -> float:
        """Milliseconds a step, of all environments together, since this was last read."""
        mean = 1000 * self._seconds / max(self._calls, 1)
        self._seconds, self._calls = 0.0, 0
        return mean
