"""Transports of ROS 2 messages: they carry bytes on topics, whatever the bytes mean.

    transport = ZenohConfig(connect=("tcp/127.0.0.1:7447",)).build()
    transport.subscribe("/igris_b/joint_states", JOINT_STATE, messages.append)    # called from the transport's thread
    transport.publish("/igris_b/joint_commands", JOINT_STATE, encode_joint_state(command))

The bytes are CDR, the encoding of ROS 2 (`messages.py`), so one driver works over any of them: `zenoh` (installed by
pip; it reaches a ROS 2 system through zenoh-bridge-ros2dds), `cyclone` (Cyclone DDS, which talks to ROS 2 nodes
directly) and `memory` (within one process, for tests). (Rejected: rclpy, which needs a ROS installation of one Ubuntu
release and its Python.)
"""

from collections.abc import Callable
from typing import Annotated, Any, Protocol

from pydantic import Discriminator, Tag

from plaudit.robots.transport.cyclone import CycloneConfig
from plaudit.robots.transport.memory import MemoryConfig
from plaudit.robots.transport.zenoh import ZenohConfig

__all__ = ["AnyTransport", "CycloneConfig", "MemoryConfig", "Transport", "ZenohConfig"]


def _transport_type(value: Any) -> Any:
    return value.get("type", "zenoh") if isinstance(value, dict) else value.type


AnyTransport = Annotated[
    Annotated[ZenohConfig, Tag("zenoh")]
    | Annotated[CycloneConfig, Tag("cyclone")]
    | Annotated[MemoryConfig, Tag("memory")],
    Discriminator(_transport_type),
]


class Transport(Protocol):
    """Topics are ROS names with their leading slash, types are ROS names like `sensor_msgs/msg/JointState`."""

    def publish(self, topic: str, msg_type: str, data: bytes) -> None:
        """Send without blocking: a slow or frozen subscriber misses messages and delays nobody."""
        ...

    def subscribe(self, topic: str, msg_type: str, callback: Callable[[bytes], None]) -> None:
        """Call `callback` with each message, in order, from a thread of the transport; it must not raise."""
        ...

    def close(self) -> None:
        """Stop sending and receiving."""
        ...
