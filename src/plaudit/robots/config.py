"""What robots and their configs have in common."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from plaudit.config import Config
from plaudit.protocols import Robot
from plaudit.robots.safety import SafetyConfig, SafetyLimits
from plaudit.types import AnyArray


class ClosableRobot:
    """Base of robots that hold a connection: `with config.build() as robot` closes it."""

    def privileged(self) -> Mapping[str, AnyArray]:
        """Nothing: only a simulation has privileged values."""
        return {}

    def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RobotConfig(Config):
    """Base of the configs of robots: derive yours from it, add its settings and `build()`."""

    simulated: ClassVar[bool] = False  # whether it can hurt nobody: a real robot refuses an untrained policy

    realtime: bool = True  # observe() keeps the rate; False where the caller does
    safety: SafetyConfig = SafetyConfig()  # limits of commands, see plaudit.robots.safety

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
