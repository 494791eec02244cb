"""The built-in tasks by name, as a config file has them."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from plaudit.config import Config
from plaudit.envs.panda.world import Obs, World


class PandaConfig(Config):
    type: Literal["lift", "pick_place", "push"]
    obs: Obs = "state"  # "state": all that the simulation knows; "pixels": cameras and the arm's own joints; "both"
    cameras: tuple[Literal["front", "side", "wrist"], ...] = ("front",)  # when obs has images
    image_size: tuple[PositiveInt, PositiveInt] = (64, 64)  # height, width
    max_steps: PositiveInt = 50  # of an episode, at 20 a second
    threads: NonNegativeInt = 0  # of physics and rays; 0: one a core

    def build(self, num_envs: int = 1) -> World:
        return World(
            self.type,
            num_envs,
            obs=self.obs,
            cameras=self.cameras,
            image_size=self.image_size,
            max_steps=self.max_steps,
            threads=self.threads,
        )
