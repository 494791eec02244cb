"""Several environments of somebody else's, one after the other, as one `Simulation`.

In one process and in order: their renderers hold a context of the thread that made them, and their physics are mostly
not made for threads. A copy that has ended is left alone until the next reset.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from plaudit.envs.adapters.common import Adapted
from plaudit.errors import InvalidAction
from plaudit.types import AnyArray, BoolArray, Observation


class SideBySide:
    """A `Simulation`."""

    def __init__(self, copies: Sequence[Adapted]):
        first = copies[0]
        self._copies = list(copies)
        self.num_envs = len(copies)
        self.cameras: Mapping[str, tuple[int, int]] = first.images
        self.state_dim, self.action_dim = first.state_size, first.action_size
        self.fps, self.max_steps, self.task = first.fps, first.max_steps, first.task
        self._seen: list[dict[str, AnyArray]] = []
        self._known: list[dict[str, float | bool]] = []

    def reset(self, seeds: Sequence[int]) -> Observation:
        self._seen = [copy.reset(seed=int(seed))[0] for copy, seed in zip(self._copies, seeds, strict=True)]
        self._known = [{"success": False, "failure": False, "reward": 0.0} for _ in self._copies]
        return self._observation()

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, Mapping[str, AnyArray]]:
        if np.shape(actions) != (self.num_envs, self.action_dim) or not np.isfinite(actions).all():
            raise InvalidAction(f"actions must be finite [{self.num_envs}, {self.action_dim}], got {actions}")
        for i in np.flatnonzero(active):
            self._seen[i], reward, terminated, _, info = self._copies[i].step(actions[i])
            success = bool(info["success"])
            self._known[i] = {"success": success, "failure": terminated and not success, "reward": reward}
        kinds = {"success": np.bool_, "failure": np.bool_, "reward": np.float32}
        return self._observation(), {n: np.array([k[n] for k in self._known], kind) for n, kind in kinds.items()}

    def close(self) -> None:
        for copy in self._copies:
            copy.close()

    def _observation(self) -> Observation:
        images = {camera: np.stack([seen[camera] for seen in self._seen]) for camera in self.cameras}
        return Observation(images=images, state=np.stack([seen["state"] for seen in self._seen]))
