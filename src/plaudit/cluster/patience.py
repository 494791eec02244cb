"""Ray's patience with its own processes while a node starts.

Ray gives them 30 s to register, a constant that no setting reaches; beside other work on two cores that is too short.
So the clock by which `ray._private.node` counts is slowed while a node starts: by `patient` around `ray.init`, and by
`on_start` (loopback.py) in `ray start`, which `plaudit cluster start` ends when it has waited long enough. Without it
nothing breaks, a start on a busy machine only fails sooner.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

SLOWER = 10  # times: 30 s are five minutes


class SlowClock:
    """The module `time`, whose monotonic clock goes slowly."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / SLOWER


def be_patient() -> None:
    """From now on in this process."""
    ray_node().time = SlowClock()


@contextmanager
def patient() -> Iterator[None]:
    """While a node starts in this process."""
    be_patient()
    try:
        yield
    finally:
        ray_node().time = time


def ray_node() -> Any:
    """The module that waits; untyped, because what is changed in it is nobody's interface."""
    return import_module("ray._private.node")
