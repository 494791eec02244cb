"""The Fetch tasks of Gymnasium-Robotics: reach, push, slide, pick and place.

Their observation is a dictionary for goal-conditioned learning. Here the goal becomes part of the state, as it is part
of what the robot is told; `achieved_goal` is left out because the state holds it already. The model has cameras in the
robot's head and hand as well, which look at the inside of its own shells and are not offered.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from plaudit.envs import gl
from plaudit.envs.adapters.common import Adapted, AdapterConfig, check_id, check_mujoco, load_simulator
from plaudit.envs.adapters.mujoco_views import FREE, MujocoViews
from plaudit.types import AnyArray

TASKS = {
    "FetchReach": "move the gripper to the red mark",
    "FetchPush": "push the block to the red mark",
    "FetchSlide": "hit the puck so that it slides to the red mark",
    "FetchPickAndPlace": "bring the block to the red mark",
}
GOAL = 3  # x, y, z of the red mark
ROBOT = [0, 1, 2, 9, 10, 20, 21, 22, 23, 24]  # of the 25 numbers: gripper position, fingers, their velocities


class FetchConfig(AdapterConfig):
    cameras_known: ClassVar[Mapping[str, str]] = {
        "front": "external_camera_0",
        "side": FREE,
    }

    type: Literal["fetch"] = "fetch"
    id: str = "FetchPickAndPlace-v4"
    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    def make(self) -> Adapted:
        gl.choose(self.render_backend, images=bool(self.images))
        gym.register_envs(load_simulator("gymnasium_robotics", extra="fetch"))
        check_mujoco("gymnasium-robotics", extra="fetch", upto="1.4.2", below="3.12")
        check_id(self.id, [id for id in gym.registry if id.startswith("Fetch") and id.endswith("-v4")])
        height, width = self.image_size
        simulator = gym.make(
            self.id,
            render_mode="rgb_array" if self.images else None,
            max_episode_steps=self.max_steps,
            disable_env_checker=True,
            width=width,
            height=height,
        )
        inner: Any = simulator.unwrapped
        seen = MujocoViews(simulator, {camera: self.cameras_known[camera] for camera in self.images})
        robot_only = self.obs == "pixels" and inner.has_object
        numbers = len(ROBOT) if robot_only or not inner.has_object else 25

        def read(observation: dict[str, AnyArray]) -> tuple[AnyArray, dict[str, AnyArray]]:
            known = observation["observation"][ROBOT] if robot_only else observation["observation"]
            return np.concatenate([known, observation["desired_goal"]]), seen.draw()

        assert simulator.spec is not None and simulator.spec.max_episode_steps is not None
        return Adapted(
            seen,
            name=self.id,
            read=read,
            success=lambda info: bool(info["is_success"]),
            state_size=numbers + GOAL,
            images=self.images,
            task=self.task or TASKS[self.id.removesuffix("-v4").removesuffix("Dense")],
            fps=1.0 / inner.dt,
            max_steps=simulator.spec.max_episode_steps,
        )
