"""The newest good message of a topic, and what became of the others.

Messages are decoded and checked where they arrive, in the transport's thread, so that the newest one that is kept is
always a good one. One that cannot be read, has another size, other joints or a NaN is dropped and counted by its
reason. So is one that is not newer than the last (out of order, or a camera that repeats itself), and one that is
late: its way took longer than the quickest so far by more than a limit. Comparing ways needs no synchronised clocks;
the quickest is allowed to get slower by 200 millionths of the time that passes, because no two clocks run alike.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from PIL import Image as Pil

from plaudit.errors import BadMessage
from plaudit.robots.transport.messages import Doubles, Picture, decode_joint_state, decode_picture
from plaudit.types import FloatArray

DRIFT = 200e-6  # of two clocks


class Unfit(BadMessage):
    """A message that can be read and not be used. `reason` is what it is counted by."""

    def __init__(self, reason: str, detail: str):
        self.reason = reason
        super().__init__(detail)


class Stamped(Protocol):
    @property
    def stamp(self) -> int: ...


MessageT = TypeVar("MessageT", bound=Stamped)


@dataclass(frozen=True, eq=False)
class Joints:
    """A JointState in the robot's own order."""

    stamp: int  # ns
    position: FloatArray  # [J]
    state: FloatArray  # [J x fields]


@dataclass(frozen=True, eq=False)
class Arrived(Generic[MessageT]):
    message: MessageT
    at: float  # seconds, of our monotonic clock


class Stream(Generic[MessageT]):
    """One topic. `receive` belongs to the transport's thread, the rest to whoever drives."""

    def __init__(self, name: str, topic: str, read: Callable[[bytes], MessageT], late_after: float):
        """
        name: for sentences, like "camera 'head'"
        read: bytes to a message that can be used; raises `BadMessage`
        late_after: seconds
        """
        self.name, self.topic = name, topic
        self.dropped: Counter[str] = Counter()  # reason -> messages, in all
        self._read, self._late_after = read, late_after
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Forget what came before: the sender may have been started anew, with another clock."""
        with self._lock:
            self.newest: Arrived[MessageT] | None = None
            self._since: Counter[str] = Counter()  # dropped since the newest good one
            self._detail = ""
            self._way = np.inf  # seconds, the quickest so far, plus what the two clocks are apart
            self._begun = time.monotonic()

    def receive(self, data: bytes) -> None:
        now = time.monotonic()
        try:
            message = self._read(data)
        except BadMessage as error:
            self._drop(error.reason if isinstance(error, Unfit) else "unreadable", str(error))
            return
        with self._lock:
            before, way = self.newest, now - 1e-9 * message.stamp
            if before is not None:
                self._way += DRIFT * (now - before.at)
            self._way = min(self._way, way)
            behind = 1e-9 * (before.message.stamp - message.stamp) if before is not None else -1.0
            if behind < 0 and way - self._way <= self._late_after:
                self.newest = Arrived(message, now)
                self._since.clear()
                return
        if behind >= 0:
            self._drop("out of order", f"its stamp is {behind:.3f} s behind the one before")
        else:
            self._drop("late", f"by {1e3 * (way - self._way):.0f} ms")

    def age(self) -> float:
        """Seconds since the newest good message arrived; since the start where there was none."""
        newest = self.newest
        return time.monotonic() - (self._begun if newest is None else newest.at)

    def trouble(self, silent_after: float) -> str | None:
        """What is wrong with it, as part of a sentence; None if nothing."""
        age, newest = self.age(), self.newest
        if newest is not None and age <= silent_after:
            return None
        with self._lock:
            dropped = ", ".join(f"{count} {reason}" for reason, count in self._since.items())
            since = f"; dropped since: {dropped} (the last: {self._detail})" if dropped else "; no message since"
        what = "has sent nothing good yet" if newest is None else f"has sent nothing good for {age:.2f} s"
        return f"{self.name} ({self.topic}) {what}{since}"

    def _drop(self, reason: str, detail: str) -> None:
        with self._lock:
            self.dropped[reason] += 1
            self._since[reason] += 1
            self._detail = detail


def joints_reader(names: Sequence[str], fields: Sequence[str]) -> Callable[[bytes], Joints]:
    """By name, so that a robot may send its joints in any order, and others beside them."""
    order: dict[tuple[str, ...], list[int]] = {}  # a robot's names hardly ever change: looked up once

    def read(data: bytes) -> Joints:
        message = decode_joint_state(data)
        if message.names not in order:
            missing = [name for name in names if name not in message.names]
            if missing:
                raise Unfit("with other joints", f"it lacks {', '.join(missing)}")
            order[message.names] = [message.names.index(name) for name in names]
        columns: Mapping[str, Doubles] = vars(message)
        parts: dict[str, FloatArray] = {}
        for field in ("position", *fields):
            if not len(columns[field]):
                raise Unfit("incomplete", f"it has no {field}")
            parts[field] = columns[field][order[message.names]].astype(np.float32)
            bad = np.flatnonzero(~np.isfinite(parts[field]))
            if len(bad):
                raise Unfit("not finite", f"the {field} of '{names[bad[0]]}' is NaN or infinite")
        return Joints(message.stamp, parts["position"], np.concatenate([parts[field] for field in fields]))

    return read


def picture_reader(kind: str, sent: tuple[int, int], wanted: tuple[int, int]) -> Callable[[bytes], Picture]:
    """
    kind: Image or CompressedImage
    sent, wanted: H, W
    """

    def read(data: bytes) -> Picture:
        picture = decode_picture(kind, data)
        size = picture.pixels.shape[:2]
        if size != sent:
            raise Unfit("of another size", f"{size[0]}x{size[1]} instead of {sent[0]}x{sent[1]}")
        if size == wanted:
            return picture
        small = Pil.fromarray(picture.pixels).resize((wanted[1], wanted[0]), Pil.Resampling.BOX)
        return Picture(picture.stamp, np.array(small))

    return read
