"""What every command passes on its way to a robot: the emergency stop, the limits, and the control rate.

limiter = CommandLimiter(limits, hz)
limiter.restart(measured)                    # the first commands ramp from the measured position of the joints
command = limiter.limit(command)             # once per tick, in the robot's process

stop = EmergencyStop()                       # in the process that starts the others, which get `descriptor`
EmergencyStop(stop.descriptor)               # the same latch in another process
stop.engage("operator"); stop.release()      # by a person
"""

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np

from plaudit.errors import InvalidCommand, RobotError
from plaudit.protocols import Robot
from plaudit.robots.config import ANYWHERE, UNLIMITED, Kinematics, RobotConfig, SafetyLimits
from plaudit.types import AnyArray, FloatArray, Observation

Source = Literal["operator", "topic", "program"]
SOURCES: tuple[Source, ...] = ("operator", "topic", "program")
SIZE = len(SOURCES) + 1  # bytes: a flag for each source, and the count


class EmergencyStopped(RobotError):
    """The emergency stop is engaged; the robot holds until a person releases it."""


class EmergencyStop:
    """A latch that every process of a run sees at once, and that stays engaged until it is released.

    While it is engaged no command passes `CommandLimiter`, and the robot holds. It is one byte per source in shared
    memory. A topic releases only what it engaged: a node that keeps sending "false" does not overrule a person. One
    more byte counts, so that a stop is noticed even after its release.
    """

    def __init__(self, descriptor: int | None = None):
        """descriptor: of a latch that exists, which this takes over; None: a new one"""
        self.descriptor = os.memfd_create("emergency_stop", os.MFD_CLOEXEC) if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, SIZE)
        self._flags = mmap.mmap(self.descriptor, SIZE)

    def engage(self, source: Source = "program") -> None:
        """Stop the robot; from any thread or process."""
        if not self._flags[SOURCES.index(source)]:
            self._flags[-1] = (self._flags[-1] + 1) % 256
        self._flags[SOURCES.index(source)] = 1

    def release(self, source: Source | None = None) -> None:
        """Let it be driven again. source: take back only what this one engaged; None: all, by a person"""
        for index in range(len(SOURCES)) if source is None else (SOURCES.index(source),):
            self._flags[index] = 0

    @property
    def engaged(self) -> bool:
        """Whether the robot has to hold."""
        return any(self._flags[: len(SOURCES)])

    @property
    def count(self) -> int:
        """Another number than before where it was engaged meanwhile."""
        return self._flags[-1]

    @property
    def sources(self) -> tuple[Source, ...]:
        """What engaged it."""
        return tuple(source for source, flag in zip(SOURCES, self._flags[: len(SOURCES)], strict=True) if flag)

    def check(self) -> None:
        """Raise `EmergencyStopped` if it is engaged."""
        if self.engaged:
            raise EmergencyStopped(f"emergency stop ({', '.join(self.sources)})")

    def __del__(self) -> None:
        os.close(self.descriptor)


POSITION, VELOCITY, ACCELERATION, WORKSPACE, STALE_CHUNK = 1, 2, 4, 8, 16  # bits of `limited`
LIMIT_NAMES = {1: "position", 2: "velocity", 4: "acceleration", 8: "workspace", 16: "stale chunk"}
ROUNDING = 1e-6  # of a step: commands are float32
SPIN_S = 0.0005  # before a deadline, polled instead of slept


class CommandLimiter:
    """The limits of one robot, and the position of its last command.

    Commands within the limits pass unchanged. Others are followed as closely as the limits allow: a joint speeds up and
    brakes with its acceleration, brakes in time for its position limits, and approaches a goal that is too far away so
    that it can stop there. Limits are counted in ticks: a late tick does not become a larger step.
    """

    def __init__(self, limits: SafetyLimits, hz: float, kinematics: Kinematics | None = None):
        """hz: commands a second. kinematics: where a command moves the robot's hand or hands"""
        if limits.workspace is not None and kinematics is None:
            raise RobotError(
                "safety.workspace needs forward kinematics, and those of this robot are not known; leave it out, or "
                "give the robot's class a method forward_kinematics(command)"
            )
        self.limits, self.emergency_stop = limits, EmergencyStop()
        # As commands are rounded: one at its limit is within it.
        self._lower, self._upper = (side.astype(np.float32).astype(np.float64) for side in (limits.lower, limits.upper))
        self.limited = 0  # what limited the last command
        self.took = 0.0  # s that this took
        self._kinematics = kinematics
        box = limits.workspace
        self._box = None if box is None else np.array([box.lower, box.upper])
        self._max_delta: AnyArray = np.full(len(limits.lower), UNLIMITED)
        self._middle = (self._lower + self._upper) / 2
        self._checked = np.zeros((3, len(limits.lower)))
        self.set_rate(hz)
        self.restart(None)

    def set_rate(self, hz: float, max_delta: float | Sequence[float] | AnyArray | None = None) -> None:
        """Commands per second from now on. max_delta: of one command, in addition to the limits of the robot"""
        if max_delta is not None:
            self._max_delta = np.broadcast_to(np.asarray(max_delta, np.float64), self._max_delta.shape)
        limits, self.hz = self.limits, hz
        self._max_step = np.minimum(limits.max_velocity / hz, self._max_delta)
        self._max_change = limits.max_acceleration / hz**2
        half_range = (self._upper - self._lower) / 2
        self._braking = 1 / (2 * self._max_change)  # times a step squared: the way that it takes to stop, at most
        positions = (limits.lower > -ANYWHERE) | (limits.upper < ANYWHERE)
        speeds = (self._max_step < UNLIMITED / hz) | (limits.max_acceleration < UNLIMITED)
        self._free = self._box is None and not (positions | speeds).any()
        self._bounds = np.stack([self._max_change + ROUNDING, self._max_step + ROUNDING, half_range])
        stale = limits.stale_chunk_s
        self.stale_steps = np.inf if stale is None else stale * hz  # after which a chunk is too old

    def restart(self, position: AnyArray | None) -> None:
        """The joints are at rest, at these positions; None: not known, and the first command is sent as it is."""
        start = np.zeros(len(self._lower)) if self.limits.relative else position
        self._last = self._goal = None if start is None else np.array(start, np.float64)
        self._step = np.zeros(len(self._lower))  # of the last command, from the one before
        self._behind = False  # whether the last command was not what was wanted

    def limit(self, command: AnyArray) -> FloatArray:
        """The command, or what the limits make of it: a new array. Raises `EmergencyStopped` while that is engaged."""
        self.emergency_stop.check()
        began = time.perf_counter()
        limited = self._limit(command)
        self.took = time.perf_counter() - began
        return limited

    def _limit(self, command: AnyArray) -> FloatArray:
        self.limited = 0
        if self._free or (self._last is not None and not self._behind and self._keeps_limits(command, self._last)):
            self._goal = command
            return command.astype(np.float32)
        goal = np.minimum(np.maximum(command, self._lower), self._upper)
        self.limited = POSITION if (goal != command).any() else 0
        if self._last is None or self._goal is None:
            self._goal = goal
            return goal.astype(np.float32)
        wanted = goal - self._last
        step = self._possible(wanted, goal - self._goal)
        self._behind = step is not wanted
        if self.limits.workspace is not None:
            step = self._inside(self._last, step)
        self._goal = goal
        return (self._last + step).astype(np.float32)

    def sent(self, command: FloatArray) -> None:
        """The robot was sent this: the limited command, or what the robot's own driver made of it."""
        if self._last is not None:
            self._step = command - self._last
        self._last = command.astype(np.float64)

    def braking(self) -> Iterator[FloatArray]:
        """Commands after which the joints rest, from the last that was `sent`: one a tick, at least one."""
        while self._last is not None:
            step = np.copysign(np.maximum(np.abs(self._step) - self._max_change, 0.0), self._step)
            yield np.clip(self._last + step, self._lower, self._upper).astype(np.float32)
            if not step.any():
                return

    def _keeps_limits(self, command: AnyArray, last: AnyArray) -> bool:
        """Whether a command [A] surely does; nearly every one of a policy does, so this is quick."""
        change, step, stop = self._checked
        np.subtract(command, last, out=step)
        np.subtract(step, self._step, out=change)
        # Where the joints could stop at the latest, from the middle of their range.
        np.abs(step, out=stop)
        stop *= step
        stop *= self._braking
        stop += command
        stop -= self._middle
        np.abs(self._checked, out=self._checked)
        return self._box is None and bool((self._checked <= self._bounds).all())

    def _possible(self, wanted: AnyArray, goal_step: AnyArray) -> AnyArray:
        """The step [A] that comes nearest to the goal: `wanted` itself, if the limits allow it.

        goal_step: that the goal has made itself. A joint that is behind catches up with it so that it is as fast as the
        goal when it arrives, and so does not pass a goal that stands still.
        """
        last, change, most = self._last, self._max_change, self._max_step
        assert last is not None
        goal_step = np.minimum(np.maximum(goal_step, -most), most)
        rest = wanted - goal_step
        room = np.stack([self._upper - last, last - self._lower, np.abs(rest)])
        # The longest steps after which a joint, slowing down by `change` each step, still stops within the room.
        room = np.maximum(room, 0.0)
        steps = np.floor((np.sqrt(1.0 + 8.0 * room / change) - 1.0) / 2.0)
        up, down, gain = room / (steps + 1.0) + change * steps / 2.0
        high = np.minimum(np.minimum(self._step + change, most), up)
        low = np.maximum(np.maximum(self._step - change, -most), -down)
        step = np.minimum(np.maximum(goal_step + np.copysign(gain, rest), low), high)
        if (np.abs(step - wanted) <= ROUNDING).all():
            return wanted
        self.limited |= VELOCITY if (np.abs(wanted) > most + ROUNDING).any() else ACCELERATION
        # Where a joint cannot brake in time, its position limit counts more than its acceleration.
        return np.minimum(np.maximum(step, np.minimum(self._lower - last, 0.0)), np.maximum(self._upper - last, 0.0))

    def _inside(self, last: AnyArray, step: AnyArray) -> AnyArray:
        """The step, or braking, where the robot could not stop within the workspace after it."""
        if self.limits.relative:
            ahead, stay, brake = last + step, np.zeros_like(last), -last
        else:
            ahead = last + step + np.sign(step) * step**2 / (2 * self._max_change)
            stay, brake = last, np.clip(0.0, self._step - self._max_change, self._step + self._max_change)
        outside = self._outside(ahead)
        if outside == 0.0 or outside <= self._outside(stay):  # a robot that is outside may come back
            return step
        self.limited |= WORKSPACE
        return brake

    def _outside(self, command: AnyArray) -> float:
        """How far, in m."""
        assert self._kinematics is not None and self._box is not None  # else the workspace had been refused
        points = self._kinematics(command.astype(np.float32))
        return float(np.maximum(np.maximum(self._box[0] - points, points - self._box[1]), 0.0).max())


def limited_steps(limited: Iterable[int]) -> dict[str, list[list[int]]]:
    """For an episode's meta: name of a limit -> [first, last] of the steps that it changed."""
    bits = np.fromiter(limited, int)
    spans: dict[str, list[list[int]]] = {}
    for bit, name in LIMIT_NAMES.items():
        steps = np.flatnonzero(bits & bit)
        if len(steps):
            runs = np.split(steps, np.flatnonzero(np.diff(steps) > 1) + 1)
            spans[name] = [[int(run[0]), int(run[-1])] for run in runs]
    return spans


class ClosableRobot:
    """Base of robots that hold a connection: `with config.build() as robot` closes it."""

    action_dim: int

    def privileged(self) -> Mapping[str, AnyArray]:
        """Nothing: only a simulation has privileged values."""
        return {}

    def check_command(self, action: FloatArray, name: object) -> None:
        """Raise `InvalidCommand` unless an action is [A] finite numbers. name: of the robot, for the message"""
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"{name} takes {self.action_dim} finite numbers, got {np.asarray(action)}")

    def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@runtime_checkable
class _LimitsItself(Protocol):
    """A robot whose driver passes its commands through a limiter of its own, on the way to the start pose too."""

    limiter: CommandLimiter


@runtime_checkable
class _MeasuresJoints(Protocol):
    def joint_position(self) -> FloatArray | None: ...


@runtime_checkable
class _HasKinematics(Protocol):
    def forward_kinematics(self, command: FloatArray, /) -> AnyArray: ...


class Limited:
    """A connected robot, behind its limits: those of its own driver (`limiter`), or those made here.

    A robot that measures its joints (`joint_position()`) starts softly from where they are. The workspace of a robot
    with `forward_kinematics(command)` can be limited.
    """

    def __init__(self, robot: Robot, limits: Callable[[int], SafetyLimits]):
        """limits: called with the number of joints where the robot has no limiter of its own"""
        self.robot = robot
        self.cameras, self.state_dim, self.action_dim = robot.cameras, robot.state_dim, robot.action_dim
        self.fps = robot.fps
        self._limits_itself = isinstance(robot, _LimitsItself)
        if isinstance(robot, _LimitsItself):
            self.limiter = robot.limiter
        else:
            kinematics = robot.forward_kinematics if isinstance(robot, _HasKinematics) else None
            self.limiter = CommandLimiter(limits(robot.action_dim), robot.fps or 1.0, kinematics)

    @property
    def last_command(self) -> FloatArray | None:
        """[A] what the robot really sent."""
        return self.robot.last_command

    def joint_position(self) -> FloatArray | None:
        """[A] where the joints are, in the order and units of commands; None: the robot does not measure them."""
        return self.robot.joint_position() if isinstance(self.robot, _MeasuresJoints) else None

    def reset(self, seed: int | None = None) -> Observation:
        """Reset the robot; the next command starts from where its joints are."""
        self.limiter.emergency_stop.check()
        observation = self.robot.reset(seed)
        if not self._limits_itself:
            self.limiter.restart(self.joint_position())
        return observation

    def act(self, action: FloatArray) -> None:
        """Send one command [A], within the limits."""
        if self._limits_itself:
            self.robot.act(action)
            return
        self.robot.act(self.limiter.limit(action))
        if self.robot.last_command is not None:
            self.limiter.sent(self.robot.last_command)

    def observe(self) -> Observation:
        """The newest observation."""
        return self.robot.observe()

    def privileged(self) -> Mapping[str, Any]:
        """Privileged values of the last step."""
        return self.robot.privileged()

    def hold(self) -> None:
        """Stay where it is."""
        self.robot.hold()
        if not self._limits_itself:
            self.limiter.restart(self.robot.last_command)


class Rate:
    """Ticks at a fixed rate: late, missed = rate.wait()

    A tick has an absolute deadline, so a late tick does not delay the next ones. `wait` sleeps until just before the
    deadline and polls the clock for the rest, because a sleep ends late. A deadline that passed a whole period ago is
    counted as missed and skipped: a robot that had to wait must not receive the lost commands in a burst.
    """

    def __init__(self, hz: float, *, realtime: bool = True, first_now: bool = False):
        """
        hz: ticks per second
        realtime: False for no waiting at all: the caller keeps the rate, or a simulation runs as fast as it can
        first_now: whether the first tick is now; else it comes in one period
        """
        self._period, self._realtime = (1.0 / hz if realtime else 0.0), realtime
        self._next = time.monotonic() + (0.0 if first_now else self._period)

    def reset(self) -> None:
        """Start a new schedule: the next tick comes in one period."""
        self._next = time.monotonic() + self._period

    def wait(self) -> tuple[float, int]:
        """Wait for the next tick; returns how late it begins, in s, and how many before it were missed."""
        if not self._realtime:
            return 0.0, 0
        now = time.monotonic()
        missed = max(int((now - self._next) / self._period), 0)
        self._next += missed * self._period
        rest = self._next - now - SPIN_S
        if rest > 0:
            time.sleep(rest)
        while (now := time.monotonic()) < self._next:
            pass
        late = now - self._next
        self._next += self._period
        return late, missed


def connect_robot(config: Any, stack: ExitStack) -> Limited:
    """Build a robot whose commands are kept within its limits; it is closed with the stack if it can be closed."""
    robot: Robot = config.build()
    if isinstance(robot, AbstractContextManager):
        stack.enter_context(robot)
    return Limited(robot, (config if isinstance(config, RobotConfig) else RobotConfig()).limits)
