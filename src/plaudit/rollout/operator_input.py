"""Where an operator's commands come from: single keys of the terminal, a gamepad's buttons, a ROS 2 topic.

    with listen_at_terminal(config, operator.send), listen_at_robot(config, operator.send, robot_config):
        ...                                       # each source sends from a thread of its own

The terminal is where the command was started; gamepad and topic are at the robot, which may be another machine. The
keys are those of the terminal's stdin, and Ctrl-C still interrupts.
"""

import os
import select
import shutil
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import Config, NonNegativeInt
from plaudit.errors import BadMessage, DataError, RolloutError
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.sim import SimRobotConfig
from plaudit.robots.transport.messages import STRING, decode_string
from plaudit.rollout.operator import AVAILABLE, OperatorCommand, Phase
from plaudit.rollout.teleop import BUTTON, EVENT, KeyboardConfig
from plaudit.trust import print_plain

POLL_S = 0.2  # between looks whether to stop listening
SPEAKERS = ("spd-say", "espeak-ng", "espeak", "say")  # programs that speak their argument

Send = Callable[[OperatorCommand], object]


class OperatorKeys(Config):
    """The key of each command, in either case."""

    start: str = " "
    end: str = "e"
    success: str = "s"
    failure: str = "f"
    discard: str = "d"
    repeat: str = "r"
    pause: str = "p"
    stop: str = "q"
    estop: str = "x"
    release: str = "o"

    @model_validator(mode="after")
    def _check(self) -> Self:
        keys = [str(key).lower() for key in self.model_dump().values()]
        for command, key in self.model_dump().items():
            if len(key) != 1:
                raise ValueError(f"operator.keys.{command} is '{key}'; it must be one key")
            if keys.count(key.lower()) > 1:
                raise ValueError(f"operator.keys: '{key}' stands for two commands")
        return self


class OperatorButtons(Config):
    """The button of each command, by its number on most gamepads; the left shoulder (4) is that of teleoperation."""

    start: NonNegativeInt = 7  # Start
    end: NonNegativeInt = 2  # X
    success: NonNegativeInt = 0  # A
    failure: NonNegativeInt = 1  # B
    discard: NonNegativeInt = 6  # Back
    repeat: NonNegativeInt = 3  # Y
    pause: NonNegativeInt = 5  # right shoulder
    stop: NonNegativeInt = 8  # the one in the middle
    estop: NonNegativeInt = 10  # right stick, pressed
    release: NonNegativeInt = 9  # left stick, pressed

    @model_validator(mode="after")
    def _check(self) -> Self:
        buttons = list(self.model_dump().values())
        twice = [button for button in buttons if buttons.count(button) > 1]
        if twice:
            raise ValueError(f"operator.buttons: button {twice[0]} stands for two commands")
        return self


class OperatorConfig(Config):
    """How a person attends the episodes of a robot; with `--auto` nobody does."""

    # Nobody attends, as --auto says; None: in a simulation, and where there is no terminal. Not part of a run's config.
    auto: bool | None = Field(default=None, exclude=True)
    sources: tuple[Literal["terminal", "gamepad", "topic"], ...] = Field(default=("terminal",), min_length=1)
    gate: bool = True  # every episode waits until the scene is ready; False: only after a pause
    keys: OperatorKeys = OperatorKeys()  # of the terminal
    buttons: OperatorButtons = OperatorButtons()  # of the gamepad
    device: str = "/dev/input/js0"  # the gamepad, of Linux's joystick interface
    cue: Literal["none", "bell", "speech"] = "none"  # what is heard at the terminal when it is the person's turn

    @property
    def attended(self) -> bool:
        """Whether an operator attends; nobody does as long as `resolve_auto` has not decided."""
        return self.auto is False


def resolve_auto(config: OperatorConfig, flag: bool | None, robot: Any, teleop: Any) -> OperatorConfig:
    """With `auto` decided: by --auto or --no-auto, else by the config, else by whether somebody can attend.

    robot: its config; None for a simulated task
    """
    auto = config.auto if flag is None else flag
    if auto is None:
        simulated = robot is None or isinstance(robot, SimRobotConfig)
        auto = simulated or (config.sources == ("terminal",) and not has_terminal())
    by_terminal = not auto and "terminal" in config.sources
    if by_terminal and not has_terminal():
        raise DataError(
            "an operator's keys come from a terminal, and stdin is none of this command's; use --auto, or "
            "operator.sources=[topic]"
        )
    if by_terminal and isinstance(teleop, KeyboardConfig):
        raise DataError(
            "teleop=keyboard and the operator would read the same keys; use --auto, or another source for the "
            "operator: operator.sources=[gamepad]"
        )
    return config.model_copy(update={"auto": auto})


def has_terminal() -> bool:
    """Whether a person can type here: stdin is a terminal, and this process is in its foreground."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # another session's terminal (`setsid`), where the keys may be meant for another program
        return False


@contextmanager
def listen_at_terminal(config: OperatorConfig, send: Send) -> Iterator[None]:
    """Send the commands of single keys, if the terminal is one of the sources; restores the terminal."""
    if "terminal" not in config.sources:
        yield
        return
    terminal = sys.stdin.fileno()
    commands = {key.lower(): OperatorCommand(command) for command, key in config.keys.model_dump().items()}

    def receive(data: bytes) -> None:
        for key in data.decode(errors="ignore").lower():
            if key in commands:
                send(commands[key])

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSANOW)
    try:
        with _reading(terminal, receive, lambda: None):
            yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


@contextmanager
def listen_at_robot(config: OperatorConfig, send: Send, robot: Any) -> Iterator[None]:
    """Send the commands of the sources that are at the robot: the gamepad, the topic."""
    with ExitStack() as stack:
        if "gamepad" in config.sources:
            stack.enter_context(_listen_to_gamepad(config, send))
        if "topic" in config.sources:
            stack.enter_context(_listen_to_topic(send, robot))
        yield


@contextmanager
def _listen_to_gamepad(config: OperatorConfig, send: Send) -> Iterator[None]:
    try:
        device = os.open(config.device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise RolloutError(f"{config.device}: {error.strerror}; is the operator's gamepad plugged in?") from error
    commands = {button: OperatorCommand(command) for command, button in config.buttons.model_dump().items()}

    def receive(data: bytes) -> None:
        for _, value, kind, number in EVENT.iter_unpack(data[: len(data) // EVENT.size * EVENT.size]):
            if kind == BUTTON and value and number in commands:  # and not the state that is sent at the beginning
                send(commands[number])

    def lost() -> None:
        print_plain(f"{config.device}: the operator's gamepad is gone, so the robot pauses")
        send(OperatorCommand.PAUSE)

    try:
        with _reading(device, receive, lost):
            yield
    finally:
        os.close(device)


@contextmanager
def _listen_to_topic(send: Send, robot: Any) -> Iterator[None]:
    if not isinstance(robot, RosRobotConfig):
        raise RolloutError("an operator's topic is for ROS 2 robots; this is not one")
    topic = robot.topics().operator
    if topic is None:
        raise RolloutError("the robot's topics name none for the operator; add the key 'operator' to them")

    def receive(data: bytes) -> None:
        try:
            send(OperatorCommand(decode_string(data).strip().lower()))
        except (BadMessage, ValueError):
            known = ", ".join(OperatorCommand)
            print_plain(f"{topic}: a message that is no command of an operator; known: {known}")

    transport = robot.transport.build()
    try:
        transport.subscribe(topic, STRING, receive)
        yield
    finally:
        transport.close()


@contextmanager
def _reading(descriptor: int, receive: Callable[[bytes], None], lost: Callable[[], None]) -> Iterator[None]:
    """Read a device in a thread. lost: called when it is gone"""
    done, readable = threading.Event(), select.poll()  # `select.select` knows descriptors up to 1023 only
    readable.register(descriptor, select.POLLIN)

    def read() -> None:
        while not done.is_set():
            if not readable.poll(POLL_S * 1000):
                continue
            try:
                data = os.read(descriptor, 64 * EVENT.size)
            except OSError:
                data = b""
            if not data:
                lost()
                break
            receive(data)

    thread = threading.Thread(target=read, name="operator", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def hotkeys(config: OperatorConfig, phase: Phase) -> list[tuple[str, str]]:
    """What can be pressed now: key or button, and command; together they fit on a line.

    >>> hotkeys(OperatorConfig(), "gate")
    [('space', 'start'), ('q', 'stop'), ('x', 'estop')]
    """
    if "terminal" in config.sources:
        keys = {command: "space" if key == " " else key for command, key in config.keys.model_dump().items()}
    elif "gamepad" in config.sources:
        keys = {command: f"B{button}" for command, button in config.buttons.model_dump().items()}
    else:
        keys = dict.fromkeys(OperatorCommand, "topic:")
    return [(keys[command], str(command)) for command in AVAILABLE[phase]]


class Cue:
    """What is heard when it is the person's turn."""

    def __init__(self, kind: Literal["none", "bell", "speech"]):
        self._kind = kind
        self._program = next((found for name in SPEAKERS if (found := shutil.which(name))), None)
        if kind == "speech" and self._program is None:
            raise DataError(
                f"operator.cue=speech needs one of {', '.join(SPEAKERS)}; install one, or use operator.cue=bell"
            )

    def give(self, words: str) -> None:
        """Do not wait for it."""
        if self._kind == "bell":
            sys.stderr.write("\a")
            sys.stderr.flush()
        elif self._kind == "speech" and self._program is not None:
            subprocess.Popen([self._program, words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
