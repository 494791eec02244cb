"""gym_hil: a Franka arm in MuJoCo that picks up a cube or sorts boxes.

The ids with "Base" take raw actions, metres a step and a turn that is ignored; the ids without take four numbers, three
of them scaled to 25 mm a step, and are what its users train on. The ids for gamepads, keyboards and viewers need a
person and a window and are left out.
"""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from pydantic import field_validator

from plaudit.envs import gl
from plaudit.envs.adapters.common import Adapted, AdapterConfig, check_mujoco, load_simulator
from plaudit.errors import nearest
from plaudit.types import AnyArray

CUBE, BOXES = "pick up the cube", "put each box on the target of its colour"
TASKS = {
    "gym_hil/PandaPickCube-v0": CUBE,
    "gym_hil/PandaPickCubeBase-v0": CUBE,
    "gym_hil/PandaArrangeBoxes-v0": BOXES,
    "gym_hil/PandaArrangeBoxesBase-v0": BOXES,
}
ROBOT, BLOCK = 18, 3  # joint angles and speeds, gripper, its position; position of the cube or the first box


class GymHilConfig(AdapterConfig):
    # Both are drawn whenever there are images: the simulator cannot draw one alone.
    cameras_known: ClassVar[Mapping[str, str]] = {"front": "front", "wrist": "wrist"}

    type: Literal["gym_hil"] = "gym_hil"
    id: str = "gym_hil/PandaPickCube-v0"
    cameras: tuple[str, ...] = ("front", "wrist")
    reward: Literal["sparse", "dense"] = "sparse"
    random_block: bool = True  # the cube starts somewhere else in each episode; boxes always do
    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    @field_validator("id")
    @classmethod
    def _id_is_known(cls, id: str) -> str:
        if id not in TASKS:
            raise ValueError(f"there is no environment '{id}'; {nearest(id, TASKS)}")
        return id

    def make(self) -> Adapted:
        gl.choose(self.render_backend)  # it opens a renderer even where no image is asked for
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
            options["reset_delay_seconds"] = 0.0  # it sleeps a second at each reset, for a person to catch up
        with gl.explained(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*precision lowered by casting to float32")  # of its own spaces
            simulator = gym.make(self.id, max_episode_steps=self.max_steps, disable_env_checker=True, **options)
        inner: Any = simulator.unwrapped
        block = inner.data.sensor("block_pos" if "PickCube" in self.id else "block1_pos").data

        def read(observation: dict[str, Any]) -> tuple[AnyArray, dict[str, AnyArray]]:
            robot = observation["agent_pos"]
            state = robot if self.obs == "pixels" else np.concatenate([robot, block])
            return state, {camera: observation["pixels"][camera] for camera in self.images}

        assert simulator.spec is not None and simulator.spec.max_episode_steps is not None
        return Adapted(
            OwnRandomness(simulator),
            name=self.id,
            read=read,
            success=lambda info: bool(info["succeed"]),
            state_size=ROBOT + (0 if self.obs == "pixels" else BLOCK),
            images=self.images,
            task=self.task or TASKS[self.id],
            fps=1.0 / inner.control_dt,
            max_steps=simulator.spec.max_episode_steps,
        )


class OwnRandomness(gym.Wrapper[Any, Any, Any, Any]):
    """Makes `reset(seed=...)` mean something: the simulator draws from numpy's global generator, whatever the seed.

    During a reset that generator is lent a state of our own, and it gets its old one back afterwards.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self._mine = np.random.RandomState()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._mine = np.random.RandomState(seed)
        theirs = np.random.get_state()
        np.random.set_state(self._mine.get_state())
        try:
            return self.env.reset(seed=seed, options=options)
        finally:
            self._mine.set_state(np.random.get_state())
            np.random.set_state(theirs)
