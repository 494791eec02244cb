"""Scripted policies: demonstrations on demand, and failures worth learning from."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np

from plaudit.envs.tabletop import TABLE
from plaudit.errors import ConfigError, nearest
from plaudit.protocols import Normalizer
from plaudit.types import FloatArray, Observation, Weights

HIGH_ENOUGH = 0.6  # over the line that counts as lifted, and still in the picture
Outcome = Literal["success", "miss", "drop"]


class ScriptedLift:
    """Lifts the cube of `envs.tabletop`, or fails in a way that looks nearly right."""

    def __init__(self, outcome: Outcome = "success"):
        if outcome not in get_args(Outcome):
            raise ConfigError([((), f"there is no outcome '{outcome}'; {nearest(outcome, get_args(Outcome))}")])
        self.components: Mapping[str, Any] = {}
        self._outcome = outcome
        self._closed = 0

    def predict(self, observation: Observation, normalizer: Normalizer | None = None) -> FloatArray:
        """One action, [1, 3]."""
        x, z, _, cube_x, cube_z = observation.state
        target = cube_x + (0.13 if self._outcome == "miss" else 0.0)
        over = abs(target - x) < 0.015
        if self._closed == 0 and not (over and z < TABLE + 0.02):
            return np.array([[target - x, (TABLE - z) if over else 0.0, -1.0]], np.float32)
        self._closed += 1
        lift = 0.06 if self._closed > 4 and z < HIGH_ENOUGH else 0.0
        let_go = self._outcome == "drop" and (cube_z > 0.3 or self._closed > 20)
        return np.array([[0.0, lift, -1.0 if let_go else 1.0]], np.float32)

    def guided_inference(
        self,
        observation: Observation,
        normalizer: Normalizer | None,
        previous: FloatArray,
        delay: int,
        executed: int,
    ) -> FloatArray:
        """A chunk of one has nothing left to agree with."""
        return self.predict(observation, normalizer)

    def warmup(self) -> None:
        """Nothing is slow the first time."""

    def freeze_all_model_params(self) -> None:
        """There are none."""

    def load_weights(self, weights: Weights) -> None:
        """There are none."""
