"""Tests in several processes, `pytest --jobs 3`: one imports and collects, and copies of it run them, file by file.

The processes of pytest-xdist import for themselves, each for as long as a fortieth of all tests takes. A copy is made
by a fork, before the first test; whichever has finished a file takes the next from a pipe.
"""

import multiprocessing
import os
import struct
from collections.abc import Iterator
from itertools import groupby
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest

FORK = multiprocessing.get_context("fork")
NUMBER = struct.Struct("<H")  # of a file


def run_tests(session: pytest.Session, jobs: int) -> None:
    """Run what was collected, and report it here. A process that dies fails the tests that it had not run."""
    config: Any = session.config
    config._tmp_path_factory.getbasetemp()  # the folder of all; pytest removes it at the end of this process
    files = [list(items) for _, items in groupby(session.items, lambda item: item.path)]
    numbers, queue = os.pipe()
    os.write(queue, b"".join(map(NUMBER.pack, range(len(files)))))
    os.close(queue)  # whoever has read the last reads the end
    pipes: list[tuple[Any, Any]] = [FORK.Pipe(duplex=False) for _ in range(jobs)]
    processes = [FORK.Process(target=_work, args=(session, files, numbers, sends)) for _, sends in pipes]
    try:
        for process, (_, sends) in zip(processes, pipes, strict=True):
            process.start()
            sends.close()
        missing = dict.fromkeys(session.items)
        by_id = {item.nodeid: item for item in session.items}
        for report in _reports(session, [receives for receives, _ in pipes]):
            config.hook.pytest_runtest_logreport(report=report)
            if report.when == "teardown":
                missing.pop(by_id[report.nodeid], None)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
    finally:
        for process in processes:
            process.kill()  # a test may have changed what SIGTERM does
            process.join()
    for item in missing:
        why = "it was not run to its end: its process died, in this test or in one of the same file before it"
        lost = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
        config.hook.pytest_runtest_logreport(report=lost)


def _reports(session: pytest.Session, pipes: list[Connection]) -> Iterator[pytest.TestReport]:
    while pipes:
        ready: list[Any] = wait(pipes)
        for pipe in ready:
            try:
                data = pipe.recv()
            except EOFError:
                pipes.remove(pipe)
            else:
                yield session.config.hook.pytest_report_from_serializable(config=session.config, data=data)


class _Sender:
    """Reports to the process that collected."""

    def __init__(self, config: pytest.Config, pipe: Connection):
        self._config, self._pipe = config, pipe

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._pipe.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _work(session: pytest.Session, files: list[list[pytest.Item]], numbers: int, pipe: Connection) -> None:
    plugins: Any = session.config.pluginmanager
    plugins.register(_Sender(session.config, pipe))
    capture = plugins.getplugin("capturemanager")  # its files are shared with the other copies, so it gets new ones
    capture.stop_global_capturing()
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what the reporter at the terminal writes here
    capture.start_global_capturing()
    capture.suspend_global_capture(in_=True)
    tests = _taken(files, numbers)
    item = next(tests, None)
    while item is not None:
        after = next(tests, None)  # what it shares with this one is kept
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        item = after


def _taken(files: list[list[pytest.Item]], numbers: int) -> Iterator[pytest.Item]:
    while number := os.read(numbers, NUMBER.size):
        yield from files[NUMBER.unpack(number)[0]]
