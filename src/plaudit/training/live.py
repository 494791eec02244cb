"""The state of a running loop, for other processes of this machine: a socket in the run's folder.

    with LiveSocket(folder, operate) as live:      # in the loop
        live.publish({"rows": ...})
    ask(folder)                                    # elsewhere: the newest state; None if no loop is running
    ask(folder, "start")                           # the same, after sending a command of the operator

A socket disappears with its process, so a state is never stale and a command never waits for a later run. (Rejected: a
file of commands, which the next run would find; a port, which other machines and other users can reach.)
"""

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from plaudit.errors import BadFile
from plaudit.files import parse_json
from plaudit.rollout.operator import OperatorCommand

SOCKET = "live.sock"
TIMEOUT_S = 2.0  # of a question
MAX_BYTES = 1 << 20  # of a state
# What may be sent over a network. An emergency stop must not depend on one, and its release needs a person who sees the
# robot.
REMOTE = (
    *(OperatorCommand.START, OperatorCommand.SUCCESS, OperatorCommand.FAILURE),
    *(OperatorCommand.DISCARD, OperatorCommand.PAUSE),
)


class LiveSocket:
    """Answers questions about a loop in a thread. Without room for the socket the loop runs without it."""

    def __init__(self, folder: Path, operate: Callable[[OperatorCommand], object] | None = None):
        """operate: sends a command to the operator; None: commands are ignored"""
        self._folder, self._operate, self._state = folder, operate, b"{}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve, name="live", daemon=True)

    def __enter__(self) -> Self:
        with suppress(OSError), _short_path(self._folder) as path:
            Path(path).unlink(missing_ok=True)  # of a process that was killed
            before = os.umask(0o177)  # no other user may send commands
            try:
                self._listening.bind(path)
            finally:
                os.umask(before)
            self._listening.listen(8)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            self._thread.join()
            (self._folder / SOCKET).unlink(missing_ok=True)
        self._listening.close()

    def publish(self, state: Mapping[str, Any]) -> None:
        """Replace the state that is reported."""
        self._state = json.dumps(state).encode()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, suppress(OSError, ValueError):
                client.settimeout(TIMEOUT_S)
                command = client.recv(64).decode().strip()
                if command in REMOTE and self._operate is not None:
                    self._operate(OperatorCommand(command))
                client.sendall(self._state)


def ask(folder: Path, command: str = "") -> dict[str, Any] | None:
    """The newest state of the loop that writes to a folder; None if none is running here."""
    if command and command not in REMOTE:
        raise ValueError(f"'{command}' cannot be sent to a robot from a page; use the operator's keys at the robot")
    data = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_S)
        try:
            with _short_path(folder) as path:
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    return None
                client.connect(path)
            client.sendall(f"{command}\n".encode())
            while len(data) <= MAX_BYTES and (part := client.recv(1 << 16)):
                data += part
        except OSError:
            return None
    if len(data) > MAX_BYTES:
        raise BadFile(folder / SOCKET, "its answer is too large")
    state = parse_json(data)
    return state if isinstance(state, dict) else None


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The path of the socket. The path of a socket has at most 107 bytes, and a folder's may have more."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
