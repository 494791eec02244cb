"""The built-in tasks as Gymnasium environments, one at a time and many together.

    import gymnasium as gym
    import plaudit.envs                                   # registers them

    env = gym.make("plaudit/Lift-v0", obs="both", cameras=("front", "wrist"))
    envs = gym.make_vec("plaudit/Lift-v0", num_envs=8)    # one batch, not eight processes

Observations are {"state": f32 [S], camera: u8 [H, W, 3], ...}, actions [4] in -1..1. An episode ends at success, and is
cut off after `max_steps`. `info` tells what only a simulation knows: success, grasp, dense_reward.

An episode starts from the seed it is given, as `World.reset` does; without one, from the next number of the generator
that the last seed began. Each scene of a `PandaVectorEnv` has a generator of its own, so it goes through the very
episodes that a `PandaEnv` goes through.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from plaudit.envs.panda.state import LIMIT
from plaudit.envs.panda.world import World
from plaudit.errors import EnvError, InvalidAction, nearest
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray, Observation

Seen = dict[str, AnyArray]
Info = dict[str, Any]

_RENDER_MODES = ("rgb_array",)


class PandaEnv(gym.Env[Seen, FloatArray]):
    """One scene."""

    metadata: dict[str, Any] = {"render_modes": list(_RENDER_MODES), "render_fps": World.fps}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        *,
        reward: Literal["sparse", "dense"] = "sparse",
        render_mode: str | None = None,
        render_camera: str = "front",
        render_size: tuple[int, int] = (256, 256),
        threads: int = 1,
        **world: Any,
    ):
        """
        reward: "sparse" is 1 on success and 0 before, "dense" leads there in [0, 1]
        render_camera, render_size: what `render()` draws
        world: further arguments of `World`: obs, cameras, image_size, max_steps, randomize, render_backend
        """
        _check(reward, render_mode)
        self._world = World(task, 1, threads=threads, **world)
        self._dense, self.render_mode, self._render = reward == "dense", render_mode, (render_camera, render_size)
        self.task, self.fps, self.max_steps = self._world.task, self._world.fps, self._world.max_steps
        self.observation_space = _observation_space(self._world)
        self.action_space = spaces.Box(-1.0, 1.0, (self._world.action_dim,), np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Seen, Info]:
        super().reset(seed=seed)
        self._steps = 0
        start = _next_seed(self.np_random) if seed is None else seed
        return _one(self._world.reset([start]), 0), {}

    def step(self, action: FloatArray) -> tuple[Seen, float, bool, bool, Info]:
        if np.shape(action) != self.action_space.shape:
            raise InvalidAction(f"an action is [4] (dx, dy, dz, gripper), got {list(np.shape(action))}")
        observation, known = self._world.step(np.asarray(action)[None])
        self._steps += 1
        success = bool(known["success"][0])
        info = {"success": success, "grasp": bool(known["grasp"][0]), "dense_reward": float(known["reward"][0])}
        reward = info["dense_reward"] if self._dense else float(success)
        return _one(observation, 0), reward, success, self._steps >= self.max_steps, info

    def render(self) -> ByteArray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._world.view(*self._render)[0] if self.render_mode else None

    def close(self) -> None:
        self._world.close()


class PandaVectorEnv(VectorEnv[Seen, FloatArray, AnyArray]):
    """N scenes in one batch."""

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
        **world: Any,
    ):
        """
        autoreset_mode: "NextStep": the step after the end of an episode starts the next and ignores its action;
            "SameStep": the last step starts it, and leaves what was seen last in info["final_obs"];
            "Disabled": reset(options={"reset_mask": ...}) starts it
        other arguments: as for `PandaEnv`
        """
        _check(reward, render_mode)
        self._world = World(task, num_envs, **world)
        self._dense, self.render_mode, self._render = reward == "dense", render_mode, (render_camera, render_size)
        self._mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**PandaEnv.metadata, "autoreset_mode": self._mode}
        self.num_envs, self.task, self.fps = num_envs, self._world.task, self._world.fps
        self.max_steps = self._world.max_steps
        self.single_observation_space = _observation_space(self._world)
        self.single_action_space = spaces.Box(-1.0, 1.0, (self._world.action_dim,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators = [seeding.np_random()[0] for _ in range(num_envs)]
        self._steps, self._over = np.zeros(num_envs, int), np.zeros(num_envs, bool)

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Seen, Info]:
        """`seed`: of scene 0, the others count up from it; or one each. `options`: {"reset_mask": bool [N]}."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise EnvError(f"{len(seed)} seeds for {self.num_envs} scenes; give one each")
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if np.shape(mask) != (self.num_envs,) or np.asarray(mask).dtype != bool or not np.any(mask):
            raise EnvError(f"reset_mask must be bool [{self.num_envs}] with at least one True, got {mask}")
        return _all(self._restart(mask, seed)), {}

    def step(self, actions: FloatArray) -> tuple[Seen, AnyArray, AnyArray, AnyArray, Info]:
        active = np.ones(self.num_envs, bool)
        if self._mode is AutoresetMode.NEXT_STEP and self._over.any():
            active = ~self._over
            self._restart(~active)
        elif self._over.any():
            raise EnvError(f"scenes {np.flatnonzero(self._over).tolist()} are over; reset them before the next step")
        observation, known = self._world.step(actions, active)
        self._steps += active
        success: BoolArray = known["success"] & active
        truncated = active & (self._steps >= self.max_steps)
        reward = np.where(active, known["reward"] if self._dense else success, 0.0).astype(np.float64)
        told = {"success": known["success"], "grasp": known["grasp"], "dense_reward": known["reward"].astype(float)}
        self._over = success | truncated
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            over = self._over
            final = np.full(self.num_envs, None, object)
            for i in np.flatnonzero(over).tolist():
                final[i] = _one(observation, i)
            info = {"final_obs": final, "_final_obs": over, "final_info": _masked(told, over), "_final_info": over}
            return _all(self._restart(over)), reward, success, truncated, info | _masked(told, ~over)
        return _all(observation), reward, success, truncated, _masked(told, active)

    def render(self) -> tuple[ByteArray, ...] | None:
        return tuple(self._world.view(*self._render)) if self.render_mode else None

    def close_extras(self, **_: Any) -> None:
        self._world.close()

    def _restart(self, mask: BoolArray, seeds: Sequence[int | None] | None = None) -> Observation:
        """Start these scenes, from the seeds given or from their generators' next."""
        ids = np.flatnonzero(mask)
        starts: list[int] = []
        for i in ids.tolist():
            seed = None if seeds is None else seeds[i]
            if seed is not None:
                self._generators[i] = seeding.np_random(seed)[0]
            starts.append(_next_seed(self._generators[i]) if seed is None else seed)
        self._steps[ids], self._over = 0, self._over & ~mask
        return self._world.reset(starts, None if len(ids) == self.num_envs else ids)


def _check(reward: str, render_mode: str | None) -> None:
    if reward not in ("sparse", "dense"):
        raise EnvError(f"there is no reward '{reward}'; {nearest(reward, ('sparse', 'dense'))}")
    if render_mode is not None and render_mode not in _RENDER_MODES:
        raise EnvError(f"there is no render_mode '{render_mode}'; {nearest(render_mode, _RENDER_MODES)}")


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    known = {known.value: known for known in AutoresetMode}
    if mode not in known:
        raise EnvError(f"there is no autoreset_mode '{mode}'; {nearest(mode, known)}")
    return known[mode]


def _observation_space(world: World) -> spaces.Space[Any]:
    images = {camera: spaces.Box(0, 255, (*size, 3), np.uint8) for camera, size in world.cameras.items()}
    return spaces.Dict({"state": spaces.Box(-LIMIT, LIMIT, (world.state_dim,), np.float32), **images})


def _next_seed(generator: np.random.Generator) -> int:
    return int(generator.integers(2**31))


def _one(observation: Observation, i: int) -> Seen:
    return {camera: image[i].copy() for camera, image in _all(observation).items()}


def _all(observation: Observation) -> Seen:
    return {"state": observation.state, **observation.images}


def _masked(told: Mapping[str, AnyArray], mask: BoolArray) -> Info:
    """As Gymnasium batches infos: each value beside a mask of the scenes that have it, 0 elsewhere."""
    if not mask.any():
        return {}
    info: Info = {}
    for name, values in told.items():
        info[name], info[f"_{name}"] = np.where(mask, values, np.zeros_like(values)), mask.copy()
    return info
