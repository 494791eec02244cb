"""The built-in tasks as Gymnasium environments, one at a time and many together.

    import plaudit.envs                                   # registers them

    env = gym.make("plaudit/Lift-v0", obs="both", cameras=("front", "wrist"))
    envs = gym.make_vec("plaudit/Lift-v0", num_envs=8)    # one batch, not eight processes

Observations are {"state": f32 [S], camera: u8 [H, W, 3], ...}, actions [4] in -1..1. An episode terminates on success
and is truncated after `max_steps`. `info` has the privileged values success, grasp and dense_reward. An episode starts
from the seed it is given; without one, from the next number of the generator that the last seed started.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from plaudit.config import parse
from plaudit.envs.panda import PandaConfig
from plaudit.envs.panda.scene import STATE_LIMIT
from plaudit.envs.panda.vec_env import PandaVecEnv
from plaudit.errors import EnvError, InvalidAction, did_you_mean
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray, Observation

Obs = dict[str, AnyArray]
Info = dict[str, Any]

_RENDER_MODES = ("rgb_array",)


class PandaGymEnv(gym.Env[Obs, FloatArray]):
    """One environment of a built-in task: a `PandaGymVectorEnv` of one."""

    metadata: dict[str, Any] = {"render_modes": list(_RENDER_MODES), "render_fps": PandaVecEnv.fps}  # noqa: RUF012

    def __init__(self, task: str, *, num_threads: int = 1, **options: Any):
        """options: as for `PandaGymVectorEnv`"""
        self._batch = batch = PandaGymVectorEnv(task, num_threads=num_threads, **options)
        self._env, self.render_mode = batch._env, batch.render_mode
        self.task, self.fps, self.max_steps = batch.task, batch.fps, batch.max_steps
        self.observation_space, self.action_space = batch.single_observation_space, batch.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        start = _next_seed(self.np_random) if seed is None else seed
        observation, info = self._batch.reset(seed=[start])
        return {name: rows[0].copy() for name, rows in observation.items()}, info

    def step(self, action: FloatArray) -> tuple[Obs, float, bool, bool, Info]:
        """Make one control step."""
        if np.shape(action) != self.action_space.shape:
            raise InvalidAction(f"an action is [4] (dx, dy, dz, gripper), got {list(np.shape(action))}")
        observation, reward, success, truncated, values = self._batch.advance(
            np.asarray(action)[None], np.ones(1, bool)
        )
        info = {name: value[0].item() for name, value in values.items()}
        return _select(observation, 0), float(reward[0]), bool(success[0]), bool(truncated[0]), info

    def render(self) -> ByteArray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The image [H, W, 3] of `render_camera`, with render_mode "rgb_array"."""
        images = self._batch.render()
        return None if images is None else images[0]

    def close(self) -> None:
        """Close the cameras."""
        self._env.close()


class PandaGymVectorEnv(VectorEnv[Obs, FloatArray, AnyArray]):
    """N environments of a built-in task in one batch."""

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        reward: Literal["sparse", "dense"] = "sparse",
        render_mode: str | None = None,
        render_camera: str = "front",
        render_size: tuple[int, int] = (256, 256),
        **options: Any,
    ):
        """
        autoreset_mode: "NextStep": the step after the end of an episode starts the next one and ignores its action;
            "SameStep": the last step starts the next one and leaves the last observation in info["final_obs"];
            "Disabled": reset(options={"reset_mask": ...}) starts it
        reward: "sparse" is 1 on success and 0 before, "dense" is in [0, 1] and 1 on success
        render_camera, render_size: what `render()` draws
        options: other keys of `PandaConfig`: obs, cameras, image_size, max_steps, randomize, render_backend
        """
        modes = {member.value: member for member in AutoresetMode}
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        _check_choice("reward", reward, ("sparse", "dense"))
        _check_choice("autoreset_mode", mode, modes)
        if render_mode is not None:
            _check_choice("render_mode", render_mode, _RENDER_MODES)
        self._env = parse(PandaConfig, {"type": task, **options}).build(num_envs)
        self._dense, self.render_mode, self._render = reward == "dense", render_mode, (render_camera, render_size)
        self._mode = modes[mode]
        self.metadata = {**PandaGymEnv.metadata, "autoreset_mode": self._mode}
        self.num_envs, self.task, self.fps = num_envs, self._env.task, self._env.fps
        self.max_steps = self._env.max_steps
        state = spaces.Box(-STATE_LIMIT, STATE_LIMIT, (self._env.state_dim,), np.float32)
        images = {camera: spaces.Box(0, 255, (*size, 3), np.uint8) for camera, size in self._env.cameras.items()}
        self.single_observation_space = spaces.Dict({"state": state, **images})
        self.single_action_space = spaces.Box(-1.0, 1.0, (self._env.action_dim,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._steps, self._done = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Obs, Info]:
        """`seed`: of environment 0, the others count up from it; or one each. `options`: {"reset_mask": bool [N]}."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise EnvError(f"{len(seed)} seeds for {self.num_envs} environments; give one each")
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != bool or not np.any(mask):
            raise EnvError(f"reset_mask must be bool [{self.num_envs}] with at least one True, got {mask}")
        return _to_dict(self._restart(mask, seed)), {}

    def step(self, actions: FloatArray) -> tuple[Obs, AnyArray, AnyArray, AnyArray, Info]:
        """Make one control step in every environment, and start new episodes as `autoreset_mode` asks."""
        active = np.ones(self.num_envs, bool)
        if self._mode is AutoresetMode.NEXT_STEP and self._done.any():
            active = ~self._done
            self._restart(~active)
        elif self._done.any():
            finished = np.flatnonzero(self._done).tolist()
            raise EnvError(f"the episodes of environments {finished} are over; reset them before the next step")
        observation, reward, success, truncated, values = self.advance(actions, active)
        self._done = success | truncated
        if self._mode is AutoresetMode.SAME_STEP and self._done.any():
            done = self._done
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(done).tolist():
                final[i] = _select(observation, i)
            info = {"final_obs": final, "_final_obs": done, "final_info": _masked(values, done), "_final_info": done}
            return _to_dict(self._restart(done)), reward, success, truncated, info | _masked(values, ~done)
        return _to_dict(observation), reward, success, truncated, _masked(values, active)

    def advance(
        self, actions: AnyArray, active: BoolArray
    ) -> tuple[Observation, AnyArray, BoolArray, BoolArray, Mapping[str, AnyArray]]:
        """Step the environments that are active; returns observation, reward, success, truncated and info."""
        observation, privileged = self._env.step(actions, active)
        self._steps += active
        success: BoolArray = privileged["success"] & active
        truncated = active & (self._steps >= self.max_steps)
        reward = np.where(active, privileged["reward"] if self._dense else success, 0.0).astype(np.float64)
        info = {name: privileged[name] for name in ("success", "grasp")}
        return observation, reward, success, truncated, {**info, "dense_reward": privileged["reward"].astype(float)}

    def render(self) -> tuple[ByteArray, ...] | None:
        """One image of `render_camera` per environment, with render_mode "rgb_array"."""
        return tuple(self._env.render(*self._render)) if self.render_mode else None

    def close_extras(self, **_: Any) -> None:
        """Close the cameras."""
        self._env.close()

    def _restart(self, mask: BoolArray, seeds: Sequence[int | None] | None = None) -> Observation:
        """Start episodes in these environments, from the seeds given or from the next numbers of their generators."""
        ids = np.flatnonzero(mask)
        starts: list[int] = []
        for i in ids.tolist():
            seed = None if seeds is None else seeds[i]
            if seed is not None:
                self._generators[i] = seeding.np_random(seed)[0]
            starts.append(_next_seed(self._generators[i]) if seed is None else seed)
        self._steps[ids], self._done = 0, self._done & ~mask
        return self._env.reset(starts, None if len(ids) == self.num_envs else ids)


def _check_choice(key: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise EnvError(f"there is no {key} '{value}'; {did_you_mean(value, choices)}")


def _next_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**31))


def _select(observation: Observation, i: int) -> Obs:
    return {camera: image[i].copy() for camera, image in _to_dict(observation).items()}


def _to_dict(observation: Observation) -> Obs:
    return {"state": observation.state, **observation.images}


def _masked(values: Mapping[str, AnyArray], mask: BoolArray) -> Info:
    """An info as Gymnasium batches it: each value with a mask of the environments that have it, 0 elsewhere."""
    if not mask.any():
        return {}
    info: Info = {}
    for name, value in values.items():
        info[name], info[f"_{name}"] = np.where(mask, value, np.zeros_like(value)), mask.copy()
    return info
