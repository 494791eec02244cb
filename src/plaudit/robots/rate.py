"""Keeps a control rate: a robot's `observe()` sleeps here, so that a plain loop around it runs in real time.

Ticks are due at multiples of the period after `reset()`, so sleeping does not accumulate drift, and a loop that keeps
the same rate by itself is never delayed. A late tick is not delayed either; one that is late by more than a period
starts a new schedule, so that a policy that took a second is not followed by a second of rushed ticks.
"""

import time


class Rate:
    """Sleeps until the next tick of a fixed rate, like `rclpy`'s Rate."""

    def __init__(self, hz: float, *, realtime: bool = True):
        """realtime: False for no sleeping at all, where the caller keeps the rate"""
        self._period, self._realtime = 1.0 / hz, realtime
        self.reset()

    def reset(self) -> None:
        """Start a new schedule: the next tick is due in one period."""
        self._due = time.monotonic() + self._period

    def sleep(self) -> None:
        """Sleep until the next tick is due."""
        if not self._realtime:
            return
        late = time.monotonic() - self._due
        if late < 0:
            time.sleep(-late)
        elif late > self._period:
            self._due += late
        self._due += self._period
