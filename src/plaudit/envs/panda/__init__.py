"""The built-in tasks: a Panda arm of primitive shapes, stepped by MuJoCo's batch API and rendered by ray casting.

Reading the config needs no MuJoCo; building the environment does.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from plaudit.config import Config, PositiveInt
from plaudit.envs.panda.scene import MAX_IMAGE_SIZE, check_cameras

if TYPE_CHECKING:
    from plaudit.envs.panda.vec_env import PandaVecEnv

Pixels = Annotated[int, Field(ge=1, le=MAX_IMAGE_SIZE)]


class PandaConfig(Config):
    """One of the built-in tasks, by its name in `type`."""

    type: Literal["lift", "pick_place", "push"]
    obs: Literal["state", "pixels", "both"] = "state"  # see PandaVecEnv
    cameras: tuple[str, ...] = ("front",)  # of front, side and wrist, when obs has images
    image_size: tuple[Pixels, Pixels] = (64, 64)  # height, width
    max_steps: PositiveInt = 50  # per episode, at 20 Hz
    randomize: bool = False  # colors, light and camera poses, by the seed
    render_backend: Literal["rays", "gl"] = "rays"  # "gl" is MuJoCo's own renderer and needs OpenGL
    num_threads: Annotated[int, Field(ge=0, le=1000)] = 0  # for physics and ray casting; 0: one per core

    @field_validator("cameras")
    @classmethod
    def _check_cameras(cls, cameras: tuple[str, ...]) -> tuple[str, ...]:
        check_cameras(cameras)
        return cameras

    def build(self, num_envs: int = 1) -> "PandaVecEnv":
        """Build `num_envs` environments of this task in one batch."""
        from plaudit.envs.panda.vec_env import PandaVecEnv

        return PandaVecEnv(self.type, num_envs, **self.model_dump(exclude={"type"}))
