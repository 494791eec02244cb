"""Adapters to other simulators: their environments with our observations, actions and info.

    env = FetchConfig(id="FetchPickAndPlace-v4", obs="both", image_size=(64, 64)).make()
    observation, info = env.reset(seed=0)        # {"state": f32 [28], "front": u8 [64, 64, 3]}
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    info["success"], env.task, env.fps, env.max_steps

A config class imports its simulator only in `make()`. An adapter provides a function that reads one observation of the
simulator; `AdaptedEnv` copies, casts, scales actions and sets `info["success"]`. (It is no `gymnasium.Wrapper`, because
`unwrapped` would skip our observations and actions.)
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pydantic import field_validator

from plaudit.config import Config, Edge, PositiveInt
from plaudit.errors import EnvError, InvalidAction, MissingExtra, UnknownName, did_you_mean
from plaudit.protocols import VecEnv
from plaudit.types import AnyArray, BoolArray, FloatArray, Observation

Size = tuple[int, int]  # H, W
INFO = {"success": bool, "failure": bool, "reward": np.float32}  # of each environment
ReadFn = Callable[[Any], tuple[Any, Mapping[str, AnyArray]]]  # a simulator's observation -> state, images by camera


class AdapterConfig(Config):
    """The fields that all adapters have."""

    available_cameras: ClassVar[Mapping[str, str]] = {}  # our name -> the simulator's; empty: it depends on the id

    # state: all of the simulator's numbers, no image. pixels: images, and in "state" only proprioception. both: images
    # and all numbers.
    obs: Literal["state", "pixels", "both"] = "state"
    image_size: tuple[Edge, Edge] = (128, 128)  # H, W of every camera
    cameras: tuple[str, ...] = ("front",)  # which ones, when obs has images
    max_steps: PositiveInt | None = None  # steps until an episode is truncated; None: the simulator's own limit
    task: str = ""  # the instruction; empty: the adapter's own for this id

    @field_validator("cameras")
    @classmethod
    def _check_cameras(cls, cameras: tuple[str, ...]) -> tuple[str, ...]:
        if not cameras:
            raise ValueError("name at least one camera; to have no images, leave it out and set obs to 'state'")
        for camera in cameras:
            if cls.available_cameras and camera not in cls.available_cameras:
                raise ValueError(f"there is no camera '{camera}'; {did_you_mean(camera, cls.available_cameras)}")
            if camera == "state" or cameras.count(camera) > 1:
                raise ValueError(f"camera '{camera}' needs a name of its own: it is taken")
        return cameras

    @property
    def images(self) -> dict[str, Size]:
        """The cameras in the observations, with their sizes."""
        return dict.fromkeys(self.cameras, self.image_size) if self.obs != "state" else {}

    def make(self) -> "AdaptedEnv":
        """Make one environment."""
        raise NotImplementedError

    def build(self, num_envs: int = 1) -> VecEnv:
        """Make `num_envs` environments, stepped together."""
        return SyncVecEnv([self.make() for _ in range(num_envs)])


class AdaptedEnv(gym.Env[dict[str, Any], FloatArray]):
    """One environment of another simulator, with the observations and actions that all our environments have."""

    def __init__(
        self,
        simulator: gym.Env[Any, Any],
        *,
        name: str,  # for error messages
        read: ReadFn,
        success: Callable[[Mapping[str, Any]], bool],  # a step's info -> whether the task is done
        state_dim: int,
        images: Mapping[str, Size],
        task: str,
        fps: float,  # control steps per second
        max_steps: int,
    ):
        self.metadata = {"render_modes": [], "render_fps": fps}  # images are observations here
        self.simulator, self.name = simulator, name
        self.task, self.fps, self.max_steps = task, fps, max_steps
        self.state_dim, self.images = state_dim, dict(images)
        self._read, self._success = read, success
        self._low, self._high = action_bounds(simulator.action_space, name)
        self.action_dim = len(self._low)
        self.action_space = spaces.Box(-1.0, 1.0, self._low.shape, np.float32)
        cameras = {camera: spaces.Box(0, 255, (*size, 3), np.uint8) for camera, size in images.items()}
        state = spaces.Box(-np.inf, np.inf, (state_dim,), np.float32)
        self.observation_space = spaces.Dict({"state": state, **cameras})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        observation, info = self.simulator.reset(seed=seed, options=options)
        return self._observation(observation), dict(info)

    def step(self, action: FloatArray) -> tuple[dict[str, AnyArray], float, bool, bool, dict[str, Any]]:
        """Make one control step with an action in [-1, 1], scaled to the simulator's own bounds."""
        observation, reward, terminated, truncated, info = self.simulator.step(
            scale_actions(action, self._low, self._high)
        )
        info = {**info, "success": self._success(info)}
        return self._observation(observation), float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the simulator."""
        self.simulator.close()

    def _observation(self, raw: Any) -> dict[str, AnyArray]:
        state, images = self._read(raw)
        state = np.array(state, np.float32)
        if not np.isfinite(state).all():
            bad = int(np.flatnonzero(~np.isfinite(state))[0])
            raise EnvError(f"{self.name} returned {state[bad]} as number {bad} of its state; end the episode before it")
        return {"state": state, **{camera: np.array(image, np.uint8) for camera, image in images.items()}}


class SyncVecEnv:
    """N environments, stepped one after the other, as one vectorized environment.

    Their renderers hold a context of the thread that made them, and most physics engines are not made for threads. An
    environment whose episode is over is not stepped until the next reset.
    """

    def __init__(self, envs: Sequence[AdaptedEnv]):
        first = envs[0]
        self._envs = list(envs)
        self.num_envs = len(envs)
        self.cameras: Mapping[str, tuple[int, int]] = first.images
        self.state_dim, self.action_dim = first.state_dim, first.action_dim
        self.fps, self.max_steps, self.task = first.fps, first.max_steps, first.task
        self._observations: list[dict[str, AnyArray]] = []
        self._info: dict[str, AnyArray] = {}

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode in every environment."""
        self._observations = [env.reset(seed=int(seed))[0] for env, seed in zip(self._envs, seeds, strict=True)]
        self._info = {name: np.zeros(self.num_envs, dtype) for name, dtype in INFO.items()}
        return self._observation()

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, Mapping[str, AnyArray]]:
        """Make one control step in the environments that are active, [N]; the others keep their last values."""
        check_actions(actions, self.num_envs, self.action_dim)
        for i in np.flatnonzero(active):
            self._observations[i], reward, terminated, _, info = self._envs[i].step(actions[i])
            self._info["success"][i] = info["success"]
            self._info["failure"][i] = terminated and not info["success"]
            self._info["reward"][i] = reward
        return self._observation(), {name: values.copy() for name, values in self._info.items()}

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs:
            env.close()

    def _observation(self) -> Observation:
        images = {camera: np.stack([seen[camera] for seen in self._observations]) for camera in self.cameras}
        return Observation(images=images, state=np.stack([seen["state"] for seen in self._observations]))


def action_bounds(space: gym.Space[Any], name: str) -> tuple[FloatArray, FloatArray]:
    """The bounds [A] of a simulator's actions; raises `EnvError` for a space that policies cannot act in."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise EnvError(f"{name} takes actions from {space}; policies here return a vector of real numbers")
    if not space.is_bounded():
        raise EnvError(f"{name} takes actions without bounds, so that -1 to 1 has no meaning; wrap it in RescaleAction")
    return space.low.astype(np.float32), space.high.astype(np.float32)


def scale_actions(actions: AnyArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """From [-1, 1] to the simulator's own bounds [A]."""
    fraction = (np.asarray(actions, np.float32).clip(-1.0, 1.0) + 1) / 2
    return (low + fraction * (high - low)).astype(np.float32)


def check_actions(actions: AnyArray, num_envs: int, action_dim: int) -> None:
    """Raise `InvalidAction` for what is no batch of actions."""
    if np.shape(actions) != (num_envs, action_dim) or not np.isfinite(actions).all():
        raise InvalidAction(f"actions must be finite [{num_envs}, {action_dim}], got {actions}")


def load_simulator(module: str, extra: str) -> ModuleType:
    """Import a simulator; raises `MissingExtra` with the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), extra) from error


def check_mujoco(package: str, extra: str, *, upto: str, below: str) -> None:
    """Raise `EnvError` for a MuJoCo that `package`, up to its release `upto`, does not work with."""
    installed, mujoco = version(package), version("mujoco")
    if _version_tuple(installed) <= _version_tuple(upto) and _version_tuple(mujoco) >= _version_tuple(below):
        raise EnvError(
            f"{package} {installed} does not run with MuJoCo {mujoco}, only below {below}; "
            f"in an environment of its own, run: pip install 'plaudit[{extra}]'"
        )


def _version_tuple(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def check_id(id: str, available: list[str]) -> None:
    """Raise `UnknownName` unless the simulator has an environment of this id."""
    if id not in available:
        raise UnknownName(f"there is no environment '{id}'; {did_you_mean(id, available)}")
