"""Ticks at a fixed rate, and the process priority that keeps them punctual.

A tick has an absolute deadline, so that a late tick does not delay the next ones. The rate limiter sleeps until just
before the deadline and polls the clock for the rest: a sleep ends some tens of microseconds late at best, and a
millisecond late on a machine that saves power. A deadline that passed a whole period ago is counted as missed and
skipped: a robot that was kept waiting must not receive the lost commands in a burst.
"""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SPIN_S = 0.0005  # before a deadline, polled instead of slept
PRIORITY = 20  # of 99: above all ordinary work, below the kernel's own threads


class RateLimiter:
    """late, missed = rate_limiter.wait()"""

    def __init__(self, hz: float):
        """hz: ticks per second; the first is now"""
        self.period = 1 / hz
        self._next = time.monotonic()

    def wait(self) -> tuple[float, int]:
        """Wait for the next tick; returns how late it begins, in s, and how many before it were missed."""
        now = time.monotonic()
        missed = max(int((now - self._next) / self.period), 0)
        self._next += missed * self.period
        rest = self._next - now - SPIN_S
        if rest > 0:
            time.sleep(rest)
        while (now := time.monotonic()) < self._next:
            pass
        late = now - self._next
        self._next += self.period
        return late, missed


class NoRateLimiter:
    """Every tick is now: for a simulation that runs as fast as it can."""

    def wait(self) -> tuple[float, int]:
        """Return at once."""
        return 0.0, 0


def set_realtime_priority(cpu: int | None = None) -> str:
    """Ask the kernel to run this process before others; returns what was granted, as text.

    cpu: the core to pin it to
    """
    granted = _raise_priority()
    if cpu is None:
        return granted
    try:
        os.sched_setaffinity(0, {cpu})
        return f"{granted}, on core {cpu}"
    except OSError as error:
        return f"{granted}, not on core {cpu} ({error.strerror})"


def set_high_priority() -> None:
    """Ahead of other programs where that is permitted, behind processes with real-time priority."""
    with suppress(PermissionError):
        os.nice(-10)


def _raise_priority() -> str:
    """Of all threads of this process: one that waits for a camera holds Python's lock briefly when it wakes, and if
    another program gets the processor then, control waits for both."""
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
    """No garbage collection while a robot moves: a full one takes longer than a tick may. Restored afterwards."""
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
