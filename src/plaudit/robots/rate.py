"""Keeping a rate: what a robot's `observe()` waits for, so that a plain loop around it runs in real time.

Ticks are due at multiples of the period after `restart()`, so waiting does not add up to drift; a loop that keeps the
same rate by itself is never held up. Who comes late is let through, and who comes later than a whole period starts a
new row: a policy that thought for a second is not followed by a second of hurry.
"""

import time


class Pace:
    def __init__(self, hz: float, *, realtime: bool = True):
        """realtime: False for no waiting at all, where whoever drives keeps the rate."""
        self._period, self._realtime = 1.0 / hz, realtime
        self.restart()

    def restart(self) -> None:
        """The next tick is due in a period."""
        self._due = time.monotonic() + self._period

    def wait(self) -> None:
        if not self._realtime:
            return
        late = time.monotonic() - self._due
        if late < 0:
            time.sleep(-late)
        elif late > self._period:
            self._due += late
        self._due += self._period
