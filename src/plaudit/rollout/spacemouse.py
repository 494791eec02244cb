"""Teleoperation by a SpaceMouse of 3Dconnexion, read by pyspacemouse.

    plaudit record demos --env lift --teleop spacemouse

It takes control while its cap is moved or a button is pressed. The left button closes the gripper, the right one opens
it. Axes are those of ROS: x forward, y left, z up.
"""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any, ClassVar, Literal

from pydantic import Field

from plaudit.config import NonNegativeInt
from plaudit.errors import RolloutError, RolloutFault, import_extra
from plaudit.registry import TELEOP_REGISTRY
from plaudit.rollout.teleop import JointTeleop, JointTeleopConfig, deflection

MAX_REPORTS = 256  # that are read at a tick: more than a second of them

Axis = Literal["x", "y", "z", "roll", "pitch", "yaw"]


@TELEOP_REGISTRY.register("spacemouse")
class SpaceMouseConfig(JointTeleopConfig):
    """A SpaceMouse moves joints, or the end-effector."""

    hand: ClassVar[Mapping[str, Any]] = {"axes": ("x", "y", "z", None, "roll", "pitch", "yaw"), "step_size": 0.5}

    type: Literal["spacemouse"] = "spacemouse"
    device: str | None = None  # its name for pyspacemouse, like SpaceMouseCompact; None: the first one
    axes: tuple[Axis | None, ...] = ("x", "y", "z", "roll", "pitch", "yaw")  # for each joint
    buttons: tuple[NonNegativeInt, NonNegativeInt] = (0, 1)  # that close and open the gripper
    deadzone: float = Field(default=0.05, ge=0, lt=1)  # deflection that counts as none

    def open(self, action_dim: int) -> "SpaceMouseTeleop":
        """Open the device."""
        return SpaceMouseTeleop(self, action_dim, open_space_mouse(self.device))


class SpaceMouseTeleop(JointTeleop):
    """See `SpaceMouseConfig`."""

    def __init__(self, config: SpaceMouseConfig, action_dim: int, device: Any):
        """device: a `pyspacemouse.SpaceMouseDevice`, open and not blocking"""
        super().__init__(config, action_dim)
        self._mouse, self._device = config, device

    def read(self) -> tuple[Mapping[int, float], float, bool]:
        """What the cap and the buttons move."""
        mouse, state = self._mouse, self._newest()
        moves = {joint: deflection(getattr(state, axis), mouse.deadzone) for joint, axis in self._axes(mouse.axes)}
        close, open_ = (number < len(state.buttons) and bool(state.buttons[number]) for number in mouse.buttons)
        return moves, float(open_) - float(close), any(moves.values()) or any(state.buttons)

    def _newest(self) -> Any:
        """The state after all reports so far: each call of pyspacemouse reads one, and hundreds come in a second."""
        lost = import_extra("easyhid", "spacemouse").HIDException
        try:
            state = self._device.read()
            for _ in range(MAX_REPORTS):
                before = state.t
                state = self._device.read()
                if state.t == before:
                    break
        except lost as error:
            raise RolloutFault(f"the SpaceMouse was disconnected: {error}; connect it again") from error
        return state

    def close(self) -> None:
        """Close the device."""
        self._device.close()


def open_space_mouse(name: str | None) -> Any:
    """Open a SpaceMouse. name: for pyspacemouse; None: the first one"""
    package = import_extra("pyspacemouse", "spacemouse")
    try:
        with redirect_stdout(io.StringIO()):
            return package.open(device=name, axis_convention=package.AxisConvention.ROS)
    except (RuntimeError, OSError) as error:
        raise RolloutFault(
            f"no SpaceMouse can be opened: {error} Is it plugged in, is libhidapi-hidraw0 installed, and may you read "
            "/dev/hidraw*?"
        ) from error
    except ValueError as error:
        raise RolloutError(f"teleop.device: {error}") from error
