"""`plaudit robot check`: rates, sizes and limits of what a robot sends and, on request, a small motion.

A ROS 2 robot is checked topic by topic. A topic passes when its messages are valid (size, joints, numbers, increasing
stamps), arrive at nearly the control rate or faster, and the newest is fresh. The command topic passes when nobody else
sends commands, the limits when the joints are within them. Any other robot is connected and observed at its own rate.
Nothing is sent, except the motion: every joint moves a little and returns, within the robot's limits.
"""

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.normalize import ACTION, STATE, Normalizer
from plaudit.errors import BadMessage, PlauditError, RobotError
from plaudit.protocols import Robot
from plaudit.robots.config import ANYWHERE, UNLIMITED, RobotConfig, SafetyLimits
from plaudit.robots.limits import Limited, connect_robot
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.ros.driver import Stream, camera_stream, joint_stream
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.transport.messages import JOINT_STATE, decode_camera_image, decode_joint_state, warm_up
from plaudit.types import AnyArray, Observation

MIN_RATE_FRACTION = 0.8  # of the control rate
MOTION_S = 2.0  # there and back
SETTLE_S = 0.5  # until the joints have come to rest
SPEED_FRACTION = 1 / 30  # a motion's way is what a joint makes in so much of a second at its greatest speed,
RANGE_FRACTION = 0.05  # and no more than so much of its range
MIN_FOLLOWED = 0.3  # of the way, that a joint has to be measured at
SIM_ACTION = 0.2  # of a robot whose commands are displacements


@dataclass(frozen=True)
class RobotCheck:
    """One row of `plaudit robot check`; fields that do not apply are empty."""

    name: str  # "joints", a camera, ...
    topic: str
    expected: str
    received: str
    rate: str = ""  # messages per second
    age: str = ""  # of the newest
    problem: str = ""  # empty: it passes


def check_observations(config: RobotConfig, seconds: float) -> list[RobotCheck]:
    """Connect to a robot and observe it for so long; nothing is sent."""
    with ExitStack() as stack:
        robot = connect_robot(config, stack)
        newest = robot.observe()  # the first one may take longer
        times = [time.monotonic()]
        while times[-1] - times[0] < seconds:
            newest = robot.observe()
            times.append(time.monotonic())
        rate = (len(times) - 1) / (times[-1] - times[0])
        slow = f"too slow for {robot.fps:g} Hz" if robot.fps and rate < MIN_RATE_FRACTION * robot.fps else ""
        results = _sizes(robot, newest, f"{rate:.1f} Hz", slow)
        return [*results, check_limits(robot.limiter.limits, robot.joint_position())]


def check_limits(limits: SafetyLimits, position: AnyArray | None) -> RobotCheck:
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
    return RobotCheck("limits", "", expected, received, problem=problem)


def check_motion(config: RobotConfig) -> RobotCheck:
    """Move every joint a little way and back, within the limits; the robot holds in the end."""
    with ExitStack() as stack:
        robot = connect_robot(config, stack)
        stack.callback(robot.hold)
        robot.observe()
        limits = robot.limiter.limits
        if limits.relative:
            return _move_relative(robot)
        start = robot.joint_position()
        if start is None:
            return _motion("", "it does not say where its joints are (joint_position()), so it was not moved")
        way, moved = _way(limits, start), []  # moved: how far each joint was from its start, at each tick
        ticks = int(MOTION_S * robot.fps)
        for tick in range(ticks + int(SETTLE_S * robot.fps)):
            part = np.sin(np.pi * min(1.0, (tick + 1) / ticks)) ** 2
            robot.act((start + way * part).astype(np.float32))
            robot.observe()
            position = robot.joint_position()
            assert position is not None  # it was known at the start
            moved.append(np.abs(position - start))
    farthest, left = np.max(moved, axis=0), moved[-1]
    lazy, lost = np.flatnonzero(farthest < MIN_FOLLOWED * np.abs(way)), np.flatnonzero(left > np.abs(way) / 2)
    problem = ""
    if len(lazy):
        problem = f"{limits.joint(lazy[0])} did not follow: it moved by {round(farthest[lazy[0]], 4):g}"
    elif len(lost):
        problem = f"{limits.joint(lost[0])} did not come back: it is {left[lost[0]]:.3g} away"
    return _motion(f"{np.abs(way).max():.3g} and back", problem, f"{farthest.max():.3g} and back")


def _sizes(robot: Robot, newest: Observation, rate: str, slow: str) -> list[RobotCheck]:
    size = len(newest.state)
    wrong, received = "" if size == robot.state_dim else "it has another size", f"{size} numbers"
    if not np.isfinite(newest.state).all():
        wrong, received = "it is not finite", "NaN or infinity"
    results = [RobotCheck("state", "", f"{robot.state_dim} numbers", received, rate, problem=slow or wrong)]
    for camera, (height, width) in robot.cameras.items():
        shape = newest.images[camera].shape if camera in newest.images else (0, 0)
        wrong = "" if shape[:2] == (height, width) else "it has another size"
        received = f"{shape[0]}x{shape[1]}" if shape[0] else "nothing"
        results.append(RobotCheck(camera, "", f"{height}x{width}", received, rate, problem=slow or wrong))
    return results


def _way(limits: SafetyLimits, start: AnyArray) -> AnyArray:
    """[A] how far each joint is moved: towards the middle of its range."""
    limited = (limits.max_velocity < UNLIMITED) | (limits.upper - limits.lower < ANYWHERE)
    if not limited.all():
        raise RobotError("the limits decide how far to move, and this robot has none; set safety.max_velocity first")
    way = np.minimum(SPEED_FRACTION * limits.max_velocity, RANGE_FRACTION * (limits.upper - limits.lower))
    return np.where(start > (limits.lower + limits.upper) / 2, -way, way)


def _move_relative(robot: Limited) -> RobotCheck:
    before = moved = robot.observe().state.copy()
    for sign in (1.0, -1.0):
        for _ in range(3):
            robot.act(np.full(robot.action_dim, sign * SIM_ACTION, np.float32))
            moved = robot.observe().state
    problem = "" if not np.array_equal(before, moved) else "its state did not change"
    return _motion(f"{SIM_ACTION:g} and back", problem, "6 commands")


def _motion(expected: str, problem: str, received: str = "nothing") -> RobotCheck:
    return RobotCheck("motion", "", expected, received, problem=problem)


def _span(values: AnyArray, unit: str) -> str:
    low, high = float(values.min()), float(values.max())
    if low >= UNLIMITED:
        return f"any {unit}"
    return f"{low:g}{unit}" if low == high else f"{low:g}{unit} and more"


class TopicMonitor:
    """Describes all messages of one topic, in addition to a `Stream` that keeps the valid ones."""

    def __init__(
        self, stream: Stream[Any], msg_type: str, expected: str, depth_range: tuple[float, float] | None = None
    ):
        self.stream, self.msg_type, self.expected, self._depth_range = stream, msg_type, expected, depth_range
        self._descriptions: Counter[str] = Counter()
        self.times: list[float] = []  # at which messages arrived

    def receive(self, data: bytes) -> None:
        """Take one message."""
        self.times.append(time.monotonic())
        try:
            self._descriptions[self._describe(data)] += 1
        except BadMessage as error:
            self._descriptions[str(error)] += 1
        self.stream.receive(data)

    def _describe(self, data: bytes) -> str:
        if self.msg_type == JOINT_STATE:
            message = decode_joint_state(data)
            return f"{len(message.names)} joints{'' if np.isfinite(message.position).all() else ', some NaN'}"
        height, width, _ = decode_camera_image(self.msg_type, data, self._depth_range).pixels.shape
        return f"{height}x{width}" if self._depth_range is None else f"{height}x{width}, depth"

    def result(self, hz: float, silent_after: float) -> RobotCheck:
        """What arrived, compared with a control rate of `hz` and a limit of `silent_after` seconds."""
        times, dropped = self.times, self.stream.dropped
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        problem = ""
        if not times:
            problem = "nothing arrives"
        elif dropped:
            problem = f"{sum(dropped.values())} of {len(times)} messages were dropped: " + ", ".join(dropped)
        elif rate < MIN_RATE_FRACTION * hz:
            problem = f"too slow for {hz:g} Hz"
        elif self.stream.age() > silent_after:
            problem = "it has stopped"
        received = ", ".join(text for text, _ in self._descriptions.most_common(2)) or "nothing"
        age = f"{1e3 * self.stream.age():.0f} ms" if times else ""
        return RobotCheck(self.stream.name, self.stream.topic, self.expected, received, f"{rate:.1f} Hz", age, problem)


def check_topics(config: RosRobotConfig, seconds: float) -> list[RobotCheck]:
    """Listen for this long after the first message of every topic, which may take `first_message_s` to arrive."""
    params, topics = config.params(), config.topics()
    joints = joint_stream("joints", params, topics)
    monitors = [TopicMonitor(joints, JOINT_STATE, f"{len(params.joint_names)} joints")]
    size = "{}x{}".format(*params.camera_size)
    for camera in params.camera_names:
        stream, depth_range = camera_stream(camera, camera, params, topics), params.depth_range(camera)
        expected = size if depth_range is None else f"{size}, depth"
        monitors.append(TopicMonitor(stream, topics.image_type(camera), expected, depth_range))
    commands: list[bytes] = []
    warm_up([monitor.msg_type for monitor in monitors])
    transport = config.transport.build()
    try:
        for monitor in monitors:
            transport.subscribe(monitor.stream.topic, monitor.msg_type, monitor.receive)
        transport.subscribe(topics.joint_commands, JOINT_STATE, commands.append)
        deadline = time.monotonic() + params.first_message_s
        while not all(monitor.times for monitor in monitors) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        results = [monitor.result(params.HZ, 1e-3 * params.silent_after_ms) for monitor in monitors]
    finally:
        transport.close()
    problem = "another process sends commands; stop it first" if commands else ""
    received = f"{len(commands)} commands" if commands else "nothing"
    results.append(RobotCheck("commands", topics.joint_commands, "nothing", received, problem=problem))
    position = None if joints.newest is None else joints.newest.position
    results.append(check_limits(config.limits(params.action_dim), position))
    if params.norm_stats_file_path is not None:
        results.append(check_statistics(params))
    return results


def check_statistics(params: RuntimeParams) -> RobotCheck:
    """Whether the statistics that the params name have the sizes of the robot's state and action."""
    path = str(params.norm_stats_file_path)
    state, action = params.proprio_state_dim * params.proprio_history_size, params.action_dim
    expected = f"{state} state, {action} action"
    try:
        stats = Normalizer.load(path).stats
    except (PlauditError, OSError) as error:
        return RobotCheck("statistics", path, expected, "nothing", problem=str(error))
    sizes = {key: len(stats[key].mean) for key in (STATE, ACTION) if key in stats}
    received = ", ".join(f"{size} {key.rsplit('.', 1)[-1]}" for key, size in sizes.items()) or "nothing"
    problem = "" if sizes == {STATE: state, ACTION: action} else "they do not fit this robot"
    return RobotCheck("statistics", path, expected, received, problem=problem)
