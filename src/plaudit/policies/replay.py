"""A policy that replays the actions of a recorded episode, whatever it observes.

It counts executed actions: a whole chunk after `predict`, and `executed` before `guided_inference`. At the end it
repeats the last action, and the next `predict` starts again from the first.
"""

from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.config import Config, NonNegativeInt, SmallInt
from plaudit.data.store import Store
from plaudit.policies.fixed import FixedPolicy
from plaudit.policies.guidance import blend_with_previous
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation


class ReplayConfig(Config):
    """Settings of a policy that repeats a recorded episode."""

    type: Literal["replay"] = "replay"
    store: Path
    episode: NonNegativeInt = 0  # its id in the store
    horizon: SmallInt = 1  # actions of a chunk

    def build(self) -> "ReplayPolicy":
        """Read the episode."""
        return ReplayPolicy(Store.open(self.store).episode(self.episode).actions, self.horizon)


class ReplayPolicy(FixedPolicy):
    """Repeats recorded actions [T, A]."""

    no_weights = "recorded actions have no weights to load"

    def __init__(self, actions: FloatArray, horizon: int = 1):
        super().__init__()
        self._actions, self._horizon = np.array(actions, np.float32), horizon
        self._next = 0  # the action that the next predict begins with

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """The next recorded actions [H, A]."""
        start = self._next if self._next < len(self._actions) else 0
        return self._chunk(start)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """The same, blended with what is left of the previous chunk."""
        start = max(0, self._next - self._horizon) + executed
        return blend_with_previous(previous, self._chunk(start), delay, executed)

    def _chunk(self, start: int) -> FloatArray:
        self._next = start + self._horizon
        return self._actions[np.minimum(np.arange(start, self._next), len(self._actions) - 1)]
