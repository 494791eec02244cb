from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from plaudit.data.store import Store
from plaudit.errors import EnvError
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.wrappers import DataCollectorWrapper, VectorDataCollectorWrapper


class Counting(gym.Env):
    """Its image is full of its count, which begins at ten times the number of its resets; the third step succeeds."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, images: bool = True, render_mode: str | None = None):
        front = {"front": spaces.Box(0, 255, (4, 4, 3), np.uint8)} if images else {}
        self.observation_space = spaces.Dict({"state": spaces.Box(-1, 1e3, (1,), np.float32), **front})
        self.render_mode, self._images, self._resets, self._count = render_mode, images, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._resets, self._count = self._resets + 1, 0
        return self._seen(), {}

    def step(self, action):
        self._count += 1
        over = self._count == 3
        return self._seen(), 0.0, over, False, {"success": over, "grasp": self._count > 1}

    def render(self):
        return np.full((4, 4, 3), 10 * self._resets + self._count, np.uint8)

    def _seen(self):
        state = {"state": np.array([10 * self._resets + self._count], np.float32)}
        return {**state, **({"front": self.render()} if self._images else {})}


def shown(store: Store) -> list[list[int]]:
    return [next(iter(episode.frames.values()))[:, 0, 0, 0].tolist() for _, episode in store]


def play(env, steps: int, shape: tuple[int, ...] = (1,)) -> None:
    for i in range(steps):
        _, _, terminated, truncated, _ = env.step(np.full(shape, i / 100, np.float32))
        if shape == (1,) and (terminated or truncated):
            env.reset()


def test_every_episode_that_passes_is_stored_and_one_cut_short_too(store: Store):
    env = DataCollectorWrapper(Counting(), store, info_keys=["grasp"], task="count")
    env.reset()
    play(env, 4)
    env.reset()  # in the middle
    play(env, 1)
    env.close()
    assert shown(store) == [[10, 11, 12, 13], [20, 21], [30, 31]]
    assert [store.ledger.labels(i).success_once for i in store.ids] == [True, False, False]
    first = store.episode(0)
    assert first.terminated and (first.fps, first.task) == (5, "count")
    assert first.state[:, 0].tolist() == [10, 11, 12, 13]
    assert np.allclose(first.actions[:, 0], [0, 0.01, 0.02])
    assert first.privileged["grasp"].tolist() == [False, True, True]


def test_where_nothing_is_seen_frames_are_rendered(store: Store):
    env = DataCollectorWrapper(Counting(images=False, render_mode="rgb_array"), store)
    env.reset()
    play(env, 3)
    assert list(store.episode(0).frames) == ["render"] and shown(store) == [[10, 11, 12, 13]]
    with pytest.raises(EnvError, match="observes no image; make it with render_mode='rgb_array'"):
        DataCollectorWrapper(Counting(images=False), store)


def test_targets_make_a_wrapper_done(store: Store):
    env = DataCollectorWrapper(Counting(), store, EpisodeTargets(success=1, failure=0))
    env.reset()
    assert not env.done
    play(env, 9)
    assert env.done and len(store) == 1 and env.collector.quota.surplus["success"] == 0


def test_a_label_that_is_not_there_is_named(store: Store):
    env = DataCollectorWrapper(Counting(), store, success_key="is_success")
    env.reset()
    with pytest.raises(EnvError, match="info has no 'is_success'; it has: success, grasp"):
        play(env, 1)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_environments_that_reset_themselves_are_cut_where_their_episodes_end(store: Store, mode):
    env = VectorDataCollectorWrapper(SyncVectorEnv([Counting] * 2, autoreset_mode=mode), store, info_keys=["grasp"])
    env.reset()
    play(env, 5, (2, 1))
    env.close()
    rest = [20, 21] if mode is AutoresetMode.NEXT_STEP else [20, 21, 22]
    assert shown(store) == [[10, 11, 12, 13]] * 2 + [rest] * 2
    assert [store.ledger.labels(i).targets.tolist() for i in (0, 1)] == [[0, 0, 0, 1]] * 2
    assert store.episode(0).privileged["grasp"].tolist() == [False, True, True]
    assert store.episode(2).padded == "none" and np.allclose(store.episode(2).actions[-1], 0.04)


def test_environments_that_are_reset_by_hand_are_cut_where_they_are_reset(store: Store):
    inner = SyncVectorEnv([Counting] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = VectorDataCollectorWrapper(inner, store)
    env.reset()
    play(env, 2, (2, 1))
    env.reset(options={"reset_mask": np.array([True, False])})  # the first in its middle
    play(env, 1, (2, 1))
    env.close()
    assert shown(store) == [[10, 11, 12], [10, 11, 12, 13], [20, 21]]


def test_rendering_comes_too_late_for_a_reset_in_the_same_step(store: Store):
    inner = SyncVectorEnv(
        [lambda: Counting(images=False, render_mode="rgb_array")], autoreset_mode=AutoresetMode.SAME_STEP
    )
    with pytest.raises(EnvError, match="rendered too late"):
        VectorDataCollectorWrapper(inner, store)


@pytest.mark.parametrize("mode", ["single", *AutoresetMode])
def test_frames_of_our_own_task_are_stored_bit_by_bit(store: Store, mode):
    pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)
    import plaudit.envs  # noqa: F401

    options: dict[str, Any] = {"obs": "both", "cameras": ("front", "wrist"), "image_size": (12, 16), "max_steps": 3}
    if mode == "single":
        env = DataCollectorWrapper(gym.make("plaudit/Lift-v0", **options), store)
    else:
        options |= {"vectorization_mode": "vector_entry_point", "autoreset_mode": mode}
        made = gym.make_vec("plaudit/Lift-v0", 1, **options)
        env = VectorDataCollectorWrapper(made, store)
    seen = [env.reset(seed=3)[0]]
    action = np.ones((4,) if mode == "single" else (1, 4), np.float32)
    for _ in range(3):
        observation, *_, info = env.step(action)
        seen.append(info["final_obs"][0] if "final_obs" in info else observation)
    episode = store.episode(0)
    for camera in ("front", "wrist"):
        assert np.array_equal(episode.frames[camera], np.stack([s[camera].reshape(12, 16, 3) for s in seen]))
    assert np.array_equal(episode.state, np.stack([s["state"].reshape(-1) for s in seen]))
    assert episode.fps == 20 and episode.robot == "plaudit/Lift-v0" and not episode.terminated
    env.close()
