"""Transports of ROS 2 messages: they carry bytes on topics, whatever the bytes mean.

    transport = ZenohConfig(connect=("tcp/127.0.0.1:7447",)).build()
    transport.subscribe("/igris_b/joint_states", JOINT_STATE, messages.append)    # called from the transport's thread
    transport.publish("/igris_b/joint_commands", JOINT_STATE, encode_joint_state(command))

Topics are ROS names with their leading slash, types are ROS names like `sensor_msgs/msg/JointState`. `publish` does not
block: a slow or frozen subscriber misses messages and delays no one. Callbacks get each message in order, and must not
raise.

The bytes are CDR, the encoding of ROS 2, so one driver works over any of them: `zenoh` (reaches a ROS 2 system through
zenoh-bridge-ros2dds), `cyclone` (Cyclone DDS, which talks to ROS 2 nodes directly) and `memory` (within one process,
for tests). (Rejected: rclpy, which needs a ROS installation of one Ubuntu release and its Python.)
"""

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Tag, field_validator

from plaudit.errors import MissingExtra, RobotError
from plaudit.robots.transport.cyclone import CycloneConfig, CycloneTransport, TransportConfig

Callback = Callable[[bytes], None]

_BUSES: dict[str, list["MemoryTransport"]] = {}


class MemoryConfig(TransportConfig):
    """A bus within this process, by its name."""

    type: Literal["memory"] = "memory"
    bus: str = "default"

    def build(self) -> "MemoryTransport":
        """Join the bus."""
        return MemoryTransport(self.bus)


class MemoryTransport:
    """One participant of a bus. Subscribers are called in the thread of the publisher, in order."""

    def __init__(self, bus: str):
        self._participants = _BUSES.setdefault(bus, [])
        self._callbacks: dict[tuple[str, str], list[Callback]] = {}
        self._participants.append(self)

    def publish(self, topic: str, msg_type: str, data: bytes) -> None:
        """Call every subscriber of the topic."""
        for participant in list(self._participants):
            for callback in participant._callbacks.get((topic, msg_type), ()):
                callback(data)

    def subscribe(self, topic: str, msg_type: str, callback: Callback) -> None:
        """Call `callback` with each message of the topic."""
        self._callbacks.setdefault((topic, msg_type), []).append(callback)

    def close(self) -> None:
        """Leave the bus."""
        self._callbacks.clear()
        if self in self._participants:
            self._participants.remove(self)


DEFAULT_ENDPOINT = "tcp/127.0.0.1:7447"


class ZenohConfig(TransportConfig):
    """A zenoh session with fixed endpoints."""

    type: Literal["zenoh"] = "zenoh"
    connect: tuple[str, ...] = (DEFAULT_ENDPOINT,)  # where the robot, its twin or the bridge listens
    listen: tuple[str, ...] = ()  # where this process does
    scouting: bool = False  # discover peers by multicast and gossip

    @field_validator("connect", "listen")
    @classmethod
    def _check_endpoints(cls, endpoints: tuple[str, ...]) -> tuple[str, ...]:
        for endpoint in endpoints:
            if "/" not in endpoint:
                raise ValueError(f"'{endpoint}' is not an endpoint; write it like {DEFAULT_ENDPOINT}")
        return endpoints

    def build(self) -> "ZenohTransport":
        """Open the session."""
        return ZenohTransport(self)

    def peer(self) -> Self:
        """The config of the robot's end: it listens where we connect to."""
        return self.model_copy(update={"connect": self.listen, "listen": self.connect})


class ZenohTransport:
    """One zenoh session: a peer with the endpoints of the config.

    A topic's key is its ROS name without the leading slash, and the payload is the CDR message, as in
    zenoh-bridge-ros2dds. Nothing listens anywhere else, and there is no discovery unless `scouting` is set. A lost
    connection is retried forever. Messages to a slow subscriber are dropped, because a frozen peer must not block the
    process that controls the robot. Anyone who reaches an endpoint may send commands: zenoh has no authentication by
    default. `unixsock-stream//PATH` in a private folder keeps other users out.
    """

    def __init__(self, config: ZenohConfig):
        try:
            import zenoh
        except ModuleNotFoundError as error:
            raise MissingExtra("eclipse-zenoh", "ros") from error
        self._zenoh = zenoh
        values = {
            "mode": "peer",
            "connect/endpoints": list(config.connect),
            "connect/exit_on_failure": False,  # endpoints that are not there yet are retried in the background
            "connect/retry": {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2},
            "listen/endpoints": list(config.listen),
            "scouting/delay": 500 if config.scouting else 0,
            "scouting/multicast/enabled": config.scouting,
            "scouting/gossip/enabled": config.scouting,
            # Off, because its segments outlive the process in /dev/shm, and a robot's messages are small.
            "transport/shared_memory/enabled": False,
            "adminspace/enabled": False,
        }
        settings = zenoh.Config()
        for key, value in values.items():
            settings.insert_json5(key, json.dumps(value))
        try:
            self._session = zenoh.open(settings)
        except zenoh.ZError as error:
            where = ", ".join((*config.listen, *config.connect)) or "nowhere"
            raise RobotError(f"zenoh cannot open a session at {where}: {_reason(error)}") from error
        self._publishers: dict[str, Any] = {}
        self._subscribers: list[Any] = []

    def publish(self, topic: str, msg_type: str, data: bytes) -> None:
        """Send without blocking; dropped where a subscriber does not keep up."""
        try:
            if topic not in self._publishers:
                self._publishers[topic] = self._session.declare_publisher(
                    zenoh_key(topic), congestion_control=self._zenoh.CongestionControl.DROP, express=True
                )
            self._publishers[topic].put(data)
        except self._zenoh.ZError as error:
            raise RobotError(f"zenoh cannot send to {topic}: {_reason(error)}") from error

    def subscribe(self, topic: str, msg_type: str, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with each message, from a thread of zenoh's."""
        subscriber = self._session.declare_subscriber(
            zenoh_key(topic), lambda sample: callback(sample.payload.to_bytes())
        )
        self._subscribers.append(subscriber)

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def zenoh_key(topic: str) -> str:
    """The key expression of a topic.

    >>> zenoh_key("/igris_b/joint_states")
    'igris_b/joint_states'
    """
    return topic.removeprefix("/")


def _reason(error: Exception) -> str:
    """The part of zenoh's message that helps a user, without the positions in its source."""
    return str(error).split(" at /")[0].split("[")[-1].rstrip(".]")


AnyTransport = Annotated[
    Annotated[ZenohConfig, Tag("zenoh")]
    | Annotated[CycloneConfig, Tag("cyclone")]
    | Annotated[MemoryConfig, Tag("memory")],
    Discriminator(lambda value: value.get("type", "zenoh") if isinstance(value, dict) else value.type),
]
Transport = ZenohTransport | CycloneTransport | MemoryTransport
