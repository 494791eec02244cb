"""Checks whether a robot sends what its params and topics say, before anything moves: this publishes nothing.

It listens for a few seconds and reports on each topic. A topic passes when its messages are valid (size, joints,
numbers, increasing stamps), when they arrive at nearly the control rate or faster, and when the newest is fresh. The
command topic passes when nobody else sends commands, the limits when the joints are within them. The statistics that
the params name are read and must fit.
"""

import time
from collections import Counter
from typing import Any

import numpy as np

from plaudit.data.normalize import ACTION, STATE, Normalizer
from plaudit.errors import BadMessage, PlauditError
from plaudit.robots.check import MIN_RATE_FRACTION, CheckResult, check_limits
from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.ros.streams import Stream, camera_stream, joint_stream
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, decode_camera_image, decode_joint_state, warm_up


class TopicMonitor:
    """Subscribes to one topic and describes all its messages, beside a `Stream` that keeps the valid ones."""

    def __init__(
        self, stream: Stream[Any], msg_type: str, expected: str, depth_range: tuple[float, float] | None = None
    ):
        self.stream, self.msg_type, self.expected, self._depth_range = stream, msg_type, expected, depth_range
        self._descriptions: Counter[str] = Counter()
        self._times: list[float] = []

    @property
    def has_messages(self) -> bool:
        """Whether anything has arrived."""
        return bool(self._times)

    def subscribe(self, transport: Transport) -> None:
        """Start to listen."""
        transport.subscribe(self.stream.topic, self.msg_type, self._receive)

    def _receive(self, data: bytes) -> None:
        self._times.append(time.monotonic())
        try:
            self._descriptions[_describe(self.msg_type, data, self._depth_range)] += 1
        except BadMessage as error:
            self._descriptions[str(error)] += 1
        self.stream.receive(data)

    def result(self, hz: float, silent_after: float) -> CheckResult:
        """What arrived, compared with a control rate of `hz` and a limit of `silent_after` seconds."""
        times, dropped = self._times, self.stream.dropped
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
        return CheckResult(self.stream.name, self.stream.topic, self.expected, received, f"{rate:.1f} Hz", age, problem)


def check_topics(config: RosRobotConfig, seconds: float) -> list[CheckResult]:
    """Listen for this long after the first message of every topic, which may take `first_message_s` to arrive."""
    params, topics = config.params(), config.topics()
    monitors = _monitors(config)
    commands: list[bytes] = []
    warm_up([monitor.msg_type for monitor in monitors])
    transport = config.transport.build()
    try:
        for monitor in monitors:
            monitor.subscribe(transport)
        transport.subscribe(topics.joint_commands, JOINT_STATE, commands.append)
        deadline = time.monotonic() + params.first_message_s
        while not all(monitor.has_messages for monitor in monitors) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        results = [monitor.result(params.HZ, 1e-3 * params.silent_after_ms) for monitor in monitors]
    finally:
        transport.close()
    problem = "another process sends commands; stop it first" if commands else ""
    received = f"{len(commands)} commands" if commands else "nothing"
    results.append(CheckResult("commands", topics.joint_commands, "nothing", received, problem=problem))
    joints = monitors[0].stream.newest
    position = None if joints is None else joints.message.position
    results.append(check_limits(config.limits(params.action_dim), position))
    if params.norm_stats_file_path is not None:
        results.append(check_statistics(params))
    return results


def check_statistics(params: RuntimeParams) -> CheckResult:
    """Whether the statistics that the params name have the sizes of the robot's state and action."""
    path = str(params.norm_stats_file_path)
    state, action = params.proprio_state_dim * params.proprio_history_size, params.action_dim
    expected = f"{state} state, {action} action"
    try:
        stats = Normalizer.load(path).stats
    except (PlauditError, OSError) as error:
        return CheckResult("statistics", path, expected, "nothing", problem=str(error))
    sizes = {key: len(stats[key].mean) for key in (STATE, ACTION) if key in stats}
    received = ", ".join(f"{size} {key.rsplit('.', 1)[-1]}" for key, size in sizes.items()) or "nothing"
    problem = "" if sizes == {STATE: state, ACTION: action} else "they do not fit this robot"
    return CheckResult("statistics", path, expected, received, problem=problem)


def _monitors(config: RosRobotConfig) -> list[TopicMonitor]:
    params, topics = config.params(), config.topics()
    joints = joint_stream("joints", params, topics)
    monitors = [TopicMonitor(joints, JOINT_STATE, f"{len(params.joint_names)} joints")]
    height, width = params.camera_size
    for camera in params.camera_names:
        stream = camera_stream(camera, camera, params, topics)
        depth_range = params.depth_range(camera)
        expected = f"{height}x{width}" if depth_range is None else f"{height}x{width}, depth"
        monitors.append(TopicMonitor(stream, topics.image_type(camera), expected, depth_range))
    return monitors


def _describe(msg_type: str, data: bytes, depth_range: tuple[float, float] | None) -> str:
    if msg_type == JOINT_STATE:
        message = decode_joint_state(data)
        return f"{len(message.names)} joints{'' if np.isfinite(message.position).all() else ', some NaN'}"
    height, width, _ = decode_camera_image(msg_type, data, depth_range).pixels.shape
    return f"{height}x{width}" if depth_range is None else f"{height}x{width}, depth"
