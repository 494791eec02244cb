"""How fast an environment is on this machine."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.protocols import Simulation


@dataclass(frozen=True)
class Speed:
    """Of all copies of an environment together."""

    steps: float  # of control, a second
    frames: float  # images of all cameras, a second


def measure(config: Any, num_envs: int, seconds: float) -> Speed:
    """Run episodes of random actions for about as long; their resets are counted in."""
    simulation: Simulation = config.build(num_envs)
    rng, everyone = np.random.default_rng(0), np.ones(num_envs, bool)
    simulation.reset(range(num_envs))
    simulation.step(np.zeros((num_envs, simulation.action_dim)), everyone)  # what is slow once is not counted
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if steps % simulation.max_steps == 0:
            simulation.reset(range(num_envs))
        simulation.step(rng.uniform(-1, 1, (num_envs, simulation.action_dim)), everyone)
        steps += 1
    rate = steps * num_envs / (time.perf_counter() - begin)
    simulation.close()
    return Speed(rate, rate * len(simulation.cameras))
