"""ManiSkill 3: robots in SAPIEN, here one environment at a time.

ManiSkill is made for thousands of environments on a GPU: it returns torch tensors with a batch dimension, in nested
dictionaries. `unbatch` takes one environment out of them as numpy arrays; this module imports no torch.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from plaudit.envs.adapters.base import AdaptedEnv, AdapterConfig, check_id, load_simulator
from plaudit.errors import UnknownName, did_you_mean
from plaudit.types import AnyArray

OBS_MODES = {"state": "state", "pixels": "rgb", "both": "rgb+state"}  # ours -> ManiSkill's
TASKS = {
    "PickCube-v1": "pick up the red cube and bring it to the green mark",
    "PushCube-v1": "push the cube to the target",
    "StackCube-v1": "put the red cube on the green one",
    "PegInsertionSide-v1": "put the peg into the hole in the side of the box",
}


class ManiSkillConfig(AdapterConfig):
    """A ManiSkill task, by its id."""

    # our name -> ManiSkill's; its other sensors keep their names
    sensors: ClassVar[Mapping[str, str]] = {"front": "base_camera", "wrist": "hand_camera"}

    type: Literal["maniskill"] = "maniskill"
    id: str = "PickCube-v1"
    control_mode: str = "pd_ee_delta_pos"  # what an action means: by default how far the hand moves, and the gripper
    sim_backend: Literal["auto", "physx_cpu", "physx_cuda"] = "auto"  # where physics runs
    reward: Literal["normalized_dense", "dense", "sparse", "none"] | None = None  # None: the task's own choice

    def make(self) -> AdaptedEnv:
        """Make one environment; raises `MissingExtra` without ManiSkill."""
        load_simulator("mani_skill.envs", extra="maniskill")
        check_id(self.id, list(gym.registry))
        height, width = self.image_size
        reward: dict[str, Any] = {} if self.reward is None else {"reward_mode": self.reward}
        simulator = gym.make(
            self.id,
            max_episode_steps=self.max_steps,
            num_envs=1,
            obs_mode=OBS_MODES[self.obs],
            control_mode=self.control_mode,
            sim_backend=self.sim_backend,
            sensor_configs={"height": height, "width": width},
            **reward,
        )
        return self.adapt(simulator)

    def adapt(self, simulator: gym.Env[Any, Any]) -> AdaptedEnv:
        """Adapt an environment of ManiSkill's; this part does not need ManiSkill itself."""
        single = SingleEnv(simulator)
        first, _ = single.reset()  # unseeded, so that episodes without a seed differ from process to process
        sensors = first.get("sensor_data", {}) if isinstance(first, Mapping) else {}
        for camera in self.images:
            if self.sensors.get(camera, camera) not in sensors:
                our_names = {sensor: name for name, sensor in self.sensors.items()}
                available = [our_names.get(sensor, sensor) for sensor in map(str, sensors)]
                raise UnknownName(f"{self.id} has no camera '{camera}'; {did_you_mean(camera, available)}")
        inner: Any = simulator.unwrapped
        return AdaptedEnv(
            single,
            name=self.id,
            read=self.read,
            success=lambda info: bool(info["success"]),
            state_dim=self.read(first)[0].size,
            images=self.images,
            task=self.task or TASKS.get(self.id, self.id),
            fps=float(inner.control_freq),
            # Its time limit is a wrapper of its own, for batches, which is not in gymnasium's spec.
            max_steps=int(simulator.get_wrapper_attr("_max_episode_steps")),
        )

    def read(self, observation: Any) -> tuple[AnyArray, dict[str, AnyArray]]:
        """State and images of an unbatched observation."""
        if not isinstance(observation, Mapping):
            return observation, {}
        parts = {name: observation[name] for name in ("state", "agent", "extra") if name in observation}
        images = {camera: observation["sensor_data"][self.sensors.get(camera, camera)]["rgb"] for camera in self.images}
        return flatten(parts), images


class SingleEnv(gym.Wrapper[Any, Any, Any, Any]):
    """The only environment of a batch of one."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        inner: Any = env.unwrapped
        self.action_space = inner.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return unbatch(self.env.reset(seed=seed, options=options or {}))

    def step(self, action: AnyArray) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one control step."""
        return unbatch(self.env.step(action))


def unbatch(tree: Any) -> Any:
    """The first of a batch, in tuples and nested dictionaries of tensors or arrays; plain values stay as they are.

    >>> unbatch({"success": np.array([True]), "elapsed": 3})
    {'success': np.True_, 'elapsed': 3}
    """
    if isinstance(tree, Mapping):
        return {key: unbatch(value) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(unbatch(value) for value in tree)
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    array = tree if isinstance(tree, np.ndarray) else tree.cpu().numpy()
    return array[0] if array.ndim else array[()]


def flatten(tree: Any) -> AnyArray:
    """All numbers of a nested dictionary, in order, as one vector."""
    if isinstance(tree, Mapping):
        return np.concatenate([flatten(value) for value in tree.values()]) if tree else np.zeros(0, np.float32)
    return np.ravel(np.asarray(tree, np.float32))
