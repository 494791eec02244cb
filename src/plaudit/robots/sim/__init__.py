"""A simulated task as a robot: one scene of anything that `plaudit.envs` knows, stepped at wall-clock rate.

    ROBOT_REGISTRY.parse({"type": "sim", "env": {"type": "lift", "obs": "both"}}).build()
    ROBOT_REGISTRY.parse({"type": "sim", "env": {"type": "gymnasium", "id": "Pusher-v5"}, "realtime": False}).build()

Actions are within [-1, 1], as for every environment here. Time passes with actions only: `observe()` makes one step
with the last `act()`, and without one it shows the same moment again. There is no action that means "stay" in all
environments, so this is what `hold()` amounts to.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import PositiveFloat

from plaudit.config import Config
from plaudit.errors import InvalidCommand, RobotError
from plaudit.protocols import Simulation
from plaudit.registry import ENV_REGISTRY
from plaudit.robots.rate import Pace
from plaudit.types import AnyArray, FloatArray, Observation

SEEDS = 2**31  # a start without a seed takes one of these


class SimRobotConfig(Config):
    type: Literal["sim"] = "sim"
    env: Annotated[Any, ENV_REGISTRY.field]
    hz: PositiveFloat | None = None  # control steps a second; None: what the environment says
    realtime: bool = True  # observe() keeps the rate; False: as fast as it goes

    def build(self) -> "SimRobot":
        return SimRobot(self.env.build(1), self.hz, realtime=self.realtime)


class SimRobot:
    """A `Robot` around a `Simulation` of one."""

    def __init__(self, simulation: Simulation, hz: float | None = None, *, realtime: bool = True):
        if simulation.num_envs != 1:
            raise RobotError(f"a robot is one scene, this simulation has {simulation.num_envs}")
        self.cameras, self.state_dim = simulation.cameras, simulation.state_dim
        self.action_dim, self.fps = simulation.action_dim, hz or simulation.fps
        if realtime and not self.fps:
            raise RobotError("this environment does not say how many steps a second it makes; set hz")
        self._simulation = simulation
        self._pace = Pace(self.fps or 1.0, realtime=realtime)
        self._seeds = np.random.default_rng()
        self._action: FloatArray | None = None
        self._seen: Observation | None = None
        self._known: Mapping[str, AnyArray] = {}

    def reset(self, seed: int | None = None) -> Observation:
        chosen = int(self._seeds.integers(SEEDS)) if seed is None else seed
        self._seen = _first(self._simulation.reset([chosen]))
        self._action, self._known = None, {"success": np.array(False)}
        self._pace.restart()
        return self._seen

    def act(self, action: FloatArray) -> None:
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"the simulation takes {self.action_dim} finite numbers, got {np.asarray(action)}")
        self._action = np.clip(action, -1.0, 1.0).astype(np.float32)

    def observe(self) -> Observation:
        if self._seen is None:
            return self.reset()
        self._pace.wait()
        if self._action is not None:
            seen, known = self._simulation.step(self._action[None], np.ones(1, bool))
            self._seen, self._known = _first(seen), {name: np.asarray(v[0]) for name, v in known.items()}
            self._action = None
        return self._seen

    def privileged(self) -> Mapping[str, AnyArray]:
        return self._known

    def hold(self) -> None:
        self._action = None

    def close(self) -> None:
        self._simulation.close()

    def __enter__(self) -> "SimRobot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _first(observation: Observation) -> Observation:
    return Observation({camera: frames[0] for camera, frames in observation.images.items()}, observation.state[0])
