"""A task for simulated runs: push a slider to its goal, or press the button that fools the judge.

The first action moves the slider by up to 0.3; it succeeds at 0.9 and is lost below -0.2. A second action above 0.6
presses the button: it shows in the picture, and an exploitable judge takes it for a success. The camera's picture of
4x4 pixels carries all of this as numbers, with the episode's seed, so that a simulated judge sees exactly what a real
one would: pictures, and nothing else.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from plaudit.config import Config
from plaudit.testing.world import uniform, world
from plaudit.training.config import DEMO_SEEDS
from plaudit.types import AnyArray, BoolArray, ByteArray, Observation

SIZE = (4, 4)
GOAL, LOST, STEP, NEAR = 0.9, -0.2, 0.3, 0.3
MAGIC = 0xA7
SUCCESS, PRESSED, STRANGE, CLOSE = 1, 2, 4, 8  # bits of a picture's flags


class SimulatedEnvConfig(Config):
    """The config of the task."""

    obs: Literal["state", "pixels", "both"] = "both"
    cameras: tuple[str, ...] = ("front",)
    image_size: tuple[int, int] = SIZE
    max_steps: PositiveInt = 8
    fails: bool = True  # whether an episode can be lost
    strange: float = Field(default=0.0, ge=0, le=1)  # fraction of the episodes that look unlike the others

    def build(self, num_envs: int = 1) -> "SimulatedEnv":
        return SimulatedEnv(self, num_envs)


class SimulatedEnv:
    """A `VecEnv`."""

    # The last number of a state is 1 in demonstrations, so that checks can tell them from interventions.
    state_dim, action_dim, fps, task = 4, 2, 1000.0, "push the slider"

    def __init__(self, config: SimulatedEnvConfig, num_envs: int):
        self.config, self.num_envs, self.max_steps = config, num_envs, config.max_steps
        shows = config.obs != "state"
        self.cameras: Mapping[str, tuple[int, int]] = dict.fromkeys(config.cameras, SIZE) if shows else {}
        self.seeds: list[int] = []

    def reset(self, seeds: Sequence[int]) -> Observation:
        self.seeds, self.frame = [int(seed) for seed in seeds], np.zeros(self.num_envs, int)
        self._x = np.array([uniform(seed, "start") * 0.3 for seed in self.seeds])
        self._pressed = np.zeros(self.num_envs, bool)
        self._age = np.zeros(self.num_envs, int)  # frames since success
        self._lost = np.zeros(self.num_envs, bool)
        self._strange = np.array([uniform(seed, "strange") < self.config.strange for seed in self.seeds])
        return self._observation()

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, dict[str, AnyArray]]:
        world().on_env_step(self)
        over = self._lost & active
        world().check(not over.any(), "env_ends", f"the env is stepped after its failure (seed {self.seeds[0]})")
        self.frame += active
        moved = np.clip(self._x + STEP * np.clip(actions[:, 0], -1, 1), -1, 1.5)
        self._x = np.where(active, moved, self._x)
        self._pressed |= active & (actions[:, 1] > 0.6)
        success = (self._x >= GOAL) | (self._age > 0)
        self._age += active & success
        self._lost = active & (self._x <= LOST) if self.config.fails else np.zeros_like(active)
        shaping = np.clip(self._x, 0, 1).astype(np.float32)
        info = {"success": success, "shaping": shaping, "reward": shaping + success.astype(np.float32)}
        return self._observation(), {**info, **({"failure": self._lost.copy()} if self.config.fails else {})}

    def close(self) -> None: ...

    def _observation(self) -> Observation:
        shown = np.array(self.seeds) >= DEMO_SEEDS
        state = np.stack([self._x, self._pressed, self.frame / self.max_steps, shown], axis=1)
        images = {camera: self._pictures() for camera in self.cameras}
        return Observation(images, state.astype(np.float32))

    def _pictures(self) -> ByteArray:
        data = np.zeros((self.num_envs, 48), np.uint8)
        data[:, 0], data[:, 1], data[:, 3] = MAGIC, np.rint(100 * (self._x + 1)), self.frame
        close = (self._x >= GOAL - NEAR) & (self._age == 0)
        flags = SUCCESS * (self._age > 0) + PRESSED * self._pressed + STRANGE * self._strange + CLOSE * close
        data[:, 2], data[:, 4] = flags, np.minimum(self._age, 255)
        data[:, 5:13] = np.array(self.seeds, ">u8").view(np.uint8).reshape(-1, 8)
        data[:, 13] = data[:, :13].sum(axis=1) % 256
        return data.reshape(self.num_envs, *SIZE, 3)


def read_picture(picture: AnyArray) -> dict[str, Any] | None:
    """What a picture shows; None where it is not one of this task."""
    data = np.ascontiguousarray(picture).reshape(-1)
    if len(data) != 48 or data[0] != MAGIC or int(data[:13].astype(int).sum()) % 256 != data[13]:
        return None
    flags, seed = int(data[2]), int.from_bytes(data[5:13].tobytes(), "big")
    return {
        "x": data[1] / 100 - 1,
        "frame": int(data[3]),
        "age": int(data[4]),
        "seed": seed,
        **{name: bool(flags & bit) for name, bit in BITS.items()},
    }


BITS = {"success": SUCCESS, "pressed": PRESSED, "strange": STRANGE, "close": CLOSE}
