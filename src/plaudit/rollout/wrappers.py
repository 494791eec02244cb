"""Gymnasium wrappers that record every episode passing through, with the environment's own verdict, into a store.

    env = DataCollectorWrapper(gym.make("plaudit/Lift-v0", obs="both"), store, EpisodeTargets(success=50, failure=50))
    while not env.done:
        ...                                  # step and reset it as ever; nothing that passes is changed

Frames are the images of the observation; where it has none, what `render()` draws with `render_mode="rgb_array"`. An
episode that is cut by `close()` or by a reset in its middle is kept if it has a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from plaudit.data.store import Store
from plaudit.errors import EnvError
from plaudit.rollout.collector import EpisodeTargets, RewardDataCollector
from plaudit.types import AnyArray, BoolArray

RENDERED = "render"  # the camera's name where frames are rendered
WHOLE = "image"  # where the observation is nothing but an image

Info = Mapping[str, Any]


class DataCollectorWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Around one environment."""

    def __init__(
        self,
        env: gym.Env[Any, Any],
        store: Store,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        *,
        image_keys: Sequence[str] | None = None,
        success_key: str = "success",
        known: Sequence[str] = (),
        task: str = "",
        fps: float | None = None,
    ):
        """
        image_keys: which cameras to keep; None: all
        success_key: what `info` calls its verdict
        known: numbers of `info` to store beside it, like grasp
        fps: control steps a second; None: what the environment's metadata says
        """
        super().__init__(env)
        self._reader = _Reader(env.observation_space, env.render_mode, success_key, known)
        self.collector = _collector(store, 1, targets, image_keys, task, fps, env)

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.collector.done

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.collector.begin(self._seen(observation))
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.collector.add_env_output(
            {
                "obs": self._seen(observation),
                "actions": np.reshape(action, (1, -1)),
                "dones": [terminated or truncated],
                "terminations": [terminated],
                **self._reader.verdict({name: [value] for name, value in info.items()}),
            }
        )
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self.collector.flush()
        super().close()

    def _seen(self, observation: Any) -> Mapping[str, Any]:
        return self._reader.read(_batch_of_one(observation), lambda: (self.env.render(),))


class VectorDataCollectorWrapper(VectorWrapper[Any, Any, Any, Any, Any]):
    """Around N environments, whichever way they reset themselves."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        store: Store,
        targets: EpisodeTargets = EpisodeTargets(),  # noqa: B008 - frozen
        *,
        image_keys: Sequence[str] | None = None,
        success_key: str = "success",
        known: Sequence[str] = (),
        task: str = "",
        fps: float | None = None,
    ):
        """As for one environment."""
        super().__init__(env)
        self._reader = _Reader(env.single_observation_space, env.render_mode, success_key, known)
        self._mode = env.metadata["autoreset_mode"]
        if self._mode is AutoresetMode.SAME_STEP and not self._reader.cameras:
            raise EnvError(
                "an environment that resets in the same step is rendered too late to see how its episode ended; "
                "make it with autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self.collector = _collector(store, env.num_envs, targets, image_keys, task, fps, env)
        self._over = np.zeros(env.num_envs, bool)

    @property
    def done(self) -> bool:
        """Whether there are enough episodes of both kinds."""
        return self.collector.done

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = np.array((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        observation, info = self.env.reset(seed=seed, options=options)
        self.collector.begin(self._seen(observation), mask)
        self._over &= ~mask
        return observation, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        restarted = self._over if self._mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        observation, reward, terminated, truncated, info = self.env.step(actions)
        self._over = np.logical_or(terminated, truncated)
        seen, told = self._seen(observation), info
        output: dict[str, Any] = {"obs": seen}
        if self._mode is AutoresetMode.SAME_STEP and self._over.any():
            output["final_obs"] = _with_last(seen, [self._last(last) for last in info["final_obs"]], self._over)
            told = {name: _joined(info, info["final_info"], name, self._over) for name in self._reader.names}
        self.collector.begin(seen, restarted)
        if not restarted.all():
            self.collector.add_env_output(
                {
                    **output,
                    "actions": np.reshape(actions, (self.num_envs, -1)),
                    "dones": self._over,
                    "terminations": terminated,
                    **self._reader.verdict(told),
                },
                only=~restarted,
            )
        return observation, reward, terminated, truncated, info

    def close(self, **kwargs: Any) -> None:
        self.collector.flush()
        super().close(**kwargs)

    def _seen(self, observation: Any) -> Mapping[str, Any]:
        return self._reader.read(observation, self.env.render)

    def _last(self, observation: Any) -> Mapping[str, Any] | None:
        return None if observation is None else self._reader.read(_batch_of_one(observation), self.env.render)


class _Reader:
    """Knows where in an observation the images and the numbers are, and in an info the verdict."""

    def __init__(self, space: spaces.Space[Any], render_mode: str | None, success_key: str, known: Sequence[str]):
        parts = space.spaces if isinstance(space, spaces.Dict) else {WHOLE: space}
        self._whole = not isinstance(space, spaces.Dict)
        self.cameras = [name for name, part in parts.items() if _is_image(part)]
        self._numbers = [name for name, part in parts.items() if isinstance(part, spaces.Box) and len(part.shape) == 1]
        self._success_key, self._known, self.names = success_key, tuple(known), (success_key, *known)
        if not self.cameras and render_mode != "rgb_array":
            raise EnvError("this environment observes no image; make it with render_mode='rgb_array'")

    def read(self, observation: Any, render: Any) -> Mapping[str, Any]:
        """Of N environments, as `RewardDataCollector` takes it."""
        parts = {WHOLE: observation} if self._whole else observation
        images = {name: parts[name] for name in self.cameras} or {RENDERED: np.stack(render())}
        numbers = [np.asarray(parts[name], np.float32) for name in self._numbers]
        return {"images": images, **({"states": np.concatenate(numbers, axis=1)} if numbers else {})}

    def verdict(self, told: Info) -> Mapping[str, Any]:
        for name in self.names:
            if name not in told:
                raise EnvError(f"info has no '{name}'; it has: {', '.join(map(str, told)) or 'nothing'}")
        return {"success_frame": told[self._success_key], "privileged": {name: told[name] for name in self._known}}


def _is_image(space: spaces.Space[Any]) -> bool:
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and 3 in (space.shape[0], space.shape[2])
    )


def _collector(
    store: Store,
    num_envs: int,
    targets: EpisodeTargets,
    image_keys: Sequence[str] | None,
    task: str,
    fps: float | None,
    env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any],
) -> RewardDataCollector:
    return RewardDataCollector(
        store,
        num_envs,
        targets=targets,
        image_keys=image_keys,
        task=task,
        fps=float(env.metadata.get("render_fps", 0.0)) if fps is None else fps,
        robot=env.spec.id if env.spec else "",
    )


def _batch_of_one(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {name: np.asarray(value)[None] for name, value in observation.items()}
    return np.asarray(observation)[None]


def _with_last(seen: Mapping[str, Any], last: Sequence[Mapping[str, Any] | None], over: BoolArray) -> Mapping[str, Any]:
    """What was seen, with the rows of those that are over replaced by what was seen of them last."""

    def replaced(now: AnyArray, pick: Any) -> AnyArray:
        rows = np.array(now)
        for n in np.flatnonzero(over).tolist():
            rows[n] = pick(last[n])[0]
        return rows

    images = {c: replaced(now, lambda one, c=c: one["images"][c]) for c, now in seen["images"].items()}
    states = {"states": replaced(seen["states"], lambda one: one["states"])} if "states" in seen else {}
    return {"images": images, **states}


def _joined(info: Info, final: Info, name: str, over: BoolArray) -> AnyArray:
    """One entry of an info, with the rows of those that are over as their last step had them."""
    if name not in final:
        raise EnvError(f"info has no '{name}'; it has: {', '.join(map(str, final)) or 'nothing'}")
    return np.where(over, final[name], info.get(name, np.zeros_like(final[name])))
