"""Messages over Cyclone DDS, which ROS 2 nodes use themselves: no bridge, one domain, discovery by multicast.

ROS 2 maps a topic `/a/b` to the DDS topic `rt/a/b` and names its type `sensor_msgs::msg::dds_::JointState_`. DDS needs
the members of a type, but samples are written and read as the CDR of `messages.py`. (Cyclone's own Python decoder reads
the pixels of an image one by one.) Readers request best effort, which matches every writer; writers offer reliability,
which matches every reader, and keep one message, so that a frozen reader does not block them.
"""

import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Literal, Self

from pydantic import Field

from plaudit.config import Config
from plaudit.errors import MissingExtra, RobotError
from plaudit.robots.transport.messages import BOOL, COMPRESSED_IMAGE, IMAGE, JOINT_STATE, STRING

MAX_WAIT_NS = 50_000_000  # between checks whether to stop
MAX_SAMPLES = 32  # of one topic, taken at a time


class TransportConfig(Config):
    """Base of the configs of transports."""

    def peer(self) -> Self:
        """The config of the robot's end."""
        return self


class CycloneConfig(TransportConfig):
    """A DDS domain."""

    type: Literal["cyclone"] = "cyclone"
    domain: int = Field(default=0, ge=0, le=232)  # ROS_DOMAIN_ID; CYCLONEDDS_URI chooses the network interface

    def build(self) -> "CycloneTransport":
        """Join the domain."""
        return CycloneTransport(self)


class CycloneTransport:
    """One participant of a domain."""

    def __init__(self, config: CycloneConfig):
        core = _dds("core")
        try:
            self._participant = _dds("domain").DomainParticipant(config.domain)
        except core.DDSException as error:
            raise RobotError(f"Cyclone DDS cannot join domain {config.domain}: {error}") from error
        self._wait_set = core.WaitSet(self._participant)
        self._topics: dict[str, Any] = {}
        self._writers: dict[str, Any] = {}
        self._readers: list[tuple[Any, Any, Callable[[bytes], None]]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="cyclone", daemon=True)
        self._thread.start()

    def publish(self, topic: str, msg_type: str, data: bytes) -> None:
        """Send without blocking."""
        if topic not in self._writers:
            dds_topic, qos = self._topic(topic, msg_type), _qos(reliable=True)
            self._writers[topic] = _dds("pub").DataWriter(self._participant, dds_topic, qos=qos)
        self._writers[topic].write(raw_type(msg_type)(data))

    def subscribe(self, topic: str, msg_type: str, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with each message, from this transport's thread."""
        core = _dds("core")
        reader = _dds("sub").DataReader(self._participant, self._topic(topic, msg_type), qos=_qos(reliable=False))
        condition = core.ReadCondition(reader, core.ViewState.Any | core.InstanceState.Any | core.SampleState.NotRead)
        self._readers.append((reader, condition, callback))
        self._wait_set.attach(condition)

    def close(self) -> None:
        """Leave the domain."""
        self._stop.set()
        self._thread.join()
        self._readers.clear()
        self._writers.clear()
        self._topics.clear()

    def _receive(self) -> None:
        """Runs in a thread of its own, because Cyclone's must not wait for Python."""
        while not self._stop.is_set():
            self._wait_set.wait(MAX_WAIT_NS)
            for reader, condition, callback in list(self._readers):
                for sample in reader.take(MAX_SAMPLES, condition=condition):
                    if isinstance(sample, reader.topic.data_type):  # and not the notice that a writer is gone
                        callback(sample.cdr)

    def _topic(self, topic: str, msg_type: str) -> Any:
        if topic not in self._topics:
            self._topics[topic] = _dds("topic").Topic(self._participant, dds_name(topic), raw_type(msg_type))
        return self._topics[topic]


def _dds(part: str) -> Any:
    try:
        return import_module(f"cyclonedds.{part}")
    except ModuleNotFoundError as error:
        raise MissingExtra("cyclonedds", "dds") from error


def dds_name(topic: str) -> str:
    """The DDS topic of a ROS topic.

    >>> dds_name("/igris_b/joint_states")
    'rt/igris_b/joint_states'
    """
    return "rt/" + topic.removeprefix("/")


@cache
def raw_type(msg_type: str) -> type[Any]:
    """The DDS type of a ROS type, whose samples are their CDR: `raw_type(msg_type)(data).cdr == data`.

    Cyclone calls `serialize` of a sample and `deserialize` of its class; both are replaced. (A base class with these
    methods does not work, because Cyclone treats every base class as part of the type.)
    """
    idl = _dds("idl.types")

    def struct(ros_type: str, fields: dict[str, Any]) -> Any:
        package, _, name = ros_type.split("/")
        return _dds("idl").make_idl_struct(f"{name}_", f"{package}.msg.dds_.{name}_", fields, dataclassify=False)

    def init(self: Any, cdr: bytes) -> None:
        self.cdr = cdr

    def deserialize(cls: Any, data: bytes, *_: Any, **__: Any) -> Any:
        return cls(bytes(data))

    time = struct("builtin_interfaces/msg/Time", {"sec": idl.int32, "nanosec": idl.uint32})
    header = struct("std_msgs/msg/Header", {"stamp": time, "frame_id": str})
    pixels = idl.sequence[idl.uint8]
    members = {
        STRING: {"data": str},
        BOOL: {"data": bool},
        JOINT_STATE: {"header": header, "name": idl.sequence[str]}
        | dict.fromkeys(("position", "velocity", "effort"), idl.sequence[idl.float64]),
        IMAGE: {"header": header, "height": idl.uint32, "width": idl.uint32, "encoding": str}
        | {"is_bigendian": idl.uint8, "step": idl.uint32, "data": pixels},
        COMPRESSED_IMAGE: {"header": header, "format": str, "data": pixels},
    }
    cls = struct(msg_type, members[msg_type])
    cls.__init__ = init
    cls.serialize = lambda self, *_, **__: self.cdr
    cls.deserialize = cls.deserialize_key = classmethod(deserialize)
    return cls


def _qos(*, reliable: bool) -> Any:
    policy = _dds("qos").Policy
    return _dds("qos").Qos(
        policy.Reliability.Reliable(max_blocking_time=1_000_000) if reliable else policy.Reliability.BestEffort,
        policy.Durability.Volatile,
        policy.History.KeepLast(1 if reliable else MAX_SAMPLES),
        policy.DataRepresentation(use_cdrv0_representation=True),  # the CDR of ROS 2, not the newer one
    )
