"""Teleoperation: while a human sends a command, the policy's is not sent.

    teleop = KeyboardConfig().build(action_dim)
    command = teleop.command()        # every tick; None: the policy's command is sent

A teleoperator must not wait: it is asked for a command at every tick. `control_mode` records who acted, step by step. A
new kind is a config class with `build(action_dim)` under a name of `TELEOP_REGISTRY`, or a dotted path.

Teleoperation by a SpaceMouse of 3Dconnexion, read by pyspacemouse.

    plaudit record demos --env lift --teleop spacemouse

It takes control while its cap is moved or a button is pressed. The left button closes the gripper, the right one opens
it. Axes are those of ROS: x forward, y left, z up.
"""

import io
import os
import re
import struct
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, StringConstraints

from plaudit.config import Config, NonNegativeInt, PositiveFloat
from plaudit.errors import RolloutError, RolloutFault, import_extra
from plaudit.protocols import Teleoperator
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.ros.driver import JointReading, Stream, joint_state_decoder
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE
from plaudit.rollout.end_effector import GRIPPER, NUM_DISPLACEMENTS, EndEffectorConfig, EndEffectorTeleop, check_gripper
from plaudit.types import FloatArray

TERMINAL = "/dev/tty"  # not stdin, which the control process does not have
TAP_S, REPEAT_S = 0.04, 0.12  # that a key moves for: pressed once, and while it repeats
ESCAPES = re.compile(r"\x1b(?:\[[0-9;]*.?|O.?)?")  # codes of arrow and function keys, and Escape
GRIPPER_TASKS = ("lift", "pick_place", "push", "gym_hil")  # simulated tasks whose actions are x, y, z, gripper
EVENT = struct.Struct("=IhBB")  # of a joystick device: time in ms, value, kind, number
BUTTON, AXIS, FULL = 1, 2, 32767

KeyPair = Annotated[str, StringConstraints(min_length=2, max_length=2, to_lower=True)]


class TeleopConfig(Config):
    """Base of the configs of teleoperators; one of your own needs only a `build()`."""

    def build(self, action_dim: int) -> Teleoperator:
        """Open the device, in the process that controls the robot."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")

    def resumed(self, acted_s: float) -> Self:
        """The same for a run in which a person has acted for this many seconds before."""
        return self


class SharedKeys:
    """Keys that the operator's listener has read, for a keyboard that teleoperates in this process or in a child."""

    def __init__(self) -> None:
        self.descriptor: int | None = None  # a pipe's end; None: no listener reads the terminal
        self._writes: int | None = None  # its other end; None: in the child

    @property
    def in_use(self) -> bool:
        """Whether a listener reads the terminal."""
        return self.descriptor is not None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """A listener reads the terminal in this block."""
        self.descriptor, self._writes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            yield
        finally:
            os.close(self.descriptor)
            os.close(self._writes)
            self.descriptor = self._writes = None

    def put(self, keys: str) -> None:
        """Pass on what was pressed; unused keys are dropped when the pipe is full."""
        if self._writes is not None:
            with suppress(BlockingIOError):
                os.write(self._writes, keys.encode())

    def take(self) -> str:
        """What was pressed since the last call."""
        assert self.descriptor is not None
        return (read_device(self.descriptor, 64, "the terminal") or b"").decode(errors="ignore")


SHARED_KEYS = SharedKeys()


class JointTeleopConfig(TeleopConfig):
    """What keyboard, gamepad and SpaceMouse share: they move single numbers of an action, or the end-effector.

    A displacement of the end-effector has seven numbers: x, y, z, gripper, roll, pitch, yaw. Actions of the built-in
    tasks are the first four. With `end_effector`, inverse kinematics turns all of them into joint positions.
    """

    # Keys for displacements of the end-effector, unless the user sets them.
    hand: ClassVar[Mapping[str, Any]] = {}

    first_joint: NonNegativeInt = 0  # the joint of the first pair of keys or of the first axis
    step_size: PositiveFloat = 0.01  # in the robot's units: added every tick (relative), or sent as it is
    relative: bool = True  # displacements are added to the newest command; false: to none
    always: bool = False  # act at every tick, not only while something is pressed
    gripper: NonNegativeInt | None = None  # the number of an action that is the gripper
    end_effector: EndEffectorConfig | None = None  # move the end-effector of a robot whose commands are joint positions

    def build(self, action_dim: int) -> Teleoperator:
        """Open the device, in the process that controls the robot."""
        check_gripper(self.gripper, action_dim)
        if self.end_effector is None:
            return self.open(action_dim)
        layout = {key: value for key, value in self.hand.items() if key not in self.model_fields_set}
        own = {"relative": True, "step_size": 1.0, "gripper": GRIPPER, "first_joint": 0}
        device = self.model_copy(update={**layout, **own}).open(NUM_DISPLACEMENTS)
        return EndEffectorTeleop(device, self.end_effector, self.gripper, action_dim)

    def open(self, action_dim: int) -> "JointTeleop[Any]":
        """Open the device for commands of this many numbers."""
        raise NotImplementedError(f"{type(self).__name__} has no open()")


ConfigT = TypeVar("ConfigT", bound=JointTeleopConfig)


class JointTeleop(Generic[ConfigT]):
    """Base of these devices: a command from what is moved now."""

    def __init__(self, config: ConfigT, action_dim: int):
        self.relative, self._config, self._action_dim = config.relative, config, action_dim
        self._robot: Any = None
        self._grip, self._acted = 1.0, False

    def begin_episode(self, robot: Any) -> None:
        """Called after each reset of the robot; the gripper is open until it is commanded."""
        self._robot, self._grip, self._acted = robot, 1.0, False

    def command(self) -> FloatArray | None:
        """[A], or None while nothing is pressed or moved."""
        moves, grip, acts = self.read()
        config = self._config
        if not (acts or config.always):
            self._acted = False
            return None
        command = np.zeros(self._action_dim, np.float32)
        for joint, amount in moves.items():
            command[joint + config.first_joint] += config.step_size * amount
        if config.gripper is not None:
            self._set_gripper(command, config.gripper, grip)
        self._acted = True
        return command

    def _set_gripper(self, command: FloatArray, gripper: int, grip: float) -> None:
        """Open, close, or keep the last command: that of the policy, where a person has just taken over."""
        if self._config.relative:
            command[gripper] += self._config.step_size * grip
            return
        last = None if self._robot is None or self._acted else self._robot.last_command
        self._grip = self._grip if last is None else float(last[gripper])
        self._grip = float(np.sign(grip or command[gripper])) or self._grip
        command[gripper] = self._grip

    def read(self) -> tuple[Mapping[int, float], float, bool]:
        """What is moved now: joint, from the first one -> how far, -1 to 1; the gripper, 1 opens; whether it acts."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the device."""
        raise NotImplementedError

    def _axes(self, axes: Sequence[Any]) -> list[tuple[int, Any]]:
        """Joint, from the first one, and axis or keys: those that an action has room for."""
        room = max(self._action_dim - self._config.first_joint, 0)
        return [(joint, axis) for joint, axis in enumerate(axes[:room]) if axis is not None]


def deflection(value: float, deadzone: float) -> float:
    """How far a stick is moved beyond its deadzone, -1 to 1."""
    return float(np.sign(value)) * min(max(abs(value) - deadzone, 0.0) / (1 - deadzone), 1.0)


@TELEOP_REGISTRY.register("keyboard")
class KeyboardConfig(JointTeleopConfig):
    """Two keys per joint, one up and one down; the space bar takes control without moving."""

    hand: ClassVar[Mapping[str, Any]] = {"keys": ("ik", "jl", "um", "nb", "tg", "yv", "zc"), "step_size": 0.25}

    type: Literal["keyboard"] = "keyboard"
    keys: tuple[KeyPair, ...] = ("qa", "ws", "ed", "rf", "tg", "yh", "uj")  # a pair per joint
    key_timeout_s: PositiveFloat = 0.6  # control is kept so long after the last key: terminals report no release

    def used_keys(self, action_dim: int) -> tuple[str, ...]:
        """The pairs that move something: as many as commands of this many numbers have room for."""
        if self.end_effector is None:
            return self.keys[: max(action_dim - self.first_joint, 0)]
        keys = self.keys if "keys" in self.model_fields_set else self.hand["keys"]
        return keys[:NUM_DISPLACEMENTS]

    def open(self, action_dim: int) -> "KeyboardTeleop":
        """Open the terminal."""
        return KeyboardTeleop(self, action_dim)


class KeyboardTeleop(JointTeleop[KeyboardConfig]):
    """Reads the terminal that the program was started from, without echo and without waiting for a line.

    A key that is pressed once moves for one tick or two, so that small motions are possible. A key that repeats moves
    until its repeats end.
    """

    def __init__(self, config: KeyboardConfig, action_dim: int):
        super().__init__(config, action_dim)
        self._moves: dict[str, tuple[int, float]] = {" ": (0, 0.0)}
        for joint, (up, down) in self._axes(config.keys):
            self._moves |= {up: (joint, 1.0), down: (joint, -1.0)}
        self._pressed: dict[str, tuple[float, float]] = {}  # key -> when, and until when it moves
        self._begins = False  # an episode, with the next command
        self._terminal: int | None = None
        if SHARED_KEYS.in_use:
            return
        try:
            self._terminal = os.open(TERMINAL, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise RolloutError(f"teleop by keyboard needs a terminal: {error.strerror}") from error
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSANOW)  # Ctrl-C still interrupts

    def begin_episode(self, robot: Any) -> None:
        """Keys that were typed before the first command, at the gate or on the way to the start, move nothing."""
        super().begin_episode(robot)
        self._begins = True

    def read(self) -> tuple[Mapping[int, float], float, bool]:
        """What the pressed keys move."""
        now = time.monotonic()
        if self._begins:
            self._begins, self._pressed = False, {}
            while self._read():
                pass
        self._pressed = {key: at for key, at in self._pressed.items() if now - at[0] < self._config.key_timeout_s}
        for key in single_keys(self._read()):
            if key in self._moves:
                self._pressed[key] = now, now + (REPEAT_S if key in self._pressed else TAP_S)
        moves: dict[int, float] = {}
        for key, (_, until) in self._pressed.items():
            joint, amount = self._moves[key]
            moves[joint] = moves.get(joint, 0.0) + (amount if now < until else 0.0)
        return moves, 0.0, bool(self._pressed)

    def _read(self) -> str:
        if self._terminal is None:
            return SHARED_KEYS.take()
        return (read_device(self._terminal, 64, "the terminal") or b"").decode(errors="ignore")

    def close(self) -> None:
        """Restore the terminal."""
        if self._terminal is None:
            return
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)
        os.close(self._terminal)


def single_keys(text: str) -> str:
    """The keys of a text in lower case, without arrow and function keys: their codes end in a letter."""
    return ESCAPES.sub("", text).lower()


@TELEOP_REGISTRY.register("gamepad")
class GamepadConfig(JointTeleopConfig):
    """Sticks move joints while a button is held; the policy continues when it is released."""

    # Left stick: forward and left. Right stick: up and yaw. Directional pad: roll and pitch.
    hand: ClassVar[Mapping[str, Any]] = {
        "axes": (1, 0, 4, None, 6, 7, 3),
        "inverted": (0, 1, 3, 4),
        "step_size": 0.5,
    }

    type: Literal["gamepad"] = "gamepad"
    device: str = "/dev/input/js0"  # of Linux's joystick interface
    button: NonNegativeInt = 4  # to be held; 4 is the left shoulder of most
    # The axis for each joint; step_size is at full deflection. None: no axis moves this joint.
    axes: tuple[NonNegativeInt | None, ...] = (0, 1, 3, 4)
    inverted: tuple[NonNegativeInt, ...] = ()  # axes whose direction is reversed
    triggers: tuple[NonNegativeInt, NonNegativeInt] = (5, 2)  # axes that close and open the gripper
    deadzone: float = Field(default=0.1, ge=0, lt=1)  # deflection that counts as none

    def open(self, action_dim: int) -> "GamepadTeleop":
        """Open the device."""
        return GamepadTeleop(self, action_dim)


class GamepadTeleop(JointTeleop[GamepadConfig]):
    """Reads Linux's joystick device directly: eight bytes per event."""

    def __init__(self, config: GamepadConfig, action_dim: int):
        super().__init__(config, action_dim)
        self._sticks: dict[int, float] = {}
        self._held = False
        self._device = open_gamepad(config.device, "a gamepad")

    def read(self) -> tuple[Mapping[int, float], float, bool]:
        """What sticks and triggers move, and whether the button is held."""
        pad = self._config
        data = read_device(self._device, 64 * EVENT.size, f"the gamepad {pad.device}") or b""
        for value, kind, number in gamepad_events(data):
            if kind & AXIS:
                self._sticks[number] = -value / FULL if number in pad.inverted else value / FULL
            elif kind & BUTTON and number == pad.button:
                self._held = bool(value)
        moves = {joint: deflection(self._sticks.get(axis, 0.0), pad.deadzone) for joint, axis in self._axes(pad.axes)}
        close, open_ = (self._sticks.get(axis, -1.0) > 0 for axis in pad.triggers)
        return moves, float(open_) - float(close), self._held

    def close(self) -> None:
        """Close the device."""
        os.close(self._device)


def open_gamepad(device: str, what: str) -> int:
    """The descriptor of a joystick device. what: for the error message"""
    try:
        return os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise RolloutFault(f"{device}: {error.strerror}; is {what} plugged in?") from error


def read_device(descriptor: int, size: int, what: str) -> bytes | None:
    """What a device has sent; None: nothing. RolloutFault where it is gone, so that the robot holds."""
    try:
        data = os.read(descriptor, size)
    except BlockingIOError:
        return None
    except OSError as error:
        raise RolloutFault(f"{what} was disconnected: {error.strerror}; connect it again") from error
    if not data:
        raise RolloutFault(f"{what} was disconnected; connect it again")
    return data


def gamepad_events(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Value, kind and number of each event."""
    return ((value, kind, number) for _, value, kind, number in EVENT.iter_unpack(data[: len(data) // 8 * 8]))


def teleop_defaults(teleop: str, robot: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a device that suit the robot, unless the user sets them. robot: its config"""
    config = TELEOP_REGISTRY.get(teleop)
    if issubclass(config, TopicConfig):
        return {"robot": robot}  # the commands come over the robot's own transport
    if robot.get("type") != "sim" or not issubclass(config, JointTeleopConfig):
        return {}
    # Actions of simulated tasks are displacements of the end-effector.
    gripper = {"gripper": GRIPPER} if robot.get("env", {}).get("type") in GRIPPER_TASKS else {}
    return {**config.hand, "relative": False, **gripper}


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

    def begin_episode(self, robot: Any) -> None:
        """Nothing to do: commands do not depend on the episode."""

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


class SpaceMouseTeleop(JointTeleop[SpaceMouseConfig]):
    """See `SpaceMouseConfig`."""

    def __init__(self, config: SpaceMouseConfig, action_dim: int, device: Any):
        """device: a `pyspacemouse.SpaceMouseDevice`, open and not blocking"""
        super().__init__(config, action_dim)
        self._device = device

    def read(self) -> tuple[Mapping[int, float], float, bool]:
        """What the cap and the buttons move."""
        mouse, state = self._config, self._newest()
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
