"""The emergency stop: a latch that every process of a run sees at once, and that stays engaged until it is released.

    stop = EmergencyStop()                       # in the process that starts the others; `descriptor` goes to them
    EmergencyStop(stop.descriptor)               # the same latch, there
    stop.engage("operator"); stop.release()      # by a person

While it is engaged no command gets through `plaudit.robots.limiter.CommandLimiter`, whoever made it; the robot holds.
It is one byte for each source in memory that both share, so looking costs nothing and no message can be lost. A
topic takes back only what it engaged itself: a node that sends "false" all the time does not overrule a person. One
more byte counts, so that a stop is also noticed by who looks after it was released.
"""

import mmap
import os
from typing import Literal

from plaudit.errors import RobotError

Source = Literal["operator", "topic", "program"]
SOURCES: tuple[Source, ...] = ("operator", "topic", "program")
SIZE = len(SOURCES) + 1  # bytes: a flag for each source, and the count


class EmergencyStopped(RobotError):
    """The emergency stop is engaged; the robot holds until a person releases it."""


class EmergencyStop:
    """The latch."""

    def __init__(self, descriptor: int | None = None):
        """descriptor: of a latch that exists, which this takes over; None: a new one"""
        self.descriptor = os.memfd_create("emergency_stop", os.MFD_CLOEXEC) if descriptor is None else descriptor
        if descriptor is None:
            os.ftruncate(self.descriptor, SIZE)
        self._flags = mmap.mmap(self.descriptor, SIZE)

    def engage(self, source: Source = "program") -> None:
        """Stop the robot; from any thread or process."""
        if not self._flags[SOURCES.index(source)]:
            self._flags[-1] = (self._flags[-1] + 1) % 256
        self._flags[SOURCES.index(source)] = 1

    def release(self, source: Source | None = None) -> None:
        """Let it be driven again. source: take back only what this one engaged; None: all, by a person"""
        for index in range(len(SOURCES)) if source is None else (SOURCES.index(source),):
            self._flags[index] = 0

    @property
    def engaged(self) -> bool:
        """Whether the robot has to hold."""
        return any(self._flags[: len(SOURCES)])

    @property
    def count(self) -> int:
        """Another number than before where it was engaged meanwhile."""
        return self._flags[-1]

    @property
    def sources(self) -> tuple[Source, ...]:
        """What engaged it."""
        return tuple(source for source, flag in zip(SOURCES, self._flags[: len(SOURCES)], strict=True) if flag)

    def check(self) -> None:
        """Raise `EmergencyStopped` if it is engaged."""
        if self.engaged:
            raise EmergencyStopped(f"emergency stop ({', '.join(self.sources)})")

    def __del__(self) -> None:
        os.close(self.descriptor)
