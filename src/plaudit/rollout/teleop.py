"""Teleoperation: while a human sends a command, the policy's is not sent.

    teleop = KeyboardConfig().build(action_dim)
    command = teleop.command()        # every tick; None: the policy's command is sent

A teleoperator must not wait: it is asked for a command at every tick. `control_mode` records who acted, step by step.
A new kind is a config class with `build(action_dim)` under a name of `TELEOP_REGISTRY`, or a dotted path.
"""

import os
import struct
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import CodeName, Config, NonNegativeInt, PositiveFloat
from plaudit.errors import RolloutError
from plaudit.protocols import Teleoperator
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.lerobot import make_device
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.ros.streams import JointReading, Stream, joint_state_decoder
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE
from plaudit.types import FloatArray

TERMINAL = "/dev/tty"  # not stdin, which the control process does not have
EVENT = struct.Struct("=IhBB")  # of a joystick device: time in ms, value, kind, number
BUTTON, AXIS, FULL = 1, 2, 32767


class TeleopConfig(Config):
    """Base of the configs of teleoperators; one of your own needs only a `build()`."""

    def build(self, action_dim: int) -> Teleoperator:
        """Open the device, in the process that controls the robot."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")


class SharedKeys:
    """Keys that the operator's listener has read, for a keyboard that teleoperates in the same process."""

    def __init__(self) -> None:
        self.in_use = False  # whether a listener reads the terminal
        self._keys: SimpleQueue[str] = SimpleQueue()

    def put(self, keys: str) -> None:
        """Pass on what was pressed."""
        self._keys.put(keys)

    def take(self) -> str:
        """What was pressed since the last call."""
        return "".join(self._keys.get() for _ in range(self._keys.qsize()))


SHARED_KEYS = SharedKeys()


class JointTeleopConfig(TeleopConfig):
    """What keyboard and gamepad share: they move single joints, or the directions of an end-effector."""

    first_joint: NonNegativeInt = 0  # the joint of the first pair of keys or of the first axis
    step_size: PositiveFloat = 0.01  # in the robot's units: added every tick (relative), or sent as it is
    relative: bool = True
    always: bool = False  # act at every tick, not only while something is pressed
    gripper: NonNegativeInt | None = None  # the joint whose last command is kept when its key or stick is released


class JointCommand:
    """A command from the joints that are moved now."""

    def __init__(self, config: JointTeleopConfig, action_dim: int):
        if config.gripper is not None and config.gripper >= action_dim:
            raise RolloutError(f"teleop.gripper is {config.gripper}, and an action has {action_dim} numbers from 0 on")
        self._config, self._action_dim, self._grip = config, action_dim, 0.0

    def of(self, moves: Mapping[int, float], *, acts: bool) -> FloatArray | None:
        """[A], or None while nobody acts. moves: joint -> how far"""
        if not (acts or self._config.always):
            return None
        command = np.zeros(self._action_dim, np.float32)
        for joint, amount in moves.items():
            command[joint] += amount
        gripper = self._config.gripper
        if gripper is not None and not self._config.relative:
            self._grip = command[gripper] = command[gripper] or self._grip
        return command


@TELEOP_REGISTRY.register("keyboard")
class KeyboardConfig(JointTeleopConfig):
    """Two keys per joint, one up and one down; the space bar takes control without moving."""

    type: Literal["keyboard"] = "keyboard"
    keys: tuple[str, ...] = ("qa", "ws", "ed", "rf", "tg", "yh", "uj")  # a pair per joint
    key_timeout_s: PositiveFloat = 0.6  # a key counts as held so long: terminals report no release

    def build(self, action_dim: int) -> "KeyboardTeleop":
        """Open the terminal."""
        return KeyboardTeleop(self, action_dim)


class KeyboardTeleop:
    """Reads the terminal that the program was started from, without echo and without waiting for a line."""

    def __init__(self, config: KeyboardConfig, action_dim: int):
        self.relative, self._key_timeout_s = config.relative, config.key_timeout_s
        self._command = JointCommand(config, action_dim)
        self._moves: dict[str, tuple[int, float]] = {" ": (0, 0.0)}
        for joint, (up, down) in enumerate(config.keys[: max(action_dim - config.first_joint, 0)], config.first_joint):
            self._moves |= {up: (joint, config.step_size), down: (joint, -config.step_size)}
        self._pressed_at: dict[str, float] = {}
        self._terminal: int | None = None
        if SHARED_KEYS.in_use:
            return
        try:
            self._terminal = os.open(TERMINAL, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise RolloutError(f"teleop by keyboard needs a terminal: {error.strerror}") from error
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSANOW)  # Ctrl-C still interrupts

    def command(self) -> FloatArray | None:
        """[A], or None while nothing is pressed."""
        now = time.monotonic()
        self._pressed_at |= {key: now for key in self._read() if key in self._moves}
        self._pressed_at = {key: at for key, at in self._pressed_at.items() if now - at < self._key_timeout_s}
        moves: dict[int, float] = {}
        for joint, amount in map(self._moves.__getitem__, self._pressed_at):
            moves[joint] = moves.get(joint, 0.0) + amount
        return self._command.of(moves, acts=bool(self._pressed_at))

    def _read(self) -> str:
        if self._terminal is None:
            return SHARED_KEYS.take()
        with suppress(BlockingIOError):
            return os.read(self._terminal, 64).decode(errors="ignore")
        return ""

    def close(self) -> None:
        """Restore the terminal."""
        if self._terminal is None:
            return
        termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)
        os.close(self._terminal)


@TELEOP_REGISTRY.register("gamepad")
class GamepadConfig(JointTeleopConfig):
    """Sticks move joints while a button is held; the policy continues when it is released."""

    type: Literal["gamepad"] = "gamepad"
    device: str = "/dev/input/js0"  # of Linux's joystick interface
    button: NonNegativeInt = 4  # to be held; 4 is the left shoulder of most
    axes: tuple[NonNegativeInt, ...] = (0, 1, 3, 4)  # the stick's axis for each joint; step_size is at full deflection
    deadzone: float = Field(default=0.1, ge=0, lt=1)  # deflection that counts as none

    def build(self, action_dim: int) -> "GamepadTeleop":
        """Open the device."""
        return GamepadTeleop(self, action_dim)


class GamepadTeleop:
    """Reads Linux's joystick device directly: eight bytes per event."""

    def __init__(self, config: GamepadConfig, action_dim: int):
        self.relative, self._config, self._action_dim = config.relative, config, action_dim
        self._command = JointCommand(config, action_dim)
        self._sticks: dict[int, float] = {}
        self._held = False
        self._device = open_gamepad(config.device, "a gamepad")

    def command(self) -> FloatArray | None:
        """[A], or None while nothing is pressed."""
        with suppress(BlockingIOError):
            for value, kind, number in gamepad_events(os.read(self._device, 64 * EVENT.size)):
                if kind & AXIS:
                    self._sticks[number] = value / FULL
                elif kind & BUTTON and number == self._config.button:
                    self._held = bool(value)
        axes = self._config.axes[: max(self._action_dim - self._config.first_joint, 0)]
        sticks = {joint: self._sticks.get(axis, 0.0) for joint, axis in enumerate(axes, self._config.first_joint)}
        deflected = {joint: at for joint, at in sticks.items() if abs(at) > self._config.deadzone}
        moves = {joint: self._config.step_size * deflection for joint, deflection in deflected.items()}
        return self._command.of(moves, acts=self._held)

    def close(self) -> None:
        """Close the device."""
        os.close(self._device)


def open_gamepad(device: str, what: str) -> int:
    """The descriptor of a joystick device. what: for the error message"""
    try:
        return os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise RolloutError(f"{device}: {error.strerror}; is {what} plugged in?") from error


def gamepad_events(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Value, kind and number of each event."""
    return ((value, kind, number) for _, value, kind, number in EVENT.iter_unpack(data[: len(data) // 8 * 8]))


@TELEOP_REGISTRY.register("topic")
class TopicConfig(TeleopConfig):
    """Commands that a leader arm, or another ROS 2 node, publishes on the robot's `teleop` topic."""

    type: Literal["topic"] = "topic"
    robot: Annotated[Any, ROBOT_REGISTRY.field]  # whose joints, topics and transport it uses
    timeout_s: PositiveFloat = 0.25  # that a command is valid for

    def build(self, action_dim: int) -> "TopicTeleop":
        """Subscribe to the topic over the robot's transport."""
        topic, joints = robot_topic(self.robot, "teleop"), self.robot.params().joint_names
        return TopicTeleop(self.robot.transport.build(), topic, joints, timeout_s=self.timeout_s)


def robot_topic(robot: Any, key: Literal["teleop", "operator"]) -> str:
    """The topic that a robot's topics have under this key."""
    if not isinstance(robot, RosRobotConfig):
        raise RolloutError(f"the topic '{key}' is for ROS 2 robots; this is not one")
    topic = getattr(robot.topics(), key)
    if topic is None:
        raise RolloutError(f"the robot's topics have no '{key}'; add that key to them")
    return topic


class TopicTeleop:
    """JointState messages with positions of the robot's joints, each valid for `timeout_s` seconds."""

    relative = False  # commands are absolute joint positions

    def __init__(self, transport: Transport, topic: str, joint_names: Sequence[str], *, timeout_s: float = 0.25):
        self._timeout_s, self._transport = timeout_s, transport
        decode = joint_state_decoder(joint_names, ("position",))
        self._stream: Stream[JointReading] = Stream("teleop", topic, decode, timeout_s)
        transport.subscribe(topic, JOINT_STATE, self._stream.receive)

    def command(self) -> FloatArray | None:
        """[A] the newest command, in the robot's order of joints; None when there is none or it has expired."""
        newest = self._stream.newest
        if newest is None:
            return None
        if self._stream.age() > self._timeout_s:
            self._stream.restart()  # the next sender may have another clock
            return None
        return newest.position.copy()

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()


@contextmanager
def restore_terminal() -> Iterator[None]:
    """Restore the terminal's settings, however the process that reads the keyboard ends."""
    try:
        terminal = os.open(TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:  # there is none
        yield
        return
    before = termios.tcgetattr(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
        os.close(terminal)


@TELEOP_REGISTRY.register("lerobot")
class LeRobotTeleopConfig(TeleopConfig):
    """Any teleoperator class of an installed lerobot, by lerobot's own name for it.

    teleop: {type: lerobot, teleop_type: so101_leader, options: {port: /dev/ttyACM1, id: leader}}

    `options` are the settings under `--teleop.` in lerobot's own commands. A device that reports interventions
    (`get_teleop_events`, as gamepads and HIL-SERL's leaders do) acts only then; any other, like a plain leader arm,
    acts at every tick.
    """

    type: Literal["lerobot"] = "lerobot"
    teleop_type: str  # lerobot's name: so101_leader, gamepad, ...
    options: Mapping[str, Any] = Field(default_factory=dict)  # in lerobot's own keys
    module: CodeName | None = None  # to import first, for a class of your own
    relative: bool = False  # whether its numbers are added to the last command; leader arms give positions

    def build(self, action_dim: int) -> "LeRobotTeleop":
        """Connect to the device."""
        device = make_device("teleoperator", self.teleop_type, self.options, self.module)
        return LeRobotTeleop(device, action_dim, self.relative)


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
        self._reports_interventions = callable(getattr(type(teleop), "get_teleop_events", None))
        self._call("connect", calibrate=False)
        if not teleop.is_calibrated:
            self.close()
            raise RolloutError(f"{teleop} is not calibrated; run lerobot-calibrate for it first")

    def command(self) -> FloatArray | None:
        """[A], or None while no one intervenes."""
        if self._reports_interventions:
            events = self._call("get_teleop_events").items()  # lerobot's keys are members of an enumeration of texts
            if not any(value for key, value in events if getattr(key, "value", key) == "is_intervention"):
                return None
        action = self._call("get_action")
        command = np.array([action[name] for name in self.names], np.float32)
        if not np.isfinite(command).all():
            raise RolloutError(f"{self._teleop} gives NaN or infinity; look at its calibration")
        return command

    def close(self) -> None:
        """Disconnect."""
        if self._teleop.is_connected:
            self._call("disconnect")

    def _call(self, method: str, **options: Any) -> Any:
        try:
            return getattr(self._teleop, method)(**options)
        except (OSError, RuntimeError) as error:
            raise RolloutError(f"{self._teleop}: {method} failed: {error}") from error
