"""What the configs of robots have in common."""

from collections.abc import Mapping
from typing import Any

from plaudit.config import Config
from plaudit.protocols import Robot


class RobotConfig(Config):
    """Base of the configs of robots: derive yours from it, add its settings and `build()`."""

    realtime: bool = True  # observe() keeps the rate; False where the caller does

    def build(self) -> Robot:
        """Connect to the robot."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")

    def inference_defaults(self) -> Mapping[str, Any]:
        """Keys of `plaudit.rollout.engine.InferenceConfig` that this robot's own files set; the user's values win."""
        return {}
