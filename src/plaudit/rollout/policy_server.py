"""A policy behind openpi's websocket protocol, for clients that were written for openpi's own server.

    server = PolicyServer(load_policy("policy/policy.yaml"))
    with server.listen("127.0.0.1", 8000): ...

policies/openpi.py describes the messages. Two optional keys of a request are new, and the metadata announce them:
`num_samples` is a number of chunks, and `noise` [H, D] or [N, H, D] is what they start from. With either, `actions` is
[N, H, A]. One noise without a leading axis gives [H, A]. A client that sends neither gets one chunk, as from openpi.

A request is data from others. Its size is limited by what the policy observes, arrays are checked before the policy
sees them, and each mistake is answered by one sentence, after which the connection is closed, as openpi does. Browsers
are refused, because any page could reach a server on this machine.
"""

import hmac
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import numpy as np

from plaudit.data.normalize import Normalizer
from plaudit.errors import PlauditError, PolicyError, did_you_mean
from plaudit.files import brief
from plaudit.policies.guidance import check_sampling, sampling_of
from plaudit.policies.loader import PolicySpec
from plaudit.policies.openpi import pack, unpack
from plaudit.registry import POLICY_REGISTRY
from plaudit.rollout.engine import build_policy, validate_chunk
from plaudit.trust import print_plain
from plaudit.types import AnyArray, Observation

try:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import Server, ServerConnection, serve
except ImportError as error:
    from plaudit.errors import MissingExtra

    raise MissingExtra(error.name or "websockets", "openpi") from error

STATE_KEY, PROMPT_KEY = "observation/state", "prompt"
MAX_CLIENTS = 16
MAX_PROMPT = 10_000  # characters
SLACK_BYTES = 1 << 20  # of a request, for keys that are not read
OPEN_TIMEOUT_S = 10.0


class PolicyServer:
    """Answers the requests of many clients with one policy, one after the other."""

    def __init__(
        self,
        spec: PolicySpec,
        *,
        image_keys: Mapping[str, str] | None = None,
        state_key: str = STATE_KEY,
        token: str = "",
        max_clients: int = MAX_CLIENTS,
    ):
        """
        image_keys: camera -> key of a request, where it is not observation/CAMERA
        token: that clients send as an API key; "": none is needed
        """
        inputs = spec.inputs
        if inputs is None:
            kind = spec.policy.get("type")
            raise PolicyError(f"a '{kind}' policy cannot be served: its file does not say what it observes")
        for camera in image_keys or {}:
            if camera not in inputs.cameras:
                raise PolicyError(f"this policy has no camera '{camera}'; {did_you_mean(camera, inputs.cameras)}")
        self.inputs, self._token, self._max_clients = inputs, token, max_clients
        self._image_keys = {camera: f"observation/{camera}" for camera in inputs.cameras} | dict(image_keys or {})
        self._state_key = state_key
        self._normalizer = Normalizer.identity(inputs.state_dim, inputs.action_dim)
        if spec.normalizer is not None:
            self._normalizer = Normalizer.load(spec.normalizer)
        self._policy = build_policy(spec)
        self._name = POLICY_REGISTRY.name_of(spec.config)
        self._history = int(getattr(spec.config, "history", 0))
        self.sampling = sampling_of(self._policy)
        self.metadata: dict[str, Any] = {
            "server": "plaudit",
            "policy": self._name,
            **({} if spec.horizon is None else {"horizon": spec.horizon}),
            "action_dim": inputs.action_dim,
            "state_dim": inputs.state_dim,
            "state_key": state_key,
            "image_keys": self._image_keys,
            "image_sizes": {camera: list(size) for camera, size in inputs.cameras.items()},
            "history": self._history,
            **self.sampling.metadata(),
        }
        self._turn = threading.Lock()  # a policy infers for one client at a time
        self._count, self._counting = 0, threading.Lock()

    @property
    def max_request_bytes(self) -> int:
        """The size of the largest valid request."""
        frames = sum(3 * height * width for height, width in self.inputs.cameras.values())
        noise = int(np.prod((self.sampling.max_samples, *(self.sampling.noise_shape or (0,)))))
        return (1 + self._history) * (frames + 8 * self.inputs.state_dim) + 8 * noise + SLACK_BYTES

    @contextmanager
    def listen(self, host: str, port: int) -> Iterator[Server]:
        """Open the port. `serve_forever` of the result answers until its `shutdown`. port: 0: any free one"""
        try:
            server = serve(
                self._handle,
                host,
                port,
                compression=None,
                max_size=self.max_request_bytes,
                open_timeout=OPEN_TIMEOUT_S,
                origins=[None],
                process_request=self._admit,
                server_header="plaudit",
            )
        except OSError as error:
            raise PolicyError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; use another --port"
            ) from None
        with server:
            yield server

    def answer(self, request: Any) -> dict[str, Any]:
        """The answer to one request."""
        if not isinstance(request, dict):
            raise PolicyError(f"a request is a map of arrays, got {brief(request)}")
        observation, noise = self._observation(request), request.get("noise")
        count = request.get("num_samples")
        if count is None and noise is None:
            with self._turn:
                chunk = self._policy.predict(observation, self._normalizer)
            return {"actions": validate_chunk(chunk, self.inputs.action_dim)}
        one = isinstance(noise, np.ndarray) and noise.ndim == 2 and count is None
        if noise is not None:
            if not isinstance(noise, np.ndarray) or noise.ndim not in (2, 3):
                raise PolicyError(f"'noise' is an array [H, D] or [N, H, D], got {_describe(noise)}")
            noise = noise[None] if noise.ndim == 2 else noise
            count = len(noise) if count is None else count
        if isinstance(count, bool) or not isinstance(count, int | np.integer):
            raise PolicyError(f"'num_samples' is a number of chunks, got {_describe(count)}")
        noise = self.sampling.check(f"this policy ({self._name})", int(count), noise)
        policy = check_sampling(self._policy, self._name, samples=int(count), noise=noise is not None)
        with self._turn:
            chunks = policy.sample(observation, self._normalizer, int(count), noise)
        for chunk in chunks:
            validate_chunk(chunk, self.inputs.action_dim)
        return {"actions": chunks[0] if one else chunks}

    def _observation(self, request: Mapping[str, Any]) -> Observation:
        inputs, images = self.inputs, dict[str, AnyArray]()
        for camera, (height, width) in inputs.cameras.items():
            images[camera] = self._array(request, self._image_keys[camera], (height, width, 3), "u")
        state = np.zeros(0, np.float32)
        if inputs.state_dim:
            state = self._array(request, self._state_key, (inputs.state_dim,), "fiu").astype(np.float32)
            if not np.isfinite(state).all():
                raise PolicyError(f"'{self._state_key}' contains NaN or infinity")
        task = request.get(PROMPT_KEY, "")
        if not isinstance(task, str) or len(task) > MAX_PROMPT:
            raise PolicyError(f"'{PROMPT_KEY}' is a text of at most {MAX_PROMPT:,} characters, got {_describe(task)}")
        if not self._history:
            return Observation(images, state, task=task)
        observation = None
        for age in reversed(range(1 + self._history)):
            earlier = None if observation is None else (lambda last=observation: last)
            frames = {camera: frames[age] for camera, frames in images.items()}
            observation = Observation(frames, state[age] if inputs.state_dim else state, earlier, task)
        assert observation is not None
        return observation

    def _array(self, request: Mapping[str, Any], key: str, shape: tuple[int, ...], kinds: str) -> AnyArray:
        """An array of the request. With a history, it has a leading axis, the newest first."""
        shape = (1 + self._history, *shape) if self._history else shape
        if key not in request:
            names = [name for name in request if isinstance(name, str)]
            raise PolicyError(f"the request lacks '{key}'; {did_you_mean(key, names) if names else 'it is empty'}")
        array = request[key]
        small = isinstance(array, np.ndarray) and (array.dtype == np.uint8 or kinds != "u")
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds or array.shape != shape or not small:
            kind = "uint8" if kinds == "u" else "numbers"
            raise PolicyError(f"'{key}' must be {kind} of {list(shape)}, got {_describe(array)}")
        return array

    def _admit(self, connection: ServerConnection, request: Any) -> Any:
        """Answer /healthz, and refuse a connection without the token or one too many."""
        if request.path == "/healthz":
            return connection.respond(HTTPStatus.OK, "OK\n")
        given = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if self._token and not hmac.compare_digest(given, f"Api-Key {self._token}".encode()):
            return connection.respond(
                HTTPStatus.UNAUTHORIZED, "the token is missing or wrong (Authorization: Api-Key)\n"
            )
        if self._count >= self._max_clients:
            return connection.respond(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{self._max_clients} clients are connected; close one of them\n"
            )
        return None

    def _handle(self, connection: ServerConnection) -> None:
        with self._counting:
            self._count += 1
        try:
            connection.send(pack(self.metadata))
            self._serve(connection)
        except ConnectionClosed as closed:
            if closed.sent is not None and closed.sent.code not in (1000, 1001, 1011):
                print_plain(f"{_peer(connection)}: {closed.sent.reason or closed.sent.code}")
        finally:
            with self._counting:
                self._count -= 1

    def _serve(self, connection: ServerConnection) -> None:
        """Until the client closes the connection, or sends what cannot be answered."""
        while True:
            message = connection.recv()
            began = time.monotonic()
            try:
                if isinstance(message, str):
                    raise PolicyError("a request is binary msgpack, got text")
                answer = self.answer(unpack(message, "a client"))
            except (PlauditError, RuntimeError) as error:
                reason = " ".join(str(error).split())[:1000] or type(error).__name__
                print_plain(f"{_peer(connection)}: {reason}")
                connection.send(reason)
                connection.close(1011, "the request failed; the message before this one says why")
                return
            connection.send(pack({**answer, "server_timing": {"infer_ms": 1e3 * (time.monotonic() - began)}}))


def _describe(value: Any) -> str:
    return f"{value.dtype} of {list(value.shape)}" if isinstance(value, np.ndarray) else brief(value)


def _peer(connection: ServerConnection) -> str:
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "a client"
