"""Three collections of MuJoCo tasks: gym_hil, the Fetch tasks of Gymnasium-Robotics, and Meta-World."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from pydantic import field_validator

from plaudit.config import Seed
from plaudit.envs import gl
from plaudit.envs.adapters import AdaptedEnv, AdapterConfig, check_id, check_mujoco, load_simulator
from plaudit.envs.gl import FREE_CAMERA, MujocoCameras
from plaudit.errors import did_you_mean
from plaudit.types import AnyArray

_PICK_CUBE, _ARRANGE_BOXES = "pick up the cube", "put each box on the target of its color"
HIL_TASKS = {
    "gym_hil/PandaPickCube-v0": _PICK_CUBE,
    "gym_hil/PandaPickCubeBase-v0": _PICK_CUBE,
    "gym_hil/PandaArrangeBoxes-v0": _ARRANGE_BOXES,
    "gym_hil/PandaArrangeBoxesBase-v0": _ARRANGE_BOXES,
}
HIL_ARM_DIM = 18  # joint angles and speeds, gripper, its position
HIL_BLOCK_DIM = 3  # position of the cube or of the first box


class MujocoConfig(AdapterConfig):
    """What the configs of MuJoCo tasks share."""

    render_backend: gl.Backend | None = None  # None: MUJOCO_GL, or what this machine has

    def make_cameras(self, env: gym.Env[Any, Any]) -> MujocoCameras:
        """The simulator with the cameras of the config."""
        return MujocoCameras(env, {camera: self.available_cameras[camera] for camera in self.images})


class GymHilConfig(MujocoConfig):
    """gym_hil: a Franka arm in MuJoCo that picks up a cube or sorts boxes.

    The ids with "Base" take raw actions: meters per step and a rotation that is ignored. The ids without it take four
    numbers, three of them scaled to 25 mm per step. The ids for gamepads, keyboards and viewers need a person and a
    window and are not offered.
    """

    # Both are rendered whenever there are images: the simulator cannot render one alone.
    available_cameras: ClassVar[Mapping[str, str]] = {"front": "front", "wrist": "wrist"}

    type: Literal["gym_hil"] = "gym_hil"
    id: str = "gym_hil/PandaPickCube-v0"  # the gym_hil task
    cameras: tuple[str, ...] = ("front", "wrist")
    reward: Literal["sparse", "dense"] = "sparse"  # 1 at success, or the task's own dense reward
    random_block: bool = True  # the cube starts at another place in each episode; boxes always do

    @field_validator("id")
    @classmethod
    def _check_id(cls, id: str) -> str:
        if id not in HIL_TASKS:
            raise ValueError(f"there is no environment '{id}'; {did_you_mean(id, HIL_TASKS)}")
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
            state_dim=HIL_ARM_DIM + (0 if self.obs == "pixels" else HIL_BLOCK_DIM),
            images=self.images,
            task=self.task or HIL_TASKS[self.id],
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


FETCH_TASKS = {
    "FetchReach": "move the gripper to the red mark",
    "FetchPush": "push the block to the red mark",
    "FetchSlide": "hit the puck so that it slides to the red mark",
    "FetchPickAndPlace": "bring the block to the red mark",
}
FETCH_GOAL_DIM = 3  # x, y, z of the red mark
FETCH_STATE_DIM = 25
FETCH_ARM = [0, 1, 2, 9, 10, 20, 21, 22, 23, 24]  # in the state: gripper position, fingers, their velocities


class FetchConfig(MujocoConfig):
    """The Fetch tasks of Gymnasium-Robotics: reach, push, slide, pick and place.

    The goal of the goal-conditioned observation becomes part of the state; `achieved_goal` is left out because the
    state contains it. The cameras in the robot's head and hand show the inside of its covers and are not offered.
    """

    available_cameras: ClassVar[Mapping[str, str]] = {"front": "external_camera_0", "side": FREE_CAMERA}

    type: Literal["fetch"] = "fetch"
    id: str = "FetchPickAndPlace-v4"  # the task of gymnasium-robotics

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
        simulator = self.make_cameras(env)
        arm_only = self.obs == "pixels" and inner.has_object
        state_dim = len(FETCH_ARM) if arm_only or not inner.has_object else FETCH_STATE_DIM

        def read(observation: dict[str, AnyArray]) -> tuple[AnyArray, dict[str, AnyArray]]:
            state = observation["observation"][FETCH_ARM] if arm_only else observation["observation"]
            return np.concatenate([state, observation["desired_goal"]]), simulator.render_cameras()

        assert env.spec is not None and env.spec.max_episode_steps is not None
        return AdaptedEnv(
            simulator,
            name=self.id,
            read=read,
            success=lambda info: bool(info["is_success"]),
            state_dim=state_dim + FETCH_GOAL_DIM,
            images=self.images,
            task=self.task or FETCH_TASKS[self.id.removesuffix("-v4").removesuffix("Dense")],
            fps=1.0 / inner.dt,
            max_steps=env.spec.max_episode_steps,
        )


METAWORLD_STATE_DIM = 39  # hand, gripper, objects, the same one step earlier, goal
METAWORLD_ARM_DIM = 4  # of these: x, y, z of the hand, and the gripper


class MetaWorldConfig(MujocoConfig):
    """Meta-World: fifty tasks of a Sawyer arm, by name ("pick-place-v3").

    One task with its fifty goals, as in the MT1 benchmark; the seed of a reset selects the goal. It is made from
    Meta-World's own classes, because `gym.make("Meta-World/MT1")` draws the goal from a generator that no reset can
    seed. The corner cameras are mounted upside down; their images are rotated.
    """

    available_cameras: ClassVar[Mapping[str, str]] = {
        "front": "corner2",
        "side": "corner",
        "left": "corner3",
        "top": "topview",
        "back": "behindGripper",
        "wrist": "gripperPOV",
    }

    type: Literal["metaworld"] = "metaworld"
    id: str = "pick-place-v3"  # the Meta-World task
    goals_seed: Seed = 0  # which fifty goals

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
        simulator = self.make_cameras(env)

        def read(observation: AnyArray) -> tuple[AnyArray, dict[str, AnyArray]]:
            images = {
                camera: image[::-1, ::-1] if self.available_cameras[camera].startswith("corner") else image
                for camera, image in simulator.render_cameras().items()
            }
            return observation[:METAWORLD_ARM_DIM] if self.obs == "pixels" else observation, images

        return AdaptedEnv(
            simulator,
            name=self.id,
            read=read,
            success=lambda info: bool(info["success"]),
            state_dim=METAWORLD_ARM_DIM if self.obs == "pixels" else METAWORLD_STATE_DIM,
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
