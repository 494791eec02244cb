"""Messages within one process: a name leads to a bus, everybody on a bus hears everybody, at once and in order."""

from collections.abc import Callable
from typing import Literal, Self

from plaudit.config import Config

Receive = Callable[[bytes], None]

_BUSES: dict[str, list["MemoryTransport"]] = {}


class MemoryConfig(Config):
    type: Literal["memory"] = "memory"
    bus: str = "default"

    def build(self) -> "MemoryTransport":
        return MemoryTransport(self.bus)

    def other_side(self) -> Self:
        """What the robot's end of it uses."""
        return self


class MemoryTransport:
    """One participant of a bus. A message reaches its readers in the thread of whoever publishes it."""

    def __init__(self, bus: str):
        self._others = _BUSES.setdefault(bus, [])
        self._readers: dict[tuple[str, str], list[Receive]] = {}
        self._others.append(self)

    def publish(self, topic: str, kind: str, data: bytes) -> None:
        for participant in list(self._others):
            for receive in participant._readers.get((topic, kind), ()):
                receive(data)

    def subscribe(self, topic: str, kind: str, receive: Receive) -> None:
        self._readers.setdefault((topic, kind), []).append(receive)

    def close(self) -> None:
        self._readers.clear()
        if self in self._others:
            self._others.remove(self)
