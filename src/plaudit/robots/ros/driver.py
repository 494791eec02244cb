"""The driver of a robot that speaks ROS 2: joint states and cameras in, joint commands out.

    with RosRobot("igris_b", params, topics, transport) as robot:
        observation = robot.reset()
        robot.act(action)                      # clipped to the joints' limits, published
        observation = robot.observe()          # the newest good message of every topic

When a topic falls silent `observe()` raises `RobotSilent`. The driver does not go on with older pictures and sends no
commands by itself; whoever drives calls `hold()`, keeps the episode so far, and may `reset()` when the robot is back.
"""

import math
import time
from collections.abc import Mapping
from typing import Self

import numpy as np

from plaudit.errors import InvalidCommand, RobotError
from plaudit.robots.rate import Pace
from plaudit.robots.ros.params import RuntimeParams, RuntimeTopics
from plaudit.robots.ros.sensors import RosSensors
from plaudit.robots.transport import Transport
from plaudit.robots.transport.messages import JOINT_STATE, position_encoder
from plaudit.types import AnyArray, FloatArray, Observation

SETTLE = 3.0  # seconds for the joints to come to rest at the start pose


class RosRobot:
    """A `Robot`. It subscribes when it is made and publishes nothing before `reset()`, `act()` or `hold()`."""

    def __init__(
        self, name: str, params: RuntimeParams, topics: RuntimeTopics, transport: Transport, *, realtime: bool = True
    ):
        """realtime: whether `observe()` keeps the rate; False where whoever drives does"""
        topics.check(params)
        self.name, self.params, self.topics = name, params, topics
        self.sensors = RosSensors(name, params, topics, transport)
        self.cameras = self.sensors.cameras
        self.state_dim = params.proprio_state_dim * params.proprio_history_size
        self.action_dim, self.fps = params.action_dim, params.HZ
        self._transport, self._pace = transport, Pace(params.HZ, realtime=realtime)
        self._low, self._high = params.limits
        self._encode = position_encoder(params.joint_names)
        self._command: FloatArray | None = None

    def reset(self, seed: int | None = None) -> Observation:
        self.sensors.restart()
        self._command = None  # the robot may have been moved since
        if self.params.start_pose is not None:
            self._go_to(np.array(self.params.start_pose, np.float32))
        self.sensors.forget()
        self._pace.restart()
        return self.sensors.look()

    def act(self, action: FloatArray) -> None:
        if np.shape(action) != (self.action_dim,) or not np.isfinite(action).all():
            raise InvalidCommand(f"{self.name} takes {self.action_dim} finite numbers, got {np.asarray(action)}")
        self._send(action if self.params.max_delta_deg is None else self._slowed(action, self.params.max_delta_deg))

    def observe(self) -> Observation:
        self._pace.wait()
        self.sensors.wait()
        return self.sensors.look()

    def privileged(self) -> Mapping[str, AnyArray]:
        return {}

    def hold(self) -> None:
        """Stay where you are: at the joints' last measured positions, or, when these are old, at the last command."""
        here = self.sensors.position()
        if here is not None:
            self._send(here)
        elif self._command is not None:
            self._send(self._command)

    @property
    def command(self) -> FloatArray | None:
        """[A] what was sent last, after clipping; None before anything was."""
        return self._command

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _slowed(self, action: FloatArray, degrees: float) -> AnyArray:
        """Not farther from the last command than that; from where the joints are when there was none."""
        before = self.sensors.position() if self._command is None else self._command
        if before is None:
            raise InvalidCommand(f"{self.name} has not said where its joints are, so it is not moved; reset() first")
        return np.clip(action, before - math.radians(degrees), before + math.radians(degrees))

    def _send(self, position: AnyArray) -> None:
        self._command = np.clip(position, self._low, self._high).astype(np.float32)
        self._transport.publish(self.topics.joint_commands, JOINT_STATE, self._encode(time.time_ns(), self._command))

    def _go_to(self, pose: FloatArray) -> None:
        """In a straight line of the joints, no faster than `start_speed`."""
        here = self.sensors.measured()
        away, tick = np.abs(pose - here), Pace(self.params.HZ)
        ticks = max(1, math.ceil(float(away.max()) / self.params.start_speed * self.params.HZ))
        settled = ticks + math.ceil(SETTLE * self.params.HZ)
        for n in range(1, settled + 1):
            self._send(here + (pose - here) * min(1.0, n / ticks))
            tick.wait()
            away = np.abs(pose - self.sensors.measured())
            if n >= ticks and away.max() <= self.params.start_tolerance:
                return
        worst = int(away.argmax())
        raise RobotError(
            f"{self.name}: joint '{self.params.joint_names[worst]}' is still {away[worst]:.3f} rad off start_pose "
            f"after {settled / self.params.HZ:.1f} s; is something in its way, or is the robot not listening to "
            f"{self.topics.joint_commands}?"
        )
