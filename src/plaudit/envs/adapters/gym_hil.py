"""gym_hil: a Franka arm in MuJoCo that picks up a cube or sorts boxes.

The ids with "Base" take raw actions, meters per step and a rotation that is ignored; the ids without it take four
numbers, three of them scaled to 25 mm per step, and are the ones that people train on. The ids for gamepads, keyboards
and viewers need a human and a window and are left out.
"""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from pydantic import field_validator

from plaudit.envs import gl
from plaudit.envs.adapters.base import AdaptedEnv, AdapterConfig, check_mujoco, load_simulator
from plaudit.errors import did_you_mean
from plaudit.types import AnyArray

_PICK_CUBE, _ARRANGE_BOXES = "pick up the cube", "put each box on the target of its color"
TASKS = {
    "gym_hil/PandaPickCube-v0": _PICK_CUBE,
    "gym_hil/PandaPickCubeBase-v0": _PICK_CUBE,
    "gym_hil/PandaArrangeBoxes-v0": _ARRANGE_BOXES,
    "gym_hil/PandaArrangeBoxesBase-v0": _ARRANGE_BOXES,
}
ARM_DIM = 18  # joint angles and speeds, gripper, its position
BLOCK_DIM = 3  # position of the cube or of the first box


class GymHilConfig(AdapterConfig):
    """A task of gym_hil, by its id."""

    # Both are rendered whenever there are images: the simulator cannot render one alone.
    available_cameras: ClassVar[Mapping[str, str]] = {"front": "front", "wrist": "wrist"}

    type: Literal["gym_hil"] = "gym_hil"
    id: str = "gym_hil/PandaPickCube-v0"
    cameras: tuple[str, ...] = ("front", "wrist")
    reward: Literal["sparse", "dense"] = "sparse"
    random_block: bool = True  # the cube starts at another place in each episode; boxes always do
    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    @field_validator("id")
    @classmethod
    def _check_id(cls, id: str) -> str:
        if id not in TASKS:
            raise ValueError(f"there is no environment '{id}'; {did_you_mean(id, TASKS)}")
        return id

    def make(self) -> AdaptedEnv:
        """Make one environment; raises `MissingExtra` without gym_hil."""
        gl.choose_backend(self.render_backend)  # it opens a renderer even where there are no images
        gym_hil = load_simulator("gym_hil", extra="gym-hil")
        check_mujoco("gym-hil", extra="gym-hil", upto="0.1.14", below="3.10")
        height, width = self.image_size
        options: dict[str, Any] = {
            "image_obs": bool(self.images),
            "reward_type": self.reward,
            "render_spec": gym_hil.GymRenderingSpec(height=height, width=width),
        }
        if "PickCube" in self.id:
            options["random_block_position"] = self.random_block
        if "Base" not in self.id:
            options["reset_delay_seconds"] = 0.0  # by default it sleeps a second at each reset, for a human
        with gl.explain_errors(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*precision lowered by casting to float32")  # of its own spaces
            simulator = gym.make(self.id, max_episode_steps=self.max_steps, disable_env_checker=True, **options)
        inner: Any = simulator.unwrapped
        block = inner.data.sensor("block_pos" if "PickCube" in self.id else "block1_pos").data

        def read(observation: dict[str, Any]) -> tuple[AnyArray, dict[str, AnyArray]]:
            arm = observation["agent_pos"]
            state = arm if self.obs == "pixels" else np.concatenate([arm, block])
            return state, {camera: observation["pixels"][camera] for camera in self.images}

        assert simulator.spec is not None and simulator.spec.max_episode_steps is not None
        return AdaptedEnv(
            SeededReset(simulator),
            name=self.id,
            read=read,
            success=lambda info: bool(info["succeed"]),
            state_dim=ARM_DIM + (0 if self.obs == "pixels" else BLOCK_DIM),
            images=self.images,
            task=self.task or TASKS[self.id],
            fps=1.0 / inner.control_dt,
            max_steps=simulator.spec.max_episode_steps,
        )


class SeededReset(gym.Wrapper[Any, Any, Any, Any]):
    """Makes `reset(seed=...)` effective: the simulator draws from numpy's global generator and ignores the seed.

    During a reset the global generator gets the state of a generator of ours, and its own state back afterwards.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self._rng = np.random.RandomState()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode from the seed, without disturbing numpy's global generator."""
        if seed is not None:
            self._rng = np.random.RandomState(seed)
        global_state = np.random.get_state()
        np.random.set_state(self._rng.get_state())
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            self._rng.set_state(np.random.get_state())
            np.random.set_state(global_state)
