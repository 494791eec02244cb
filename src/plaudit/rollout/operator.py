"""The operator: a person at the robot who starts, ends and marks episodes, and stops the run.

    operator = Operator()
    operator.send(OperatorCommand.START)         # from any thread: a key, a button, a message, a script

    while operator.wait_until_ready():           # in the thread of the episodes; see run.py
        ...                                      # an episode, until operator.end_reason()
        episode = operator.finish(episode)

Before each episode there is a gate: nothing moves until the operator says that the scene is ready. A command that is
not available now is answered with a sentence and dropped. A pause ends the episode, which is kept, and closes the gate:
a robot that holds in the middle of an episode would record steps that no policy chose. An emergency stop does the same
at once, and the gate stays closed until it is released.

Commands come from single keys of the terminal where the command was started (`listen_at_terminal`), or from a gamepad
or a ROS 2 topic at the robot, which may be another machine (`listen_at_robot`).
"""

import os
import select
import shutil
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import Config, NonNegativeInt
from plaudit.errors import BadMessage, DataError
from plaudit.processes import run_thread
from plaudit.robots.limits import EmergencyStop
from plaudit.robots.sim import SimRobotConfig
from plaudit.robots.transport.messages import STRING, decode_string
from plaudit.rollout.teleop import (
    BUTTON,
    EVENT,
    SHARED_KEYS,
    KeyboardConfig,
    gamepad_events,
    open_gamepad,
    robot_topic,
    single_keys,
)
from plaudit.trust import print_plain
from plaudit.types import OPERATOR, Episode

MARK = OPERATOR  # in an episode's meta: the operator's command that marked it
GATE_S = "gate_s"  # in an episode's meta: how long the robot waited at the gate before it, s


class OperatorCommand(StrEnum):
    """What an operator can say; the values are also what a topic carries."""

    START = "start"  # the scene is ready
    END = "end"  # the episode is over, and the judge decides about it
    SUCCESS = "success"  # it is over and has succeeded
    FAILURE = "failure"  # it is over and has failed
    DISCARD = "discard"  # it is over and is of no use
    REPEAT = "repeat"  # the same, and another is played in its place
    PAUSE = "pause"  # it is over; the robot holds until the next start
    STOP = "stop"  # the run is over
    ESTOP = "estop"  # it is over; nothing gets to the robot until RELEASE
    RELEASE = "release"  # the robot may be driven again


# Nothing to do for the operator; waiting for START; an episode is running; the emergency stop waits for RELEASE.
Phase = Literal["idle", "gate", "episode", "held"]

MARKS = {OperatorCommand.SUCCESS, OperatorCommand.FAILURE, OperatorCommand.DISCARD, OperatorCommand.REPEAT}
AVAILABLE: dict[Phase, tuple[OperatorCommand, ...]] = {
    "idle": (OperatorCommand.PAUSE, OperatorCommand.STOP, OperatorCommand.ESTOP),
    "gate": (OperatorCommand.START, OperatorCommand.STOP, OperatorCommand.ESTOP),
    "episode": tuple(c for c in OperatorCommand if c not in (OperatorCommand.START, OperatorCommand.RELEASE)),
    "held": (OperatorCommand.RELEASE, OperatorCommand.STOP),
}
POLL_S = 0.1  # between looks at an emergency stop that others may have engaged or released


@dataclass(frozen=True)
class OperatorStatus:
    """What an operator should know."""

    phase: Phase = "idle"
    message: str = ""  # what came of the last command; "" where that is plain to see
    messages: int = 0  # answers so far, so that the same one twice is noticed
    stopped: bool = False  # whether the operator has ended the run
    forecast: str = ""  # how far the running episode is (rollout/forecast.py); "" where nothing measures it
    hint: str = ""  # why a person should take over now


class Operator:
    """Commands from any thread, and the gate that the thread of the episodes waits at."""

    def __init__(
        self, gate: bool = True, listener: Callable[[OperatorStatus], None] = lambda _: None, countdown: int = 0
    ):
        """
        gate: every episode waits for START; False: only after a pause
        listener: called with each new status, in the thread that changed it; it may send commands
        countdown: s from START to the episode
        """
        self._gate, self._listener, self._countdown = gate, listener, countdown
        self._changed = threading.Condition()
        self._status = OperatorStatus()
        self._open = False  # whether START was given at the gate
        self._paused = False
        self._end_reason, self._mark = "", ""  # of the current episode
        self._gate_s = 0.0  # before it
        self.emergency_stop = EmergencyStop()  # of the robot that is attended, see `attend`
        self._stop_count = 0  # of the emergency stop, when the gate was passed

    @property
    def status(self) -> OperatorStatus:
        """The newest."""
        return self._status

    def send(self, command: OperatorCommand) -> str:
        """Do what the command says if it is available now; returns the answer for the operator, "" for none."""
        with self._changed:
            message = self._apply(command)
            status = self._update(message=message, messages=self._status.messages + 1)
        self._listener(status)
        return message

    def wait_until_ready(self, look: Callable[[], object] = lambda: None) -> bool:
        """Wait at the gate, and before it until an emergency stop is released; returns False when the run is over.

        look: called again and again meanwhile
        """
        began = time.monotonic()
        while not self._status.stopped:
            self._paused |= self.emergency_stop.engaged
            self._wait("held", lambda: not self.emergency_stop.engaged, look)
            self._open = not (self._gate or self._paused)
            self._wait("gate", lambda: self._open or self.emergency_stop.engaged, look)
            if self._status.phase == "gate" and self._open:
                self._count_down()
            with self._changed:
                self._stop_count = self.emergency_stop.count
                if self._open and not (self._paused or self.emergency_stop.engaged or self._status.stopped):
                    self._end_reason, self._mark = "", ""
                    break
        else:
            return False
        self._gate_s = time.monotonic() - began
        self._enter("episode")
        return True

    def _wait(self, phase: Phase, over: Callable[[], bool], look: Callable[[], object]) -> None:
        """Until it is over, or the run is; the phase is entered where that takes a while."""
        if over() or self._status.stopped:
            return
        self._enter(phase)
        while not over() and not self._status.stopped:
            look()  # without the lock: commands, first of all the emergency stop, never wait for a robot
            with self._changed:
                if not over() and not self._status.stopped:
                    self._changed.wait(POLL_S)

    def _count_down(self) -> None:
        """The episode has not begun yet, so there is nothing to mark; PAUSE, STOP and the emergency stop end it."""

        def over() -> bool:
            return self._paused or self._status.stopped or self.emergency_stop.engaged

        for left in range(self._countdown, 0, -1):
            if over():
                return
            self._listener(self._update(phase="idle", message=str(left), messages=self._status.messages + 1))
            with self._changed:
                self._changed.wait_for(over, timeout=1.0)

    def end_reason(self) -> str:
        """Why the current episode is to end now; "" to go on."""
        return self._end_reason or ("emergency stop" if self._emergency_stopped else "")

    @property
    def _emergency_stopped(self) -> bool:
        """Whether anybody engaged the emergency stop since the gate, be it released or not."""
        return self.emergency_stop.count != self._stop_count

    def finish(self, episode: Episode | None) -> Episode | None:
        """The episode is over: returns it with its mark."""
        with self._changed:
            mark = self._mark
            self._paused |= self._emergency_stopped
            answer: dict[str, Any] = {}
            if mark and episode is None:  # it was marked on the way to the start pose
                message = f"{mark}: no episode was recorded, so nothing was marked"
                answer = {"message": message, "messages": self._status.messages + 1}
            status = self._update(phase="idle", forecast="", hint="", **answer)  # from now on, marks are refused
        self._listener(status)
        if episode is None:
            return None
        return replace(episode, meta={**episode.meta, GATE_S: self._gate_s, **({MARK: mark} if mark else {})})

    def advise(self, forecast: str, hint: str) -> None:
        """Show how far the running episode is, and why a person should take over now, if they should."""
        if self._status.phase == "episode" and (forecast, hint) != (self._status.forecast, self._status.hint):
            self._listener(self._update(forecast=forecast, hint=hint))

    def _apply(self, command: OperatorCommand) -> str:
        """Returns the answer. The first command gives the reason why an episode ended; the last mark counts."""
        phase = self._status.phase
        if command is OperatorCommand.STOP:
            self._end_reason = self._end_reason or "operator: stop"
            self._update(stopped=True)
            return "stopping; the robot holds"
        if command is OperatorCommand.RELEASE:
            if not self.emergency_stop.engaged:
                return "release: the emergency stop is not engaged, so nothing was done"
            self.emergency_stop.release()
            return "released; the robot moves again at the next start"
        if command not in AVAILABLE[phase]:
            if command is OperatorCommand.START:
                return f"start: {_NOT_STARTED[phase]}, so nothing was started"
            if command is OperatorCommand.ESTOP:
                return "estop: the emergency stop is engaged already"
            return f"{command}: no episode is running, so nothing was done"
        if command is OperatorCommand.START:
            self._open, self._paused = True, False
            return ""
        if command is OperatorCommand.ESTOP:
            self.emergency_stop.engage("operator")
        reason = "emergency stop (operator)" if command is OperatorCommand.ESTOP else f"operator: {command}"
        self._end_reason = self._end_reason or reason
        self._mark = str(command) if command in MARKS else self._mark
        self._paused |= command in (OperatorCommand.PAUSE, OperatorCommand.ESTOP)
        return _ENDINGS[command]

    def _enter(self, phase: Phase) -> None:
        self._listener(self._update(phase=phase))

    def _update(self, **changes: Any) -> OperatorStatus:
        with self._changed:
            self._status = replace(self._status, **changes)
            self._changed.notify_all()
            return self._status


_NOT_STARTED: dict[Phase, str] = {
    "idle": "the next episode is not ready yet",
    "episode": "an episode is running",
    "held": "the emergency stop is engaged; release it first",
}
_ENDINGS = {
    OperatorCommand.END: "the episode was ended; the judge decides about it",
    OperatorCommand.SUCCESS: "the episode was marked as a success",
    OperatorCommand.FAILURE: "the episode was marked as a failure",
    OperatorCommand.DISCARD: "the episode was discarded",
    OperatorCommand.REPEAT: "the episode was discarded; it is played again",
    OperatorCommand.PAUSE: "paused; the robot holds until the next start",
    OperatorCommand.ESTOP: "emergency stop; nothing moves until it is released",
}


LISTEN_POLL_S = 0.2  # between looks whether to stop listening
SPEAKERS = ("spd-say", "espeak-ng", "espeak", "say")  # programs that speak their argument

Send = Callable[[OperatorCommand], object]


def _check_unique(values: list[Any], what: str) -> None:
    """Refuse a key or a button of two commands."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what.format(value)} stands for two commands")


class OperatorKeys(Config):
    """The key of each command at the terminal; case does not matter."""

    start: str = " "  # start the next episode
    end: str = "e"  # end the episode; the judge labels it
    success: str = "s"  # end the episode as a success
    failure: str = "f"  # end the episode as a failure
    discard: str = "d"  # end the episode; it goes to another store
    repeat: str = "r"  # the same, and a new episode replaces it
    pause: str = "p"  # end the episode and hold until the next start
    stop: str = "q"  # end the run
    estop: str = "x"  # emergency stop
    release: str = "o"  # release the emergency stop

    @model_validator(mode="after")
    def _check(self) -> Self:
        for command, key in self:
            if len(key) != 1:
                raise ValueError(f"operator.keys.{command} is '{key}'; it must be one key")
        _check_unique([key.lower() for _, key in self], "operator.keys: '{}'")
        return self


class OperatorButtons(Config):
    """The button of each command, by its number on most gamepads; the left shoulder (4) is used by teleoperation."""

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
        _check_unique([button for _, button in self], "operator.buttons: button {}")
        return self


class OperatorConfig(Config):
    """How a person attends the episodes of a robot; with `--auto` no one does."""

    # No operator attends, as with --auto; None: in a simulation or without a terminal. Not part of a run's config.
    auto: bool | None = Field(default=None, exclude=True)
    # Where commands come from; web only in `plaudit online`.
    sources: tuple[Literal["terminal", "gamepad", "topic", "web"], ...] = Field(default=("terminal",), min_length=1)
    gate: bool = True  # every episode waits until the scene is ready; False: only after a pause
    keys: OperatorKeys = OperatorKeys()  # of the terminal
    buttons: OperatorButtons = OperatorButtons()  # of the gamepad
    device: str = "/dev/input/js0"  # the gamepad, of Linux's joystick interface
    cue: Literal["none", "bell", "speech"] = "none"  # what is heard at the terminal when it is the person's turn

    @property
    def attended(self) -> bool:
        """Whether an operator attends; no one does as long as `resolve_auto` has not decided."""
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
            "the operator's keys come from a terminal, and stdin is not the terminal of this command; use --auto, or "
            "operator.sources=[topic]"
        )
    if by_terminal and isinstance(teleop, KeyboardConfig) and not SHARED_KEYS.in_use:
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
    commands = {key.lower(): OperatorCommand(command) for command, key in config.keys}

    def receive(data: bytes) -> None:
        keys = single_keys(data.decode(errors="ignore"))
        for key in keys:
            if key in commands:
                send(commands[key])
        if SHARED_KEYS.in_use:  # the start key too: in an episode, it takes control without moving
            SHARED_KEYS.put("".join(key for key in keys if commands.get(key) in (None, OperatorCommand.START)))

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
    commands = {button: OperatorCommand(command) for command, button in config.buttons}

    def receive_buttons(data: bytes) -> None:
        for value, kind, number in gamepad_events(data):
            if kind == BUTTON and value and number in commands:  # ignores the initial state, which has another kind
                send(commands[number])

    def gamepad_lost() -> None:
        print_plain(f"{config.device}: the operator's gamepad was disconnected, so the robot pauses")
        send(OperatorCommand.PAUSE)

    def receive_message(data: bytes) -> None:
        try:
            send(OperatorCommand(decode_string(data).strip().lower()))
        except (BadMessage, ValueError):
            print_plain(f"{topic}: a message that is no command of an operator; known: {', '.join(OperatorCommand)}")

    with ExitStack() as stack:
        if "gamepad" in config.sources:
            device = open_gamepad(config.device, "the operator's gamepad")
            stack.callback(os.close, device)
            stack.enter_context(_reading(device, receive_buttons, gamepad_lost))
        if "topic" in config.sources:
            topic = robot_topic(robot, "operator")
            transport = robot.transport.build()
            stack.callback(transport.close)
            transport.subscribe(topic, STRING, receive_message)
        yield


@contextmanager
def _reading(descriptor: int, receive: Callable[[bytes], None], lost: Callable[[], None]) -> Iterator[None]:
    """Read a device in a thread. lost: called when it is gone"""
    readable = select.poll()  # `select.select` knows descriptors up to 1023 only
    readable.register(descriptor, select.POLLIN)

    def read(done: threading.Event) -> None:
        while not done.is_set():
            if not readable.poll(LISTEN_POLL_S * 1000):
                continue
            try:
                data = os.read(descriptor, 64 * EVENT.size)
            except OSError:
                data = b""
            if not data:
                lost()
                break
            receive(data)

    with run_thread("operator", read):
        yield


def hotkeys(config: OperatorConfig, phase: Phase) -> list[tuple[str, str]]:
    """What can be pressed now: key or button, and command; together they fit on a line.

    >>> hotkeys(OperatorConfig(), "gate")
    [('space', 'start'), ('q', 'stop'), ('x', 'estop')]
    """
    if "terminal" in config.sources:
        keys = {command: "space" if key == " " else key for command, key in config.keys}
    elif "gamepad" in config.sources:
        keys = {command: f"B{button}" for command, button in config.buttons}
    else:
        keys = dict.fromkeys(OperatorCommand, f"{config.sources[0]}:")
    return [(keys[command], str(command)) for command in AVAILABLE[phase]]


class Cue:
    """What is heard when it is the person's turn."""

    def __init__(self, kind: Literal["none", "bell", "speech"]):
        self._kind = kind
        self._program = next(filter(None, map(shutil.which, SPEAKERS)), None)
        if kind == "speech" and self._program is None:
            programs = ", ".join(SPEAKERS)
            raise DataError(f"operator.cue=speech needs one of {programs}; install one, or use operator.cue=bell")

    def give(self, words: str) -> None:
        """Do not wait for it."""
        if self._kind == "bell":
            sys.stderr.write("\a")
            sys.stderr.flush()
        elif self._kind == "speech" and self._program is not None:
            subprocess.Popen([self._program, words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
