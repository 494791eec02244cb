"""The driver of a ROS 2 robot: joint states and images in, joint commands out.

    with RosRobot("igris_b", params, topics, transport) as robot:
        observation = robot.reset()
        robot.act(action)                      # clipped to the joint limits, published
        observation = robot.observe()          # the newest valid message of every topic

When a topic falls silent `observe()` raises `RobotSilent`. The driver does not go on with older images and sends no
commands by itself; the caller calls `hold()`, keeps the episode so far, and may `reset()` when the robot is back.
"""

import math
import time

import numpy as np

from plaudit.errors import InvalidCommand, RobotError
from plaudit.robots.config import ClosableRobot
from plaudit.robots.rate import Rate
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.sensors import RosSensors
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, position_encoder
from plaudit.types import AnyArray, FloatArray, Observation

SETTLE_S = 3.0  # for the joints to come to rest at the start pose


class RosRobot(ClosableRobot):
    """A `Robot`. It subscribes when it is made and publishes nothing before `reset()`, `act()` or `hold()`."""

    def __init__(
        self, name: str, params: RuntimeParams, topics: RuntimeTopics, transport: Transport, *, realtime: bool = True
    ):
        """realtime: whether `observe()` keeps the rate; False where the caller does"""
        topics.check(params)
        self.name, self.params, self.topics = name, params, topics
        self.sensors = RosSensors(name, params, topics, transport)
        self.cameras = self.sensors.cameras
        self.state_dim = params.proprio_state_dim * params.proprio_history_size
        self.action_dim, self.fps = params.action_dim, params.HZ
        self._transport, self._rate = transport, Rate(params.HZ, realtime=realtime)
        self._low, self._high = params.limits
        self._encode = position_encoder(params.joint_names)
        self.last_command: FloatArray | None = None  # after clipping

    def reset(self, seed: int | None = None) -> Observation:
        """Wait for every topic, move to the start pose if there is one, and start a new history."""
        self.sensors.restart()
        self.last_command = None  # the robot may have been moved since
        if self.params.start_pose is not None:
            self._move_to(np.array(self.params.start_pose, np.float32))
        self.sensors.clear_history()
        self._rate.reset()
        return self.sensors.observe()

    def act(self, action: FloatArray) -> None:
        """Publish one command [A], within the joint limits and `max_delta_deg`."""
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"{self.name} takes {self.action_dim} finite numbers, got {np.asarray(action)}")
        max_delta = self.params.max_delta_deg
        self._send(action if max_delta is None else self._limit_delta(action, math.radians(max_delta)))

    def observe(self) -> Observation:
        """Wait for the next tick; returns the newest valid message of every topic."""
        self._rate.sleep()
        self.sensors.wait_for_messages()
        return self.sensors.observe()

    def hold(self) -> None:
        """Command the last measured joint positions; when these are too old, the last command."""
        position = self.sensors.last_joint_position()
        if position is not None:
            self._send(position)
        elif self.last_command is not None:
            self._send(self.last_command)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()

    def _limit_delta(self, action: FloatArray, max_delta: float) -> AnyArray:
        """Clip to at most `max_delta` rad from the last command, or from the measured positions before the first."""
        previous = self.sensors.last_joint_position() if self.last_command is None else self.last_command
        if previous is None:
            raise InvalidCommand(f"the joint positions of {self.name} are unknown, so it is not moved; reset() first")
        return np.clip(action, previous - max_delta, previous + max_delta)

    def _send(self, position: AnyArray) -> None:
        self.last_command = np.clip(position, self._low, self._high).astype(np.float32)
        self._transport.publish(
            self.topics.joint_commands, JOINT_STATE, self._encode(time.time_ns(), self.last_command)
        )

    def _move_to(self, pose: FloatArray) -> None:
        """Move the joints in a straight line, no faster than `start_speed`, and wait until they have arrived."""
        start = self.sensors.joint_position()
        distance, rate = np.abs(pose - start), Rate(self.params.HZ)
        ticks = max(1, math.ceil(float(distance.max()) / self.params.start_speed * self.params.HZ))
        max_ticks = ticks + math.ceil(SETTLE_S * self.params.HZ)
        for n in range(1, max_ticks + 1):
            self._send(start + (pose - start) * min(1.0, n / ticks))
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
