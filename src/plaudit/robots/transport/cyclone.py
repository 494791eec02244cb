"""Messages over Cyclone DDS, which ROS 2 nodes speak themselves: no bridge, one domain, found by multicast.

`pip install 'plaudit[dds]'` brings it where there is a wheel (x86_64). ROS 2 puts a topic `/a/b` on the DDS topic
`rt/a/b` and calls its type `sensor_msgs::msg::dds_::JointState_`; the members are declared below so that DDS knows the
type, but no byte goes through them: a sample is written and read as the CDR that `messages.py` makes. (Cyclone's own
Python decoding takes the pixels of an image one by one.)

Readers ask for best effort and so hear every writer; writers offer reliability and so reach every reader, and keep one
message, so that a reader that is frozen does not hold them up.
"""

import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Literal, Self

from pydantic import NonNegativeInt

from plaudit.config import Config
from plaudit.errors import MissingExtra, RobotError
from plaudit.robots.transport.messages import COMPRESSED_IMAGE, IMAGE, JOINT_STATE, STRING

WAIT_NS = 50_000_000  # at most, between looks at whether to stop
TAKE = 32  # messages of one topic at once


class CycloneConfig(Config):
    type: Literal["cyclone"] = "cyclone"
    domain: NonNegativeInt = 0  # ROS_DOMAIN_ID; which network interface is for CYCLONEDDS_URI to say

    def build(self) -> "CycloneTransport":
        return CycloneTransport(self)

    def other_side(self) -> Self:
        """What the robot's end of it uses."""
        return self


class CycloneTransport:
    """One participant of a domain."""

    def __init__(self, config: CycloneConfig):
        core = _dds("core")
        try:
            self._participant = _dds("domain").DomainParticipant(config.domain)
        except core.DDSException as error:
            raise RobotError(f"Cyclone DDS cannot join domain {config.domain}: {error}") from error
        self._waiting = core.WaitSet(self._participant)
        self._topics: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._readers: list[tuple[Any, Any, Callable[[bytes], None]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="cyclone", daemon=True)
        self._thread.start()

    def publish(self, topic: str, kind: str, data: bytes) -> None:
        if topic not in self._writers:
            to, qos = self._topic(topic, kind), _qos(reliable=True)
            self._writers[topic] = _dds("pub").DataWriter(self._participant, to, qos=qos)
        self._writers[topic].write(carried(kind)(data))

    def subscribe(self, topic: str, kind: str, receive: Callable[[bytes], None]) -> None:
        core = _dds("core")
        reader = _dds("sub").DataReader(self._participant, self._topic(topic, kind), qos=_qos(reliable=False))
        news = core.ReadCondition(reader, core.ViewState.Any | core.InstanceState.Any | core.SampleState.NotRead)
        self._readers.append((reader, news, receive))
        self._waiting.attach(news)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._readers.clear()
        self._writers.clear()
        self._topics.clear()

    def _receive(self) -> None:
        """In a thread of ours: Cyclone's own must not wait for Python."""
        while not self._over.is_set():
            self._waiting.wait(WAIT_NS)
            for reader, news, receive in list(self._readers):
                for sample in reader.take(TAKE, condition=news):
                    if isinstance(sample, reader.topic.data_type):  # not the news that a writer is gone
                        receive(sample.cdr)

    def _topic(self, topic: str, kind: str) -> Any:
        if topic not in self._topics:
            self._topics[topic] = _dds("topic").Topic(self._participant, dds_name(topic), carried(kind))
        return self._topics[topic]


def _dds(part: str) -> Any:
    try:
        return import_module(f"cyclonedds.{part}")
    except ModuleNotFoundError as error:
        raise MissingExtra("cyclonedds", "dds") from error


def dds_name(topic: str) -> str:
    """
    >>> dds_name("/igris_b/joint_states")
    'rt/igris_b/joint_states'
    """
    return "rt/" + topic.removeprefix("/")


@cache
def carried(kind: str) -> type[Any]:
    """The DDS type of a ROS type, with samples that are their CDR: `carried(kind)(data).cdr == data`.

    Cyclone asks a sample to serialize itself and its class to deserialize one; both are replaced. (A base class with
    these methods would do, but Cyclone takes every base for a part of the type.)
    """
    of = _dds("idl.types")

    def struct(ros: str, fields: dict[str, Any]) -> Any:
        package, _, name = ros.split("/")
        return _dds("idl").make_idl_struct(f"{name}_", f"{package}.msg.dds_.{name}_", fields, dataclassify=False)

    def keep(self: Any, cdr: bytes) -> None:
        self.cdr = cdr

    def taken(cls: Any, data: bytes, *_: Any, **__: Any) -> Any:
        return cls(bytes(data))

    time = struct("builtin_interfaces/msg/Time", {"sec": of.int32, "nanosec": of.uint32})
    header = struct("std_msgs/msg/Header", {"stamp": time, "frame_id": str})
    doubles, pixels = of.sequence[of.float64], of.sequence[of.uint8]
    size = {"height": of.uint32, "width": of.uint32}
    members = {
        STRING: {"data": str},
        JOINT_STATE: {
            "header": header,
            "name": of.sequence[str],
            "position": doubles,
            "velocity": doubles,
            "effort": doubles,
        },
        IMAGE: {"header": header, **size, "encoding": str, "is_bigendian": of.uint8, "step": of.uint32, "data": pixels},
        COMPRESSED_IMAGE: {"header": header, "format": str, "data": pixels},
    }
    made = struct(kind, members[kind])
    made.__init__ = keep
    made.serialize = lambda self, *_, **__: self.cdr
    made.deserialize = made.deserialize_key = classmethod(taken)
    return made


def _qos(*, reliable: bool) -> Any:
    policy = _dds("qos").Policy
    return _dds("qos").Qos(
        policy.Reliability.Reliable(max_blocking_time=1_000_000) if reliable else policy.Reliability.BestEffort,
        policy.Durability.Volatile,
        policy.History.KeepLast(1 if reliable else TAKE),
        policy.DataRepresentation(use_cdrv0_representation=True),  # the CDR of ROS 2, not the newer one
    )
