"""A simulated person for gym_hil's PandaPickCube: `teleop.type=gym_hil_person:PickCubePersonConfig` (hil.py)."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from plaudit.policies.scripted import Outcome
from plaudit.rollout.scripted_teleop import ScriptedTeleop, ScriptedTeleopConfig
from plaudit.types import AnyArray, FloatArray

STEP_M = 0.025  # that an action of 1 moves the hand
LIFT_M = 0.1  # that counts as success
HOVER_M, ALIGNED_M, MISS_M = 0.08, 0.012, 0.06
CLOSE_STEPS = 3  # for the fingers to close


class PickCubePersonConfig(ScriptedTeleopConfig):
    """A person who corrects a policy of PandaPickCube, with the timing of `teleop.type=scripted`."""

    type: Literal["gym_hil_person:PickCubePersonConfig"] = "gym_hil_person:PickCubePersonConfig"  # pyright: ignore

    def build(self, action_dim: int) -> "PickCubePerson":
        """A person who has not seen the robot yet."""
        return PickCubePerson(self)


class PickCubePerson(ScriptedTeleop):
    """See `PickCubePersonConfig`."""

    def watch(self, env: Any) -> None:
        """Take the environment of a new episode."""
        self._data = env._envs[0].simulator.unwrapped.data  # of MuJoCo
        self._table = float(self._block[2])

    @property
    def _hand(self) -> AnyArray:
        return self._data.sensor("2f85/pinch_pos").data

    @property
    def _block(self) -> AnyArray:
        return self._data.sensor("block_pos").data

    def progress(self) -> float:
        """Near the block counts for 0.3, the height of the block for the rest."""
        near = 1 - np.tanh(5 * np.linalg.norm(self._block - self._hand))
        return float(0.3 * near + 0.7 * np.clip((self._block[2] - self._table) / LIFT_M, 0, 1))

    def plan(self, outcome: Outcome, noise: float, seed: int) -> Callable[[], FloatArray]:
        """Above the block, down, close the fingers, up."""
        rng, closing = np.random.default_rng(seed), 0
        offset = np.array([0.0, MISS_M if outcome == "miss" else 0.0, 0.0])

        def act() -> FloatArray:
            nonlocal closing
            hand, block = self._hand, self._block + offset
            aligned = np.linalg.norm((block - hand)[:2]) < ALIGNED_M
            if closing or (aligned and abs(block[2] - hand[2]) < ALIGNED_M):
                closing += 1
            target = block if aligned else block + [0, 0, HOVER_M]
            if closing:
                target = hand + [0, 0, STEP_M if closing > CLOSE_STEPS else 0]
            move = np.clip((target - hand) / STEP_M, -1, 1)
            action = np.array([*move, 1.0 if closing else -1.0])
            return np.clip(action + noise * rng.normal(size=4), -1, 1).astype(np.float32)

        return act
