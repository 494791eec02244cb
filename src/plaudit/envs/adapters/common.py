"""What every adapter shares: the environment that it makes, its config fields, the sentences for what is missing.

`Adapted` owns the simulator and is an environment of its own, not a `gymnasium.Wrapper`: `unwrapped` of a wrapper
leads past it, to observations and actions of another shape. An adapter tells it how to read one of the simulator's
observations, and it does the rest: copies, types, action bounds, the verdict in `info["success"]`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pydantic import PositiveInt, field_validator

from plaudit.config import Config
from plaudit.errors import EnvError, MissingExtra, UnknownName, nearest
from plaudit.protocols import Simulation
from plaudit.types import AnyArray, FloatArray

Size = tuple[int, int]  # H, W
Read = Callable[[Any], tuple[Any, Mapping[str, AnyArray]]]  # a simulator's observation -> state, images by camera


class AdapterConfig(Config):
    """The fields that all adapters have."""

    cameras_known: ClassVar[Mapping[str, str]] = {}  # our name -> the simulator's; empty: known once made

    # state: all the numbers the simulator knows, no image. pixels: images, and in "state" only what the robot itself
    # measures. both: images and all the numbers.
    obs: Literal["state", "pixels", "both"] = "state"
    image_size: tuple[PositiveInt, PositiveInt] = (128, 128)  # H, W of every camera
    cameras: tuple[str, ...] = ("front",)  # which ones, when obs has images
    max_steps: PositiveInt | None = None  # steps until an episode is cut off; None: the simulator's own limit
    task: str = ""  # the instruction in words; empty: the adapter's own for this id

    @field_validator("cameras")
    @classmethod
    def _cameras_are_known(cls, cameras: tuple[str, ...]) -> tuple[str, ...]:
        if not cameras:
            raise ValueError("name at least one camera; to have no images, leave it out and set obs to 'state'")
        for camera in cameras:
            if cls.cameras_known and camera not in cls.cameras_known:
                raise ValueError(f"there is no camera '{camera}'; {nearest(camera, cls.cameras_known)}")
            if camera == "state" or cameras.count(camera) > 1:
                raise ValueError(f"camera '{camera}' needs a name of its own: it is taken")
        return cameras

    @property
    def images(self) -> dict[str, Size]:
        """The cameras that observations will have, with their sizes."""
        return dict.fromkeys(self.cameras, self.image_size) if self.obs != "state" else {}

    def make(self) -> "Adapted":
        raise NotImplementedError

    def build(self, num_envs: int = 1) -> Simulation:
        """`num_envs` copies of it, driven together."""
        from plaudit.envs.adapters.side_by_side import SideBySide

        return SideBySide([self.make() for _ in range(num_envs)])


class Adapted(gym.Env[dict[str, Any], FloatArray]):
    """One simulator behind the contract that all our environments keep."""

    def __init__(
        self,
        simulator: gym.Env[Any, Any],
        *,
        name: str,  # for error sentences
        read: Read,
        success: Callable[[Mapping[str, Any]], bool],  # a step's info -> the simulator's verdict
        state_size: int,
        images: Mapping[str, Size],
        task: str,
        fps: float,  # control steps per second
        max_steps: int,
    ):
        self.metadata = {"render_modes": [], "render_fps": fps}  # images are observations here
        self.simulator, self.name = simulator, name
        self.task, self.fps, self.max_steps = task, fps, max_steps
        self.state_size, self.images = state_size, dict(images)
        self._read, self._success = read, success
        self._low, self._high = action_bounds(simulator.action_space, name)
        self.action_size = len(self._low)
        self.action_space = spaces.Box(-1.0, 1.0, self._low.shape, np.float32)
        self.observation_space = spaces.Dict(
            {
                "state": spaces.Box(-np.inf, np.inf, (state_size,), np.float32),
                **{camera: spaces.Box(0, 255, (*size, 3), np.uint8) for camera, size in images.items()},
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        super().reset(seed=seed)
        observation, info = self.simulator.reset(seed=seed, options=options)
        return self._observation(observation), dict(info)

    def step(self, action: FloatArray) -> tuple[dict[str, AnyArray], float, bool, bool, dict[str, Any]]:
        share = (np.clip(np.asarray(action, np.float32), -1.0, 1.0) + 1) / 2
        observation, reward, terminated, truncated, info = self.simulator.step(
            self._low + share * (self._high - self._low)
        )
        verdict = {**info, "success": self._success(info)}
        return self._observation(observation), float(reward), bool(terminated), bool(truncated), verdict

    def close(self) -> None:
        self.simulator.close()

    def _observation(self, raw: Any) -> dict[str, AnyArray]:
        state, images = self._read(raw)
        state = np.array(state, np.float32)
        if not np.isfinite(state).all():
            bad = int(np.flatnonzero(~np.isfinite(state))[0])
            raise EnvError(f"{self.name} put out {state[bad]} as number {bad} of its state; end the episode before it")
        return {"state": state, **{camera: np.array(image, np.uint8) for camera, image in images.items()}}


def action_bounds(space: gym.Space[Any], name: str) -> tuple[FloatArray, FloatArray]:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvError(f"{name} takes actions from {space}; policies here put out a vector of real numbers")
    if not space.is_bounded():
        raise EnvError(f"{name} takes actions without bounds, so that -1 to 1 has no meaning; wrap it in RescaleAction")
    return space.low.astype(np.float32), space.high.astype(np.float32)


def load_simulator(module: str, extra: str) -> ModuleType:
    """Import a simulator, or say what to install."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), extra) from error


def check_mujoco(package: str, extra: str, *, upto: str, below: str) -> None:
    """Refuse a MuJoCo that `package`, up to the release `upto`, is known to break with.

    Checked by version because the breakage shows late or in words that lead nowhere: an attribute gone in the middle
    of a step, an assertion about joint types.
    """
    mine, mujoco = version(package), version("mujoco")
    if _numbers(mine) <= _numbers(upto) and _numbers(mujoco) >= _numbers(below):
        raise EnvError(
            f"{package} {mine} does not run with MuJoCo {mujoco}, only below {below}; "
            f"in an environment of its own, run: pip install 'plaudit[{extra}]'"
        )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def check_id(id: str, known: list[str]) -> None:
    if id not in known:
        raise UnknownName(f"there is no environment '{id}'; {nearest(id, known)}")
