"""Child processes: how they are started, how they end with their parent, how blocks of memory are sent to them.

A child is a fresh interpreter that runs one function of this package and receives messages over a socket. (Rejected:
`multiprocessing`, which imports the caller's main script, perhaps torch, in each child.) `ForkServer` is for children
that must start quickly. When the parent dies, its end of the socket closes, and a thread in the child sees that even
while the child computes. A child ignores Ctrl-C, which its parent handles.
"""

import atexit
import ctypes
import importlib
import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from plaudit.errors import PlauditError, RolloutError
from plaudit.trust import print_plain

PRIORITY = 20  # of 99: above all ordinary work, below the kernel's own threads

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from plaudit.processes import child_main; child_main(int(sys.argv[1]))"
)
GRACE_S = 5.0  # that a child may take to end in good order
# A thread's stack is as large as the limit on stacks was when its process started, and RLIMIT_DATA counts it.
_SMALL_STACKS = ("/bin/sh", "-c", 'ulimit -S -s 8192; exec "$0" "$@"')


class ParentGone(BaseException):
    """In a child: its parent has ended, or closed the socket. Not an error, and nothing that a plugin catches."""


class ChildProcess:
    """A process that runs `target(connection, *arguments)`."""

    def __init__(
        self,
        name: str,
        target: str,
        *arguments: Any,
        descriptors: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
        small_stacks: bool = False,
    ):
        """
        target: "module:function"
        descriptors: files that it inherits, under the same numbers
        environment: variables that are added to those of this process
        """
        for argument in arguments:
            if type(argument).__module__ == "__main__":
                raise RolloutError(
                    f"{type(argument).__name__} is defined in the script that is running, where no other process "
                    "finds it; put it into a module of its own"
                )
        self.name = name
        ours, theirs = socket.socketpair()
        paths = json.dumps([path or str(Path.cwd()) for path in sys.path])
        python = [*(_SMALL_STACKS if small_stacks else ()), sys.executable, "-P"]  # -P: import nothing from the cwd
        # A child ignores Ctrl-C, even while it imports; this process receives it afterwards.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [*python, "-c", BOOT, str(theirs.fileno()), paths],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self._process.pid
        self.connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self.send((target, arguments))

    def send(self, message: Any, *blocks: int) -> None:
        """Send a message, followed by the descriptors of blocks; does nothing when the child is gone."""
        with self._lock, suppress(OSError):
            self.connection.send(message)
            for block in blocks:
                send_handle(self.connection, block, self.pid)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def exit_reason(self) -> str:
        """Why it ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the {self.name} process was killed by {signal.Signals(-code).name}"
        return f"the {self.name} process ended with exit code {code}; see what it printed"

    def hang_up(self) -> None:
        """Close the socket, which ends the child as soon as it notices; does not wait."""
        self.connection.close()

    def end(self, grace: float = GRACE_S, hang_up: bool = True) -> bool:
        """Wait until it has ended, and kill it after `grace` seconds; returns whether it ended in good order.

        hang_up: close the socket, which ends it; else it ends when its work is done
        """
        if hang_up:
            self.connection.close()
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.connection.close()
        return self._process.returncode == 0


class ForkServer:
    """A child that imports a module once and forks a process for each request, which takes milliseconds."""

    def __init__(self, name: str, target: str, environment: Mapping[str, str]):
        """target: "module:function" that a fork runs with its descriptor as argument"""
        self._name, self._target, self._environment = name, target, environment
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._owner = 0

    def fork(self, descriptor: int, imports: str = "") -> int:
        """Fork a process that runs the target; returns its pid. EOFError or OSError if that is not possible.

        imports: modules to import first, separated by spaces, which later forks have too
        """
        return self._ask(("fork", imports), descriptor)

    def wait(self, pid: int, kill: bool = False) -> int:
        """Wait until a forked process has ended; returns its exit code."""
        return self._ask(("wait", pid, kill))

    def _ask(self, request: tuple[Any, ...], *descriptors: int) -> int:
        with self._lock:
            if self._child is None or self._owner != os.getpid() or not self._child.alive:
                arguments = (self._name, "plaudit.processes:serve_forks", self._target)
                self._child = ChildProcess(*arguments, environment=self._environment, small_stacks=True)
                self._owner = os.getpid()
                atexit.register(self._close)
            self._child.send(request, *descriptors)
            return self._child.connection.recv()  # the server reads no file, so its messages are trusted

    def _close(self) -> None:
        if self._child is not None and self._owner == os.getpid():
            self._child.end()


def serve_forks(connection: Connection, target: str) -> None:
    """The loop of a `ForkServer`'s process."""
    os.chdir("/")  # the folder in which it was started may be removed, and then imports fail
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    while True:
        match receive(connection):
            case ("fork", imports):
                for name in imports.split():
                    importlib.import_module(name)
                descriptor = recv_handle(connection)
                pid = os.fork()
                if pid == 0:
                    try:
                        connection.close()
                        function(descriptor)
                    finally:
                        os._exit(1)
                os.close(descriptor)
                connection.send(pid)
            case ("wait", pid, kill):
                if kill:
                    os.kill(pid, signal.SIGKILL)  # no other process waits for it, so the pid is still its own
                connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def child_main(descriptor: int) -> None:
    """The first function that a child runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    with suppress(ParentGone):
        target, arguments = receive(connection)
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(connection, *arguments)


def exit_with_parent(connection: Connection, grace: float) -> None:
    """Make this process end `grace` seconds after its parent, whatever it is doing."""
    parent = os.getppid()

    def watch() -> None:
        hangup = select.poll()
        hangup.register(connection.fileno(), 0)
        while not hangup.poll(1000) and os.getppid() == parent:
            pass
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def receive(connection: Connection) -> Any:
    """The parent's next message; raises `ParentGone` when there will be none."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        raise ParentGone from None


def receive_block(connection: Connection) -> int:
    """The descriptor of a block, which was sent after a message."""
    return recv_handle(connection)


def send(connection: Connection, message: Any) -> None:
    """Send a message; does nothing when the other end is gone."""
    with suppress(OSError):
        connection.send(message)


def print_error(error: BaseException) -> None:
    """Print the traceback of an unexpected error: the parent only gets a message."""
    if not isinstance(error, PlauditError):
        print_plain("".join(traceback.format_exception(error)).rstrip())


def set_realtime_priority(cpu: int | None = None) -> str:
    """Ask the kernel to run this process before others; returns what was granted, as text.

    All its threads get the priority: one that waits for a camera holds Python's lock briefly when it wakes, and if
    another program gets the CPU then, control waits for both.

    cpu: the core to pin it to
    """
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    granted = "ordinary priority (a real-time one was not permitted: ticks may be late on a busy machine)"
    for name, raise_priority in (
        ("real-time", lambda thread: os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))),
        ("high", lambda thread: os.setpriority(os.PRIO_PROCESS, thread, -15)),
    ):
        with suppress(PermissionError):
            for thread in threads:
                raise_priority(thread)
            granted = f"{name} priority"
            break
    if cpu is None:
        return granted
    try:
        os.sched_setaffinity(0, {cpu})
        return f"{granted}, on core {cpu}"
    except OSError as error:
        return f"{granted}, not on core {cpu} ({error.strerror})"


def set_high_priority() -> None:
    """Ahead of other programs where that is permitted, behind processes with real-time priority."""
    with suppress(PermissionError):
        os.nice(-10)


def keep_freed_memory() -> None:
    """Make malloc reuse large blocks, in this process and its children: torch on a CPU takes up to half the time.

    By default glibc maps a block of more than 32 MB anew each time and unmaps it when it is freed, so every activation
    of a network costs page faults. Does nothing without glibc, or if the user has set the thresholds.
    """
    variables = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    set_by_user = any(name in os.environ for name in variables) or "glibc.malloc." in tunables
    if platform.libc_ver()[0] != "glibc" or set_by_user:
        return
    threshold, old_glibc_max = 1 << 30, 32 << 20  # bytes; older versions of glibc refuse more than the second
    trim_threshold, mmap_threshold = -1, -3  # of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    if not mallopt(mmap_threshold, threshold):
        mallopt(mmap_threshold, old_glibc_max)
    mallopt(trim_threshold, threshold)
    for name in variables:
        os.environ[name] = str(threshold)


@contextmanager
def run_thread(name: str, target: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run a function in a thread during this block. Its event is set at the end of the block, and it has to return."""
    done = threading.Event()
    thread = threading.Thread(target=target, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
