"""The newest valid message of a topic, and why the others were dropped.

Messages are decoded and checked in the transport's thread. One that cannot be decoded, has another size, other joints
or a NaN is dropped and counted by its reason. So is one whose stamp is not newer than the last, and one that is late:
its transit took longer than the fastest so far by more than a limit. Comparing transit times needs no synchronized
clocks; the fastest one ages by 200 millionths of the time that passes, because no two clocks run alike.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from PIL import Image as Pil

from plaudit.errors import BadMessage, did_you_mean
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.transport.messages import (
    CameraImage,
    Doubles,
    StampedMessage,
    decode_camera_image,
    decode_joint_state,
)
from plaudit.types import FloatArray

CLOCK_DRIFT = 200e-6  # between two clocks, seconds per second

MessageT = TypeVar("MessageT", bound=StampedMessage)


class UnusableMessage(BadMessage):
    """A message that can be decoded but not used. It is counted under `reason`."""

    def __init__(self, reason: str, detail: str):
        self.reason = reason
        super().__init__(detail)


@dataclass(frozen=True, eq=False)
class JointReading(StampedMessage):
    """A JointState in the robot's own order of joints."""

    position: FloatArray  # [J]
    state: FloatArray  # [J x fields]


class Stream(Generic[MessageT]):
    """One topic. `receive` runs in the transport's thread, everything else in the caller's."""

    def __init__(self, name: str, topic: str, decode: Callable[[bytes], MessageT], late_after: float):
        """
        name: for messages to people, like "camera 'head'"
        decode: bytes to a message that can be used; raises `BadMessage`
        late_after: seconds
        """
        self.name, self.topic = name, topic
        self.dropped: Counter[str] = Counter()  # reason -> number of messages, since the start
        self._decode, self._late_after = decode, late_after
        self._lock = threading.Lock()
        self.restart()

    def restart(self) -> None:
        """Forget what came before: the sender may have been restarted, with another clock."""
        with self._lock:
            self.newest: MessageT | None = None
            self._dropped_since: Counter[str] = Counter()  # since the newest valid message
            self._last_detail = ""
            self._min_transit = np.inf  # seconds, plus the unknown offset between the two clocks
            self._last_arrival = self._valid_at = time.monotonic()  # _valid_at: the newest arrived, or the start

    def receive(self, data: bytes) -> None:
        """Decode a message and keep it if it is valid and newer than the last."""
        now = time.monotonic()
        try:
            message = self._decode(data)
        except BadMessage as error:
            self._drop(error.reason if isinstance(error, UnusableMessage) else "unreadable", str(error))
            return
        with self._lock:
            previous, transit = self.newest, now - 1e-9 * message.stamp
            self._min_transit = min(self._min_transit + CLOCK_DRIFT * (now - self._last_arrival), transit)
            self._last_arrival = now
            behind = 1e-9 * (previous.stamp - message.stamp) if previous is not None else -1.0
            delay = transit - self._min_transit
            if behind < 0 and delay <= self._late_after:
                self.newest = message
                self._valid_at = now  # last: what is young enough is never an older message
                self._dropped_since.clear()
                return
        if behind >= 0:
            self._drop("out of order", f"its stamp is {behind:.3f} s behind the one before")
        else:
            self._drop("late", f"by {1e3 * delay:.0f} ms")

    def age(self) -> float:
        """Seconds since the newest valid message arrived; since the start if there was none."""
        return time.monotonic() - self._valid_at

    def problem(self, silent_after: float) -> str | None:
        """What is wrong with the topic, as a clause; None if it had a valid message within `silent_after` seconds."""
        age = self.age()
        if self.newest is not None and age <= silent_after:
            return None
        with self._lock:
            dropped = ", ".join(f"{count} {reason}" for reason, count in self._dropped_since.items())
            since = f"dropped since: {dropped} (the last: {self._last_detail})" if dropped else "nothing arrived since"
        how_long = "yet" if self.newest is None else f"for {age:.2f} s"
        return f"{self.name} ({self.topic}) has sent no valid message {how_long}; {since}"

    def _drop(self, reason: str, detail: str) -> None:
        with self._lock:
            self.dropped[reason] += 1
            self._dropped_since[reason] += 1
            self._last_detail = detail


def joint_stream(name: str, params: RuntimeParams, topics: RuntimeTopics) -> Stream[JointReading]:
    """The stream of a robot's measured joints."""
    decode = joint_state_decoder(params.joint_names, params.proprio_fields)
    return Stream(name, topics.joint_states, decode, 1e-3 * params.late_after_ms)


def camera_stream(name: str, camera: str, params: RuntimeParams, topics: RuntimeTopics) -> Stream[CameraImage]:
    """The stream of one of a robot's cameras."""
    sizes = params.camera_size, params.mono_image_resize.shape
    decode = image_decoder(topics.image_type(camera), *sizes, params.depth_range(camera))
    return Stream(name, topics.cameras[camera], decode, 1e-3 * params.late_after_ms)


def joint_state_decoder(names: Sequence[str], fields: Sequence[str]) -> Callable[[bytes], JointReading]:
    """A decoder of JointState for these joints, in any order and among others, and these fields."""
    order_of: dict[tuple[str, ...], list[int]] = {}  # a robot's names hardly ever change, so their order is cached

    def decode(data: bytes) -> JointReading:
        message = decode_joint_state(data)
        if message.names not in order_of:
            missing = [name for name in names if name not in message.names]
            if missing:
                hint = did_you_mean(missing[0], message.names)
                raise UnusableMessage("missing joints", f"it lacks {', '.join(missing)}; {hint}")
            order_of[message.names] = [message.names.index(name) for name in names]
        columns: Mapping[str, Doubles] = vars(message)
        values: dict[str, FloatArray] = {}
        for field in ("position", *fields):
            if not len(columns[field]):
                raise UnusableMessage("missing fields", f"it has no {field}")
            values[field] = columns[field][order_of[message.names]].astype(np.float32)
            bad = np.flatnonzero(~np.isfinite(values[field]))
            if len(bad):
                raise UnusableMessage("not finite", f"the {field} of '{names[bad[0]]}' is NaN or infinite")
        return JointReading(message.stamp, values["position"], np.concatenate([values[field] for field in fields]))

    return decode


def image_decoder(
    msg_type: str,
    camera_size: tuple[int, int],
    image_size: tuple[int, int],
    depth_range: tuple[float, float] | None = None,
) -> Callable[[bytes], CameraImage]:
    """A decoder of camera images.

    msg_type: Image or CompressedImage
    camera_size: H, W that the camera sends; other sizes are refused
    image_size: H, W of the result
    depth_range: near and far in meters, of a camera that sends depth
    """
    # The mean of a near and a far pixel is a distance at which nothing is.
    resample = Pil.Resampling.BOX if depth_range is None else Pil.Resampling.NEAREST

    def decode(data: bytes) -> CameraImage:
        image = decode_camera_image(msg_type, data, depth_range)
        size = image.pixels.shape[:2]
        if size != camera_size:
            raise UnusableMessage("wrong size", f"{size[0]}x{size[1]} instead of {camera_size[0]}x{camera_size[1]}")
        if size == image_size:
            return image
        resized = Pil.fromarray(image.pixels).resize((image_size[1], image_size[0]), resample)
        return CameraImage(image.stamp, np.array(resized))

    return decode
