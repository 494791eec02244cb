"""Gymnasium wrappers that store every episode, with the environment's own success flag as its label.

    env = DataCollectorWrapper(gym.make("plaudit/Lift-v0", obs="both"), store, EpisodeTargets(success=50, failure=50))
    while not env.done:
        ...                                  # step and reset it as usual; the wrapper changes nothing

Frames are the images of the observation, or those of `render()`. An episode that `close()` or a reset cuts short is
kept if it has a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from plaudit.data.store import Store
from plaudit.errors import EnvError
from plaudit.rollout.collector import EpisodeFolders, EpisodeTargets, RewardDataCollector
from plaudit.types import AnyArray, BoolArray

RENDERED = "render"  # the camera's name where frames are rendered
IMAGE = "image"  # the camera's name where the observation is an image

Info = Mapping[str, Any]


class DataCollectorWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Stores the episodes of one environment."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        store: Store,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        *,
        image_keys: Sequence[str] | None = None,
        folders: Sequence[EpisodeFolders] = (),
        success_key: str = "success",
        info_keys: Sequence[str] = (),
        task: str = "",
        fps: float | None = None,
    ):
        """
        image_keys: which cameras to keep; None: all
        folders: that get a file of each episode too, like EpisodeFolders.pkl(save_dir)
        success_key: the key of the success flag in `info`
        info_keys: of other numbers in `info` to store, like grasp
        fps: control steps per second; None: as in the environment's metadata
        """
        super().__init__(env)
        self._reader = _Reader(env.observation_space, env.render_mode, success_key, info_keys)
        about = _describe(env, task, fps) | {"image_keys": image_keys, "folders": folders}
        self.collector = RewardDataCollector(store, 1, targets=targets, **about)

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.collector.done

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an episode that this cuts short is stored."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.collector.begin(self._read(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and record the step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.collector.add_env_output(
            {
                "obs": self._read(observation),
                "actions": np.reshape(action, (1, -1)),
                "dones": [terminated or truncated],
                "terminations": [terminated],
                **self._reader.read_info({name: [value] for name, value in info.items()}),
            }
        )
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Store the episode so far and close the environment."""
        self.collector.flush()
        super().close()

    def _read(self, observation: Any) -> Mapping[str, Any]:
        is_dict = isinstance(observation, Mapping)
        batch = {name: [value] for name, value in observation.items()} if is_dict else [observation]
        return self._reader.read(batch, lambda: (self.env.render(),))


class VectorDataCollectorWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """Stores the episodes of N environments, with any autoreset mode."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        store: Store,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        *,
        success_key: str = "success",
        info_keys: Sequence[str] = (),
        task: str = "",
        fps: float | None = None,
        **options: Any,
    ):
        """See `DataCollectorWrapper`. options: image_keys, folders"""
        super().__init__(env)
        self._reader = _Reader(env.single_observation_space, env.render_mode, success_key, info_keys)
        self._mode = env.metadata["autoreset_mode"]
        if self._mode is AutoresetMode.SAME_STEP and not self._reader.cameras:
            raise EnvError(
                "an environment that resets in the same step is rendered too late to see how its episode ended; "
                "make it with autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        options |= _describe(env, task, fps)
        self.collector = RewardDataCollector(store, env.num_envs, targets=targets, **options)
        self._done = np.zeros(env.num_envs, bool)

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.collector.done

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environments; episodes that this cuts short are stored."""
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        observation, info = self.env.reset(seed=seed, options=options)
        self.collector.begin(self._reader.read(observation, self.env.render), mask)
        self._done &= ~mask
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments and record the step."""
        restarted = self._done if self._mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self._done = done = np.logical_or(terminated, truncated)
        output: dict[str, Any] = {"obs": self._reader.read(observation, self.env.render)}
        step_info: Info = info
        if self._mode is AutoresetMode.SAME_STEP and done.any():
            final = _with_final(observation, info["final_obs"], done)
            output["final_obs"] = self._reader.read(final, self.env.render)
            step_info = {name: _final_info(info, name, done) for name in self._reader.info_keys}
        self.collector.begin(output["obs"], restarted)
        if not restarted.all():
            self.collector.add_env_output(
                {
                    **output,
                    "actions": np.reshape(actions, (self.num_envs, -1)),
                    "dones": done,
                    "terminations": terminated,
                    **self._reader.read_info(step_info),
                },
                only=~restarted,
            )
        return observation, reward, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        """Store the episodes so far and close the environments."""
        self.collector.flush()
        super().close(**kwargs)


class _Reader:
    """Takes images and numbers out of an observation, and the success flag out of an info."""

    def __init__(self, space: spaces.Space[Any], render_mode: str | None, success_key: str, info_keys: Sequence[str]):
        self._is_dict = isinstance(space, spaces.Dict)
        parts = space.spaces if isinstance(space, spaces.Dict) else {IMAGE: space}
        boxes = {name: part for name, part in parts.items() if isinstance(part, spaces.Box)}
        images = {name: box for name, box in boxes.items() if box.dtype == np.uint8 and len(box.shape) == 3}
        self.cameras = [name for name, box in images.items() if 3 in (box.shape[0], box.shape[2])]
        self._numbers = [name for name, box in boxes.items() if len(box.shape) == 1]
        self.info_keys = (success_key, *info_keys)
        if not self.cameras and render_mode != "rgb_array":
            raise EnvError("this environment observes no image; make it with render_mode='rgb_array'")

    def read(self, observation: Any, render: Any) -> Mapping[str, Any]:
        """An observation of N environments, as `RewardDataCollector` takes it."""
        parts = observation if self._is_dict else {IMAGE: observation}
        images = {name: parts[name] for name in self.cameras} or {RENDERED: np.stack(render())}
        numbers = [np.asarray(parts[name], np.float32) for name in self._numbers]
        return {"images": images, **({"states": np.concatenate(numbers, axis=1)} if numbers else {})}

    def read_info(self, info: Info) -> Mapping[str, Any]:
        """The success flags and other numbers of a step, likewise."""
        for name in self.info_keys:
            _check_key(info, name)
        success_key, *others = self.info_keys
        return {"success_frame": info[success_key], "privileged": {name: info[name] for name in others}}


def _describe(env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any], task: str, fps: float | None) -> dict[str, Any]:
    """Task, rate and name of the environment, for its episodes."""
    fps = float(env.metadata.get("render_fps", 0.0)) if fps is None else fps
    return {"task": task, "fps": fps, "robot": env.spec.id if env.spec else ""}


def _with_final(observation: Any, final: Sequence[Any], done: BoolArray) -> Any:
    """The observation of N environments, with the last one of those that are done in place of their next first."""
    if isinstance(observation, Mapping):
        return {
            name: _with_final(rows, [last and last[name] for last in final], done) for name, rows in observation.items()
        }
    rows = np.array(observation)
    for n in np.flatnonzero(done).tolist():
        rows[n] = final[n]
    return rows


def _final_info(info: Info, name: str, done: BoolArray) -> AnyArray:
    """One entry of an info, with the last values of those that are done."""
    final = info["final_info"]
    _check_key(final, name)
    return np.where(done, final[name], info.get(name, np.zeros_like(final[name])))


def _check_key(info: Info, name: str) -> None:
    if name not in info:
        raise EnvError(f"info has no '{name}'; it has: {', '.join(map(str, info)) or 'nothing'}")
