"""Messages within one process: all transports on a bus of the same name receive all messages, at once and in order."""

from collections.abc import Callable
from typing import Literal, Self

from plaudit.config import Config

Callback = Callable[[bytes], None]

_BUSES: dict[str, list["MemoryTransport"]] = {}


class MemoryConfig(Config):
    """A bus within this process, by its name."""

    type: Literal["memory"] = "memory"
    bus: str = "default"

    def build(self) -> "MemoryTransport":
        """Join the bus."""
        return MemoryTransport(self.bus)

    def peer(self) -> Self:
        """The config of the robot's end."""
        return self


class MemoryTransport:
    """One participant of a bus. A message reaches its subscribers in the thread of the publisher."""

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
