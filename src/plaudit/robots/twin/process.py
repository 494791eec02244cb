"""A twin in a process of its own, as a context: for tests of a robot and for benchmarks.

with TwinProcess(config, Path("said.jsonl")) as twin, config.build() as robot:
    episode = run_episode(robot, policy, normalizer, steps=1000, task="wave")
    twin.fail("nan")
assert not compare(episode, twin.said(), config.params().proprio_fields).wrong
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from plaudit.errors import RobotError
from plaudit.robots.ros.config import RosRobotConfig
from plaudit.robots.transport.messages import STRING, encode_text
from plaudit.robots.twin.faults import CONTROL, Fault
from plaudit.robots.twin.log import last_line, read_log

PATIENCE = 20.0  # seconds


class TwinProcess:
    """It runs when this is made."""

    def __init__(self, config: RosRobotConfig, log: Path, *, watchdog_ms: float = 500.0):
        self._log = log
        written = log.with_suffix(".config.json")
        written.write_text(config.model_dump_json())
        cls = type(config)
        words = ["--robot", f"{cls.__module__}:{cls.__qualname__}", "--config", str(written)]
        words += ["--log", str(log), "--watchdog_ms", str(watchdog_ms)]
        self._command = [sys.executable, "-m", "plaudit.robots.twin", *words]
        self._transport = config.transport.build()
        self.start()

    def start(self) -> None:
        """Again, after it has ended."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith("the twin of"):
            raise RobotError(f"the twin did not start; it ended with {self.process.wait()}")

    def fail(self, fault: str) -> None:
        """Returns when it does: `late=400`, `size=head`, `none`, ... as `faults.py` has them."""
        kind, deadline = Fault.parse(fault).kind, time.monotonic() + PATIENCE
        while self.process.poll() is None and last_line(self._log).get("fault") != kind:
            self._transport.publish(CONTROL, STRING, encode_text(fault))
            time.sleep(0.02)
            if time.monotonic() > deadline:
                raise RobotError(f"the twin does not hear that it is to fail with '{fault}'")

    def said(self) -> list[dict[str, Any]]:
        """What it says it sent, so far."""
        return read_log(self._log)

    def last(self) -> dict[str, Any]:
        """What it said last."""
        return last_line(self._log)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.terminate()
        self.process.wait(timeout=PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
