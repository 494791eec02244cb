"""Ticks at a fixed rate, and asking the machine for punctuality.

A tick has an absolute deadline, so that one that is late does not make the next ones late. The clock sleeps until just
before it and looks at the time for the rest: a sleep ends some tens of microseconds late at best, and on a machine that
saves power a millisecond. A deadline that passed a whole period ago is counted as missed and left out: a robot that was
kept waiting must not be sent the lost commands in a burst.
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SPIN = 0.0005  # s before a deadline that are not slept
PRIORITY = 20  # of 99: above all ordinary work, below the kernel's own threads


class RateLimiter:
    """late, missed = clock.wait()"""

    def __init__(self, rate: float):
        """rate: ticks a second; the first is now"""
        self.period = 1 / rate
        self._next = time.monotonic()

    def wait(self) -> tuple[float, int]:
        """Until the next tick: how late it begins, s, and how many before it were missed."""
        now = time.monotonic()
        missed = max(int((now - self._next) / self.period), 0)
        self._next += missed * self.period
        rest = self._next - now - SPIN
        if rest > 0:
            time.sleep(rest)
        while (now := time.monotonic()) < self._next:
            pass
        late = now - self._next
        self._next += self.period
        return late, missed


class NoRateLimiter:
    """Every tick is now: for a simulation that nobody watches."""

    def wait(self) -> tuple[float, int]:
        return 0.0, 0


def set_realtime_priority(cpu: int | None = None) -> str:
    """Ask for the processor before others get it; returns what was granted, in words.

    cpu: the core to stay on, and the only one
    """
    granted = _priority()
    if cpu is None:
        return granted
    try:
        os.sched_setaffinity(0, {cpu})
        return f"{granted}, on core {cpu}"
    except OSError as error:
        return f"{granted}, not on core {cpu} ({error.strerror})"


def set_high_priority() -> None:
    """Ahead of other programs where that is permitted, and behind whoever is punctual."""
    with suppress(PermissionError):
        os.nice(-10)


def _priority() -> str:
    """Of all threads of this process: one that waits for a camera holds Python's lock for a moment when it wakes, and
    when another program gets the processor in that moment, control waits for both."""
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
        return "real-time priority"
    except PermissionError:
        pass
    try:
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, -15)
        return "high priority"
    except PermissionError:
        return "ordinary priority (a real-time one was not permitted: ticks may be late on a busy machine)"


@contextmanager
def gc_disabled() -> Iterator[None]:
    """For as long as a robot moves: a full collection takes longer than a tick may. Then as the process had it."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        if not frozen:
            gc.unfreeze()
