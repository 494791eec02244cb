"""What a call costs: memory of this process and of all that it started, and whether it came back in time."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EVERY = 0.01  # s between two looks


@dataclass
class Peak:
    before: int
    bytes: int


@contextmanager
def peak_of_all() -> Iterator[Peak]:
    """The most memory that this process and its descendants hold together while the block runs."""
    start = _resident_of_all()
    peak, done = Peak(start, start), threading.Event()

    def look() -> None:
        while not done.wait(EVERY):
            peak.bytes = max(peak.bytes, _resident_of_all())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@contextmanager
def watched(seconds: float) -> Iterator[Callable[[], bool]]:
    """Afterwards: whether the block took longer than this."""
    began, took = time.monotonic(), [0.0]
    try:
        yield lambda: took[0] > seconds
    finally:
        took[0] = time.monotonic() - began


@contextmanager
def woken(seconds: float) -> Iterator[None]:
    """A TimeoutError in the block if it takes longer than this, so that what hangs is one try's end."""

    def wake(*_: object) -> None:
        raise TimeoutError(f"nothing came of it for {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _resident_of_all(process: str = "self") -> int:
    try:
        fields = (Path("/proc") / process / "statm").read_text().split()
        tasks = list((Path("/proc") / process / "task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:  # it ended meanwhile
        return 0
    return (int(fields[1]) << 12) + sum(map(_resident_of_all, children))
