"""What a ROS 2 robot measures and sees: its streams together, and observations out of them.

An observation is complete or there is none: `look()` raises `RobotSilent`, with what happened to each topic, as soon as
one of them brought nothing good for `silent_after_ms`.
"""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from plaudit.errors import RobotSilent
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.streams import Joints, Stream, joints_reader, picture_reader
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, Picture, warm_up
from plaudit.types import ByteArray, FloatArray, Observation

WAIT = 0.005  # seconds between looks at what has arrived


class RosSensors:
    """Subscribes when it is made, and publishes nothing."""

    def __init__(self, name: str, params: RuntimeParams, topics: RuntimeTopics, transport: Transport):
        self._name, self._params = name, params
        self._silent_after, late = 1e-3 * params.silent_after_ms, 1e-3 * params.late_after_ms
        self.cameras: Mapping[str, tuple[int, int]] = {
            _image_name(camera, back): params.mono_image_resize.shape
            for camera in params.camera_names
            for back in range(params.num_img_obs)
        }
        self._states: deque[FloatArray] = deque(maxlen=params.proprio_history_size)
        self._images: deque[Mapping[str, ByteArray]] = deque(maxlen=(params.num_img_obs - 1) * params.img_obs_every + 1)
        warm_up((JOINT_STATE, *(topics.kind_of(camera) for camera in params.camera_names)))
        read = joints_reader(params.joint_names, params.proprio_fields)
        self._joints: Stream[Joints] = Stream("the joint stream", topics.joint_states, read, late)
        transport.subscribe(topics.joint_states, JOINT_STATE, self._joints.receive)
        self._pictures: dict[str, Stream[Picture]] = {}
        for camera in params.camera_names:
            kind = topics.kind_of(camera)
            see = picture_reader(kind, params.sent_size, params.mono_image_resize.shape)
            self._pictures[camera] = Stream(f"camera '{camera}'", topics.cameras[camera], see, late)
            transport.subscribe(topics.cameras[camera], kind, self._pictures[camera].receive)

    def restart(self) -> None:
        """Forget everything, and wait until every topic has sent something good, but not for ever."""
        for stream in self._streams:
            stream.restart()
        self.forget()
        self.wait()

    def forget(self) -> None:
        """The history alone."""
        self._states.clear()
        self._images.clear()

    def wait(self) -> None:
        deadline = time.monotonic() + self._params.first_message_s
        while any(stream.newest is None for stream in self._streams):
            if time.monotonic() > deadline:
                self.check()
            time.sleep(WAIT)

    def check(self) -> None:
        """Raise when a topic has been silent for too long."""
        troubles = [trouble for stream in self._streams if (trouble := stream.trouble(self._silent_after)) is not None]
        if troubles:
            raise RobotSilent(f"{self._name}: {'; and '.join(troubles)}")

    def look(self) -> Observation:
        """The newest good message of every topic, and of the steps before as many as the params say."""
        self.check()
        params, joints = self._params, self._joints.newest
        newest = {camera: stream.newest for camera, stream in self._pictures.items()}
        assert joints is not None  # else the check had raised
        self._states.append(joints.message.state)
        self._images.append({camera: seen.message.pixels for camera, seen in newest.items() if seen is not None})
        states = [self._states[0]] * (params.proprio_history_size - len(self._states)) + list(self._states)
        images = {}
        for back in range(params.num_img_obs):
            shown = self._images[max(-len(self._images), -1 - back * params.img_obs_every)]
            images |= {_image_name(camera, back): pixels for camera, pixels in shown.items()}
        return Observation(images=images, state=np.concatenate(states))

    def measured(self) -> FloatArray:
        """[J] where the joints are; raises when a topic is silent."""
        self.check()
        assert self._joints.newest is not None  # else the check had raised
        return self._joints.newest.message.position

    def position(self) -> FloatArray | None:
        """[J] where the joints are; None when that is not known well enough."""
        newest = self._joints.newest
        return None if newest is None or self._joints.age() > self._silent_after else newest.message.position

    def ages(self) -> dict[str, float]:
        """Topic -> seconds since its newest good message."""
        return {stream.topic: stream.age() for stream in self._streams}

    def stamps(self) -> dict[str, int]:
        """Topic -> stamp of its newest good message, in ns of the sender's clock."""
        return {stream.topic: stream.newest.message.stamp for stream in self._streams if stream.newest is not None}

    def dropped(self) -> dict[str, dict[str, int]]:
        """Topic -> reason -> how many messages were dropped for it, since this was made."""
        return {stream.topic: dict(stream.dropped) for stream in self._streams}

    @property
    def _streams(self) -> tuple[Stream[Any], ...]:
        return (self._joints, *self._pictures.values())


def _image_name(camera: str, back: int) -> str:
    return f"{camera}_{back}" if back else camera
