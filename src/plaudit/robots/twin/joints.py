"""A twin's joints: each goes towards its command, the faster the farther it is, up to a speed.

With no command for a while it stays where it is (the watchdog), as a robot should whose driver has died.
"""

import time

import numpy as np

from plaudit.errors import BadMessage
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.ros.streams import joints_reader
from plaudit.types import AnyArray, FloatArray

GAIN = 12.0  # radians a second, for each radian that is left to go
SPEED = 2.0  # radians a second, at most
AWAY = 0.1  # radians from the start pose, when it wakes up


class Body:
    def __init__(self, params: RuntimeParams, watchdog: float):
        """watchdog: seconds without a command after which it holds"""
        self._low, self._high = params.limits
        self._read = joints_reader(params.joint_names, ("position",))
        middle = (self._low + self._high) / 2
        start = middle if params.start_pose is None else np.array(params.start_pose)
        self.position: AnyArray = np.clip(start + AWAY, self._low, self._high).astype(np.float64)
        self.velocity: AnyArray = np.zeros_like(self.position)
        self.target: AnyArray = self.position.copy()
        self.commands = 0  # heard so far
        self.holding = True  # as of the last step
        self._watchdog, self._heard = watchdog, -np.inf

    def obey(self, data: bytes) -> None:
        """A command as it comes from a topic; what is no command for these joints is not obeyed."""
        try:
            command = self._read(data)
        except BadMessage:
            return
        self.target = np.clip(command.position, self._low, self._high).astype(np.float64)
        self.commands += 1
        self._heard = time.monotonic()

    def step(self, seconds: float) -> None:
        self.holding = time.monotonic() - self._heard > self._watchdog
        if self.holding:
            self.target = self.position.copy()
        towards = (self.target - self.position) * min(GAIN, 1.0 / seconds)
        self.velocity = np.clip(towards, -SPEED, SPEED)
        self.position = self.position + self.velocity * seconds

    @property
    def shares(self) -> FloatArray:
        """[J] where each joint is between its limits, 0 to 1."""
        return ((self.position - self._low) / (self._high - self._low)).astype(np.float32)
