"""Child processes: how they are started, how they end with their parent, how blocks of memory are sent to them.

A child is a fresh interpreter that runs one function of this package and receives messages over a socket. (Rejected:
`multiprocessing`, which imports the caller's main script in each child. A script that trains imports torch, and the
process that controls a robot must not. It also leaves a process of its own behind when the parent is killed.)

When the parent dies, its end of the socket closes, and a thread in the child sees that even while the child computes.
A child ignores Ctrl-C, which its parent handles; it keeps the terminal, at which a human may be typing.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any

from plaudit.errors import PlauditError, RolloutError
from plaudit.plain import print_plain

PRIORITY = 20  # of 99: above all ordinary work, below the kernel's own threads

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from plaudit.rollout.processes import child_main; child_main(int(sys.argv[1]))"
)
GRACE_S = 5.0  # that a child may take to end in good order


class ParentGone(BaseException):
    """In a child: its parent has ended, or closed the socket. Not an error, and nothing that a plugin catches."""


class ChildProcess:
    """A process that runs `target(connection, *arguments)`."""

    def __init__(self, name: str, target: str, *arguments: Any, descriptors: tuple[int, ...] = ()):
        """
        target: "module:function"
        descriptors: files that it inherits, under the same numbers
        """
        for argument in arguments:
            if type(argument).__module__ == "__main__":
                raise RolloutError(
                    f"{type(argument).__name__} is defined in the script that is running, where no other process "
                    "finds it; put it into a module of its own"
                )
        self.name = name
        ours, theirs = socket.socketpair()
        with theirs, _ignore_interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._process.pid
        self.connection = Connection(ours.detach())
        self._lock = threading.Lock()
        self.send((target, arguments))

    def send(self, message: Any, block: int | None = None) -> None:
        """Send a message, followed by a block's descriptor; does nothing when the child is gone."""
        with self._lock, suppress(OSError):
            self.connection.send(message)
            if block is not None:
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


@contextmanager
def _ignore_interrupts() -> Iterator[None]:
    """A process started in this block ignores Ctrl-C, even while it imports; this one receives it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_realtime_priority(cpu: int | None = None) -> str:
    """Ask the kernel to run this process before others; returns what was granted, as text.

    cpu: the core to pin it to
    """
    granted = _raise_priority()
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


def _raise_priority() -> str:
    """Of all threads of this process: one that waits for a camera holds Python's lock briefly when it wakes, and if
    another program gets the processor then, control waits for both."""
    threads = [int(thread.name) for thread in Path("/proc/self/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(PRIORITY))
        return "real-time priority"
    except PermissionError:
        pass
    try:
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, -15)
        return "high priority"
    except PermissionError:
        return "ordinary priority (a real-time one was not permitted: ticks may be late on a busy machine)"
