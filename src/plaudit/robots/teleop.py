"""Teleoperation commands from a ROS topic: while there are any, they replace the policy's.

    teleop = TopicTeleop(transport, topics.teleop, params.joint_names)
    command = teleop.command()              # [A], or None: nobody is teleoperating

A leader arm, a gamepad node or anything else publishes JointState with positions for the robot's joints. A command is
valid for `timeout_s` seconds after it arrived; the policy acts again when no more arrive.
"""

from collections.abc import Sequence

from plaudit.robots.ros.streams import JointReading, Stream, joint_state_decoder
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE
from plaudit.types import FloatArray


class TopicTeleop:
    """Subscribes to a topic of joint commands; closes its transport with itself."""

    relative = False  # commands are absolute joint positions

    def __init__(self, transport: Transport, topic: str, joint_names: Sequence[str], *, timeout_s: float = 0.25):
        self._timeout_s, self._transport = timeout_s, transport
        decode = joint_state_decoder(joint_names, ("position",))
        self._stream: Stream[JointReading] = Stream("teleop", topic, decode, timeout_s)
        transport.subscribe(topic, JOINT_STATE, self._stream.receive)

    def command(self) -> FloatArray | None:
        """[A] the newest command, in the robot's order of joints; None when there is none or it has expired."""
        newest = self._stream.newest
        if newest is None:
            return None
        if self._stream.age() > self._timeout_s:
            self._stream.restart()  # the next sender may have another clock
            return None
        return newest.message.position.copy()

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def dropped(self) -> dict[str, int]:
        """Reason -> number of messages that were dropped for it."""
        return dict(self._stream.dropped)
