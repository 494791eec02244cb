"""When a core of this machine was taken away from it: a virtual machine stands still while others use its host.

    with StallWatch() as watch:
        ...
    watch.spans()          # [(begin, end)] in ns of the wall clock, in order

On each core a process of the highest real-time priority sleeps for 5 ms at a time. Where one wakes up more than 30 ms
too late, nothing else could have run on that core either. Needs root.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

SLEEP_S, LATE_S = 0.005, 0.03


class StallWatch:
    """Watches all cores while its block runs."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="stalls-")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for core in sorted(os.sched_getaffinity(0)):
            words = [sys.executable, __file__, str(core), str(self._file(core))]
            self._processes.append(subprocess.Popen(words))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._folder.cleanup()

    def spans(self) -> list[tuple[int, int]]:
        """Those so far."""
        lines = [line for path in Path(self._folder.name).iterdir() for line in path.read_text().splitlines()]
        return sorted((int(begin), int(end)) for begin, end in map(str.split, lines))

    def _file(self, core: int) -> Path:
        return Path(self._folder.name) / str(core)


def watch(core: int, path: Path) -> None:
    """Until it is killed."""
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(os.sched_get_priority_max(os.SCHED_FIFO)))
    with path.open("w", buffering=1) as file:
        before = time.monotonic()
        while True:
            time.sleep(SLEEP_S)
            now = time.monotonic()
            if now - before > SLEEP_S + LATE_S:
                end = time.time_ns()  # as others stamp their messages; that clock may be set meanwhile
                file.write(f"{end - int(1e9 * (now - before))} {end}\n")
            before = now


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]))
