"""An environment to copy: a lamp to turn up until it is bright enough (docs/add_an_env.md)."""

from typing import Literal

import numpy as np

from plaudit.envs.adapters import AdapterConfig
from plaudit.registry import ENV_REGISTRY
from plaudit.types import Observation


@ENV_REGISTRY.register("lamp")
class LampEnvConfig(AdapterConfig):  # obs, cameras, image_size, max_steps, task
    type: Literal["lamp"] = "lamp"
    goal: float = 0.8

    def build(self, num_envs=1):
        return LampEnv(self, num_envs)


class LampEnv:
    """A `plaudit.protocols.VecEnv`: N lamps, each with its own brightness."""

    state_dim, action_dim, fps = 1, 1, 10.0

    def __init__(self, config, num_envs):
        self.num_envs, self.goal = num_envs, config.goal
        self.cameras = config.images  # name -> (H, W); empty with obs: state
        self.max_steps, self.task = config.max_steps or 12, config.task or "turn up the lamp"

    def reset(self, seeds):
        starts = [np.random.default_rng(seed).uniform(0.2, 0.4) for seed in seeds]
        self.brightness = np.array(starts, np.float32)
        return self.read()

    def step(self, actions, active):
        moved = np.clip(self.brightness + 0.2 * actions[:, 0], 0, 1)
        self.brightness = np.where(active, moved, self.brightness).astype(np.float32)
        return self.read(), {"success": self.brightness >= self.goal}

    def read(self):
        pixels = np.rint(255 * self.brightness).astype(np.uint8)[:, None, None, None]
        images = {name: np.tile(pixels, (1, *size, 3)) for name, size in self.cameras.items()}
        return Observation(images, self.brightness[:, None].copy())

    def close(self): ...
