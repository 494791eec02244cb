"""Teleoperation by any teleoperator class of an installed lerobot, by lerobot's own name for it.

    teleop: {type: lerobot, teleop_type: so101_leader, options: {port: /dev/ttyACM1, id: leader}}

`options` are the settings under `--teleop.` in lerobot's own commands. When it acts:

- A device that reports interventions (`get_teleop_events`, as gamepads and HIL-SERL's leaders do) acts only then.
- A leader arm takes over from a policy when it is moved, and hands back when it has been still for `release_s`. Its
  motion is added to the robot's pose at the takeover, so the robot does not jump to the leader's pose.
- With `always`, as in `plaudit record` without a policy, the robot follows the leader's pose at every tick.

Devices that give displacements (`delta_x`, ...) need `end_effector`, or a simulated task. A phone needs `end_effector`:
while its button is held, the end-effector moves and turns like the phone, at the speeds of `end_effector` at most.
"""

import inspect
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import CodeName, NonNegativeInt, PositiveFloat
from plaudit.errors import RolloutError, RolloutFault
from plaudit.protocols import Teleoperator
from plaudit.registry import TELEOP_REGISTRY
from plaudit.robots.lerobot import make_device
from plaudit.rollout.end_effector import GRIPPER, NUM_DISPLACEMENTS, EndEffectorConfig, EndEffectorTeleop, check_gripper
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import AnyArray, FloatArray

DISPLACEMENT = ("delta_x", "delta_y", "delta_z", "gripper")  # lerobot's names; the gripper is 0 (close), 1 or 2 (open)
PHONE = ("phone.pos", "phone.rot", "phone.raw_inputs", "phone.enabled")
PHONE_AXES = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]])  # from the calibrated phone to the base of the robot


@TELEOP_REGISTRY.register("lerobot")
class LeRobotTeleopConfig(TeleopConfig):
    """Any teleoperator of lerobot's."""

    type: Literal["lerobot"] = "lerobot"
    teleop_type: str  # lerobot's name: so101_leader, gamepad, ...
    options: Mapping[str, Any] = Field(default_factory=dict)  # in lerobot's own keys
    module: CodeName | None = None  # to import first, for a class of your own
    relative: bool = False  # whether its numbers are added to the last command; leader arms give positions
    always: bool = False  # act at every tick, not only while the leader is moved
    takeover_motion: PositiveFloat = 3.0  # of one joint, in its units: a leader that is moved farther takes control
    release_s: PositiveFloat = 1.0  # a leader that is still for so long hands control back
    gripper: NonNegativeInt | None = None  # with end_effector: the number of an action that is the gripper
    end_effector: EndEffectorConfig | None = None  # for devices that give displacements of the end-effector

    def build(self, action_dim: int) -> Teleoperator:
        """Connect to the device."""
        check_gripper(self.gripper, action_dim)
        device = make_device("teleoperator", self.teleop_type, self.options, self.module)
        if self.end_effector is None:
            return LeRobotTeleop(device, action_dim, self)
        hand = LeRobotTeleop(device, NUM_DISPLACEMENTS, self)
        return EndEffectorTeleop(hand, self.end_effector, self.gripper, action_dim)


class LeRobotTeleop:
    """A `Teleoperator` that lerobot reads; connected from the start."""

    def __init__(self, teleop: Any, action_dim: int, config: LeRobotTeleopConfig):
        self.relative, self._teleop, self._config = config.relative, teleop, config
        features = teleop.action_features
        self.names = list(features.get("names", features))
        self._phone = Phone(config.end_effector) if self.names == list(PHONE) else None
        self._displaces = self._phone is not None or self.names in (list(DISPLACEMENT), list(DISPLACEMENT[:-1]))
        if config.end_effector is not None and not self._displaces:
            raise RolloutError(f"{teleop} gives positions and no displacements; leave out teleop.end_effector")
        self._room = action_dim - len(self.names) if self._displaces else 0  # numbers that the device does not give
        if len(self.names) + self._room != action_dim or self._room < 0:
            raise RolloutError(
                f"{teleop} sends {len(self.names)} values ({', '.join(self.names)}), but the robot takes {action_dim}; "
                "use a teleoperator that matches the robot"
            )
        if config.end_effector is None and self._displaces and (self._phone or action_dim > len(DISPLACEMENT)):
            raise RolloutError(f"{teleop} moves an end-effector; set teleop.end_effector, or choose another device")
        self._reports_interventions = callable(getattr(type(teleop), "get_teleop_events", None))
        self._robot: Any = None
        self._rest: FloatArray | None = None  # where the leader was when it last moved
        self._moved_at = -np.inf
        self._offset: FloatArray | None = None  # from the leader to the robot, while it is in control
        # Some of lerobot's classes cannot be calibrated, and take no such argument.
        takes_calibrate = "calibrate" in inspect.signature(teleop.connect).parameters
        self._call("connect", **({"calibrate": False} if takes_calibrate else {}))
        if takes_calibrate and not teleop.is_calibrated:
            self.close()
            raise RolloutError(f"{teleop} is not calibrated; run lerobot-calibrate for it first")

    def begin_episode(self, robot: Any) -> None:
        """Called after each reset of the robot."""
        self._robot, self._rest, self._offset, self._moved_at = robot, None, None, -np.inf
        if self._phone is not None:
            self._phone.release()

    def command(self) -> FloatArray | None:
        """[A], or None while no one intervenes."""
        if self._reports_interventions:
            events = self._call("get_teleop_events").items()  # lerobot's keys are members of an enumeration of texts
            if not any(value for key, value in events if getattr(key, "value", key) == "is_intervention"):
                return None
        action = self._call("get_action")
        if self._phone is not None:
            command, held = self._phone.displacement(action, 1 / self._robot.limiter.hz)
            return command if held or self._config.always else None
        command = np.array([action[name] for name in self.names], np.float32)
        if not np.isfinite(command).all():
            raise RolloutError(f"{self._teleop} sends NaN or infinity; check its calibration")
        if self._displaces:
            return self._displacement(command)
        if self._reports_interventions or self._config.always:
            return command
        return self._followed(command)

    def _displacement(self, command: FloatArray) -> FloatArray | None:
        if len(command) == len(DISPLACEMENT):
            command[-1] -= 1
        if not (command.any() or self._reports_interventions or self._config.always):
            return None
        return np.concatenate([command, np.zeros(self._room, np.float32)])

    def _followed(self, pose: FloatArray) -> FloatArray | None:
        """The robot's pose at the takeover plus the leader's motion since; None while the leader is still."""
        now, rest = time.monotonic(), pose if self._rest is None else self._rest
        if np.abs(pose - rest).max() > self._config.takeover_motion:
            self._moved_at, rest = now, pose
        self._rest = rest
        if now - self._moved_at >= self._config.release_s:
            self._offset = None
            return None
        if self._offset is None:
            last = None if self._robot is None or self.relative else self._robot.last_command
            self._offset = np.zeros_like(pose) if last is None else last - pose
        assert self._offset is not None
        return pose + self._offset

    def close(self) -> None:
        """Disconnect; a device that is gone already is left alone."""
        with suppress(RolloutError):
            if self._teleop.is_connected:
                self._call("disconnect")

    def _call(self, method: str, **options: Any) -> Any:
        try:
            return getattr(self._teleop, method)(**options)
        except OSError as error:  # a wire that came off, which may be put back
            raise RolloutFault(f"{self._teleop}: {method} failed: {error}") from error
        except RuntimeError as error:
            raise RolloutError(f"{self._teleop}: {method} failed: {error}") from error


class Phone:
    """Turns the poses of lerobot's phone into displacements of the end-effector.

    The phone gives where it is since its button was pressed, and how it is turned since its calibration. The
    end-effector follows from where it is then. A phone that is moved faster than the end-effector may move is caught up
    with. (lerobot also turns the end-effector to the phone's orientation at once, which a robot in use must not do.)
    """

    def __init__(self, config: EndEffectorConfig | None):
        """config: None is refused by the teleoperator"""
        self._speeds = (0.0, 0.0) if config is None else (config.linear_speed, config.angular_speed)
        self.release()

    def release(self) -> None:
        """The button is not held, or the phone has lost its pose."""
        self._position: AnyArray | None = None  # of the phone, that the end-effector has followed so far
        self._rotation: Any = None

    def displacement(self, action: Mapping[str, Any], seconds: float) -> tuple[FloatArray, bool]:
        """[7] displacement in a tick of this many seconds, and whether the button is held."""
        command = np.zeros(NUM_DISPLACEMENTS, np.float32)
        inputs = action.get("phone.raw_inputs", {})
        buttons = float(inputs.get("reservedButtonA", 0)) - float(inputs.get("reservedButtonB", 0))
        command[GRIPPER] = np.clip(inputs.get("a3", buttons), -1, 1)  # a slider (iOS) or two buttons (Android)
        if not action.get("phone.enabled"):
            self.release()
            return command, False
        position, rotation = np.asarray(action["phone.pos"], np.float64), action["phone.rot"]
        if not np.isfinite([*position, *rotation.as_rotvec(), command[GRIPPER]]).all():
            raise RolloutError("the phone sends NaN or infinity; calibrate it again")
        if self._position is None:
            self._position, self._rotation = position, rotation
        moved = np.array([position - self._position, (rotation * self._rotation.inv()).as_rotvec()])
        reach = np.array(self._speeds)[:, None] * seconds
        moved *= np.minimum(1, reach / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12))
        self._position = self._position + moved[0]
        self._rotation = type(rotation).from_rotvec(moved[1]) * self._rotation
        command[:GRIPPER], command[GRIPPER + 1 :] = (moved / reach) @ PHONE_AXES.T
        return command, True
