"""Whether the commands that a twin receives keep the robot's limits: position, speed, acceleration, and their number.

Commands are compared one after the other, a step each, as the robot's side limits them. Their stamps say whether one
was lost in between, which is no jump; the twin's own clock says how many may arrive, so that nobody is faster by
sending more. What the network does to the moment of arrival is no violation. Neither is a command to stay: at a
position that the twin has sent within the last seconds, or a step of acceleration away: so robots hold and start again.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from plaudit.robots.safety import SafetyLimits
from plaudit.types import AnyArray, FloatArray

TOLERANCE = 0.02  # of speed and acceleration
ROUNDING = 1e-5  # rad
WINDOW_S = 2.0  # in which commands are counted, and measured positions are remembered
EARLY = 0.25  # of a tick, that a command may come before it is due
LOST_S = 0.5  # between two commands, at most, that others may have been lost between
BURST_S = 1.0  # of commands that the network may hold back and deliver at once


class CommandMonitor:
    """Checks one command after the other; from the thread that receives them."""

    def __init__(
        self,
        limits: SafetyLimits,
        names: Sequence[str],
        hz: float,
        clock: Callable[[], float] = time.monotonic,
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
        problems = [*self._outside(command), *self._too_fast(command, ticks), *self._too_many()]
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

    def _outside(self, command: FloatArray) -> list[str]:
        low, high = self._limits.lower, self._limits.upper
        wrong = np.flatnonzero((command < low - ROUNDING) | (command > high + ROUNDING)).tolist()
        return [f"position: {self._names[j]} to {command[j]:.4f}, outside {low[j]:g} to {high[j]:g}" for j in wrong]

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

    def _too_many(self) -> list[str]:
        now = self._clock()
        self._arrivals.append(now)
        while self._arrivals[0] < now - WINDOW_S:
            self._arrivals.popleft()
        most = int((WINDOW_S + BURST_S) * self._hz) + 5
        many = len(self._arrivals)
        return [f"rate: {many} commands in {WINDOW_S:g} s at {self._hz:g} Hz"] if many > most else []
