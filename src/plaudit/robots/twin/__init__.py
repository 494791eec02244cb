"""Twins: processes that behave like a robot on its own topics, so that everything can run without hardware.

    plaudit robot twin igris_b --log sent.jsonl
    plaudit robot check igris_b

    with TwinProcess(config, Path("sent.jsonl")) as twin, config.build() as robot:       # in tests and benchmarks
        robot.reset()
        twin.inject("nan")                     # see plaudit.robots.twin.twin
    entries = twin.log()                       # what it sent, for plaudit.robots.twin.log.compare_episode

A twin moves its joints towards the commands it receives, renders its cameras, and logs every message before sending it.
"""

import math
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from plaudit.errors import RobotError
from plaudit.processes import ChildProcess, exit_with_parent, send
from plaudit.robots.ros import RosRobotConfig
from plaudit.robots.transport.messages import STRING, encode_string
from plaudit.robots.twin.log import last_entry, read_log
from plaudit.robots.twin.twin import FAULT_TOPIC, Fault, Twin

TIMEOUT_S = 60.0


class TwinProcess:
    """A twin that runs from when this is made until `stop()`."""

    def __init__(self, config: RosRobotConfig, log: Path, *, watchdog_ms: float = 500.0):
        self._config, self._log_path, self._watchdog_s = config, log, 1e-3 * watchdog_ms
        self._transport = config.transport.build()
        self.start()

    def start(self) -> None:
        """Start the process, again if it has ended."""
        arguments = (self._config, self._log_path, self._watchdog_s)
        self.process = ChildProcess("twin", "plaudit.robots.twin:run_child", *arguments)
        try:
            self.process.connection.recv()
        except EOFError:
            raise RobotError(self.process.exit_reason()) from None

    def inject(self, fault: str) -> None:
        """Make the twin fail, and return once it does: `late=400`, `size=head`, `none`, ... (see `twin.py`)."""
        kind, deadline = Fault.parse(fault).kind, time.monotonic() + TIMEOUT_S
        while self.process.alive and last_entry(self._log_path).get("fault") != kind:
            self._transport.publish(FAULT_TOPIC, STRING, encode_string(fault))
            time.sleep(0.02)
            if time.monotonic() > deadline:
                raise RobotError(f"the twin did not take the fault '{fault}' within {TIMEOUT_S:.0f} s")

    def log(self) -> list[dict[str, Any]]:
        """Everything that it has sent so far."""
        return read_log(self._log_path)

    def last_entry(self) -> dict[str, Any]:
        """What it sent last."""
        return last_entry(self._log_path)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """End the process."""
        if self.process.alive:
            self.send_signal(signal.SIGCONT)
        self.process.end()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def run_child(connection: Connection, config: RosRobotConfig, log: Path, watchdog_s: float) -> None:
    """The process of a `TwinProcess`."""
    exit_with_parent(connection, 0.0)
    twin = Twin(config, log=log, watchdog=watchdog_s)
    send(connection, "ready")
    twin.run(math.inf)
