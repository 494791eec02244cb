"""A vectorized environment that is easy to follow: its state is seed and step count, and it succeeds at step `seed`."""

from collections.abc import Sequence

import numpy as np

from plaudit.types import Observation


class CountingSimulation:
    """Each environment counts the steps in which it was active; it succeeds when the count reaches its seed."""

    cameras = {"front": (2, 2)}  # noqa: RUF012
    state_dim, action_dim, fps, max_steps, task = 2, 1, 10.0, 5, "count"

    def __init__(self, num_envs: int = 2):
        self.num_envs = num_envs

    def reset(self, seeds: Sequence[int]) -> Observation:
        self._seeds, self._count = np.array(seeds), np.zeros(self.num_envs, int)
        return self._observation()

    def step(self, actions, active):
        self._count += active
        success = self._count == self._seeds
        return self._observation(), {
            "success": success,
            "failure": self._count == -self._seeds,  # a negative seed fails at that step
            "reward": self._count.astype(np.float32),
        }

    def close(self) -> None: ...

    def _observation(self) -> Observation:
        state = np.stack([self._seeds, self._count], axis=1).astype(np.float32)
        images = np.broadcast_to(self._count.astype(np.uint8)[:, None, None, None], (self.num_envs, 2, 2, 3))
        return Observation({"front": images.copy()}, state)
