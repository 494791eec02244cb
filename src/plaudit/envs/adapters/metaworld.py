"""Meta-World: fifty tasks of a Sawyer arm, by name ("pick-place-v3").

One task with its fifty goals, as in the MT1 benchmark; the seed of a reset decides which goal an episode has. It is
made from Meta-World's own classes, not through `gym.make("Meta-World/MT1")`, which draws the goal from a generator that
no reset can seed. Its corner cameras are mounted upside down; their images are rotated here.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from plaudit.config import Seed
from plaudit.envs import gl
from plaudit.envs.adapters.base import AdaptedEnv, AdapterConfig, check_id, check_mujoco, load_simulator
from plaudit.envs.adapters.mujoco_cameras import MujocoCameras
from plaudit.types import AnyArray

STATE_DIM = 39  # hand, gripper, objects, the same one step earlier, goal
ARM_DIM = 4  # of these: x, y, z of the hand, and the gripper


class MetaWorldConfig(AdapterConfig):
    """A Meta-World task, by its name."""

    available_cameras: ClassVar[Mapping[str, str]] = {
        "front": "corner2",
        "side": "corner",
        "left": "corner3",
        "top": "topview",
        "back": "behindGripper",
        "wrist": "gripperPOV",
    }

    type: Literal["metaworld"] = "metaworld"
    id: str = "pick-place-v3"
    goals_seed: Seed = 0  # which fifty goals
    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    def make(self) -> AdaptedEnv:
        """Make one environment; raises `MissingExtra` without Meta-World."""
        gl.choose_backend(self.render_backend, needs_images=bool(self.images))
        metaworld = load_simulator("metaworld", extra="metaworld")
        check_mujoco("metaworld", extra="metaworld", upto="3.1.1", below="3.17")
        check_id(self.id, metaworld.MT1.ENV_NAMES)
        benchmark = metaworld.MT1(self.id, seed=self.goals_seed)
        height, width = self.image_size
        inner = benchmark.train_classes[self.id](
            render_mode="rgb_array" if self.images else None, width=width, height=height
        )
        max_steps = min(self.max_steps or inner.max_path_length, inner.max_path_length)  # it raises beyond that
        env = SampleGoal(gym.wrappers.TimeLimit(inner, max_steps), benchmark.train_tasks)
        simulator = MujocoCameras(env, {camera: self.available_cameras[camera] for camera in self.images})

        def read(observation: AnyArray) -> tuple[AnyArray, dict[str, AnyArray]]:
            images = {
                camera: image[::-1, ::-1] if self.available_cameras[camera].startswith("corner") else image
                for camera, image in simulator.render_cameras().items()
            }
            return observation[:ARM_DIM] if self.obs == "pixels" else observation, images

        return AdaptedEnv(
            simulator,
            name=self.id,
            read=read,
            success=lambda info: bool(info["success"]),
            state_dim=ARM_DIM if self.obs == "pixels" else STATE_DIM,
            images=self.images,
            task=self.task or self.id.removesuffix("-v3").replace("-", " "),
            fps=1.0 / inner.dt,
            max_steps=max_steps,
        )


class SampleGoal(gym.Wrapper[Any, Any, Any, Any]):
    """Sets one of the task's goals before each reset."""

    def __init__(self, env: gym.Env[Any, Any], goals: Sequence[Any]):
        super().__init__(env)
        self._goals, self._rng = goals, np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with a goal that the seed decides."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        inner: Any = self.unwrapped
        inner.set_task(self._goals[int(self._rng.integers(len(self._goals)))])
        return self.env.reset(seed=seed, options=options)
