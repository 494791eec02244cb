"""A twin's joints: each moves towards its command, faster the farther it is, up to a maximum speed.

Without a command for a while they hold (the watchdog), as a robot should whose driver has died. That while is counted
in the twin's own steps: a machine that stood still, and the twin with it, is no driver that died.
"""

import threading

import numpy as np

from plaudit.errors import BadMessage
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.ros.streams import joint_state_decoder
from plaudit.robots.safety import SafetyLimits
from plaudit.robots.twin.limits import CommandMonitor
from plaudit.types import AnyArray, FloatArray

GAIN = 12.0  # rad/s per radian of distance
MAX_SPEED = 2.0  # rad/s
START_OFFSET = 0.1  # rad from the start pose, when the twin starts


class TwinJoints:
    """Simulated joints with position control and a watchdog."""

    def __init__(self, params: RuntimeParams, watchdog: float, limits: SafetyLimits):
        """
        watchdog: seconds without a command after which the joints hold
        limits: that commands have to keep; one that does not is followed all the same, and counted
        """
        self.monitor = CommandMonitor(limits, params.joint_names, params.HZ)
        self._low, self._high = params.limits
        self._decode = joint_state_decoder(params.joint_names, ("position",))
        middle = (self._low + self._high) / 2
        start = middle if params.start_pose is None else np.array(params.start_pose)
        self.position: AnyArray = np.clip(start + START_OFFSET, self._low, self._high).astype(np.float64)
        self.velocity: AnyArray = np.zeros_like(self.position)
        self.target: AnyArray = self.position.copy()
        self.num_commands = 0  # received so far
        self.holding = True  # as of the last step
        self._lock = threading.Lock()  # commands arrive in the transport's thread
        self._watchdog, self._silent = watchdog, np.inf  # s

    def command(self, data: bytes) -> None:
        """Take a command from the topic; one that is not for these joints is ignored."""
        try:
            command = self._decode(data)
        except BadMessage:
            return
        with self._lock:
            self.monitor.receive(command.position, command.stamp)
            self.target = np.clip(command.position, self._low, self._high).astype(np.float64)
            self.num_commands += 1
            self._silent = 0.0

    def step(self, seconds: float) -> None:
        """Move for this long."""
        with self._lock:
            self._step(seconds)

    def _step(self, seconds: float) -> None:
        self._silent += seconds
        self.holding = self._silent > self._watchdog
        if self.holding:
            self.target = self.position.copy()
            self.monitor.rest()
        velocity = (self.target - self.position) * min(GAIN, 1.0 / seconds)
        self.velocity = np.clip(velocity, -MAX_SPEED, MAX_SPEED)
        self.position = self.position + self.velocity * seconds
        self.monitor.measured(self.position)

    @property
    def fractions(self) -> FloatArray:
        """[J] where each joint is between its limits, 0 to 1."""
        return ((self.position - self._low) / (self._high - self._low)).astype(np.float32)
