"""A vision-language model as a judge: its log-odds of yes and no, frame by frame, calibrated."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from plaudit.errors import PlauditError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.rule import DecisionRule
from plaudit.types import Episode, FloatArray, JudgeId, Scores

SOURCE = "vlm"


class Backend(Protocol):
    """Where the model runs: in this process, or behind an endpoint."""

    fingerprint: str  # of weights, question, cameras, size and precision
    notes: tuple[str, ...]

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """Log-odds of success of each recorded frame."""
        ...


class VlmJudge:
    """A `Judge`. It is causal, but too slow to be asked while a robot moves."""

    def __init__(self, backend: Backend, rule: DecisionRule, calibration: PlattScaling | None = None):
        self.backend, self.rule = backend, rule
        self.warnings = tuple(backend.notes)
        self.uncalibrated = backend.fingerprint
        self.id = JudgeId(SOURCE, fingerprint_of(backend.fingerprint, calibration), rule.key())
        self._calibration = calibration or PlattScaling()

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Every frame of each episode, many episodes in one pass."""
        return [
            answer if isinstance(answer, PlauditError) else self._scores(episode, answer)
            for episode, answer in zip(episodes, self.backend.score(episodes), strict=True)
        ]

    def _scores(self, episode: Episode, log_odds: FloatArray) -> Scores:
        prob = np.full(episode.steps + 1, np.nan, np.float32)
        prob[episode.recorded] = self._calibration(log_odds)
        return Scores(prob)
