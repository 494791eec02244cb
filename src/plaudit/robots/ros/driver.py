"""The driver of a ROS 2 robot: joint states and images in, joint commands out.

    with RosRobot("igris_b", params, topics, transport, limits) as robot:
        observation = robot.reset()
        robot.act(action)                      # kept within the limits, published
        observation = robot.observe()          # the newest valid message of every topic

When a topic falls silent `observe()` raises `RobotSilent`. The driver sends no commands by itself; the caller calls
`hold()`, keeps the episode so far, and may `reset()` when the robot is back.
"""

import math
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from plaudit.errors import BadMessage, InvalidCommand, RobotError, RobotSilent
from plaudit.robots.config import SafetyLimits
from plaudit.robots.limits import ClosableRobot, CommandLimiter, Rate
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.streams import Stream, camera_stream, joint_stream
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import BOOL, JOINT_STATE, decode_bool, position_encoder, warm_up
from plaudit.types import AnyArray, ByteArray, FloatArray, Observation

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
        self.clear_history()
        self.wait_for_messages()

    def clear_history(self) -> None:
        """Discard the earlier steps, so that the next observation starts a new history."""
        self._states.clear()
        self._images.clear()

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

    def ages(self) -> dict[str, float]:
        """Topic -> seconds since its newest valid message."""
        return {stream.topic: stream.age() for stream in self._streams}

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
        self._rate.sleep()
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
                rate.sleep()
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
            rate.sleep()
            distance = np.abs(pose - self.sensors.joint_position())
            if n >= ticks and distance.max() <= self.params.start_tolerance:
                return
        worst = int(distance.argmax())
        raise RobotError(
            f"{self.name}: joint '{self.params.joint_names[worst]}' is still {distance[worst]:.3f} rad off start_pose "
            f"after {max_ticks / self.params.HZ:.1f} s; is something in its way, or does the robot not receive "
            f"{self.topics.joint_commands}?"
        )
