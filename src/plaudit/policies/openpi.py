"""A policy that openpi serves: observations go to the server, chunks of actions come back.

The server normalizes by the statistics of its checkpoint and answers in the robot's units, so states are sent as they
are measured, and the normalizer that this policy is given has nothing to do. The server has no guidance either: a
new chunk is blended with what is left of the previous one.

    client -> connect (with an API key, where one is needed)
    server -> metadata, a map
    client -> an observation       server -> actions, a map; or, where it failed, its traceback as text, then it closes

A connection that breaks is made again and the observation sent again: the server keeps nothing between requests. A late
answer is not waited for, and its connection is given up, so that it can never be taken for the answer to a later
request.

Messages are msgpack, in which an array is `{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [2, 3]}`
and a number of numpy's `{b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}`; the keys are bytes. What is read is
numbers and text: a message cannot run anything, and bytes that do not add up to an array are refused.
"""

import os
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from PIL import Image

from plaudit.errors import MissingExtra, PolicyError, did_you_mean
from plaudit.policies.config import OpenpiConfig, ServerConfig
from plaudit.policies.fixed import FixedPolicy
from plaudit.protocols import Normalizer
from plaudit.types import ByteArray, FloatArray, Observation

try:
    import msgpack
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingExtra(error.name or "websockets", "openpi") from error

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # s between attempts to connect; each is twice the last
PATIENCE = 0.5  # s that a server gets to say goodbye
_KINDS = "biufUS"  # booleans, numbers, text


class OpenpiPolicy(FixedPolicy):
    """A client of a policy server."""

    no_weights = "the weights of an openpi policy are on its server; restart that with a new checkpoint"

    def __init__(self, config: OpenpiConfig):
        super().__init__()
        self.config = config
        self.client = OpenpiClient(config.openpi_model)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """A chunk of actions [H, A], from the server."""
        return self._chunk(self.client.infer(self._message(observation)))

    def warmup(self) -> None:
        """Connect; the server's own first inference comes with the first observation."""
        _ = self.client.metadata

    def _message(self, observation: Observation) -> dict[str, Any]:
        config = self.config
        message: dict[str, Any] = {}
        for camera, key in config.image_keys.items():
            if camera not in observation.images:
                raise PolicyError(f"image_keys has camera '{camera}'; {did_you_mean(camera, observation.images)}")
            image = observation.images[camera]
            message[key] = image if config.image_size is None else with_bars(image, config.image_size)
        if config.state_key is not None:
            message[config.state_key] = observation.state
        if config.prompt_key is not None:
            message[config.prompt_key] = config.prompt
        return message

    def _chunk(self, answer: Mapping[str, Any]) -> FloatArray:
        config = self.config
        if config.action_key not in answer:
            raise PolicyError(
                f"the server's answer has no '{config.action_key}'; {did_you_mean(config.action_key, answer)}"
            )
        actions = np.asarray(answer[config.action_key])
        horizon = config.horizon or (len(actions) if actions.ndim else 0)
        if actions.ndim != 2 or len(actions) < max(horizon, 1) or actions.shape[1] < config.action_dim:
            raise PolicyError(
                f"the server sent actions of {list(actions.shape)}, this robot needs [{config.horizon or 'H'}, "
                f"{config.action_dim}]"
            )
        chunk = actions[:horizon, : config.action_dim].astype(np.float32)
        if not np.isfinite(chunk).all():
            raise PolicyError("the server sent actions that hold NaN or infinity")
        return chunk


def with_bars(image: ByteArray, size: tuple[int, int]) -> ByteArray:
    """An image in another size (H, W): as large as fits in its own shape, in the middle, black around."""
    (height, width), (most_high, most_wide) = image.shape[:2], size
    if (height, width) == size:
        return image
    ratio = max(width / most_wide, height / most_high)
    fits = (int(width / ratio), int(height / ratio))
    new = Image.new("RGB", (most_wide, most_high))
    corner = (max(0, (most_wide - fits[0]) // 2), max(0, (most_high - fits[1]) // 2))
    new.paste(Image.fromarray(image).resize(fits, Image.Resampling.BILINEAR), corner)
    return np.asarray(new)


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
        """Send one observation, receive its answer."""
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
        """Close the connection."""
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


def pack(message: Any) -> bytes:
    packed = msgpack.packb(message, default=_encoded)
    assert packed is not None
    return packed


def unpack(data: bytes) -> Any:
    """Arrays come out read-only, over the bytes of the message."""
    try:
        return msgpack.unpackb(data, object_hook=_decoded)
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise PolicyError(f"the server sent {len(data)} bytes that are not an openpi message: {error}") from error


def _encoded(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"a {type(value).__name__} has no place in an openpi message")
    if value.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {value.dtype} has no place in an openpi message")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decoded(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value and b"__npgeneric__" not in value:
        return value
    dtype = np.dtype(str(value[b"dtype"]))
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array of {dtype}")
    if b"__npgeneric__" in value:
        return dtype.type(value[b"data"])
    return np.frombuffer(value[b"data"], dtype).reshape(value[b"shape"])
