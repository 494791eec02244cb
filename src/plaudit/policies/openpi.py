"""A client of openpi's policy server: observations go to the server, chunks of actions come back.

The server normalizes by the statistics of its checkpoint, so states are sent as they are measured, and the normalizer
is not used. It has no guidance: a new chunk is blended with the rest of the previous one.

    client -> connect (with an API key, where one is needed)
    server -> metadata, a map
    client -> an observation       server -> actions, a map; or, where it failed, its traceback as text, then it closes

The server has no state between requests, so after a broken connection the client connects again and repeats the
observation. A server that is not back within seconds ends the episode (`PolicyUnavailable`). After a timeout the
connection is closed, so that a late answer is never taken for that of a later request.

Messages are msgpack, in which an array is `{b"__ndarray__": True, b"data": bytes, b"dtype": "<f4", b"shape": [2, 3]}`
and a numpy scalar `{b"__npgeneric__": True, b"data": 1.5, b"dtype": "<f4"}`. Only numbers and text are decoded.
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

from plaudit.errors import MissingExtra, PolicyError, PolicyUnavailable, did_you_mean
from plaudit.files import brief
from plaudit.policies.config import OpenpiConfig, ServerConfig
from plaudit.policies.guidance import FixedPolicy, LimitedSampling, Sampling
from plaudit.protocols import Normalizer
from plaudit.types import AnyArray, ByteArray, FloatArray, Observation

try:
    import msgpack
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise MissingExtra(error.name or "websockets", "openpi") from error

MIN_RETRY_S, MAX_RETRY_S = 0.1, 2.0  # between attempts to connect; each is twice the last
CLOSE_TIMEOUT_S = 0.5
RECONNECT_S = 5.0  # for a connection that broke, while a robot waits
_DTYPE_KINDS = "biufUS"  # booleans, numbers, text


class OpenpiPolicy(FixedPolicy, LimitedSampling):
    """A client of a policy server."""

    counts_calls = False
    no_weights = "the weights of an openpi policy are on its server; restart that with a new checkpoint"

    def __init__(self, config: OpenpiConfig):
        super().__init__()
        self.config = config
        self.client = OpenpiClient(config.openpi_model)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """A chunk of actions [H, A], from the server."""
        return self._chunk(self._actions(self._message(observation)))

    @property
    def sampling(self) -> Sampling:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How the server can be sampled, as it announces."""
        return Sampling.of_metadata(self.client.metadata)

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """[H, D] of the noise that the server takes."""
        return self.sampling.noise_shape

    def sample(
        self, observation: Observation, normalizer: Normalizer, count: int, noise: FloatArray | None = None
    ) -> FloatArray:
        """Chunks [count, H, A], from the server."""
        noise = self.sampling.check(f"the policy at {self.config.openpi_model.url}", count, noise)
        if count == 1 and noise is None:
            return self.predict(observation, normalizer)[None]
        message = self._message(observation) | {"num_samples": count}
        actions = self._actions(message if noise is None else message | {"noise": noise})
        if actions.ndim != 3 or len(actions) != count:
            raise PolicyError(f"the server was asked for {count} chunks and sent actions of {list(actions.shape)}")
        return np.stack([self._chunk(chunk) for chunk in actions])

    def _message(self, observation: Observation) -> dict[str, Any]:
        """The request. Keys, sizes and history are the config's, or those that our own server announces."""
        config, metadata, message = self.config, self.client.metadata, dict[str, Any]()
        announced = (
            metadata.get("image_keys") if metadata.get("server") == "plaudit" and not config.image_keys else None
        )
        image_keys, sizes = config.image_keys, dict.fromkeys(config.image_keys, config.image_size)
        if isinstance(announced, dict):
            image_keys = {str(camera): str(key) for camera, key in announced.items()}
            sizes = {camera: tuple(size) for camera, size in metadata.get("image_sizes", {}).items()}
        history = metadata.get("history", 0)
        if not isinstance(history, int) or not 0 <= history <= 32:
            raise PolicyError(f"the server announces a history of {brief(history)} observations")
        for camera in image_keys:
            if camera not in observation.images:
                raise PolicyError(f"image_keys has camera '{camera}'; {did_you_mean(camera, observation.images)}")
        window = observation.window(history, image_keys)
        for camera, key in image_keys.items():
            image, size = window.images[camera], sizes.get(camera)
            if size is not None:
                image = (
                    np.stack([resize_with_pad(frame, size) for frame in image])
                    if history
                    else (resize_with_pad(image, size))
                )
            message[key] = image
        if config.state_key is not None:
            message[config.state_key] = window.state
        if config.prompt_key is not None:
            message[config.prompt_key] = config.prompt or observation.task
        return message

    def _actions(self, message: Mapping[str, Any]) -> AnyArray:
        answer, key = self.client.infer(message), self.config.action_key
        if key not in answer:
            raise PolicyError(f"the server's answer has no '{key}'; {did_you_mean(key, answer)}")
        return np.asarray(answer[key])

    def _chunk(self, actions: AnyArray) -> FloatArray:
        config = self.config
        horizon = config.horizon or (len(actions) if actions.ndim else 0)
        if actions.ndim != 2 or len(actions) < max(horizon, 1) or actions.shape[1] < config.action_dim:
            wanted = f"[{config.horizon or 'H'}, {config.action_dim}]"
            raise PolicyError(f"the server sent actions of {list(actions.shape)}, this robot needs {wanted}")
        chunk = actions[:horizon, : config.action_dim].astype(np.float32)
        if not np.isfinite(chunk).all():
            raise PolicyError("the server sent actions that contain NaN or infinity")
        return chunk

    def warmup(self) -> None:
        """Connect; the server's own first inference comes with the first observation."""
        _ = self.client.metadata


def resize_with_pad(image: ByteArray, size: tuple[int, int]) -> ByteArray:
    """As openpi's: resize to (H, W) without distortion, centered, with black bars."""
    (height, width), (max_height, max_width) = image.shape[:2], size
    if (height, width) == size:
        return image
    ratio = max(width / max_width, height / max_height)
    resized = (int(width / ratio), int(height / ratio))
    padded = Image.new("RGB", (max_width, max_height))
    corner = (max(0, (max_width - resized[0]) // 2), max(0, (max_height - resized[1]) // 2))
    padded.paste(Image.fromarray(image).resize(resized, Image.Resampling.BILINEAR), corner)
    return np.asarray(padded)


class OpenpiClient:
    """Connects to a server with the first request."""

    def __init__(self, config: ServerConfig):
        self._config = config
        self._connection: ClientConnection | None = None
        self._close_stack = ExitStack()
        self._metadata: Mapping[str, Any] = {}

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the server sends when a client connects."""
        self._connect()
        return self._metadata

    def infer(self, observation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send one observation, receive its answer."""
        message = pack(dict(observation))
        try:
            answer = self._request(message)
        except WebSocketException:  # the connection broke, perhaps long ago
            self.close()
            try:
                self._connect(min(RECONNECT_S, self._config.connect_s))
                answer = self._request(message)
            except WebSocketException as error:
                self.close()
                raise PolicyUnavailable(f"the openpi server at {self._config.url} broke off twice: {error}") from error
        if isinstance(answer, str):
            self.close()  # so does the server
            *_, reason = ["it did not say why", *filter(None, map(str.strip, answer.splitlines()))]
            raise PolicyError(f"the openpi server at {self._config.url} failed: {reason}")
        return _mapping(unpack(answer), "answered")

    def close(self) -> None:
        """Close the connection."""
        self._connection = None
        self._close_stack.close()

    def _request(self, message: bytes) -> str | bytes:
        connection = self._connect()
        connection.send(message)
        try:
            return connection.recv(self._config.answer_s)
        except TimeoutError:
            self.close()
            raise PolicyUnavailable(
                f"the openpi server at {self._config.url} gave no actions within {self._config.answer_s:g} s"
            ) from None

    def _connect(self, within_s: float | None = None) -> ClientConnection:
        """The connection, or a new one as soon as there is a server. within_s: None: `connect_s`"""
        if self._connection is not None:
            return self._connection
        within_s = self._config.connect_s if within_s is None else within_s
        deadline, pause = time.monotonic() + within_s, MIN_RETRY_S
        while True:
            try:
                self._connection, self._metadata = self._open(max(0.1, deadline - time.monotonic()))
                return self._connection
            except InvalidURI as error:
                raise PolicyError(f"{self._config.url} refused the connection: {error}") from error
            except InvalidStatus as error:
                status = error.response.status_code
                hint = "; check the key in the variable of api_key_env" if status in (401, 403) else ""
                raise PolicyError(f"{self._config.url} refused the connection: HTTP {status}{hint}") from error
            except (InvalidHandshake, WebSocketException, OSError) as error:
                if time.monotonic() + pause > deadline:
                    failed = f"no openpi server at {self._config.url} within {within_s:g} s ({error})"
                    raise PolicyUnavailable(f"{failed}; start it there, or set 'host' and 'port'") from error
                time.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)

    def _open(self, timeout: float) -> tuple[ClientConnection, Mapping[str, Any]]:
        key = os.environ.get(self._config.api_key_env)
        headers = {"Authorization": f"Api-Key {key}"} if key else None
        connection = self._close_stack.enter_context(
            connect(
                self._config.url,
                compression=None,
                max_size=None,
                additional_headers=headers,
                open_timeout=timeout,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=None,  # the server does not answer pings while it infers, the first time for a minute
            )
        )
        # A server that hangs does not receive either: sending has the same timeout as the answer.
        timeval = struct.pack("ll", int(self._config.answer_s), int(self._config.answer_s % 1 * 1e6))
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        try:
            first = connection.recv(timeout)
            if isinstance(first, str):
                raise PolicyError(f"{self._config.url} is not an openpi server: it greets with text")
            return connection, _mapping(unpack(first), "greeted")
        except BaseException:
            self._close_stack.close()
            raise


def _mapping(message: Any, verb: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise PolicyError(f"the openpi server {verb} with a {type(message).__name__}, not with a map")
    return message


def pack(message: Any) -> bytes:
    """A message as msgpack."""
    packed = msgpack.packb(message, default=_encode_array)
    assert packed is not None
    return packed


def unpack(data: bytes, sender: str = "the server") -> Any:
    """A message from msgpack; its arrays are read-only views of the bytes."""
    try:
        return msgpack.unpackb(data, object_hook=_decode_array)
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise PolicyError(f"{sender} sent {len(data)} bytes that are not an openpi message: {error}") from error


def _encode_array(value: Any) -> Any:
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"a {type(value).__name__} has no place in an openpi message")
    if value.dtype.kind not in _DTYPE_KINDS:
        raise TypeError(f"an array of {value.dtype} has no place in an openpi message")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _decode_array(value: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in value and b"__npgeneric__" not in value:
        return value
    dtype = np.dtype(str(value[b"dtype"]))
    if dtype.kind not in _DTYPE_KINDS:
        raise ValueError(f"an array of {dtype}")
    if b"__npgeneric__" in value:
        return dtype.type(value[b"data"])
    return np.frombuffer(value[b"data"], dtype).reshape(value[b"shape"])
