"""Against a server that speaks openpi's protocol, and against openpi's own client and codec where installed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openpi_server
from openpi_server import METADATA, toy_server
from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.errors import MissingExtra, PolicyError, PolicyUnavailable
from plaudit.policies import openpi
from plaudit.policies.config import OpenpiConfig, ServerConfig
from plaudit.policies.openpi import OpenpiPolicy, pack, resize_with_pad, unpack
from plaudit.types import Observation, PolicyWeights
from waiting import stretch

IDENTITY = Normalizer.identity(2, 3)
FRONT = np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)
SEEN = Observation({"front": FRONT}, np.float32([1, 2]))  # the toy's first action is 3


def asking(port: int, *, server: dict[str, Any] | None = None, **options: Any) -> OpenpiPolicy:
    place = ServerConfig(**{"port": port, "connect_s": stretch(5.0), "answer_s": stretch(5.0), **(server or {})})
    return OpenpiConfig(**{"openpi_model": place, "action_dim": 3, **options}).build()


def theirs() -> Any:
    return pytest.importorskip("openpi_client.msgpack_numpy")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def test_observations_go_there_by_their_names_and_actions_come_back():
    with toy_server() as server:
        policy = asking(server.port, image_keys={"front": "observation/image"}, prompt="lift", image_size=None)
        chunk = policy.predict(SEEN, IDENTITY)
        assert policy.client.metadata == METADATA
    assert chunk.dtype == np.float32 and chunk[:, 0].tolist() == [3, 4, 5, 6]
    (sent,) = server.seen
    assert set(sent) == {"observation/image", "observation/state", "prompt"} and sent["prompt"] == "lift"
    assert np.array_equal(sent["observation/image"], FRONT) and sent["observation/state"].tolist() == [1, 2]


def test_it_keeps_the_policys_contract():
    with toy_server() as server:
        check_policy(asking(server.port), SEEN, IDENTITY, action_dim=3)


def test_longer_actions_and_chunks_are_cut_to_the_robots():
    with toy_server() as server:
        assert asking(server.port, action_dim=2, horizon=3).predict(SEEN, IDENTITY).shape == (3, 2)
        with pytest.raises(PolicyError, match=r"actions of \[4, 3\], this robot needs \[H, 7\]"):
            asking(server.port, action_dim=7).predict(SEEN, IDENTITY)
        with pytest.raises(PolicyError, match="no 'action'; did you mean 'actions'"):
            asking(server.port, action_key="action").predict(SEEN, IDENTITY)


def test_a_new_chunk_is_blended_with_the_previous_one():
    with toy_server() as server:
        guided = asking(server.port).guided_inference(SEEN, IDENTITY, np.full((4, 3), 9, np.float32), 1, 1)
    assert guided[0, 0] == 9 and guided[3, 0] == 6


def test_what_went_wrong_on_the_server_is_told_in_a_sentence_and_the_next_question_is_answered():
    with toy_server() as server:
        policy = asking(server.port, prompt="fail")
        with pytest.raises(PolicyError, match=r"server at ws://localhost:\d+ failed: ValueError: the gripper has no"):
            policy.predict(SEEN, IDENTITY)
        policy.config = policy.config.model_copy(update={"prompt": "lift"})
        assert policy.predict(SEEN, IDENTITY)[0, 0] == 3


def test_a_connection_that_breaks_is_made_again():
    with toy_server() as server:
        assert asking(server.port, prompt="hang up").predict(SEEN, IDENTITY)[0, 0] == 3
    assert server.connections == 2


def test_a_late_answer_is_not_waited_for_nor_taken_for_a_later_one():
    with toy_server() as server:
        policy = asking(server.port, prompt="sleep", server={"answer_s": 0.2})
        with pytest.raises(PolicyError, match=r"no actions within 0\.2 s"):
            policy.predict(SEEN, IDENTITY)
        other = Observation({}, np.float32([10, 20]))
        assert policy.predict(other, IDENTITY)[0, 0] == 30


def test_an_api_key_comes_from_its_variable_and_a_wrong_one_is_told(monkeypatch):
    with toy_server(api_key="secret") as server:
        monkeypatch.setenv("OPENPI_API_KEY", "secret")
        policy = asking(server.port)
        assert policy.predict(SEEN, IDENTITY)[0, 0] == 3
        assert "secret" not in policy.config.model_dump_json()
        monkeypatch.setenv("OPENPI_API_KEY", "guess")
        with pytest.raises(PolicyError, match="refused the connection: HTTP 401; check the key in the variable of"):
            asking(server.port).predict(SEEN, IDENTITY)


def test_no_server_is_told_after_a_while():
    with pytest.raises(PolicyError, match=r"no openpi server at ws://localhost:\d+ within 0\.3 s"):
        asking(free_port(), server={"connect_s": 0.3}).warmup()


@contextmanager
def started(port: int) -> "Iterator[subprocess.Popen[bytes]]":
    """The server as a process of its own."""
    paths = [str(Path(openpi_server.__file__).parent), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen([sys.executable, openpi_server.__file__, str(port)], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_server_that_is_killed_ends_the_episode_soon_and_goes_on_answering_when_it_is_back(monkeypatch):
    port = free_port()
    policy = asking(port, server={"connect_s": stretch(30.0)})
    with started(port):
        assert policy.predict(SEEN, IDENTITY)[0, 0] == 3
    monkeypatch.setattr(openpi, "RECONNECT_S", 0.2)
    with pytest.raises(PolicyUnavailable, match=r"no openpi server at .* within 0.2 s"):
        policy.predict(SEEN, IDENTITY)  # while a robot waits for it
    with started(port):
        policy.warmup()  # between two episodes
        assert policy.predict(SEEN, IDENTITY)[0, 0] == 3


@pytest.mark.slow
def test_a_server_that_stands_still_is_told_even_while_images_are_on_their_way():
    port = free_port()
    large = Observation({"front": np.zeros((3000, 3000, 3), np.uint8)}, SEEN.state)
    with started(port) as process:
        asking(port, server={"connect_s": stretch(30.0)}).warmup()
        policy = asking(
            port, image_keys={"front": "image"}, image_size=None, server={"connect_s": 4.0, "answer_s": 2.0}
        )
        policy.warmup()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(PolicyError, match=r"no openpi server at .* within 4 s"):
            policy.predict(large, IDENTITY)


MESSAGE = {"image": FRONT, "state": np.float32([1, 2]), "on": np.array([True]), "n": np.float64(1.5), "text": "go"}


def test_messages_are_those_of_openpis_own_codec():
    codec = theirs()
    assert pack(MESSAGE) == codec.packb(MESSAGE)
    for read in (unpack(codec.packb(MESSAGE)), codec.unpackb(pack(MESSAGE))):
        assert np.array_equal(read["image"], FRONT) and read["image"].dtype == np.uint8
        assert read["state"].tolist() == [1, 2] and read["n"] == 1.5 and read["text"] == "go"


def test_our_client_talks_to_a_server_with_openpis_codec():
    codec = theirs()
    with toy_server(pack=codec.packb, unpack=codec.unpackb) as server:
        assert asking(server.port).predict(SEEN, IDENTITY)[0, 0] == 3


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # it connects the older way
def test_openpis_client_talks_to_our_server():
    client = pytest.importorskip("openpi_client.websocket_client_policy")
    with toy_server() as server:
        peer = client.WebsocketClientPolicy("localhost", server.port)
        assert peer.get_server_metadata() == METADATA
        assert peer.infer({"observation/state": np.float32([1, 2])})["actions"][0].tolist() == [3, 3, 3]
        peer._ws.close()


@pytest.mark.parametrize("size", [(24, 32), (40, 40), (224, 224), (48, 64)])
def test_images_are_shrunk_as_openpi_does(size):
    tools = pytest.importorskip("openpi_client.image_tools")
    assert np.array_equal(resize_with_pad(FRONT, size), tools.resize_with_pad(FRONT, *size))


def test_bytes_that_are_no_message_are_refused():
    forged = pack({"a": np.zeros(2, np.float32)}).replace(b"<f4", b"|O8")
    short = pack({"a": np.zeros(2, np.float32)}).replace(b"<f4", b"<f8")
    for data in (b"\xc1", forged, short, b""):
        with pytest.raises(PolicyError, match="not an openpi message"):
            unpack(data)
    with pytest.raises(TypeError, match="has no place in an openpi message"):
        pack({"a": np.array([object()])})


def test_weights_are_the_servers_business():
    policy = asking(1)
    policy.load_weights(PolicyWeights(1, {}))
    with pytest.raises(PolicyError, match="are on its server"):
        policy.load_weights(PolicyWeights(1, {"a/b": np.zeros(1)}))


def test_without_the_extra_it_says_what_to_install():
    program = (
        "import sys; sys.modules['msgpack'] = None\n"
        "from plaudit.policies.config import OpenpiConfig\n"
        "from plaudit.policies.config import ServerConfig\n"
        "OpenpiConfig(openpi_model=ServerConfig(), action_dim=1).build()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert f"{MissingExtra('msgpack', 'openpi')}" in done.stderr
