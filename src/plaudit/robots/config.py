"""The base of the configs of robots, and the block `safety` with its limits.

    robot.safety.max_velocity=0.5                         for all joints
    robot.safety.max_velocity={waist_yaw: 0.2}            for some, by name
    robot.safety.workspace={lower: [0.3, -0.3, 0.0], upper: [0.7, 0.3, 0.5]}

A robot with files of its own (ROS 2) has limits there; the block makes them stricter, never wider. Units are those of
the robot's commands. `plaudit.robots.limits.CommandLimiter` applies the limits to each command.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import model_validator

from plaudit.config import Config, Number, PositiveFloat
from plaudit.errors import RobotError, did_you_mean
from plaudit.protocols import Robot
from plaudit.types import AnyArray, FloatArray

UNLIMITED = 1e12  # a speed or an acceleration; finite, so that arithmetic with it stays defined
ANYWHERE = 1e7  # a position, either side of 0; small enough that sums with it are exact to a billionth

_NO_LIMIT = {"lower": -ANYWHERE, "upper": ANYWHERE, "max_velocity": UNLIMITED, "max_acceleration": UNLIMITED}

Positive = PositiveFloat | tuple[PositiveFloat, ...] | dict[str, PositiveFloat] | None  # all joints, each, or by name
Position = Number | tuple[Number, ...] | dict[str, Number] | None
Kinematics = Callable[[FloatArray], AnyArray]  # a command [A] -> the points [3] or [K, 3] that it moves to, in m


class Workspace(Config):
    """A box in the robot's frame, in m."""

    lower: tuple[Number, Number, Number]  # corner of the box: x, y, z
    upper: tuple[Number, Number, Number]  # the opposite corner: x, y, z

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        for axis, lower, upper in zip("xyz", self.lower, self.upper, strict=True):
            if not lower < upper:
                raise ValueError(f"the workspace's {axis} goes from {lower} to {upper}; lower must be below upper")
        return self


class SafetyConfig(Config):
    """The block `safety` of a robot's config."""

    lower: Position = None  # of commands; None: no limit
    upper: Position = None  # of commands; None: no limit
    max_velocity: Positive = None  # of commands, a second
    max_acceleration: Positive = None  # of commands, a second squared
    workspace: Workspace | None = None  # for robots whose forward kinematics are known
    stale_observation_s: PositiveFloat | None = 0.5  # an observation that takes longer ends the episode
    stale_chunk_s: PositiveFloat | None = 3.0  # commands inferred from an older observation are not sent


@dataclass(frozen=True, eq=False)
class SafetyLimits:
    """Limits of each of A joints, in the units of commands."""

    lower: AnyArray  # [A]
    upper: AnyArray  # [A]
    max_velocity: AnyArray  # [A] a second
    max_acceleration: AnyArray  # [A] a second squared
    workspace: Workspace | None = None
    stale_observation_s: float | None = None
    stale_chunk_s: float | None = None
    names: tuple[str, ...] = ()  # of the joints, where they have any
    relative: bool = False  # whether commands are displacements or velocities: zeros stay, and nothing is ramped to

    @classmethod
    def of(
        cls, config: SafetyConfig, action_dim: int, *, names: Sequence[str] | None = None, relative: bool = False
    ) -> Self:
        """The block's limits for a robot with this number of joints, with these names if they have any."""
        limits = cls(
            **{
                key: per_joint(f"safety.{key}", getattr(config, key), action_dim, names, none)
                for key, none in _NO_LIMIT.items()
            },
            workspace=config.workspace,
            stale_observation_s=config.stale_observation_s,
            stale_chunk_s=config.stale_chunk_s,
            names=tuple(names or ()),
            relative=relative,
        )
        limits.check()
        return limits

    def check(self) -> None:
        """Refuse a joint that could be nowhere."""
        for joint in np.flatnonzero(self.lower >= self.upper).tolist():
            limits = f"its lower limit is {self.lower[joint]:g}, its upper {self.upper[joint]:g}"
            raise RobotError(f"{self.joint(joint)} may be nowhere: {limits}")

    def joint(self, index: int) -> str:
        """A joint in words."""
        return f"joint '{self.names[index]}'" if self.names else f"joint {index}"

    def within(self, other: "SafetyLimits") -> "SafetyLimits":
        """The stricter of both, joint by joint; NaN is replaced by this one's value."""
        upper = {key: np.minimum(getattr(self, key), getattr(other, key)) for key in _NO_LIMIT if key != "lower"}
        return replace(self, lower=np.maximum(self.lower, other.lower), **upper)


def per_joint(key: str, value: Any, action_dim: int, names: Sequence[str] | None, none: float) -> AnyArray:
    """[A] of one number, one for each joint, or some by name; `none` where a joint has none."""
    if isinstance(value, Mapping):
        if names is None:
            raise RobotError(f"{key} names joints, and those of this robot have no names; write {action_dim} numbers")
        result = np.full(action_dim, none)
        for name, number in value.items():
            if name not in names:
                hint = did_you_mean(name, names)
                raise RobotError(f"{key} names joint '{name}', which this robot does not have; {hint}")
            result[names.index(name)] = number
        return result
    numbers = np.asarray(none if value is None else value, np.float64)
    if numbers.shape not in ((), (action_dim,)):
        raise RobotError(f"{key} has {len(numbers)} numbers for {action_dim} joints; write one, or one for each")
    return np.broadcast_to(numbers, (action_dim,)).copy()


class RobotConfig(Config):
    """Base of the configs of robots: derive yours from it, add its settings and `build()`."""

    simulated: ClassVar[bool] = False  # whether it is harmless: a real robot refuses an untrained policy

    realtime: bool = True  # observe() keeps the rate; False where the caller does
    safety: SafetyConfig = SafetyConfig()  # limits of commands

    def build(self) -> Robot:
        """Connect to the robot."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")

    def limits(self, action_dim: int) -> SafetyLimits:
        """What its commands are kept within."""
        return SafetyLimits.of(self.safety, action_dim)

    def inference_defaults(self, horizon: int | None) -> Mapping[str, Any]:
        """Keys of `plaudit.rollout.engine.InferenceConfig` that this robot's own files set; the user's values win.

        horizon: actions of the policy's chunks, where that is known
        """
        return {}
