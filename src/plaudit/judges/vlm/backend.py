"""Where a vision-language model runs: in this process (local.py, processor.py) or behind a server (endpoint.py)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from plaudit.errors import PlauditError
from plaudit.judges.vlm.prompt import Explanation
from plaudit.types import Episode, FloatArray


class VlmBackend(ABC):
    """A model that scores frames and explains episodes."""

    fingerprint: str  # of weights, question, cameras, size and precision
    warnings: tuple[str, ...] = ()  # what a user should know before its labels are used

    @abstractmethod
    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """The logit of success of each observed frame; an error where an episode cannot be scored."""

    @abstractmethod
    def explain(self, episode: Episode) -> Explanation:
        """What the model says of an episode in words, ending with yes or no about its last frame."""
