"""The server of `plaudit serve-policy`: with our client, with openpi's own, and with requests that are wrong."""

import base64
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from openpi_server import toy_server
from plaudit.data.normalize import Normalizer, Stats
from plaudit.errors import PolicyError
from plaudit.policies.config import FlowConfig, OpenpiConfig, ServerConfig
from plaudit.policies.guidance import check_sampling
from plaudit.policies.loader import PolicySpec, load_policy, save_policy
from plaudit.policies.networks import weights_of
from plaudit.policies.openpi import OpenpiPolicy, pack, unpack
from plaudit.rollout.policy_server import PolicyServer
from plaudit.types import Observation
from waiting import stretch

FLOW = FlowConfig(state_dim=2, action_dim=3, cameras={"front": (24, 32)}, horizon=4, velocity_net={"width": 16})
NORMALIZER = Normalizer({key: Stats(np.ones(n, "f4"), np.full(n, 2, "f4")) for key, n in
                         (("observation.state", 2), ("action", 3))})  # fmt: skip
FRONT = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
SEEN = Observation({"front": FRONT}, np.float32([1, 2]))


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> PolicySpec:
    built = FLOW.build()
    for parameter in built.velocity_net.parameters():
        parameter.data.add_(0.05)  # the last layer starts at zero, so that chunks would be the noise itself
    return load_policy(save_policy(tmp_path_factory.mktemp("flow"), FLOW, weights_of(1, built.components), NORMALIZER))


@contextmanager
def serving(spec: PolicySpec, **options: Any) -> Iterator[tuple[PolicyServer, int]]:
    server = PolicyServer(spec, **options)
    with server.listen("localhost", 0) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield server, listening.socket.getsockname()[1]
        listening.shutdown()
        thread.join()


def client(port: int, **options: Any) -> OpenpiPolicy:
    place = ServerConfig(port=port, connect_s=stretch(5.0), answer_s=stretch(5.0))
    return OpenpiConfig(**{"openpi_model": place, "action_dim": 3, **options}).build()


REQUEST = {"observation/front": FRONT, "observation/state": np.float32([1, 2]), "prompt": "lift"}


def test_a_client_gets_the_chunks_that_the_policy_gives_in_process(policy):
    local = policy.build()
    with serving(policy) as (_, port):
        remote = client(port)
        np.testing.assert_allclose(remote.predict(SEEN, NORMALIZER), local.predict(SEEN, NORMALIZER), atol=1e-5)
        assert check_sampling(remote, "the base", samples=8, noise=True) is remote
        noise = np.random.default_rng(1).normal(size=(5, 4, 3)).astype(np.float32)
        chunks = remote.sample(SEEN, NORMALIZER, 5, noise)
        np.testing.assert_allclose(chunks, local.sample(SEEN, NORMALIZER, 5, noise), atol=1e-5)
        assert chunks.shape == (5, 4, 3) and not np.allclose(chunks[0], chunks[1])
        assert remote.sample(SEEN, NORMALIZER, 3).shape == (3, 4, 3)


def test_a_client_of_openpi_works_unchanged(policy):
    with serving(policy) as (server, port), connect(f"ws://localhost:{port}", compression=None) as connection:
        metadata = unpack(connection.recv())
        assert metadata["image_keys"] == {"front": "observation/front"} and metadata["horizon"] == 4
        assert metadata["num_samples"] > 1 and metadata["noise_shape"] == [4, 3]
        for _ in range(2):
            connection.send(pack(REQUEST))
            answer = unpack(connection.recv())
            assert answer["actions"].shape == (4, 3) and answer["server_timing"]["infer_ms"] > 0
        noise = np.zeros((4, 3), np.float32)
        connection.send(pack({**REQUEST, "noise": noise}))  # of one chunk: the answer is one chunk
        assert unpack(connection.recv())["actions"].shape == (4, 3)
        assert server.metadata["policy"] == "flow"
        assert urllib.request.urlopen(f"http://localhost:{port}/healthz").read() == b"OK\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it uses connect() without a block
def test_openpis_own_client_works_unchanged(policy):
    websocket_client = pytest.importorskip("openpi_client.websocket_client_policy")
    with serving(policy) as (_, port):
        remote = websocket_client.WebsocketClientPolicy("localhost", port)
        assert remote.get_server_metadata()["action_dim"] == 3
        assert remote.infer(REQUEST)["actions"].shape == (4, 3)
        remote._ws.close()


def test_another_server_cannot_be_resampled_and_the_error_comes_before_the_robot_moves():
    with toy_server() as server:
        remote = client(server.port)
        with pytest.raises(PolicyError, match="the base cannot be resampled"):
            check_sampling(remote, "the base", samples=8)
        with pytest.raises(PolicyError, match="the base is a base without noise input"):
            check_sampling(remote, "the base", noise=True)
        with pytest.raises(PolicyError, match=r"the policy at ws://localhost:\d+ cannot be resampled"):
            remote.sample(Observation({}, np.float32([1, 2])), NORMALIZER, 2)


BAD: dict[str, tuple[Any, str]] = {
    "not a map": ([1, 2], "a request is a map of arrays, got a list of 2"),
    "nothing": ({}, "the request lacks 'observation/front'; it is empty"),
    "another key": ({**REQUEST, "observation/state": None}, "'observation/state' must be numbers of [2], got None"),
    "a text as state": ({**REQUEST, "observation/state": "1, 2"}, "must be numbers of [2]"),
    "another size": (
        {**REQUEST, "observation/front": np.zeros((224, 224, 3), np.uint8)},
        "'observation/front' must be uint8 of [24, 32, 3], got uint8 of [224, 224, 3]",
    ),
    "floats as image": ({**REQUEST, "observation/front": FRONT.astype("f4")}, "must be uint8 of [24, 32, 3]"),
    "NaN": ({**REQUEST, "observation/state": np.float32([np.nan, 1])}, "contains NaN or infinity"),
    "too many samples": ({**REQUEST, "num_samples": 10_000}, "gives 1 to 256 chunks at a time, and 10000"),
    "no sample": ({**REQUEST, "num_samples": 0}, "gives 1 to 256 chunks"),
    "samples as text": ({**REQUEST, "num_samples": "four"}, "'num_samples' is a number of chunks, got 'four'"),
    "noise of another shape": (
        {**REQUEST, "noise": np.zeros((2, 4, 7), np.float32)},
        "takes noise of [2, 4, 3], got [2, 4, 7]",
    ),
    "endless noise": ({**REQUEST, "noise": np.full((4, 3), np.inf)}, "contains NaN or infinity"),
    "noise as text": ({**REQUEST, "noise": "white"}, "'noise' is an array"),
    "a long prompt": ({**REQUEST, "prompt": "x" * 20_000}, "'prompt' is a text of at most 10,000 characters"),
}
RAW: dict[str, tuple[Any, str]] = {
    "text": ("hello", "a request is binary msgpack, got text"),
    "no msgpack": (b"\xc1\xff\xff", "are not an openpi message"),
    "deep": (b"\x91" * 5000 + b"\xc0", "are not an openpi message"),
    "objects": (
        pack({"observation/state": {b"__ndarray__": True, b"data": b"1", b"dtype": "|O", b"shape": [1]}}),
        "are not an openpi message",
    ),
    "a huge shape": (
        pack({"noise": {b"__ndarray__": True, b"data": b"1234", b"dtype": "<f4", b"shape": [1 << 40]}}),
        "are not an openpi message",
    ),
}


def test_a_wrong_request_is_answered_with_one_sentence_and_the_server_goes_on(policy):
    with serving(policy) as (_, port):
        for name, (request, sentence) in {**BAD, **RAW}.items():
            with connect(f"ws://localhost:{port}", compression=None) as connection:
                connection.recv()
                connection.send(request if name in RAW else pack(request))
                answer = connection.recv()
                assert isinstance(answer, str) and sentence in answer and "\n" not in answer, (name, answer)
                with pytest.raises(ConnectionClosed):
                    connection.recv()
        with connect(f"ws://localhost:{port}", compression=None, max_size=None) as connection:
            connection.recv()
            connection.send(bytes(4 << 20))  # more than any valid request
            with pytest.raises(ConnectionClosed) as closed:
                connection.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert client(port).predict(SEEN, NORMALIZER).shape == (4, 3)


def test_browsers_clients_without_the_token_and_too_many_clients_are_refused(policy, monkeypatch):
    with serving(policy, token="a long secret", max_clients=1) as (_, port):
        for headers in ({}, {"Authorization": "Api-Key guess"}, {"Authorization": "Api-Key é"}):
            with pytest.raises(InvalidStatus, match="401"):
                connect(f"ws://localhost:{port}", additional_headers=headers).close()
        right = {"Authorization": "Api-Key a long secret"}
        with pytest.raises(InvalidStatus, match="403"):
            connect(f"ws://localhost:{port}", additional_headers=right, origin="http://evil.example").close()
        monkeypatch.setenv("OPENPI_API_KEY", "a long secret")
        remote = client(port)
        assert remote.predict(SEEN, NORMALIZER).shape == (4, 3)
        with pytest.raises(InvalidStatus, match="503"):
            connect(f"ws://localhost:{port}", additional_headers=right).close()
        remote.client.close()


def test_a_connection_that_breaks_in_the_middle_of_a_message_ends_nothing(policy):
    with serving(policy) as (_, port):
        with socket.create_connection(("localhost", port)) as raw:
            key = base64.b64encode(os.urandom(16)).decode()
            lines = ["GET / HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
            lines += [f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", ""]
            raw.sendall("\r\n".join(lines).encode())
            raw.recv(64)
            raw.sendall(b"\x82\xff" + (1 << 19).to_bytes(8, "big") + bytes(8))
        assert client(port).predict(SEEN, NORMALIZER).shape == (4, 3)


def test_a_history_of_observations_goes_to_the_server(tmp_path):
    config = FLOW.model_copy(update={"history": 1})
    spec = load_policy(save_policy(tmp_path, config, weights_of(1, config.build().components), NORMALIZER))
    earlier = Observation({"front": 255 - FRONT}, np.float32([5, 6]))
    now = Observation({"front": FRONT}, np.float32([1, 2]), lambda: earlier)
    noise = np.zeros((1, 4, 3), np.float32)
    with serving(spec) as (_, port):
        remote = client(port).sample(now, NORMALIZER, 1, noise)
    served: Any = spec.build()
    np.testing.assert_allclose(remote, served.sample(now, NORMALIZER, 1, noise), atol=1e-5)


def test_a_policy_that_says_nothing_about_its_inputs_is_not_served():
    with pytest.raises(PolicyError, match="'openpi' policy cannot be served"):
        PolicyServer(PolicySpec.of(OpenpiConfig(openpi_model=ServerConfig(), action_dim=3)))
