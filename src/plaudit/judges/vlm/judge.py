"""A vision-language model as a judge, and what it needs of where the model runs: in this process or behind a server.

The judge calibrates a backend's logits of yes against no, frame by frame.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from plaudit.errors import PlauditError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.prompt import Explanation, FramePrompt, build_prompt, parse_answer, prompt_fingerprint
from plaudit.rule import DecisionRule
from plaudit.types import Episode, FloatArray, JudgeId, Scores

SOURCE = "vlm"


class VlmBackend(ABC):
    """A model that scores frames and explains episodes: local.py, processor.py, endpoint.py."""

    warnings: tuple[str, ...] = ()  # what a user should know before its labels are used
    trained_on: str = ""  # keys of the episodes that an adapter learned from (data/episode_keys.py)

    def __init__(self, config: VlmJudgeConfig, *model: str):
        """model: what decides its answers besides the prompt: weights, template, precision"""
        self.config = config
        parts = [*model, prompt_fingerprint(config)]
        self.fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    @abstractmethod
    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """The logit of success of each observed frame; an error where an episode cannot be scored."""

    @abstractmethod
    def generate(self, prompt: FramePrompt) -> str:
        """The model's words about all frames of an episode."""

    def explain(self, episode: Episode) -> Explanation:
        """What the model says about an episode in words, ending with yes or no about its last frame."""
        try:
            return parse_answer(self.generate(build_prompt(self.config, episode)))
        except PlauditError as error:
            return Explanation("", None, str(error))


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
        answers: list[Scores | PlauditError] = []
        for episode, logits in zip(episodes, self.backend.score(episodes), strict=True):
            if isinstance(logits, PlauditError):
                answers.append(logits)
                continue
            prob = np.full(episode.steps + 1, np.nan, np.float32)
            prob[episode.observed] = self._calibration(logits)
            answers.append(Scores(prob))
        return answers
