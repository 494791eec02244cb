"""Waiting for other processes, on machines that may be busy.

A limit only ends a test that hangs: it is given in seconds of a quiet machine and multiplied by the number of processes
per core.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path


def stretch(seconds: float) -> float:
    """The limit for this machine now, for a limit on a quiet machine."""
    return seconds * max(1.0, _demand() / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Return once the condition holds; fail after that many seconds of a quiet machine."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < stretch(seconds), f"waited {waited:.0f} s in vain {what}"
        time.sleep(0.01)


def _demand() -> float:
    """Runnable processes: the average of the last minute, or those at this moment if they are more."""
    try:
        minute, _, _, now, *_ = Path("/proc/loadavg").read_text().split()
        return max(float(minute), float(now.split("/")[0]))
    except OSError:  # not Linux
        return os.getloadavg()[0]
