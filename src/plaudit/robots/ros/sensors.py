"""The joints and cameras of a ROS 2 robot: all its streams, and observations from them.

An observation is complete or there is none: `observe()` raises `RobotSilent`, with the problem of each topic, as soon
as one of them had no valid message for `silent_after_ms`.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.errors import RobotSilent
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.streams import Stream, camera_stream, joint_stream
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, warm_up
from plaudit.types import ByteArray, FloatArray, Observation

POLL_S = 0.005  # between looks at what has arrived


class RosSensors:
    """Subscribes to the robot's topics when it is made; publishes nothing."""

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
        self._states.append(joints.message.state)
        self._images.append({camera: image.message.pixels for camera, image in newest.items() if image is not None})
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
        return self._joints.newest.message.position

    def last_joint_position(self) -> FloatArray | None:
        """[J] the measured joint positions; None if they are too old to act on."""
        newest = self._joints.newest
        return None if newest is None or self._joints.age() > self.silent_after else newest.message.position

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
