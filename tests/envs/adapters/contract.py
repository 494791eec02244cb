"""The contract of an adapted environment as one function, and the mark for tests that need a simulator."""

from importlib.util import find_spec

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

INFINITE_STATE = "ignore:.*Box observation space (minimum|maximum) value is.*infinity"  # numbers have no known bounds


def needs(module: str, extra: str) -> pytest.MarkDecorator:
    # Asks without importing: MuJoCo settles how it draws when it is imported, and that is the adapter's to do.
    return pytest.mark.skipif(find_spec(module) is None, reason=f"needs pip install 'plaudit[{extra}]'")


def check_adapted(env, *, cameras=()):
    """Gymnasium's own checks, and ours on top."""
    check_env(env, skip_render_check=True, skip_close_check=True)
    assert list(env.observation_space.spaces) == sorted(["state", *cameras])
    assert env.task and env.fps > 0 and env.max_steps > 0
    observation, _ = env.reset(seed=3)
    before = {key: value.copy() for key, value in observation.items()}
    after, _, _, _, info = env.step(env.action_space.sample())
    assert type(info["success"]) is bool
    assert all(np.array_equal(observation[key], before[key]) for key in before), "a step changed an old observation"
    assert after["state"].dtype == np.float32 and np.isfinite(after["state"]).all()
    assert all(after[camera].std() > 1 for camera in cameras), "an empty image"


def state_size(env):
    return env.observation_space["state"].shape[0]


def rollout(env, seed, steps=5):
    """States of a short episode with fixed actions."""
    states = [env.reset(seed=seed)[0]["state"]]
    for t in range(steps):
        action = np.full(env.action_space.shape, 0.2 * (-1) ** t, np.float32)
        states.append(env.step(action)[0]["state"])
    return np.stack(states)
