"""The base of policies without weights: a script, a recording, a model behind a server."""

from collections.abc import Mapping
from typing import Any, ClassVar

from plaudit.errors import PolicyError
from plaudit.policies.guidance import blend_with_previous
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, PolicyWeights


class FixedPolicy:
    """A `Policy` that cannot be trained; a derived class implements `predict`."""

    no_weights: ClassVar[str]  # the message where somebody sends weights
    counts_calls: ClassVar[bool] = True  # whether to be asked before the first episode changes what it does in it

    def __init__(self) -> None:
        self.components: Mapping[str, Any] = {}

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """Actions [H, A] in the robot's units."""
        raise NotImplementedError

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """A new chunk [H, A], blended with what is left of the previous one."""
        return blend_with_previous(previous, self.predict(observation, normalizer), delay, executed)

    def warmup(self) -> None:
        """Do nothing: the first call is as fast as the others."""

    def freeze_all_model_params(self) -> None:
        """Do nothing: there are none."""

    def load_weights(self, weights: PolicyWeights) -> None:
        """Raise `PolicyError` if there are any."""
        if weights.tensors:
            raise PolicyError(self.no_weights)
