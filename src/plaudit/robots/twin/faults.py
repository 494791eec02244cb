"""Faults of a twin, and the publisher that applies them to its messages.

    late=400         from now on every message is sent 400 ms late
    size=head@2.5    2.5 s after the start, camera head begins to send images of half the size
    none             everything works again

A fault is written KIND[=VALUE][@SECONDS]; it comes from a flag (`--fault`) or as a string on the topic `/twin/fault`.
VALUE is a time in ms for `late` and `back`, and the name of a stream for the others: a camera, or `joints`; without it
the fault affects all streams.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plaudit.errors import RobotError, did_you_mean
from plaudit.files import brief
from plaudit.robots.transport import Transport

FAULT_TOPIC = "/twin/fault"
FAULTS = {
    "none": "everything works",
    "kill": "the process ends at once",
    "freeze": "nothing is sent",
    "late": "messages are sent VALUE ms late",
    "back": "stamps are VALUE ms behind",
    "shuffle": "of two messages the second is sent first",
    "repeat": "the last message is sent again and again",
    "size": "images have half the size",
    "nan": "the first joint is NaN",
    "joints": "the last joint is missing",
    "garbage": "messages are random bytes",
    "deaf": "commands are ignored",
}
TIMED_FAULTS = ("late", "back")
MAX_DURATION = 1_000_000  # s or ms

EncodeFn = Callable[[int], bytes]  # the stamp of a message -> its bytes


@dataclass(frozen=True)
class Fault:
    """One fault, and when it begins."""

    kind: str = "none"
    value: str = ""
    at: float = 0.0  # seconds after the start

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Read KIND[=VALUE][@SECONDS]; raises `RobotError`."""
        rest, _, at = text.partition("@")
        kind, _, value = rest.partition("=")
        if kind not in FAULTS:
            raise RobotError(f"a twin has no fault {brief(kind)}; {did_you_mean(kind[:60], FAULTS)}")
        try:
            fault = cls(kind, value, _duration(at or "0"))
            if kind in TIMED_FAULTS:
                _duration(value)
        except ValueError as error:
            raise RobotError(
                f"{brief(text)} is not a fault: {error}; write KIND[=VALUE][@SECONDS], like late=400@2.5"
            ) from error
        return fault

    def affects(self, stream: str, kind: str) -> bool:
        """Whether this is a fault of that kind, for that stream."""
        return self.kind == kind and (kind in TIMED_FAULTS or self.value in ("", stream))


def _duration(text: str) -> float:
    """A time in s or ms; ValueError for NaN, infinity and what is out of range."""
    found = float(text)
    if not 0 <= found <= MAX_DURATION:
        raise ValueError(f"a time is a number from 0 to {MAX_DURATION:,}")
    return found


class FaultyPublisher:
    """Publishes a twin's messages, changed by the current fault."""

    def __init__(self, transport: Transport):
        self._transport = transport
        self._delayed: list[tuple[float, str, str, bytes]] = []  # when to send what
        self._held: dict[str, bytes] = {}  # topic -> the message that `shuffle` holds back or `repeat` repeats
        self._rng = np.random.default_rng(0)
        self.fault = Fault()

    def inject(self, fault: Fault) -> None:
        """Apply a fault from the next message on."""
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._held.clear()
        self._delayed.clear()  # lost: after the fault they would arrive out of order
        self.fault = fault

    def publish(self, stream: str, topic: str, msg_type: str, stamp: int, encode: EncodeFn) -> None:
        """Encode and send one message, or what the fault makes of it."""
        fault = self.fault
        if fault.affects(stream, "freeze"):
            return
        data = encode(stamp - int(1e6 * float(fault.value)) if fault.affects(stream, "back") else stamp)
        if fault.affects(stream, "garbage"):
            data = self._rng.bytes(len(data))
        if fault.affects(stream, "repeat"):
            data = self._held.setdefault(topic, data)
        if fault.affects(stream, "shuffle"):
            if topic not in self._held:
                self._held[topic] = data
                return
            self._transport.publish(topic, msg_type, data)
            data = self._held.pop(topic)
        if fault.affects(stream, "late"):
            self._delayed.append((time.monotonic() + 1e-3 * float(fault.value), topic, msg_type, data))
        else:
            self._transport.publish(topic, msg_type, data)

    def flush(self) -> None:
        """Send the delayed messages that are due."""
        now = time.monotonic()
        for _, topic, msg_type, data in (item for item in self._delayed if item[0] <= now):
            self._transport.publish(topic, msg_type, data)
        self._delayed = [item for item in self._delayed if item[0] > now]
