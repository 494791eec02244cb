"""Checks any robot before it is driven: rates, sizes and limits of what it sends and, on request, a small motion.

A ROS 2 robot is listened to topic by topic (ros/check.py). Any other is connected and observed at its own rate; nothing
is sent to it. The motion goes through the robot's limits like any command: every joint a little way, and back.
"""

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import numpy as np

from plaudit.errors import RobotError
from plaudit.robots.config import RobotConfig
from plaudit.robots.limiter import Limited, LimitedRobot, joint_position
from plaudit.robots.safety import ANYWHERE, UNLIMITED, SafetyLimits
from plaudit.types import AnyArray, Observation

MIN_RATE_FRACTION = 0.8  # of the control rate
MOTION_S = 2.0  # there and back
SETTLE_S = 0.5  # until the joints have come to rest
SPEED_FRACTION = 1 / 30  # a motion's way is what a joint makes in so much of a second at its greatest speed,
RANGE_FRACTION = 0.05  # and no more than so much of its range
MIN_FOLLOWED = 0.3  # of the way, that a joint has to be measured at
SIM_ACTION = 0.2  # of a robot whose commands are displacements


@dataclass(frozen=True)
class CheckResult:
    """One row of `plaudit robot check`; fields that do not apply are empty."""

    name: str  # "joints", a camera, ...
    topic: str
    expected: str
    received: str
    rate: str = ""  # messages per second
    age: str = ""  # of the newest
    problem: str = ""  # empty: it passes


def check_observations(config: RobotConfig, seconds: float) -> list[CheckResult]:
    """Connect to a robot and observe it for so long; nothing is sent."""
    with ExitStack() as stack:
        robot = _connect(config, stack)
        newest = robot.observe()  # the first one may take longer
        times = [time.monotonic()]
        while times[-1] - times[0] < seconds:
            newest = robot.observe()
            times.append(time.monotonic())
        rate = (len(times) - 1) / (times[-1] - times[0])
        slow = f"too slow for {robot.fps:g} Hz" if robot.fps and rate < MIN_RATE_FRACTION * robot.fps else ""
        results = _sizes(robot, newest, f"{rate:.1f} Hz", slow)
        return [*results, check_limits(robot.limiter.limits, _position(robot))]


def check_limits(limits: SafetyLimits, position: AnyArray | None) -> CheckResult:
    """The limits in words, and whether the joints are within them. position: [A] as measured; None: unknown"""
    problem = ""
    if position is not None:
        outside = np.flatnonzero((position < limits.lower) | (position > limits.upper))
        if len(outside):
            j = int(outside[0])
            problem = (
                f"{limits.joint(j)} is at {position[j]:.3f}, outside of {limits.lower[j]:g} to {limits.upper[j]:g}"
            )
    expected = f"{_span(limits.max_velocity, '/s')}, {_span(limits.max_acceleration, '/s²')}"
    received = "outside" if problem else "not measured" if position is None else "within"
    return CheckResult("limits", "", expected, received, problem=problem)


def check_motion(config: RobotConfig) -> CheckResult:
    """Move every joint a little way and back, within the limits; the robot holds in the end."""
    with ExitStack() as stack:
        robot = _connect(config, stack)
        stack.callback(robot.hold)
        robot.observe()
        limits = robot.limiter.limits
        if limits.relative:
            return _move_relative(robot)
        start = _position(robot)
        if start is None:
            return _motion("", "it does not say where its joints are (joint_position()), so it was not moved")
        way = _way(limits, start)
        moved = _there_and_back(robot, start, way)
    farthest, left = np.abs(moved).max(axis=0), np.abs(moved[-1])
    lazy, lost = np.flatnonzero(farthest < MIN_FOLLOWED * np.abs(way)), np.flatnonzero(left > np.abs(way) / 2)
    problem = ""
    if len(lazy):
        problem = f"{limits.joint(lazy[0])} did not follow: it moved by {round(farthest[lazy[0]], 4):g}"
    elif len(lost):
        problem = f"{limits.joint(lost[0])} did not come back: it is {left[lost[0]]:.3g} away"
    return _motion(f"{np.abs(way).max():.3g} and back", problem, f"{farthest.max():.3g} and back")


def _there_and_back(robot: LimitedRobot, start: AnyArray, way: AnyArray) -> AnyArray:
    """[T, A] how far each joint was from its start, at each tick."""
    ticks, moved = int(MOTION_S * robot.fps), []
    for tick in range(ticks + int(SETTLE_S * robot.fps)):
        part = np.sin(np.pi * min(1.0, (tick + 1) / ticks)) ** 2
        robot.act((start + way * part).astype(np.float32))
        robot.observe()
        position = _position(robot)
        assert position is not None  # it was known at the start
        moved.append(position - start)
    return np.array(moved)


def _position(robot: LimitedRobot) -> AnyArray | None:
    """[A] as measured; None for a robot that does not measure what it commands."""
    own = robot.robot if isinstance(robot, Limited) else robot
    return joint_position(own)


def _connect(config: RobotConfig, stack: ExitStack) -> LimitedRobot:
    robot = config.build()
    if isinstance(robot, AbstractContextManager):
        stack.enter_context(robot)
    return robot if isinstance(robot, LimitedRobot) else Limited(robot, config.limits(robot.action_dim))


def _sizes(robot: LimitedRobot, newest: Observation, rate: str, slow: str) -> list[CheckResult]:
    size = len(newest.state)
    wrong = "" if size == robot.state_dim else "it has another size"
    results = [CheckResult("state", "", f"{robot.state_dim} numbers", f"{size} numbers", rate, problem=slow or wrong)]
    if not np.isfinite(newest.state).all():
        results[0] = CheckResult("state", "", results[0].expected, "NaN or infinity", rate, problem="it is not finite")
    for camera, (height, width) in robot.cameras.items():
        shape = newest.images[camera].shape if camera in newest.images else (0, 0)
        wrong = "" if shape[:2] == (height, width) else "it has another size"
        received = f"{shape[0]}x{shape[1]}" if shape[0] else "nothing"
        results.append(CheckResult(camera, "", f"{height}x{width}", received, rate, problem=slow or wrong))
    return results


def _way(limits: SafetyLimits, start: AnyArray) -> AnyArray:
    """[A] how far each joint is moved: towards the middle of its range."""
    limited = (limits.max_velocity < UNLIMITED) | (limits.upper - limits.lower < ANYWHERE)
    if not limited.all():
        raise RobotError(
            "a motion is as long as the limits make it, and this robot has none; set safety.max_velocity first"
        )
    way = np.minimum(SPEED_FRACTION * limits.max_velocity, RANGE_FRACTION * (limits.upper - limits.lower))
    return np.where(start > (limits.lower + limits.upper) / 2, -way, way)


def _move_relative(robot: LimitedRobot) -> CheckResult:
    before = moved = robot.observe().state.copy()
    for sign in (1.0, -1.0):
        for _ in range(3):
            robot.act(np.full(robot.action_dim, sign * SIM_ACTION, np.float32))
            moved = robot.observe().state
    problem = "" if not np.array_equal(before, moved) else "its state did not change"
    return _motion(f"{SIM_ACTION:g} and back", problem, "6 commands")


def _motion(expected: str, problem: str, received: str = "nothing") -> CheckResult:
    return CheckResult("motion", "", expected, received, problem=problem)


def _span(values: AnyArray, unit: str) -> str:
    low, high = float(values.min()), float(values.max())
    if low >= UNLIMITED:
        return f"any {unit}"
    return f"{low:g}{unit}" if low == high else f"{low:g}{unit} and more"
