"""Ways to fail, and the outbox that fails.

    late=400         from now on every message leaves 400 ms late
    size=head@2.5    2.5 s after the start, camera head begins to send pictures of half the size
    none             all is well again

A fault is written KIND[=VALUE][@SECONDS]; it comes from a flag (`--fault`) or as a string on the topic `/twin/fault`.
VALUE is a time in ms for `late` and `back`, and the name of a stream for the others: a camera, or `joints`; without it
all streams are meant.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plaudit.errors import RobotError, nearest
from plaudit.robots.transport import Transport

CONTROL = "/twin/fault"
KINDS = {
    "none": "all is well",
    "kill": "the process is gone at once",
    "freeze": "nothing is sent",
    "late": "messages leave VALUE ms late",
    "back": "stamps are VALUE ms behind",
    "shuffle": "of two messages the second leaves first",
    "repeat": "the last message is sent again and again",
    "size": "pictures have half the size",
    "nan": "the first joint is NaN",
    "joints": "the last joint is missing",
    "garbage": "messages are noise",
    "deaf": "commands are not heard",
}
TIMED = ("late", "back")

Make = Callable[[int], bytes]  # the stamp to put on it -> a message


@dataclass(frozen=True)
class Fault:
    kind: str = "none"
    value: str = ""
    at: float = 0.0  # seconds after the start

    @classmethod
    def parse(cls, text: str) -> "Fault":
        rest, _, at = text.partition("@")
        kind, _, value = rest.partition("=")
        if kind not in KINDS:
            raise RobotError(f"a twin cannot fail with '{kind}'; {nearest(kind, KINDS)}")
        try:
            fault = cls(kind, value, float(at or 0))
            if kind in TIMED:
                float(value)
        except ValueError as error:
            raise RobotError(
                f"'{text}' is no fault: {error}; write KIND[=VALUE][@SECONDS], like late=400@2.5"
            ) from error
        return fault

    def hits(self, stream: str, *kinds: str) -> bool:
        return self.kind in kinds and (self.kind in TIMED or self.value in ("", stream))


class Outbox:
    """Sends what the twin says, as the fault of the moment has it."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._waiting: list[tuple[float, str, str, bytes]] = []  # when to send what
        self._kept: dict[str, bytes] = {}  # topic -> held back by shuffle, or repeated
        self._noise = np.random.default_rng(0)
        self.fault = Fault()

    def begin(self, fault: Fault) -> None:
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._kept.clear()
        self._waiting.clear()  # lost: after the fault they would come out of order
        self.fault = fault

    def send(self, stream: str, topic: str, kind: str, stamp: int, make: Make) -> None:
        fault = self.fault
        if fault.hits(stream, "freeze"):
            return
        data = make(stamp - int(1e6 * float(fault.value)) if fault.hits(stream, "back") else stamp)
        if fault.hits(stream, "garbage"):
            data = self._noise.bytes(len(data))
        if fault.hits(stream, "repeat"):
            data = self._kept.setdefault(topic, data)
        if fault.hits(stream, "shuffle"):
            if topic not in self._kept:
                self._kept[topic] = data
                return
            self._transport.publish(topic, kind, data)
            data = self._kept.pop(topic)
        if fault.hits(stream, "late"):
            self._waiting.append((time.monotonic() + 1e-3 * float(fault.value), topic, kind, data))
        else:
            self._transport.publish(topic, kind, data)

    def flush(self) -> None:
        """Send what has waited long enough."""
        now = time.monotonic()
        for _, topic, kind, data in (item for item in self._waiting if item[0] <= now):
            self._transport.publish(topic, kind, data)
        self._waiting = [item for item in self._waiting if item[0] > now]
