"""Processes that begin at once: forked from a copy of this process in which all is imported and no test has run.

A command that begins with nothing imported, as a user's does, needs seconds of processor time before it does anything.
Tests of what is imported start one with `subprocess`; all others take these. The copy has no threads, no locks and no
settings of earlier tests, which a fork of the process that runs the tests would have.
"""

import fcntl
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import termios
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from waiting import stretch

TESTS = Path(__file__).parent
PATHS = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])  # for the processes that it starts
FORK = multiprocessing.get_context("fork")
MESSAGE = 1 << 17  # bytes
STARTED = 8  # bytes of a number: the process that was started, and how it ended

copy: socket.socket | None = None


def keep_copy() -> None:
    """Fork the copy; it ends with this process."""
    global copy
    copy, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with warnings.catch_warnings(action="ignore"):  # Python 3.12 warns where there are threads
        if os.fork() == 0:
            _serve(its_end.detach())
    its_end.close()


class Forked:
    """A function in a process of its own. What it writes is read from here, or from the terminal that it is given.

    cwd, env: of the process, by default those of this one
    terminal: a descriptor of a terminal, which becomes its input and output and the one that controls it
    """

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: object,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        terminal: int | None = None,
    ):
        if copy is None:  # outside of tests
            keep_copy()
        assert copy is not None
        reading, writing = os.pipe()
        self._output = os.fdopen(reading, errors="replace")
        self._ended, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        variables = {**(os.environ if env is None else env), "PYTHONPATH": PATHS}
        job = (function, arguments, str(cwd or Path.cwd()), variables, terminal is not None)
        given = [writing if terminal is None else terminal, its_end.fileno()]
        socket.send_fds(copy, [pickle.dumps(job)], given)
        os.close(writing)
        its_end.close()
        self.pid = int.from_bytes(self._ended.recv(STARTED), signed=True)
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()
        self._output.close()
        self._ended.close()

    def poll(self) -> int | None:
        """How it ended: its exit code, or the negative number of a signal; None while it runs."""
        return self.returncode if self.returncode is not None else self._ending(0)

    def wait(self) -> int:
        """Until it has ended; returns how."""
        code = self.returncode if self.returncode is not None else self._ending(stretch(120))
        assert code is not None, f"it runs on: {self}"
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def readline(self) -> str:
        return self._output.readline()

    def read(self) -> str:
        """The rest of what it writes, once it has ended."""
        said = self._output.read()
        self.wait()
        return said

    def _ending(self, seconds: float) -> int | None:
        ready = select.poll()  # `select.select` takes descriptors up to 1023 only
        ready.register(self._ended, select.POLLIN)
        if ready.poll(1000 * seconds):
            self.returncode = int.from_bytes(self._ended.recv(STARTED), signed=True)
        return self.returncode


def start_plaudit(*words: object, **settings: Any) -> Forked:
    """A command as a user types it. settings: of `Forked`"""
    return Forked(_plaudit, *map(str, words), **settings)


def run_plaudit(folder: Path, *words: str) -> None:
    """A command in a folder whose modules it finds, as a user has it who writes a plugin there."""
    _output(start_plaudit(*words, cwd=folder))


def run_pytest(folder: Path, *, ok: bool = True) -> str:
    """The tests in another folder; returns what was printed."""
    return _output(Forked(_pytest, "-q", "-p", "no:cacheprovider", ".", cwd=folder), ok=ok)


def _output(process: Forked, *, ok: bool = True) -> str:
    with process:
        said = process.read()
    assert (process.returncode == 0) == ok, f"it ended with {process.returncode}: {said}"
    return said


def _plaudit(*words: str) -> None:
    from plaudit.cli import common, main

    for console in (common.out, common.err):
        console.__init__(stderr=console.stderr)  # it looks for a terminal only when it is made
    sys.argv = ["plaudit", *words]
    main()


def _pytest(*words: str) -> None:
    for name in [name for name in sys.modules if name == "conftest" or name.startswith("test_")]:
        del sys.modules[name]  # those of this project
    sys.exit(pytest.main([*words]))


def _serve(requests: int) -> None:
    """Fork a keeper for each function that is asked for, until nobody can ask any more."""
    os.closerange(3, requests)
    os.closerange(requests + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a keeper that ended is not waited for
    asked = socket.socket(fileno=requests)
    while True:
        message, given, _, _ = socket.recv_fds(asked, MESSAGE, 2)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            asked.close()
            _keep(pickle.loads(message), *given)
        for descriptor in given:
            os.close(descriptor)


def _keep(job: tuple[Any, ...], output: int, ending: int) -> None:
    """Run it in a child, and tell which process that is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(ending, False)
    process = FORK.Process(target=_enter, args=(*job, output))
    process.start()
    os.close(output)
    tell = lambda number: os.write(ending, number.to_bytes(STARTED, signed=True))  # noqa: E731
    tell(process.pid)
    process.join()
    tell(process.exitcode)
    os._exit(0)


def _enter(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    cwd: str,
    env: Mapping[str, str],
    at_terminal: bool,
    output: int,
) -> None:
    """As a process that was started in this folder, with these variables and this output."""
    if at_terminal:
        os.setsid()
        fcntl.ioctl(output, termios.TIOCSCTTY, 0)
        os.dup2(output, 0)
        sys.stdin = os.fdopen(0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, errors="backslashreplace") for n in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    function(*arguments)
