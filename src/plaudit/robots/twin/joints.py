"""The joints of a twin, and a monitor of the commands it receives.

Each joint moves towards its command, faster the farther it is, up to a maximum speed. Without a command for a while
they hold (the watchdog). The watchdog counts the twin's own steps, so a suspended machine does not trigger it.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from plaudit.errors import BadMessage
from plaudit.robots.config import SafetyLimits
from plaudit.robots.ros.params import RuntimeParams
from plaudit.robots.ros.streams import joint_state_decoder
from plaudit.types import AnyArray, FloatArray

TOLERANCE = 0.02  # of speed and acceleration
ROUNDING = 1e-5  # rad
WINDOW_S = 2.0  # in which commands are counted, and measured positions are remembered
EARLY = 0.25  # of a tick, by which a command may come early
LOST_S = 0.5  # between two commands, at most, that others may have been lost between
BURST_S = 1.0  # of commands that the network may hold back and deliver at once


class CommandMonitor:
    """Whether commands keep the robot's limits: position, speed, acceleration, and their number.

    Commands are compared one after the other, one step each. Their stamps show whether one was lost in between, which
    is not a jump; the twin's own clock limits how many may arrive. A command to stay is no violation: at a position
    that the twin has sent within the last seconds, or one step of acceleration away. Robots hold and start again this
    way. Called from the thread that receives commands.
    """

    def __init__(
        self, limits: SafetyLimits, names: Sequence[str], hz: float, clock: Callable[[], float] = time.monotonic
    ):
        self._limits, self._names, self._hz, self._clock = limits, names, hz, clock
        self._max_step = (1 + TOLERANCE) * limits.max_velocity / hz + ROUNDING
        self._max_change = (1 + TOLERANCE) * limits.max_acceleration / hz**2 + ROUNDING
        self._measured: deque[FloatArray] = deque(maxlen=int(WINDOW_S * hz))
        self._arrivals: deque[float] = deque()
        self.count = 0  # commands that violated a limit
        self.skipped = 0  # ticks between two commands that had none, by their stamps; not those of a pause
        self._new: deque[str] = deque(maxlen=8)  # messages since the last look
        self.rest()

    def rest(self) -> None:
        """The joints hold by themselves: the next command starts from where they are."""
        self._last: AnyArray | None = None
        self._steps: AnyArray = np.zeros((2, len(self._names)))  # least and greatest that the last may have been
        self._due = 0  # ns of the sender's clock, when the last command was

    def measured(self, position: AnyArray) -> None:
        """The twin has sent these joint positions."""
        self._measured.append(position.astype(np.float32))

    def take(self) -> list[str]:
        """What was wrong since the last call."""
        return [self._new.popleft() for _ in range(len(self._new))]

    def receive(self, command: FloatArray, stamp: int) -> None:
        """Check one command [J]. stamp: ns, of the sender's clock"""
        ticks = self._ticks_until(stamp)
        self.skipped += ticks - 1
        low, high = self._limits.lower, self._limits.upper
        outside = np.flatnonzero((command < low - ROUNDING) | (command > high + ROUNDING)).tolist()
        problems = [
            f"position: {self._names[j]} to {command[j]:.4f}, outside {low[j]:g} to {high[j]:g}" for j in outside
        ]
        problems += self._too_fast(command, ticks)
        now = self._clock()
        self._arrivals.append(now)
        while self._arrivals[0] < now - WINDOW_S:
            self._arrivals.popleft()
        if len(self._arrivals) > int((WINDOW_S + BURST_S) * self._hz) + 5:
            problems.append(f"rate: {len(self._arrivals)} commands in {WINDOW_S:g} s at {self._hz:g} Hz")
        self.count += bool(problems)
        self._new.extend(problems)

    def _ticks_until(self, stamp: int) -> int:
        """Ticks of the sender since the command before. One that is late, but within its tick, leaves none out."""
        late = 1e-9 * (stamp - self._due) * self._hz
        ticks = math.floor(late + EARLY)
        if ticks == 1:
            self._due += int(1e9 / self._hz)
        elif ticks:  # a pause, or ticks that were left out: those that follow may be due at other moments
            self._due = stamp
        return ticks if 1 <= ticks <= LOST_S * self._hz else 1

    def _too_fast(self, command: FloatArray, since: int) -> list[str]:
        """since: ticks that the sender let pass after the command before"""
        moved = np.zeros(len(command))  # at once
        steps: AnyArray = np.zeros_like(self._steps)
        accepted = np.zeros(len(command), bool)
        least, greatest = self._steps
        if self._last is not None:
            moved = command - self._last
            for ticks in {1, since}:  # a tick that the sender missed is no larger step
                step, change = moved / ticks, ticks * self._max_change
                fits = (np.abs(step) <= self._max_step) & (step >= least - change) & (step <= greatest + change)
                steps = np.where(fits & ~accepted, step, steps)
                accepted |= fits
        if not accepted.all() and self._measured:
            away = command - np.array(list(self._measured))
            near = np.abs(away) <= np.minimum(self._max_change, self._max_step)  # which of these it began at is unknown
            began = np.stack([np.where(near, away, np.inf).min(axis=0), np.where(near, away, -np.inf).max(axis=0)])
            stays = near.any(axis=0)
            steps = np.where(stays & ~accepted, began, steps)
            moved = moved if self._last is not None else away[-1]
            accepted |= stays
        self._last = command.astype(np.float64)
        self._steps = np.where(accepted, steps, np.clip(moved, -self._max_step, self._max_step))
        return [
            f"{'speed' if abs(moved[j]) > self._max_step[j] else 'acceleration'}: {self._names[j]} by {moved[j]:.4f} "
            f"after {since} ticks"
            for j in np.flatnonzero(~accepted).tolist()
        ]


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
