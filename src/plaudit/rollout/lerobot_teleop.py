"""Any teleoperator class of an installed lerobot, by lerobot's own name for it.

    teleop: {type: lerobot, teleop_type: so101_leader, options: {port: /dev/ttyACM1, id: leader}}

`options` are the settings under `--teleop.` in lerobot's own commands. One that tells when a human intervenes
(`get_teleop_events`, as gamepads and HIL-SERL's leaders do) acts then and leaves the rest to the policy; any
other, like a plain leader arm, acts at every tick.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import CodeName
from plaudit.errors import MissingPackage, RolloutError
from plaudit.registry import TELEOP_REGISTRY
from plaudit.robots.lerobot import import_choice
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import FloatArray


@TELEOP_REGISTRY.register("lerobot")
class LeRobotTeleopConfig(TeleopConfig):
    """The config of a teleoperator of lerobot's."""

    type: Literal["lerobot"] = "lerobot"
    teleop_type: str  # lerobot's name: so101_leader, gamepad, ...
    options: Mapping[str, Any] = Field(default_factory=dict)  # in lerobot's own keys
    module: CodeName | None = None  # to import first, for a class of your own
    relative: bool = False  # whether its numbers are added to the last command; leader arms give positions

    def build(self, action_dim: int) -> "LeRobotTeleop":
        """Connect to the device."""
        return LeRobotTeleop(make_teleoperator(self.teleop_type, self.options, self.module), action_dim, self.relative)


def make_teleoperator(teleop_type: str, options: Mapping[str, Any], module: str | None) -> Any:
    """Make lerobot's teleoperator, not connected yet."""
    try:
        draccus, teleoperators = (import_module(name) for name in ("draccus", "lerobot.teleoperators"))
    except ModuleNotFoundError as error:
        raise MissingPackage(str(error.name), "lerobot") from error
    if module is not None:
        import_module(module)
    import_choice(teleoperators, teleoperators.TeleoperatorConfig, teleop_type, "teleoperator")
    try:
        config = draccus.decode(teleoperators.TeleoperatorConfig, {"type": teleop_type, **options})
        return teleoperators.make_teleoperator_from_config(config)
    except (ValueError, TypeError, draccus.ParsingError) as error:
        raise RolloutError(f"lerobot cannot make a '{teleop_type}' with these options: {error}") from error


class LeRobotTeleop:
    """A `Teleoperator` that lerobot reads; connected from the start."""

    def __init__(self, teleop: Any, action_dim: int, relative: bool = False):
        self.relative, self._teleop = relative, teleop
        self.names = list(teleop.action_features)
        if len(self.names) != action_dim:
            raise RolloutError(
                f"{teleop} gives {len(self.names)} numbers ({', '.join(self.names)}) and the robot takes {action_dim}; "
                "name the teleoperator that belongs to it"
            )
        self._tells = callable(getattr(type(teleop), "get_teleop_events", None))
        self._call("connect", calibrate=False)
        if not teleop.is_calibrated:
            self.close()
            raise RolloutError(f"{teleop} is not calibrated; run lerobot-calibrate for it first")

    def command(self) -> FloatArray | None:
        """[A], or None while nobody intervenes."""
        if self._tells and not self._intervenes(self._call("get_teleop_events")):
            return None
        action = self._call("get_action")
        command = np.array([action[name] for name in self.names], np.float32)
        if not np.isfinite(command).all():
            raise RolloutError(f"{self._teleop} gives NaN or infinity; look at its calibration")
        return command

    @staticmethod
    def _intervenes(events: Mapping[Any, Any]) -> bool:
        """lerobot's keys are members of an enumeration of texts."""
        return any(bool(value) for key, value in events.items() if getattr(key, "value", key) == "is_intervention")

    def close(self) -> None:
        """Disconnect."""
        if self._teleop.is_connected:
            self._call("disconnect")

    def _call(self, method: str, **options: Any) -> Any:
        try:
            return getattr(self._teleop, method)(**options)
        except (OSError, RuntimeError) as error:
            raise RolloutError(f"{self._teleop}: {method} failed: {error}") from error
