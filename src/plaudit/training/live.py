"""The state of a running loop, for other processes of this machine: a socket with the name of the run's folder.

    with LiveSocket(folder, operate) as live:      # in the loop
        live.publish({"rows": ...})            # or LiveSocket(folder, describe=...), called for each question
    ask(folder)                                    # elsewhere: the newest state; None if no loop is running
    ask(folder, "start")                           # the same, after sending a command of the operator

A socket disappears with its process, so a state is never stale and a command never waits for a later run. It is in
Linux's abstract namespace and leaves no file. Both ends check that the other belongs to the same user. (Rejected: a
file of commands, which the next run would find; a port, which other machines can reach; a socket in the folder, where
files that are no files are refused.)
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from plaudit.errors import BadFile
from plaudit.files import parse_json
from plaudit.rollout.operator import OperatorCommand

TIMEOUT_S = 2.0  # of a question
MAX_BYTES = 1 << 20  # of a state
# What may be sent over a network. An emergency stop must not depend on one, and its release needs a person who sees the
# robot.
REMOTE = tuple(map(OperatorCommand, ("start", "success", "failure", "discard", "pause")))


class LiveSocket:
    """Answers questions about a loop in a thread. If that is not possible here, the loop runs without it."""

    def __init__(
        self,
        folder: Path,
        operate: Callable[[OperatorCommand], object] | None = None,
        describe: Callable[[], Mapping[str, Any]] | None = None,
    ):
        """operate: sends a command to the operator; None: commands are ignored
        describe: returns the state, in the thread of the socket; None: the state is published
        """
        self._folder, self._operate, self._describe, self._state = folder, operate, describe, b"{}"
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._serve, name="live", daemon=True)

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._listening.bind(_address(self._folder))
            self._listening.listen(8)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.ident is not None:
            with suppress(OSError):
                self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
            self._thread.join()
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
                if not _is_own(client):
                    continue
                command = client.recv(64).decode().strip()
                if command in REMOTE and self._operate is not None:
                    self._operate(OperatorCommand(command))
                if self._describe is not None:
                    self.publish(self._describe())
                client.sendall(self._state)


def ask(folder: Path, command: str = "") -> dict[str, Any] | None:
    """The newest state of the loop that writes to a folder; None if no loop is running on this machine."""
    if command and command not in REMOTE:
        raise ValueError(f"'{command}' cannot be sent from a page; use the operator's keys at the robot")
    data = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TIMEOUT_S)
        try:
            client.connect(_address(folder))
            if not _is_own(client):
                return None
            client.sendall(f"{command}\n".encode())
            while len(data) <= MAX_BYTES and (part := client.recv(1 << 16)):
                data += part
        except OSError:
            return None
    if len(data) > MAX_BYTES:
        raise BadFile(folder, "the answer of the run is too large")
    state = parse_json(data)
    return state if isinstance(state, dict) else None


def _address(folder: Path) -> bytes:
    """Of the socket of a folder, whatever the path that leads to it."""
    status = folder.stat()
    return f"\0plaudit/{status.st_dev}/{status.st_ino}".encode()


def _is_own(peer: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user, or to root."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return user in (os.getuid(), 0)
