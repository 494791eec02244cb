"""Processes that begin at once: forked from a copy of this process in which all is imported and no test has run.

A command that begins with nothing imported, as a user's does, needs seconds of processor time before it does anything.
Tests of what is imported start one with `subprocess`; all others take these. The copy has no threads, no locks and no
settings of earlier tests, which a fork of the process that runs the tests would have. The child processes of plaudit
itself (`plaudit.processes.ChildProcess`) are forked from it too, except in tests with the fixture `fresh_interpreters`.
"""

import fcntl
import json
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import termios
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

import plaudit.processes
from waiting import stretch

TESTS = Path(__file__).parent
PATHS = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])  # for the processes that it starts
FORK = multiprocessing.get_context("fork")
MESSAGE = 1 << 17  # bytes
MOST = 32  # descriptors that a process is given
FILM_SIZES = (  # pixels
    ("plaudit.training.evaluation", "VIDEO_SIZE", (64, 64)),
    ("plaudit.report.video", "_GRID_HEIGHT", 64),
)
STARTED = 8  # bytes of a number: the process that was started, and how it ended

copy: socket.socket | None = None  # forks that the copy has made ask it too


def keep_copy() -> None:
    """Fork the copy; it ends with this process."""
    global copy
    copy, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    with warnings.catch_warnings(action="ignore"):  # Python 3.12 warns where there are threads
        if os.fork() == 0:
            _serve(its_end.detach(), parent)
    its_end.close()


def make_films_small(set_to: Callable[[Any, str, object], None]) -> None:
    """Of the modules that are imported. set_to: as `setattr`"""
    for module, name, size in FILM_SIZES:
        if module in sys.modules:
            set_to(sys.modules[module], name, size)


class _Process:
    """A process that the copy has forked, and how it ends."""

    returncode: int | None = None

    def __init__(
        self,
        function: Callable[..., object],
        arguments: tuple[object, ...],
        descriptors: Mapping[int, int],
        cwd: Path,
        env: Mapping[str, str],
        terminal: int | None = None,
    ):
        """descriptors: of this process, by the numbers that they have in the other"""
        if copy is None:  # outside of tests
            keep_copy()
        assert copy is not None
        self._ended, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        job = (function, arguments, str(cwd), dict(env), terminal is not None, list(descriptors))
        with its_end:
            socket.send_fds(copy, [pickle.dumps(job)], [its_end.fileno(), *descriptors.values()])
        self.pid = int.from_bytes(self._ended.recv(STARTED), signed=True)

    def poll(self) -> int | None:
        """How it ended: its exit code, or the negative number of a signal; None while it runs."""
        return self.returncode if self.returncode is not None else self._ending(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _ending(self, seconds: float | None) -> int | None:
        ready = select.poll()  # `select.select` takes descriptors up to 1023 only
        ready.register(self._ended, select.POLLIN)
        if ready.poll(None if seconds is None else 1000 * seconds):
            self.returncode = int.from_bytes(self._ended.recv(STARTED), signed=True)
            self._ended.close()
        return self.returncode


class Forked(_Process):
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
        reading, writing = os.pipe()
        self._output = os.fdopen(reading, errors="replace")
        descriptors = {1: writing, 2: writing} if terminal is None else dict.fromkeys(range(3), terminal)
        variables = {**(os.environ if env is None else env), "PYTHONPATH": PATHS}
        super().__init__(function, arguments, descriptors, cwd or Path.cwd(), variables, terminal)
        os.close(writing)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()
        self._output.close()
        self._ended.close()

    def wait(self) -> int:
        """Until it has ended; returns how."""
        code = self.returncode if self.returncode is not None else self._ending(stretch(120))
        assert code is not None, f"it runs on: {self}"
        return code

    def readline(self) -> str:
        return self._output.readline()

    def read(self) -> str:
        """The rest of what it writes, once it has ended."""
        said = self._output.read()
        self.wait()
        return said


class _Child(_Process):
    """A child process of plaudit, in place of the `subprocess.Popen` that starts it."""

    def __init__(self, command: list[str], *, pass_fds: tuple[int, ...], env: Mapping[str, str], stdin: int):
        *_, boot, descriptor, paths = command
        assert boot == plaudit.processes.BOOT and stdin == subprocess.DEVNULL
        with Path(os.devnull).open() as nothing:
            descriptors = {0: nothing.fileno(), 1: 1, 2: 2, **{number: number for number in pass_fds}}
            super().__init__(_child, (int(descriptor), paths), descriptors, Path.cwd(), env)

    def wait(self, timeout: float | None = None) -> int:
        code = self.returncode if self.returncode is not None else self._ending(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a child process", timeout or 0.0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _start_child(command: list[str], **settings: Any) -> Any:
    """Those with limits of their own, which a shell sets first, begin as they do for a user."""
    fork = command[0] == sys.executable
    return _Child(command, **settings) if fork else subprocess.Popen(command, **settings)


# What `plaudit.processes` takes of the module `subprocess`, for children that are forked.
FORKED_CHILDREN = SimpleNamespace(
    Popen=_start_child, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
)


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


def _child(descriptor: int, paths: str) -> None:
    """What `BOOT` does."""
    sys.argv = ["-c", str(descriptor), paths]
    sys.path[:] = json.loads(paths)
    plaudit.processes.child_main(descriptor)


def _serve(requests: int, parent: int) -> None:
    """Fork a keeper for each function that is asked for, until the parent has ended."""
    assert copy is not None
    kept = sorted((0, 1, 2, requests, copy.fileno()))
    for one, next_one in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")]):
        os.closerange(one + 1, next_one)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a keeper that ended is not waited for
    asked, ready = socket.socket(fileno=requests), select.poll()
    ready.register(asked, select.POLLIN)
    while True:
        while not ready.poll(1000):  # its forks can still ask, so the socket does not say that the parent has ended
            if os.getppid() != parent:
                os._exit(0)
        message, given, _, _ = socket.recv_fds(asked, MESSAGE, MOST)
        if os.fork() == 0:
            asked.close()
            try:
                _keep(pickle.loads(message), *given)
            finally:
                os._exit(1)
        for descriptor in given:
            os.close(descriptor)


def _keep(job: tuple[Any, ...], ending: int, *given: int) -> None:
    """Run it in a child, and tell which process that is and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.set_inheritable(ending, False)
    process = FORK.Process(target=_enter, args=(*job, given))
    process.start()
    for descriptor in given:
        os.close(descriptor)
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
    numbers: list[int],
    given: tuple[int, ...],
) -> None:
    """As a process that was started in this folder, with these variables and these descriptors."""
    global copy
    assert copy is not None
    high = os.sysconf("SC_OPEN_MAX") // 2  # what is here now may have a number that is asked for
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, high) for descriptor in (*given, copy.detach())]
    for descriptor in given:
        os.close(descriptor)
    copy = socket.socket(fileno=moved.pop())
    copy.set_inheritable(False)
    for number, descriptor in zip(numbers, moved):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if at_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdin = os.fdopen(0)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, errors="backslashreplace") for n in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.path.insert(0, cwd)
    # Also those with limits of their own, which a shell would set: a process that decodes one file would import first.
    plaudit.processes.subprocess = SimpleNamespace(**{**vars(FORKED_CHILDREN), "Popen": _Child})  # type: ignore[assignment]
    make_films_small(setattr)
    function(*arguments)
