"""A vision-language model as a judge: its logits of yes against no, frame by frame, calibrated."""

from collections.abc import Sequence

import numpy as np

from plaudit.errors import PlauditError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.vlm.backend import VlmBackend
from plaudit.rule import DecisionRule
from plaudit.types import Episode, FloatArray, JudgeId, Scores

SOURCE = "vlm"


class VlmJudge:
    """A `Judge`. It is causal, but too slow to be asked while a robot moves."""

    def __init__(self, backend: VlmBackend, rule: DecisionRule, calibration: PlattScaling | None = None):
        self.backend, self.rule = backend, rule
        self.warnings = backend.warnings
        self.uncalibrated = backend.fingerprint
        self.trained_on = backend.trained_on
        self.id = JudgeId(SOURCE, fingerprint_of(backend.fingerprint, calibration), rule.key())
        self._calibration = calibration or PlattScaling()

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Every frame of each episode, many episodes in one pass."""
        return [
            answer if isinstance(answer, PlauditError) else self._scores(episode, answer)
            for episode, answer in zip(episodes, self.backend.score(episodes), strict=True)
        ]

    def _scores(self, episode: Episode, logits: FloatArray) -> Scores:
        prob = np.full(episode.steps + 1, np.nan, np.float32)
        prob[episode.observed] = self._calibration(logits)
        return Scores(prob)
