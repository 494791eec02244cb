"""Where a vision-language model runs: in this process (local.py, processor.py) or behind a server (endpoint.py)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence

from plaudit.errors import PlauditError
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.prompt import Explanation, FramePrompt, build_prompt, parse_answer, prompt_fingerprint
from plaudit.types import Episode, FloatArray


class VlmBackend(ABC):
    """A model that scores frames and explains episodes."""

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
        """What the model says of an episode in words, ending with yes or no about its last frame."""
        try:
            return parse_answer(self.generate(build_prompt(self.config, episode)))
        except PlauditError as error:
            return Explanation("", None, str(error))
