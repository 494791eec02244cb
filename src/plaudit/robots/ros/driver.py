"""The driver of a ROS 2 robot: joint states and images in, joint commands out.

    with RosRobot("igris_b", params, topics, transport, limits) as robot:
        observation = robot.reset()
        robot.act(action)                      # kept within the limits, published
        observation = robot.observe()          # the newest valid message of every topic

When a topic falls silent `observe()` raises `RobotSilent`. The driver sends no commands by itself; the caller calls
`hold()`, keeps the episode so far, and may `reset()` when the robot is back.

A `Stream` has the newest valid message of a topic, and counts why others were dropped.

Messages are decoded and checked in the transport's thread. One that cannot be decoded, has another size, other joints
or a NaN is dropped and counted by its reason. So is one whose stamp is not newer than the last, and one that is late:
its transit took longer than the fastest so far by more than a limit. Comparing transit times needs no synchronized
clocks; the fastest one ages by 200 millionths of the time that passes, because no two clocks run alike.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from PIL import Image as Pil

from plaudit.errors import BadMessage, InvalidCommand, RobotError, RobotSilent, did_you_mean
from plaudit.robots.config import SafetyLimits
from plaudit.robots.limits import ClosableRobot, CommandLimiter, Rate
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import (
    BOOL,
    JOINT_STATE,
    CameraImage,
    Doubles,
    StampedMessage,
    decode_bool,
    decode_camera_image,
    decode_joint_state,
    position_encoder,
    warm_up,
)
from plaudit.types import AnyArray, ByteArray, FloatArray, Observation

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


POLL_S = 0.005  # between looks at what has arrived


class RosSensors:
    """The joints and cameras of a ROS 2 robot: all its streams, and observations from them.

    It subscribes when it is made and publishes nothing. An observation is complete or there is none: `observe()` raises
    `RobotSilent`, with the problem of each topic, when one of them had no valid message for `silent_after_ms`.
    """

    def __init__(self, name: str, params: RuntimeParams, topics: RuntimeTopics, transport: Transport):
        self._name, self._params = name, params
        self.silent_after = 1e-3 * params.silent_after_ms  # seconds
        self.cameras: Mapping[str, tuple[int, int]] = {
            _image_name(camera, steps_back): params.mono_image_resize.shape
            for camera in params.camera_names
            for steps_back in range(params.num_img_obs)
        }
        self._states: deque[FloatArray] = deque(maxlen=params.proprio_history_size)
        self._images: deque[Mapping[str, ByteArray]] = deque(maxlen=(params.num_img_obs - 1) * params.img_obs_every + 1)
        warm_up((JOINT_STATE, *(topics.image_type(camera) for camera in params.camera_names)))
        self._joints = joint_stream("the joint stream", params, topics)
        transport.subscribe(self._joints.topic, JOINT_STATE, self._joints.receive)
        self._cameras = {c: camera_stream(f"camera '{c}'", c, params, topics) for c in params.camera_names}
        for camera, stream in self._cameras.items():
            transport.subscribe(stream.topic, topics.image_type(camera), stream.receive)

    def restart(self) -> None:
        """Discard everything, and wait up to `first_message_s` for a valid message on every topic."""
        for stream in self._streams:
            stream.restart()
        self._states.clear()
        self._images.clear()
        self.wait_for_messages()

    def wait_for_messages(self) -> None:
        """Wait up to `first_message_s` until every topic has had a valid message."""
        deadline = time.monotonic() + self._params.first_message_s
        while any(stream.newest is None for stream in self._streams):
            if time.monotonic() > deadline:
                self.check()
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise `RobotSilent` if a topic has had no valid message for too long."""
        problems = [problem for stream in self._streams if (problem := stream.problem(self.silent_after)) is not None]
        if problems:
            raise RobotSilent(f"{self._name}: {'; and '.join(problems)}")

    def observe(self) -> Observation:
        """The newest valid message of every topic, and as many of the steps before as the params ask for."""
        self.check()
        params, joints = self._params, self._joints.newest
        newest = {camera: stream.newest for camera, stream in self._cameras.items()}
        assert joints is not None  # else the check had raised
        self._states.append(joints.state)
        self._images.append({camera: image.pixels for camera, image in newest.items() if image is not None})
        states = [self._states[0]] * (params.proprio_history_size - len(self._states)) + list(self._states)
        images = {}
        for steps_back in range(params.num_img_obs):
            step = self._images[max(-len(self._images), -1 - steps_back * params.img_obs_every)]
            images |= {_image_name(camera, steps_back): pixels for camera, pixels in step.items()}
        return Observation(images=images, state=np.concatenate(states))

    def joint_position(self) -> FloatArray:
        """[J] the measured joint positions; raises `RobotSilent` if a topic is silent."""
        self.check()
        assert self._joints.newest is not None  # else the check had raised
        return self._joints.newest.position

    def last_joint_position(self) -> FloatArray | None:
        """[J] the measured joint positions; None if they are too old to act on."""
        newest = self._joints.newest
        return None if newest is None or self._joints.age() > self.silent_after else newest.position

    def dropped(self) -> dict[str, dict[str, int]]:
        """Topic -> reason -> number of messages dropped for it, since this object was made."""
        return {stream.topic: dict(stream.dropped) for stream in self._streams}

    @property
    def _streams(self) -> tuple[Stream[Any], ...]:
        return (self._joints, *self._cameras.values())


def _image_name(camera: str, steps_back: int) -> str:
    return f"{camera}_{steps_back}" if steps_back else camera


PAUSE_S = 0.25  # without a command, after which a robot is where it is measured, not where it was sent
HOLD_S = 2.0  # for which the last command still says where a robot is that cannot be heard
SETTLE_S = 3.0  # for the joints to come to rest at the start pose


class RosRobot(ClosableRobot):
    """A `Robot`. It subscribes when it is made and publishes nothing before `reset()`, `act()` or `hold()`."""

    def __init__(
        self,
        name: str,
        params: RuntimeParams,
        topics: RuntimeTopics,
        transport: Transport,
        limits: SafetyLimits,
        *,
        realtime: bool = True,
    ):
        """realtime: whether `observe()` keeps the rate; False where the caller does"""
        topics.check(params)
        self.name, self.params, self.topics = name, params, topics
        self.sensors = RosSensors(name, params, topics, transport)
        self.cameras = self.sensors.cameras
        self.state_dim = params.proprio_state_dim * params.proprio_history_size
        self.action_dim, self.fps = params.action_dim, params.HZ
        self._transport, self._rate = transport, Rate(params.HZ, realtime=realtime)
        self.limiter = CommandLimiter(limits, params.HZ)
        self._sent_at, self._pause = 0.0, max(PAUSE_S, 3 / params.HZ)
        self._encode = position_encoder(params.joint_names)
        self.last_command: FloatArray | None = None  # after the limits
        if topics.emergency_stop is not None:
            transport.subscribe(topics.emergency_stop, BOOL, self._on_emergency_stop)
        self._success: bool | None = None  # the newest message of a simulation, if there was any
        self._is_simulation = False  # as of the last reset
        if topics.success is not None:
            transport.subscribe(topics.success, BOOL, self._on_success)

    def reset(self, seed: int | None = None) -> Observation:
        """Wait for every topic, move to the start pose if there is one, and start a new history."""
        self._success = None
        self.sensors.restart()
        self.last_command = None  # the robot may have been moved since
        if self.params.start_pose is not None:
            self._move_to(np.array(self.params.start_pose, np.float32))
            self.sensors.restart()  # what the cameras see there, and not on the way
        self._is_simulation = self._success is not None
        self._rate.reset()
        return self.sensors.observe()

    def act(self, action: FloatArray) -> None:
        """Publish one command [A], within the limits; the first ones ramp from the measured positions."""
        self.check_command(action, self.name)
        if self.last_command is None:
            position = self.sensors.last_joint_position()
            if position is None:
                raise InvalidCommand(f"the joint positions of {self.name} are unknown; reset() first")
            self.limiter.restart(position)
        elif self._paused:
            # Joints that follow are at the last command or on the way there, and a measurement may be older than it.
            measured = self.sensors.joint_position()
            follows = np.abs(measured - self.last_command) <= self.params.start_tolerance
            self.limiter.restart(np.where(follows, self.last_command, measured))
        self._send(self.limiter.limit(action))

    def observe(self) -> Observation:
        """Wait for the next tick; returns the newest valid message of every topic."""
        self._rate.wait()
        self.sensors.wait_for_messages()
        return self.sensors.observe()

    def hold(self) -> None:
        """Command the last measured joint positions; when these are too old, brake from the last command. That is not
        repeated when it is old too: a robot that was restarted meanwhile would jump there, and others hold it anyway.
        """
        position = self.sensors.last_joint_position()
        if position is not None:
            self._send(position)
        elif self.last_command is not None and time.monotonic() - self._sent_at <= HOLD_S:
            if self._paused:
                self.limiter.restart(self.last_command)
            rate = Rate(self.params.HZ)
            for command in self.limiter.braking():
                self._send(command)
                rate.wait()
        self.limiter.restart(self.last_command)

    @property
    def _paused(self) -> bool:
        """Whether the last command was so long ago that the joints have come to rest."""
        return time.monotonic() - self._sent_at > self._pause

    def joint_position(self) -> FloatArray:
        """[A] the measured joint positions."""
        return self.sensors.joint_position()

    def privileged(self) -> Mapping[str, AnyArray]:
        """A simulation's success, for evaluation; a robot has none."""
        return {"success": np.array(self._success)} if self._is_simulation else {}

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _on_success(self, data: bytes) -> None:
        with suppress(BadMessage):
            self._success = decode_bool(data)

    def _on_emergency_stop(self, data: bytes) -> None:
        stop = self.limiter.emergency_stop
        with suppress(BadMessage):
            (stop.engage if decode_bool(data) else stop.release)("topic")

    def _send(self, position: FloatArray) -> None:
        low, high = self.params.limits
        self.last_command = np.clip(position, low, high).astype(np.float32)
        self.limiter.sent(self.last_command)
        self._sent_at = time.monotonic()
        self._transport.publish(
            self.topics.joint_commands, JOINT_STATE, self._encode(time.time_ns(), self.last_command)
        )

    def _move_to(self, pose: FloatArray) -> None:
        """Move the joints in a straight line, no faster than `start_speed`, and wait until they have arrived."""
        start = self.sensors.joint_position()
        self.limiter.restart(start)
        distance, rate = np.abs(pose - start), Rate(self.params.HZ)
        ticks = max(1, math.ceil(float(distance.max()) / self.params.start_speed * self.params.HZ))
        max_ticks = ticks + math.ceil(SETTLE_S * self.params.HZ)
        for n in range(1, max_ticks + 1):
            self._send(self.limiter.limit(start + (pose - start) * min(1.0, n / ticks)))
            rate.wait()
            distance = np.abs(pose - self.sensors.joint_position())
            if n >= ticks and distance.max() <= self.params.start_tolerance:
                return
        worst = int(distance.argmax())
        raise RobotError(
            f"{self.name}: joint '{self.params.joint_names[worst]}' is still {distance[worst]:.3f} rad off start_pose "
            f"after {max_ticks / self.params.HZ:.1f} s; is something in its way, or does the robot not receive "
            f"{self.topics.joint_commands}?"
        )
