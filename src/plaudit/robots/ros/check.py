"""Does a robot send what its params and topics say? Looked at before anything moves: this publishes nothing.

It listens for a few seconds and makes a row for each topic. A stream passes when its messages can be used (size,
joints, numbers, stamps that go on), when they come at nearly the control rate or faster, and when the newest is fresh.
The topic of the commands passes when nobody else commands. The statistics that the params name are read, and have to
fit.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.normalize import ACTION, STATE, Normalizer
from plaudit.errors import BadMessage, PlauditError
from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.ros.streams import Stream, joints_reader, picture_reader
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, decode_joint_state, decode_picture, warm_up

ENOUGH = 0.8  # of the control rate


@dataclass(frozen=True)
class Row:
    """One line of the table; empty where there is nothing to say."""

    what: str  # "joints", a camera, ...
    topic: str
    expected: str
    seen: str
    rate: str = ""  # messages a second
    age: str = ""  # of the newest
    problem: str = ""  # empty: it passes


class Listener:
    """One topic: what is sent, described, beside what of it could be used."""

    def __init__(self, stream: Stream[Any], kind: str, expected: str, describe: Callable[[bytes], str]):
        self.stream, self.kind, self.expected = stream, kind, expected
        self._describe = describe
        self._seen: Counter[str] = Counter()
        self._times: list[float] = []

    @property
    def heard(self) -> bool:
        return bool(self._times)

    def listen(self, transport: Transport) -> None:
        transport.subscribe(self.stream.topic, self.kind, self._receive)

    def _receive(self, data: bytes) -> None:
        self._times.append(time.monotonic())
        try:
            self._seen[self._describe(data)] += 1
        except BadMessage as error:
            self._seen[str(error)] += 1
        self.stream.receive(data)

    def row(self, hz: float, silent_after: float) -> Row:
        times, dropped = self._times, self.stream.dropped
        rate = (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
        problem = ""
        if not times:
            problem = "nothing arrives"
        elif dropped:
            problem = f"{sum(dropped.values())} of {len(times)} messages are of no use: " + ", ".join(dropped)
        elif rate < ENOUGH * hz:
            problem = f"too slow for {hz:g} Hz"
        elif self.stream.age() > silent_after:
            problem = "it has stopped"
        seen = ", ".join(text for text, _ in self._seen.most_common(2)) or "nothing"
        age = f"{1e3 * self.stream.age():.0f} ms" if times else ""
        return Row(self.stream.name, self.stream.topic, self.expected, seen, f"{rate:.1f} Hz", age, problem)


def check(config: RosRobotConfig, seconds: float) -> list[Row]:
    """Listen for so long, or longer where the first message takes its time (`first_message_s`)."""
    params, topics = config.params(), config.topics()
    listeners = _listeners(config)
    commands: list[bytes] = []
    warm_up([listener.kind for listener in listeners])
    transport = config.transport.build()
    try:
        for listener in listeners:
            listener.listen(transport)
        transport.subscribe(topics.joint_commands, JOINT_STATE, commands.append)
        deadline = time.monotonic() + params.first_message_s
        while not all(listener.heard for listener in listeners) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        rows = [listener.row(params.HZ, 1e-3 * params.silent_after_ms) for listener in listeners]
    finally:
        transport.close()
    others = "somebody else is sending commands; stop it first" if commands else ""
    heard = f"{len(commands)} commands" if commands else "nothing"
    rows.append(Row("commands", topics.joint_commands, "nothing", heard, problem=others))
    if params.norm_stats_file_path is not None:
        rows.append(statistics_row(params))
    return rows


def statistics_row(params: RuntimeParams) -> Row:
    path = str(params.norm_stats_file_path)
    state, action = params.proprio_state_dim * params.proprio_history_size, params.action_dim
    expected = f"{state} state, {action} action"
    try:
        stats = Normalizer.load(path).stats
    except (PlauditError, OSError) as error:
        return Row("statistics", path, expected, "nothing", problem=str(error))
    sizes = {key: len(stats[key].mean) for key in (STATE, ACTION) if key in stats}
    seen = ", ".join(f"{size} {key.rsplit('.', 1)[-1]}" for key, size in sizes.items()) or "nothing"
    fits = sizes == {STATE: state, ACTION: action}
    return Row("statistics", path, expected, seen, problem="" if fits else "they are of something else")


def _listeners(config: RosRobotConfig) -> list[Listener]:
    params, topics, late = config.params(), config.topics(), 1e-3 * config.params().late_after_ms
    read = joints_reader(params.joint_names, params.proprio_fields)
    joints: Stream[Any] = Stream("joints", topics.joint_states, read, late)
    found = [Listener(joints, JOINT_STATE, f"{len(params.joint_names)} joints", _describe_joints)]
    height, width = params.sent_size
    for camera in params.camera_names:
        kind = topics.kind_of(camera)
        look = picture_reader(kind, params.sent_size, params.mono_image_resize.shape)
        stream: Stream[Any] = Stream(camera, topics.cameras[camera], look, late)
        found.append(Listener(stream, kind, f"{height}x{width}", lambda data, kind=kind: _describe_picture(kind, data)))
    return found


def _describe_joints(data: bytes) -> str:
    message = decode_joint_state(data)
    broken = "" if np.isfinite(message.position).all() else ", some NaN"
    return f"{len(message.names)} joints{broken}"


def _describe_picture(kind: str, data: bytes) -> str:
    height, width, _ = decode_picture(kind, data).pixels.shape
    return f"{height}x{width}"
