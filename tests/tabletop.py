"""A robot and a policy for tests: a drawn table with a gripper, a cube and two cameras, and a script that lifts it.

Numpy and Pillow, no simulator, the same pixels on every machine. The only physics is that the cube sticks to a closed
gripper.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, ByteArray, FloatArray, Observation, PolicyWeights

TABLE, CUBE, LIFTED = 0.12, 0.10, 0.45  # heights of the table top, the cube, and of a cube that counts as lifted
REACH = 0.06  # how far off center the gripper may close and still hold the cube
SPEED = 0.06  # largest change of x or z in a step
_SKY, _WOOD, _STEEL, _RED, _GREEN = (214, 222, 230), (166, 124, 82), (72, 78, 88), (200, 52, 44), (70, 150, 84)


class Tabletop:
    """A `Robot`: lift the cube. State: gripper x, z, opening, cube x, z; action: dx, dz, close (> 0) or open."""

    cameras: Mapping[str, tuple[int, int]] = {"front": (96, 128), "wrist": (64, 64)}
    state_dim, action_dim, fps = 5, 3, 20.0
    task = "lift the red cube"

    def __init__(self) -> None:
        self._gripper, self._cube = np.zeros(2), np.zeros(2)
        self._open = 1.0
        self._holding = False
        self._background = (0, 0, 0)
        self.last_command: FloatArray | None = None

    def reset(self, seed: int | None = None) -> Observation:
        rng = np.random.default_rng(seed)
        self._gripper = np.array([rng.uniform(0.2, 0.8), 0.85])
        self._cube = np.array([rng.uniform(0.2, 0.8), TABLE])
        self._open, self._holding = 1.0, False
        self._background = tuple(int(c + rng.integers(-12, 13)) for c in _SKY)
        return self.observe()

    def act(self, action: FloatArray) -> None:
        self.last_command = action
        self._gripper = np.clip(self._gripper + np.clip(action[:2], -SPEED, SPEED), [0.05, TABLE], [0.95, 0.95])
        closing = action[2] > 0
        self._open = float(np.clip(self._open + (-0.34 if closing else 0.34), 0, 1))
        near = np.abs(self._gripper - self._cube).max() < REACH
        self._holding = closing and (self._holding or (near and self._open < 0.5))
        if self._holding:
            self._cube = self._gripper.copy()
        else:
            self._cube[1] = max(TABLE, self._cube[1] - 0.15)

    def observe(self) -> Observation:
        state = np.array([*self._gripper, self._open, *self._cube], np.float32)
        return Observation(images={"front": self._front(), "wrist": self._wrist()}, state=state)

    def privileged(self) -> Mapping[str, AnyArray]:
        return {"success": np.array(self._cube[1] > LIFTED), "grasp": np.array(self._holding)}

    def hold(self) -> None:
        """Nothing moves by itself."""

    def _front(self) -> ByteArray:
        height, width = self.cameras["front"]
        image, draw = _canvas(width, height, self._background)

        def box(x0: float, z0: float, x1: float, z1: float, color: tuple[int, int, int]) -> None:
            draw.rectangle([2 * x0 * width, 2 * (1 - z1) * height, 2 * x1 * width, 2 * (1 - z0) * height], fill=color)

        box(0, 0, 1, TABLE, _WOOD)
        box(0, LIFTED, 1, LIFTED + 0.008, _GREEN)
        (x, z), (cx, cz) = self._gripper, self._cube
        box(cx - CUBE / 2, cz, cx + CUBE / 2, cz + CUBE, _RED)
        gap = CUBE / 2 + 0.04 * self._open
        box(x - 0.015, z + 0.16, x + 0.015, 1.2, _STEEL)
        box(x - gap - 0.03, z + 0.12, x + gap + 0.03, z + 0.16, _STEEL)
        box(x - gap - 0.03, z, x - gap, z + 0.12, _STEEL)
        box(x + gap, z, x + gap + 0.03, z + 0.12, _STEEL)
        return _shrink(image)

    def _wrist(self) -> ByteArray:
        """Looking down from the hand: the cube grows as it comes near."""
        height, width = self.cameras["wrist"]
        image, draw = _canvas(width, height, _WOOD)
        distance = self._gripper[1] - self._cube[1] + 0.25
        size = 0.12 / distance * width
        middle = width + (self._cube[0] - self._gripper[0]) / distance * width
        draw.rectangle([middle - size, height - size, middle + size, height + size], fill=_RED)
        edge = (0.2 - 0.15 * self._open) * 2 * width
        draw.rectangle([0, 0.6 * height, edge, 1.4 * height], fill=_STEEL)
        draw.rectangle([2 * width - edge, 0.6 * height, 2 * width, 1.4 * height], fill=_STEEL)
        return _shrink(image)


def _canvas(width: int, height: int, color: tuple[int, ...]) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (2 * width, 2 * height), color)
    return image, ImageDraw.Draw(image)


def _shrink(image: Image.Image) -> ByteArray:
    """Drawn twice as large and averaged, so that edges move by less than a pixel."""
    return np.asarray(image.reduce(2))


HIGH_ENOUGH = 0.6  # above LIFTED, and still in the image
Outcome = Literal["success", "miss", "drop"]


class ScriptedLift:
    """Lifts the cube of `Tabletop`, or fails in a way that looks nearly right."""

    def __init__(self, outcome: Outcome = "success"):
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
        """A chunk of one action leaves nothing to continue."""
        return self.predict(observation, normalizer)

    def warmup(self) -> None:
        """Nothing is slow the first time."""

    def freeze_all_model_params(self) -> None:
        """There are none."""

    def load_weights(self, weights: PolicyWeights) -> None:
        """There are none."""
