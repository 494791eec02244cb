"""The driver of a robot that speaks ROS 2: joint states and cameras in, joint commands out.

    with RosRobot("igris_b", params, topics, transport) as robot:
        observation = robot.reset()
        robot.act(action)                      # clipped to the joints' limits, published
        observation = robot.observe()          # the newest good message of every topic

An observation is complete or there is none: `observe()` raises `RobotSilent`, with what happened to each topic, as
soon as one of them brought nothing good for `silent_after_ms`. It does not go on with pictures older than that and
does not send commands by itself; whoever drives calls `hold()`, keeps the episode so far, and may `reset()` when the
robot is back.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np

from plaudit.errors import InvalidCommand, RobotError, RobotSilent
from plaudit.robots.pace import Pace
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.streams import Joints, Stream, joints_reader, picture_reader
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, Picture, position_encoder, warm_up
from plaudit.types import AnyArray, FloatArray, Observation

LOOK = 0.005  # seconds between looks at what has arrived
SETTLE = 3.0  # seconds for the joints to come to rest at the start pose


class RosRobot:
    """A `Robot`. It subscribes when it is made and publishes nothing before `reset()`, `act()` or `hold()`."""

    def __init__(
        self, name: str, params: RuntimeParams, topics: RuntimeTopics, transport: Transport, *, realtime: bool = True
    ):
        """realtime: whether `observe()` keeps the rate; False where whoever drives does"""
        topics.check(params)
        self.name, self.params, self.topics = name, params, topics
        shown = params.mono_image_resize.shape
        self.cameras: Mapping[str, tuple[int, int]] = {
            _image_name(camera, back): shown for camera in params.camera_names for back in range(params.num_img_obs)
        }
        self.state_dim = params.proprio_state_dim * params.proprio_history_size
        self.action_dim, self.fps = params.action_dim, params.HZ
        self._transport, self._pace = transport, Pace(params.HZ, realtime=realtime)
        self._low, self._high = params.limits
        self._step = math.inf if params.max_delta_deg is None else math.radians(params.max_delta_deg)
        self._command: FloatArray | None = None
        self._encode = position_encoder(params.joint_names)
        self._states: deque[FloatArray] = deque(maxlen=params.proprio_history_size)
        self._images: deque[Mapping[str, Any]] = deque(maxlen=(params.num_img_obs - 1) * params.img_obs_every + 1)
        self._subscribe()

    def _subscribe(self) -> None:
        params, topics, late = self.params, self.topics, 1e-3 * self.params.late_after_ms
        warm_up((JOINT_STATE, *(topics.kind_of(camera) for camera in params.camera_names)))
        read = joints_reader(params.joint_names, params.proprio_fields)
        self._joints: Stream[Joints] = Stream("the joint stream", topics.joint_states, read, late)
        self._transport.subscribe(topics.joint_states, JOINT_STATE, self._joints.receive)
        self._pictures: dict[str, Stream[Picture]] = {}
        for camera in params.camera_names:
            kind = topics.kind_of(camera)
            look = picture_reader(kind, params.sent_size, params.mono_image_resize.shape)
            self._pictures[camera] = Stream(f"camera '{camera}'", topics.cameras[camera], look, late)
            self._transport.subscribe(topics.cameras[camera], kind, self._pictures[camera].receive)

    # What whoever drives calls

    def reset(self, seed: int | None = None) -> Observation:
        for stream in self._streams():
            stream.restart()
        self._wait_for_all()
        if self.params.start_pose is not None:
            self._go_to(np.array(self.params.start_pose, np.float32))
        self._states.clear()
        self._images.clear()
        self._pace.restart()
        return self._observation()

    def act(self, action: FloatArray) -> None:
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"{self.name} takes {self.action_dim} finite numbers, got {np.asarray(action)}")
        before = self._measured() if self._command is None else self._command
        slow = np.clip(action, before - self._step, before + self._step) if before is not None else action
        self._send(slow)

    def observe(self) -> Observation:
        self._pace.wait()
        self._wait_for_all()
        return self._observation()

    def privileged(self) -> Mapping[str, AnyArray]:
        return {}

    def hold(self) -> None:
        """Stay where you are: at the joints' last measured positions, or, when these are old, at the last command."""
        here = self._measured()
        if here is not None:
            self._send(here)
        elif self._command is not None:
            self._send(self._command)

    # What is known beside an observation

    @property
    def command(self) -> FloatArray | None:
        """[A] what was sent last, after clipping; None before anything was."""
        return self._command

    def ages(self) -> dict[str, float]:
        """Topic -> seconds since its newest good message."""
        return {stream.topic: stream.age() for stream in self._streams()}

    def stamps(self) -> dict[str, int]:
        """Topic -> stamp of its newest good message, in ns of the sender's clock."""
        return {stream.topic: stream.newest.message.stamp for stream in self._streams() if stream.newest is not None}

    def dropped(self) -> dict[str, dict[str, int]]:
        """Topic -> reason -> how many messages were dropped for it, since the robot was made."""
        return {stream.topic: dict(stream.dropped) for stream in self._streams()}

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # How

    def _streams(self) -> Iterable[Stream[Any]]:
        return (self._joints, *self._pictures.values())

    def _wait_for_all(self) -> None:
        """Until every topic has sent something good, but not for ever."""
        deadline = time.monotonic() + self.params.first_message_s
        while any(stream.newest is None for stream in self._streams()):
            if time.monotonic() > deadline:
                self._check(self.params.first_message_s)
            time.sleep(LOOK)

    def _check(self, silent_after: float) -> None:
        troubles = [trouble for stream in self._streams() if (trouble := stream.trouble(silent_after)) is not None]
        if troubles:
            raise RobotSilent(f"{self.name}: {'; and '.join(troubles)}")

    def _observation(self) -> Observation:
        self._check(1e-3 * self.params.silent_after_ms)
        assert self._joints.newest is not None  # else the check had raised
        newest = {camera: stream.newest for camera, stream in self._pictures.items()}
        self._states.append(self._joints.newest.message.state)
        self._images.append(
            {camera: arrived.message.pixels for camera, arrived in newest.items() if arrived is not None}
        )
        states = [self._states[0]] * (self.params.proprio_history_size - len(self._states)) + list(self._states)
        images = {}
        for back in range(self.params.num_img_obs):
            shown = self._images[max(-len(self._images), -1 - back * self.params.img_obs_every)]
            images |= {_image_name(camera, back): pixels for camera, pixels in shown.items()}
        return Observation(images=images, state=np.concatenate(states))

    def _measured(self) -> FloatArray | None:
        """Where the joints are; None when that is not known well enough."""
        newest = self._joints.newest
        if newest is None or self._joints.age() > 1e-3 * self.params.silent_after_ms:
            return None
        return newest.message.position

    def _send(self, position: AnyArray) -> None:
        self._command = np.clip(position, self._low, self._high).astype(np.float32)
        self._transport.publish(self.topics.joint_commands, JOINT_STATE, self._encode(time.time_ns(), self._command))

    def _go_to(self, pose: FloatArray) -> None:
        """In a straight line of the joints, no faster than `start_speed`."""
        assert self._joints.newest is not None  # waited for
        here = self._joints.newest.message.position
        ticks = max(1, math.ceil(float(np.abs(pose - here).max()) / self.params.start_speed * self.params.HZ))
        settled = ticks + math.ceil(SETTLE * self.params.HZ)
        tick, away = Pace(self.params.HZ), np.abs(pose - here)
        for n in range(1, settled + 1):
            self._send(here + (pose - here) * min(1.0, n / ticks))
            tick.wait()
            self._check(1e-3 * self.params.silent_after_ms)
            away = np.abs(pose - self._joints.newest.message.position)
            if n >= ticks and away.max() <= self.params.start_tolerance:
                return
        worst = int(away.argmax())
        raise RobotError(
            f"{self.name}: joint '{self.params.joint_names[worst]}' is still {away[worst]:.3f} rad off start_pose "
            f"after {settled / self.params.HZ:.1f} s; is something in its way, or is the robot not listening to "
            f"{self.topics.joint_commands}?"
        )


def _image_name(camera: str, back: int) -> str:
    return f"{camera}_{back}" if back else camera
