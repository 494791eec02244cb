"""Processes of our own: how they are started, how they end with us, how blocks of memory are handed to them.

A child is a fresh interpreter that runs one function of this package and is spoken to over a socket. (Rejected:
`multiprocessing`, which imports the caller's main script in each child. A script that trains imports torch, and the
process that controls a robot must not. It also leaves a helper process of its own behind us when we are killed.)

When the parent dies, its end of the socket closes, and a thread in the child sees that even while the child computes.
A child never hears Ctrl-C, which is for its parent to handle; it keeps the terminal, which a person may be typing at.
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
from typing import Any

from plaudit.errors import PlauditError, RolloutError

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from plaudit.rollout.processes import child_main; child_main(int(sys.argv[1]))"
)
GRACE = 5.0  # s that a child may take to end in good order


class ParentGone(BaseException):
    """In a child: who started it has ended, or has no more use for it. No error, and nothing that a plugin catches."""


class ChildProcess:
    """A process that runs `target(connection, *arguments)` and whose end we hear of."""

    def __init__(self, name: str, target: str, *arguments: Any, descriptors: tuple[int, ...] = ()):
        """
        target: "module:function"
        descriptors: that it inherits, under the same numbers
        """
        for argument in arguments:
            if type(argument).__module__ == "__main__":
                raise RolloutError(
                    f"{type(argument).__name__} is defined in the script that is running, where no other process "
                    "finds it; put it into a module of its own"
                )
        self.name = name
        ours, theirs = socket.socketpair()
        with theirs, _deaf():
            self._process = subprocess.Popen(
                [sys.executable, "-c", BOOT, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
            )
        self.pid = self._process.pid
        self.connection = Connection(ours.detach())
        self._guard = threading.Lock()
        self.send((target, arguments))

    def send(self, message: Any, block: int | None = None) -> None:
        """Send a message, and a block's descriptor after it; to a child that is gone, nothing."""
        with self._guard, suppress(OSError):
            self.connection.send(message)
            if block is not None:
                send_handle(self.connection, block, self.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def exit_reason(self) -> str:
        """What it died of."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the {self.name} process was killed by {signal.Signals(-code).name}"
        return f"the {self.name} process ended with exit code {code}; see what it printed"

    def end(self, grace: float = GRACE, hang_up: bool = True) -> bool:
        """Wait until it is gone, and see to it that it is; returns whether it went in good order.

        hang_up: tell it to go; else it goes when its work is done
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
    """What a child runs first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    with suppress(ParentGone):
        target, arguments = receive(connection)
        module, _, function = target.partition(":")
        getattr(importlib.import_module(module), function)(connection, *arguments)


def exit_with_parent(connection: Connection, grace: float) -> None:
    """From here on this process ends `grace` seconds after its parent, whatever it is doing."""
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
    """The next message of the parent; `Gone` when there will be none."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        raise ParentGone from None


def receive_block(connection: Connection) -> int:
    """The descriptor that was sent after a message."""
    return recv_handle(connection)


def send(connection: Connection, message: Any) -> None:
    """Whoever is still there."""
    with suppress(OSError):
        connection.send(message)


def print_error(error: BaseException) -> None:
    """Where somebody may see it: the parent gets the sentence only."""
    if not isinstance(error, PlauditError):
        traceback.print_exception(error)


@contextmanager
def _deaf() -> Iterator[None]:
    """A process started in this block never hears Ctrl-C, not even while it imports; here it is heard afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
