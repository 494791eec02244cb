"""The Fetch tasks of Gymnasium-Robotics: reach, push, slide, pick and place.

Their observation is a dictionary for goal-conditioned learning. Here the goal becomes part of the state, because the
policy is given it; `achieved_goal` is left out because the state contains it already. The model also has cameras in the
robot's head and hand, but they show the inside of its own covers and are not offered.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from plaudit.envs import gl
from plaudit.envs.adapters.base import AdaptedEnv, AdapterConfig, check_id, check_mujoco, load_simulator
from plaudit.envs.adapters.mujoco_cameras import FREE_CAMERA, MujocoCameras
from plaudit.types import AnyArray

TASKS = {
    "FetchReach": "move the gripper to the red mark",
    "FetchPush": "push the block to the red mark",
    "FetchSlide": "hit the puck so that it slides to the red mark",
    "FetchPickAndPlace": "bring the block to the red mark",
}
GOAL_DIM = 3  # x, y, z of the red mark
STATE_DIM = 25
ARM_INDICES = [0, 1, 2, 9, 10, 20, 21, 22, 23, 24]  # in the state: gripper position, fingers, their velocities


class FetchConfig(AdapterConfig):
    """A Fetch task, by its id."""

    available_cameras: ClassVar[Mapping[str, str]] = {
        "front": "external_camera_0",
        "side": FREE_CAMERA,
    }

    type: Literal["fetch"] = "fetch"
    id: str = "FetchPickAndPlace-v4"
    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    def make(self) -> AdaptedEnv:
        """Make one environment; raises `MissingExtra` without Gymnasium-Robotics."""
        gl.choose_backend(self.render_backend, needs_images=bool(self.images))
        gym.register_envs(load_simulator("gymnasium_robotics", extra="fetch"))
        check_mujoco("gymnasium-robotics", extra="fetch", upto="1.4.2", below="3.12")
        check_id(self.id, [id for id in gym.registry if id.startswith("Fetch") and id.endswith("-v4")])
        height, width = self.image_size
        env = gym.make(
            self.id,
            render_mode="rgb_array" if self.images else None,
            max_episode_steps=self.max_steps,
            disable_env_checker=True,
            width=width,
            height=height,
        )
        inner: Any = env.unwrapped
        simulator = MujocoCameras(env, {camera: self.available_cameras[camera] for camera in self.images})
        arm_only = self.obs == "pixels" and inner.has_object
        state_dim = len(ARM_INDICES) if arm_only or not inner.has_object else STATE_DIM

        def read(observation: dict[str, AnyArray]) -> tuple[AnyArray, dict[str, AnyArray]]:
            state = observation["observation"][ARM_INDICES] if arm_only else observation["observation"]
            return np.concatenate([state, observation["desired_goal"]]), simulator.render_cameras()

        assert env.spec is not None and env.spec.max_episode_steps is not None
        return AdaptedEnv(
            simulator,
            name=self.id,
            read=read,
            success=lambda info: bool(info["is_success"]),
            state_dim=state_dim + GOAL_DIM,
            images=self.images,
            task=self.task or TASKS[self.id.removesuffix("-v4").removesuffix("Dense")],
            fps=1.0 / inner.dt,
            max_steps=env.spec.max_episode_steps,
        )
