"""The built-in tasks by name, as a config file has them. Reading one needs no MuJoCo; building it does."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, field_validator

from plaudit.config import Config
from plaudit.envs.panda.scene import LARGEST, check_cameras

if TYPE_CHECKING:
    from plaudit.envs.panda.world import World


Pixels = Annotated[int, Field(ge=1, le=LARGEST)]


class PandaConfig(Config):
    type: Literal["lift", "pick_place", "push"]
    obs: Literal["state", "pixels", "both"] = "state"  # see World
    cameras: tuple[str, ...] = ("front",)  # of front, side and wrist, when obs has images
    image_size: tuple[Pixels, Pixels] = (64, 64)  # height, width
    max_steps: PositiveInt = 50  # of an episode, at 20 a second
    randomize: bool = False  # colours, light and camera poses, by the seed
    render_backend: Literal["rays", "gl"] = "rays"  # what draws the images; gl: MuJoCo's renderer, through OpenGL
    threads: NonNegativeInt = 0  # of physics and rays; 0: one a core

    @field_validator("cameras")
    @classmethod
    def _cameras_are_there(cls, cameras: tuple[str, ...]) -> tuple[str, ...]:
        check_cameras(cameras)
        return cameras

    def build(self, num_envs: int = 1) -> "World":
        from plaudit.envs.panda.world import World

        return World(
            self.type,
            num_envs,
            obs=self.obs,
            cameras=self.cameras,
            image_size=self.image_size,
            max_steps=self.max_steps,
            randomize=self.randomize,
            render_backend=self.render_backend,
            threads=self.threads,
        )
