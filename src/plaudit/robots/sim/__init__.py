"""A simulated task as a robot: one environment of `plaudit.envs`, stepped at wall-clock rate.

    ROBOT_REGISTRY.parse({"type": "sim", "env": {"type": "lift", "obs": "both"}}).build()

Actions are within [-1, 1]. Time only passes with actions: `observe()` makes one step with the last `act()`, and without
one it returns the same observation again, so `hold()` drops the action. An environment that has reported `failure` is
not stepped until `reset()`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from plaudit.config import Hertz
from plaudit.errors import RobotError
from plaudit.protocols import VecEnv
from plaudit.registry import ENV_REGISTRY
from plaudit.robots.config import Kinematics, RobotConfig, SafetyLimits
from plaudit.robots.limits import ClosableRobot, Rate
from plaudit.types import AnyArray, FloatArray, Observation

MAX_SEED = 2**31  # of an episode that is started without one


class SimRobotConfig(RobotConfig):
    """The config of a simulated task in the place of a robot."""

    simulated: ClassVar[bool] = True

    type: Literal["sim"] = "sim"
    env: Annotated[Any, ENV_REGISTRY.field]  # the simulated task
    hz: Hertz | None = None  # control steps per second; None: the environment's own

    def build(self) -> "SimRobot":
        """Build the environment and wrap it."""
        return SimRobot(self.env.build(1), self.hz, realtime=self.realtime)

    def limits(self, action_dim: int) -> SafetyLimits:
        """Those of the block; actions are displacements, and a simulation is never stale."""
        limits = SafetyLimits.of(self.safety, action_dim, relative=True)
        return replace(limits, stale_observation_s=None, stale_chunk_s=None)


class SimRobot(ClosableRobot):
    """A `Robot` around a vectorized environment of one."""

    def __init__(self, env: VecEnv, hz: float | None = None, *, realtime: bool = True):
        if env.num_envs != 1:
            raise RobotError(f"a robot is one environment, this one has {env.num_envs}")
        self.cameras, self.state_dim = env.cameras, env.state_dim
        self.action_dim, self.fps, self.max_steps = env.action_dim, hz or env.fps, env.max_steps
        if realtime and not self.fps:
            raise RobotError("this environment has no control rate of its own; set hz")
        self.env = env
        # [A] -> [3], m: where an action moves the hand. None: the environment does not know, so there is no workspace.
        self.forward_kinematics: Kinematics | None = getattr(env, "forward_kinematics", None)
        self._rate = Rate(self.fps or 1.0, realtime=realtime)
        self._seeds = np.random.default_rng()
        self.last_command: FloatArray | None = None
        self._action: FloatArray | None = None  # of the next step
        self._observation: Observation | None = None
        self._privileged: Mapping[str, AnyArray] = {}

    def reset(self, seed: int | None = None) -> Observation:
        """Start an episode from a seed, or from a random one."""
        seed = int(self._seeds.integers(MAX_SEED)) if seed is None else seed
        self._observation = self.env.reset([seed])[0]
        self.last_command = self._action = None
        self._privileged = {"success": np.array(False)}
        self._rate.reset()
        return self._observation

    def act(self, action: FloatArray) -> None:
        """Set the action of the next step, clipped to [-1, 1]."""
        self.check_command(action, "the simulation")
        self.last_command = self._action = np.clip(action, -1.0, 1.0).astype(np.float32)

    def observe(self) -> Observation:
        """Wait for the next tick and step the environment, if there is an action."""
        if self._observation is None:
            return self.reset()
        self._rate.wait()
        if self._action is not None and not self._privileged.get("failure", False):
            observation, info = self.env.step(self._action[None], np.ones(1, bool))
            self._observation = observation[0]
            self._privileged = {name: np.asarray(values[0]) for name, values in info.items()}
            self._action = None
        return self._observation

    def privileged(self) -> Mapping[str, AnyArray]:
        """The info of the last step: success, reward, ..."""
        return self._privileged

    def hold(self) -> None:
        """Drop the action: no time passes without one."""
        self._action = None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()
