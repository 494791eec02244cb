"""Waiting for what other processes do, on machines that may be busy with anything.

A limit is there to end a test that hangs, not to measure: it is counted in seconds of a quiet machine and stretched by
how many processes want each core.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path


def stretch(seconds: float) -> float:
    """Seconds of a quiet machine, as long as they are on this one now."""
    return seconds * max(1.0, _demand() / (os.cpu_count() or 1))


def wait_until(condition: Callable[[], object], seconds: float = 60.0, what: str = "") -> None:
    """Return once the condition holds; fail after so many seconds of a quiet machine."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < stretch(seconds), f"waited {waited:.0f} s in vain {what}"
        time.sleep(0.01)


def _demand() -> float:
    """Processes that want a core: of the last minute, or at this moment if that is more."""
    try:
        minute, _, _, now, *_ = Path("/proc/loadavg").read_text().split()
        return max(float(minute), float(now.split("/")[0]))
    except OSError:  # not Linux
        return os.getloadavg()[0]
