"""A person's hand on the robot: while there is a command of theirs, the policy's is not sent.

    teleop = KeyboardTeleop(...)
    command = teleop.command()        # every tick; None: the policy drives

A teleop is asked at every tick by the process that controls the robot, so it may not wait for anything: it reads what
has come in since and answers. Whoever acts is recorded in `control_mode`, step by step; the episode goes on.

A new kind is a config class with `build(action_dim)` under a name of `TELEOP_REGISTRY`, or a dotted path.
"""

import os
import struct
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from pydantic import Field

from plaudit.config import Config
from plaudit.errors import RolloutError
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.teleop import TopicTeleop
from plaudit.types import FloatArray

TERMINAL = "/dev/tty"  # not stdin, which a child of ours has not got
EVENT = struct.Struct("=IhBB")  # of a joystick device: time in ms, value, kind, number
BUTTON, AXIS, FULL = 1, 2, 32767


class Teleoperator(Protocol):
    """Where a person's commands come from."""

    relative: bool  # whether a command is added to the one sent before it (targets), or sent as it is (velocities)

    def command(self) -> FloatArray | None:
        """[A], or None for the policy to go on. Returns at once."""
        ...

    def close(self) -> None: ...


class TeleopConfig(Protocol):
    """A config of `TELEOP_REGISTRY`."""

    def build(self, action_dim: int) -> Teleoperator: ...


@TELEOP_REGISTRY.register("keyboard")
class KeyboardConfig(Config):
    """Two keys a joint: one up, one down; the space bar takes over and moves nothing."""

    type: Literal["keyboard"] = "keyboard"
    keys: tuple[str, ...] = ("qa", "ws", "ed", "rf", "tg", "yh", "uj")  # one pair a joint, from joint `first_joint` on
    first_joint: int = Field(default=0, ge=0)
    step_size: float = Field(default=0.01, gt=0)  # in the robot's units: added every tick (relative), or sent as it is
    relative: bool = True
    key_timeout_s: float = Field(default=0.6, gt=0)  # a key counts as held so long: terminals report no release

    def build(self, action_dim: int) -> "KeyboardTeleop":
        return KeyboardTeleop(self, action_dim)


class KeyboardTeleop:
    """Reads the terminal that the program was started from, without echo and without waiting for a line."""

    def __init__(self, config: KeyboardConfig, action_dim: int):
        self.relative = config.relative
        self._key_timeout_s = config.key_timeout_s
        self._moves = {" ": np.zeros(action_dim, np.float32)}
        for joint, (up, down) in enumerate(config.keys[: max(action_dim - config.first_joint, 0)], config.first_joint):
            for key, amount in ((up, config.step_size), (down, -config.step_size)):
                self._moves[key] = np.zeros(action_dim, np.float32)
                self._moves[key][joint] = amount
        self._pressed_at: dict[str, float] = {}
        try:
            self._terminal = os.open(TERMINAL, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise RolloutError(f"teleop by keyboard needs a terminal: {error.strerror}") from error
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSANOW)  # Ctrl-C still interrupts

    def command(self) -> FloatArray | None:
        now = time.monotonic()
        with suppress(BlockingIOError):
            for key in os.read(self._terminal, 64).decode(errors="ignore"):
                if key in self._moves:
                    self._pressed_at[key] = now
        self._pressed_at = {key: at for key, at in self._pressed_at.items() if now - at < self._key_timeout_s}
        return sum((self._moves[key] for key in self._pressed_at), self._moves[" "]) if self._pressed_at else None

    def close(self) -> None:
        termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)
        os.close(self._terminal)


@TELEOP_REGISTRY.register("gamepad")
class GamepadConfig(Config):
    """Sticks move joints while a button is held down; let go of it, and the policy goes on."""

    type: Literal["gamepad"] = "gamepad"
    device: str = "/dev/input/js0"  # of Linux's joystick interface
    button: int = Field(default=4, ge=0)  # to be held; 4 is the left shoulder of most
    axes: tuple[int, ...] = (0, 1, 3, 4)  # the stick's axis for each joint, from joint `first_joint` on
    first_joint: int = Field(default=0, ge=0)
    step_size: float = Field(default=0.01, gt=0)  # at full deflection, in the robot's units, as above
    relative: bool = True
    deadzone: float = Field(default=0.1, ge=0, lt=1)  # deflection that counts as none

    def build(self, action_dim: int) -> "GamepadTeleop":
        return GamepadTeleop(self, action_dim)


class GamepadTeleop:
    """Reads the device itself: eight bytes an event, and no library."""

    def __init__(self, config: GamepadConfig, action_dim: int):
        self.relative = config.relative
        self._config, self._action_dim = config, action_dim
        self._sticks: dict[int, float] = {}
        self._held = False
        try:
            self._device = os.open(config.device, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise RolloutError(f"{config.device}: {error.strerror}; is a gamepad plugged in?") from error

    def command(self) -> FloatArray | None:
        with suppress(BlockingIOError):
            events = os.read(self._device, 64 * EVENT.size)
            for _, value, kind, number in EVENT.iter_unpack(events[: len(events) // EVENT.size * EVENT.size]):
                if kind & AXIS:
                    self._sticks[number] = value / FULL
                elif kind & BUTTON and number == self._config.button:
                    self._held = bool(value)
        if not self._held:
            return None
        command = np.zeros(self._action_dim, np.float32)
        for joint, axis in enumerate(self._config.axes[: max(self._action_dim - self._config.first_joint, 0)]):
            deflection = self._sticks.get(axis, 0.0)
            if abs(deflection) > self._config.deadzone:
                command[self._config.first_joint + joint] = self._config.step_size * deflection
        return command

    def close(self) -> None:
        os.close(self._device)


@TELEOP_REGISTRY.register("topic")
class TopicConfig(Config):
    """What a leader arm, or anything else that speaks ROS 2, publishes on the robot's `teleop` topic."""

    type: Literal["topic"] = "topic"
    robot: Annotated[Any, ROBOT_REGISTRY.field]  # whose joints and topics they are
    timeout_s: float = Field(default=0.25, gt=0)  # that a command is valid for

    def build(self, action_dim: int) -> TopicTeleop:
        if not isinstance(self.robot, RosRobotConfig):
            raise RolloutError("teleop by topic is for robots that speak ROS 2; this one does not")
        topic, joints = self.robot.topics().teleop, self.robot.params().joint_names
        if topic is None:
            raise RolloutError("the robot's topics name none for teleop; add the key 'teleop' to them")
        return TopicTeleop(self.robot.transport.build(), topic, joints, timeout_s=self.timeout_s)


@contextmanager
def restore_terminal() -> Iterator[None]:
    """However the process that reads the keyboard dies, the terminal echoes again afterwards."""
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
