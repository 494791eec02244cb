"""A person's command from a topic: while it is given, it replaces the policy's.

    takeover = TopicTeleop(transport, topics.takeover, params.joint_names)
    command = takeover.command()              # [A], or None: nobody is taking over

A leader arm, a gamepad node or anything else publishes JointState with positions for the robot's joints. A command
counts for `expires` seconds after it arrived; who lets go stops publishing, and the policy is in charge again.
"""

from collections.abc import Sequence

from plaudit.robots.ros.streams import Joints, Stream, joints_reader
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE
from plaudit.types import FloatArray


class TopicTeleop:
    relative = False  # a command says where to go, not how far

    def __init__(self, transport: Transport, topic: str, joint_names: Sequence[str], *, expires: float = 0.25):
        """expires: seconds"""
        self._expires, self._transport = expires, transport
        self._stream: Stream[Joints] = Stream("takeover", topic, joints_reader(joint_names, ("position",)), expires)
        transport.subscribe(topic, JOINT_STATE, self._stream.receive)

    def command(self) -> FloatArray | None:
        """[A] what the person wants, in the robot's order of joints; None when nobody does."""
        newest = self._stream.newest
        if newest is None:
            return None
        if self._stream.age() > self._expires:
            self._stream.restart()  # who takes over next may have another clock
            return None
        return newest.message.position.copy()

    def close(self) -> None:
        """The transport too: it is nobody else's."""
        self._transport.close()

    def dropped(self) -> dict[str, int]:
        """Reason -> how many messages could not be used for it."""
        return dict(self._stream.dropped)
