"""How fast an environment runs on this machine."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.protocols import VecEnv


@dataclass(frozen=True)
class Throughput:
    """Of all environments of a vectorized environment together."""

    steps_per_s: float  # control steps
    frames_per_s: float  # images of all cameras


def measure_throughput(config: Any, num_envs: int, seconds: float) -> Throughput:
    """Run episodes of random actions for about that long; resets count as well."""
    env: VecEnv = config.build(num_envs)
    rng, active = np.random.default_rng(0), np.ones(num_envs, bool)
    env.reset(range(num_envs))
    env.step(np.zeros((num_envs, env.action_dim)), active)  # warm-up: what is slow only once does not count
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if steps % env.max_steps == 0:
            env.reset(range(num_envs))
        env.step(rng.uniform(-1, 1, (num_envs, env.action_dim)), active)
        steps += 1
    steps_per_s = steps * num_envs / (time.perf_counter() - begin)
    env.close()
    return Throughput(steps_per_s, steps_per_s * len(env.cameras))
