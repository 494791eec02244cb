"""A robot and a teleoperator of lerobot's own base classes, for interop.py: two joints that go where they are told.

lerobot is looked up by name, so that this file can be read where it is not installed.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

robots: Any = import_module("lerobot.robots")
teleoperators: Any = import_module("lerobot.teleoperators")

JOINTS = {"shoulder.pos": float, "elbow.pos": float}
CAMERA = (12, 16, 3)


@robots.RobotConfig.register_subclass("interop_arm")
@dataclass
class InteropArmConfig(robots.RobotConfig):
    port: str = "/dev/null"
    cameras: dict[str, Any] = field(default_factory=dict)


class InteropArm(robots.Robot):
    config_class = InteropArmConfig
    name = "interop_arm"

    def __init__(self, config: InteropArmConfig):
        super().__init__(config)
        self._connected, self._position = False, dict.fromkeys(JOINTS, 0.0)

    observation_features = property(lambda self: {**JOINTS, "front": CAMERA})
    action_features = property(lambda self: dict(JOINTS))
    is_connected = property(lambda self: self._connected)
    is_calibrated = property(lambda self: True)

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_observation(self) -> dict[str, Any]:
        return {**self._position, "front": np.full(CAMERA, 7, np.uint8)}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self._position = {name: max(-1.0, min(1.0, value)) for name, value in action.items()}
        return dict(self._position)

    def disconnect(self) -> None:
        self._connected = False


@teleoperators.TeleoperatorConfig.register_subclass("interop_leader")
@dataclass
class InteropLeaderConfig(teleoperators.TeleoperatorConfig):
    port: str = "/dev/null"


class InteropLeader(teleoperators.Teleoperator):
    """Intervenes at every other tick, and then asks for 0.1, 0.2, ..."""

    config_class = InteropLeaderConfig
    name = "interop_leader"

    def __init__(self, config: InteropLeaderConfig):
        super().__init__(config)
        self._connected, self._ticks = False, 0

    action_features = property(lambda self: dict(JOINTS))
    feedback_features = property(lambda self: {})
    is_connected = property(lambda self: self._connected)
    is_calibrated = property(lambda self: True)

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def get_teleop_events(self) -> dict[Any, Any]:
        self._ticks += 1
        return {teleoperators.TeleopEvents.IS_INTERVENTION: self._ticks % 2 == 0}

    def get_action(self) -> dict[str, float]:
        return dict.fromkeys(JOINTS, self._ticks / 20)

    def send_feedback(self, feedback: dict[str, Any]) -> None: ...

    def disconnect(self) -> None:
        self._connected = False
