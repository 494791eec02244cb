"""ManiSkill 3, whose environments return torch tensors with a batch dimension, in nested dictionaries.

On a GPU `BatchVecEnv` takes the batch as it is. On a CPU, where a batch always has size one, `unbatch` removes the
dimension. This module does not import torch; ManiSkill does.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from plaudit.envs.adapters import (
    INFO,
    AdaptedEnv,
    AdapterConfig,
    action_bounds,
    check_actions,
    check_id,
    load_simulator,
    scale_actions,
)
from plaudit.errors import EnvError, UnknownName, did_you_mean
from plaudit.protocols import VecEnv
from plaudit.types import AnyArray, BoolArray, Observation

OBS_MODES = {"state": "state", "pixels": "rgb", "both": "rgb+state"}  # ours -> ManiSkill's
TASKS = {
    "PickCube-v1": "pick up the red cube and bring it to the green mark",
    "PushCube-v1": "push the cube to the target",
    "StackCube-v1": "put the red cube on the green one",
    "PegInsertionSide-v1": "put the peg into the hole in the side of the box",
}


class ManiSkillConfig(AdapterConfig):
    """ManiSkill 3: robots in SAPIEN, thousands of them in one step on a GPU, or one at a time on a CPU."""

    # our name -> ManiSkill's; its other sensors keep their names
    sensors: ClassVar[Mapping[str, str]] = {"front": "base_camera", "wrist": "hand_camera"}

    type: Literal["maniskill"] = "maniskill"
    id: str = "PickCube-v1"  # the ManiSkill task
    control_mode: str = "pd_ee_delta_pos"  # what an action means: by default how far the hand moves, and the gripper
    sim_backend: Literal["auto", "physx_cpu", "physx_cuda"] = "auto"  # where physics runs; auto: a GPU for two or more
    reward: Literal["normalized_dense", "dense", "sparse", "none"] | None = None  # None: the task's own choice

    def build(self, num_envs: int = 1) -> VecEnv:
        """Make `num_envs` environments: in one batch where there is a GPU for it, else one after the other."""
        auto = self.sim_backend == "auto" and num_envs > 1
        if self.sim_backend == "physx_cuda" or (auto and import_module("torch").cuda.is_available()):
            return BatchVecEnv(self._simulator(num_envs, "physx_cuda"), self, num_envs)
        return super().build(num_envs)

    def make(self) -> AdaptedEnv:
        """Make one environment; raises `MissingExtra` without ManiSkill."""
        return self.adapt(self._simulator(1, self.sim_backend))

    def _simulator(self, num_envs: int, backend: str) -> gym.Env[Any, Any]:
        load_simulator("mani_skill.envs", extra="maniskill")
        check_id(self.id, list(gym.registry))
        height, width = self.image_size
        reward: dict[str, Any] = {} if self.reward is None else {"reward_mode": self.reward}
        return gym.make(
            self.id,
            max_episode_steps=self.max_steps,
            num_envs=num_envs,
            obs_mode=OBS_MODES[self.obs],
            control_mode=self.control_mode,
            sim_backend=backend,
            sensor_configs={"height": height, "width": width},
            **reward,
        )

    def adapt(self, simulator: gym.Env[Any, Any]) -> AdaptedEnv:
        """Adapt an environment of ManiSkill's; this part does not need ManiSkill itself."""
        single = SingleEnv(simulator)
        first, _ = single.reset()  # unseeded, so that episodes without a seed differ from process to process
        self.check_sensors(first)
        return AdaptedEnv(
            single,
            name=self.id,
            read=self.read,
            success=lambda info: bool(info["success"]),
            state_dim=self.read(first)[0].size,
            images=self.images,
            task=self.instruction,
            fps=_fps(simulator),
            max_steps=_max_steps(simulator),
        )

    @property
    def instruction(self) -> str:
        """What the robot is to do."""
        return self.task or TASKS.get(self.id, self.id)

    def check_sensors(self, observation: Any) -> None:
        """Raise `UnknownName` for a camera that the task has not."""
        sensors = observation.get("sensor_data", {}) if isinstance(observation, Mapping) else {}
        for camera in self.images:
            if self.sensors.get(camera, camera) not in sensors:
                our_names = {sensor: name for name, sensor in self.sensors.items()}
                available = [our_names.get(sensor, sensor) for sensor in map(str, sensors)]
                raise UnknownName(f"{self.id} has no camera '{camera}'; {did_you_mean(camera, available)}")

    def read(self, observation: Any, batch: tuple[int, ...] = ()) -> tuple[AnyArray, dict[str, AnyArray]]:
        """State and images of an observation in numpy, with a leading `batch` in each."""
        if not isinstance(observation, Mapping):
            return observation, {}
        parts = {name: observation[name] for name in ("state", "agent", "extra") if name in observation}
        images = {camera: observation["sensor_data"][self.sensors.get(camera, camera)]["rgb"] for camera in self.images}
        return flatten(parts, batch), images


class BatchVecEnv:
    """N environments that ManiSkill steps together on a GPU, those whose episode is over along with the others.

    A list of seeds starts the same episodes again, but the same seed among other seeds may start another episode.
    """

    def __init__(self, simulator: gym.Env[Any, Any], config: ManiSkillConfig, num_envs: int):
        """simulator: of `num_envs` environments"""
        inner: Any = simulator.unwrapped
        self._simulator, self._config, self.num_envs = simulator, config, num_envs
        self._low, self._high = action_bounds(inner.single_action_space, config.id)
        raw, _ = simulator.reset()
        config.check_sensors(raw)
        self.cameras: Mapping[str, tuple[int, int]] = config.images
        self._observation = self._read(raw)
        self.state_dim, self.action_dim = self._observation.state.shape[1], len(self._low)
        self.fps, self.max_steps, self.task = _fps(simulator), _max_steps(simulator), config.instruction
        self._info: dict[str, AnyArray] = {}

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode in every environment."""
        raw, _ = self._simulator.reset(seed=[int(seed) for seed in seeds])  # type: ignore[arg-type] # one for each
        self._observation = self._read(raw)
        self._info = {name: np.zeros(self.num_envs, dtype) for name, dtype in INFO.items()}
        return self._observation

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, Mapping[str, AnyArray]]:
        """Make one control step; environments that are not active, [N], keep their last values."""
        check_actions(actions, self.num_envs, self.action_dim)
        actions = scale_actions(actions, self._low, self._high)
        raw, reward, terminated, _, info = self._simulator.step(actions)
        seen, success = self._read(raw), to_numpy(info["success"]).astype(bool)
        new = {"success": success, "failure": to_numpy(terminated).astype(bool) & ~success, "reward": to_numpy(reward)}
        self._info = {name: np.where(active, new[name], before) for name, before in self._info.items()}
        self._observation = Observation(
            images={name: _keep(active, image, self._observation.images[name]) for name, image in seen.images.items()},
            state=_keep(active, seen.state, self._observation.state),
        )
        return self._observation, self._info

    def close(self) -> None:
        """Close the simulator."""
        self._simulator.close()

    def _read(self, raw: Any) -> Observation:
        state, images = self._config.read(to_numpy(raw), (self.num_envs,))
        if not np.isfinite(state).all():
            bad = np.argwhere(~np.isfinite(state))[0]
            raise EnvError(f"{self._config.id}: number {bad[1]} of the state of environment {bad[0]} is not finite")
        return Observation(
            images={camera: np.asarray(image, np.uint8) for camera, image in images.items()},
            state=np.asarray(state, np.float32),
        )


def _keep(active: BoolArray, new: AnyArray, before: AnyArray) -> AnyArray:
    """The new values of those that are active, and of the others those before."""
    return new if active.all() else np.where(active.reshape(-1, *[1] * (new.ndim - 1)), new, before)


def _fps(simulator: gym.Env[Any, Any]) -> float:
    inner: Any = simulator.unwrapped
    return float(inner.control_freq)


def _max_steps(simulator: gym.Env[Any, Any]) -> int:
    """Its time limit is a wrapper of its own, for batches, which is not in gymnasium's spec."""
    return int(simulator.get_wrapper_attr("_max_episode_steps"))


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
    array = to_numpy(tree)
    return (array[0] if array.ndim else array[()]) if isinstance(array, np.ndarray) else array


def to_numpy(tree: Any) -> Any:
    """The same with numpy arrays in place of tensors; plain values stay as they are."""
    if isinstance(tree, Mapping):
        return {key: to_numpy(value) for key, value in tree.items()}
    if tree is None or isinstance(tree, (bool, int, float, str, np.ndarray)):
        return tree
    return tree.cpu().numpy()


def flatten(tree: Any, batch: tuple[int, ...] = ()) -> AnyArray:
    """All numbers of a nested dictionary, in order, as one vector, or with a leading `batch` as one each."""
    if isinstance(tree, Mapping):
        parts = [flatten(value, batch) for value in tree.values()]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*batch, 0), np.float32)
    return np.asarray(tree, np.float32).reshape(*batch, -1)
