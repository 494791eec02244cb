"""A conversation with openpi's policy server over a websocket.

    client -> connect (with an API key, where one is needed)
    server -> metadata, a map
    client -> an observation       server -> actions, a map; or, where it failed, its traceback as text, then it closes

A connection that breaks is made again and the question asked again: the server keeps nothing between questions. An
answer that is too late is not waited for, and its connection is given up, so that it can never be taken for the answer
to a later question.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from plaudit.errors import MissingExtra, PolicyError
from plaudit.policies.openpi.config import ServerConfig
from plaudit.policies.openpi.wire import pack, unpack

try:
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingExtra("websockets", "openpi") from error

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # s between attempts to connect; each is twice the last
PATIENCE = 0.5  # s that a server gets to say goodbye


class OpenpiClient:
    """One server. Connects when it is first asked."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._connection: ClientConnection | None = None
        self._open = ExitStack()  # closes it
        self._metadata: Mapping[str, Any] = {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the server says of itself."""
        self._connected()
        return self._metadata

    def infer(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        message = pack(dict(observation))
        try:
            answer = self._ask(message)
        except WebSocketException:  # it broke, perhaps long ago: once more, on a new one
            self.close()
            try:
                answer = self._ask(message)
            except WebSocketException as error:
                self.close()
                raise PolicyError(f"the openpi server at {self._config.url} broke off twice: {error}") from error
        if isinstance(answer, str):
            self.close()  # so does the server
            raise PolicyError(f"the openpi server at {self._config.url} failed: {_last_line(answer)}")
        return _mapping(unpack(answer), "answered")

    def close(self) -> None:
        self._connection = None
        self._open.close()

    def _ask(self, message: bytes) -> str | bytes:
        connection = self._connected()
        connection.send(message)
        try:
            return connection.recv(self._config.answer_s)
        except TimeoutError:
            self.close()
            raise PolicyError(
                f"the openpi server at {self._config.url} gave no actions within {self._config.answer_s:g} s"
            ) from None

    def _connected(self) -> ClientConnection:
        """The connection at hand, or a new one as soon as there is a server."""
        if self._connection is not None:
            return self._connection
        deadline, pause = time.monotonic() + self._config.connect_s, FIRST_PAUSE
        while True:
            try:
                self._connection, self._metadata = self._connect(max(0.1, deadline - time.monotonic()))
                return self._connection
            except (InvalidStatus, InvalidURI) as error:
                raise PolicyError(f"{self._config.url} refused the connection: {_why(error)}") from error
            except (InvalidHandshake, WebSocketException, OSError) as error:
                if time.monotonic() + pause > deadline:
                    raise PolicyError(
                        f"no openpi server at {self._config.url} within {self._config.connect_s:g} s ({error}); "
                        "start it there, or set 'host' and 'port' to where it runs"
                    ) from error
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _connect(self, timeout: float) -> tuple[ClientConnection, Mapping[str, Any]]:
        key = os.environ.get(self._config.api_key_env)
        headers = {"Authorization": f"Api-Key {key}"} if key else None
        connection = self._open.enter_context(
            connect(
                self._config.url,
                compression=None,
                max_size=None,
                additional_headers=headers,
                open_timeout=timeout,
                close_timeout=PATIENCE,
                ping_interval=None,  # the server answers no ping while it infers, the first time for a minute
            )
        )
        # A server that stands still takes no images either: a send that waits for it ends, as an answer's wait does.
        wait = struct.pack("ll", int(self._config.answer_s), int(self._config.answer_s % 1 * 1e6))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        try:
            first = connection.recv(timeout)
            if isinstance(first, str):
                raise PolicyError(f"{self._config.url} is not an openpi server: it greets with text")
            return connection, _mapping(unpack(first), "greeted")
        except BaseException:
            self._open.close()
            raise


def _mapping(message: Any, did: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise PolicyError(f"the openpi server {did} with a {type(message).__name__}, not with a map")
    return message


def _why(error: Exception) -> str:
    if isinstance(error, InvalidStatus):
        status = error.response.status_code
        return f"HTTP {status}{'; check the key in the variable of api_key_env' if status in (401, 403) else ''}"
    return str(error)


def _last_line(traceback: str) -> str:
    """Of a traceback, the line that says what went wrong."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    return lines[-1] if lines else "it did not say why"
