"""What can be wrong before a cluster is there: one sentence each, at once."""

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from command import plaudit
from plaudit.cluster.connect import (
    _set_environment,
    check_answers,
    check_private,
    check_reachable,
    find,
    make_token,
    refusal,
    token_environment,
    with_port,
)
from plaudit.cluster.launch import NodeOptions, start, stop
from plaudit.cluster.placement import need_ray
from plaudit.cluster.state import NodeInfo, listeners, own_addresses, running, write_state
from plaudit.errors import ClusterError, MissingExtra
from pty_process import PtyProcess

NODE = Path("node")  # a folder of a short name


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as short:
        monkeypatch.chdir(short)
        _forget(monkeypatch)
        yield


def _forget(monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_an_unreachable_head_is_told_of():
    with pytest.raises(ClusterError, match=r"no head at 127\.0\.0\.1:\d+ \(connection refused\); run 'plaudit cluster"):
        check_reachable(f"127.0.0.1:{closed_port()}")


def test_a_head_without_a_port_has_the_usual_one():
    assert with_port("10.0.0.1") == "10.0.0.1:6379"
    with pytest.raises(ClusterError, match=r"'10\.0\.0\.1:head' is not the address of a head"):
        with_port("10.0.0.1:head")


def test_where_nothing_runs_auto_says_so_and_nothing_means_local():
    with pytest.raises(ClusterError, match="this machine belongs to no cluster; start one with"):
        find("auto", None)
    assert find(None, None) is None


def test_the_environment_names_a_cluster(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.7:6379")
    assert find(None, None) == "10.0.0.7:6379"


def test_a_machine_that_is_not_the_head_needs_one():
    with pytest.raises(ClusterError, match="a machine for inference needs a head; name it: --head"):
        start(NodeOptions(("inference",), NODE))


@pytest.mark.parametrize("address", ["203.0.113.9", "", "0.0.0.0"])
def test_an_address_that_is_not_ours(address):
    with pytest.raises(ClusterError, match=f"'{address}' is not an address of this machine; it has: "):
        start(NodeOptions(("training",), NODE, address=address))


def test_a_port_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ClusterError, match=f"port {port} is in use on this machine; a node uses {port} to"):
            start(NodeOptions(("training",), NODE, address="127.0.0.1", port=port))


def test_a_token_that_is_missing_on_a_machine_that_joins(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        asked = NodeOptions(("inference",), NODE, address, token=tmp_path / "token", port=closed_port())
        with pytest.raises(ClusterError, match=f"token is missing; copy this file from the head at {address}"):
            start(asked)


@pytest.mark.parametrize("joins", [True, False])
def test_a_cluster_at_loopback_has_one_node(tmp_path, joins):
    make_token(tmp_path / "token")
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}" if joins else None
        own = {"address": "127.0.0.1", "token": tmp_path / "token", "port": closed_port()}
        with pytest.raises(ClusterError, match=r"a cluster at 127\.0\.0\.1 has one node with all roles"):
            start(NodeOptions(("training",), NODE, address, **own))
    assert not NODE.exists()


@pytest.mark.parametrize(
    ("role", "display", "warned"), [("labeling", "", 1), ("labeling", ":0", 0), ("inference", "", 0)]
)
def test_a_node_that_opens_the_labeling_window_is_warned_where_display_is_not_set(role, display, warned, monkeypatch):
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, display if name == "DISPLAY" else "")
    said = plaudit("cluster", "start", "--role", role, cwd=Path(), ok=False)
    assert said.count("DISPLAY is not set, so no labeling window can be opened on this node") == warned


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["start", "--role", "inference"], ["starting", "a machine for inference needs a head"]),
        (["check"], ["checking the cluster", "this machine belongs to no cluster"]),
    ],
)
def test_a_command_that_takes_seconds_shows_that_it_works(words, shown):
    with PtyProcess("cluster", *words, "--dir", str(NODE), cwd=Path.cwd()) as command:
        command.expect(*shown)
        assert command.wait() == 1


def test_ray_that_was_imported_too_early_is_told_with_the_variables_to_set(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", sys)
    with pytest.raises(ClusterError, match=r"ray was imported before .* set in the environment: RAY_AUTH_MODE=token"):
        _set_environment({"RAY_AUTH_MODE": "token"})
    assert "RAY_AUTH_MODE" not in os.environ


def test_a_token_that_others_can_read_protects_nothing(tmp_path):
    assert make_token(tmp_path / "token")
    check_private(tmp_path / "token")
    assert not make_token(tmp_path / "token")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(ClusterError, match="other users of this machine can read the token; run: chmod 600"):
        check_private(tmp_path / "token")


def test_whoever_set_up_ray_by_hand_is_left_alone(tmp_path, monkeypatch):
    make_token(tmp_path / "token")
    assert token_environment(tmp_path / "token")["RAY_AUTH_MODE"] == "token"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert token_environment(tmp_path / "token") == {}


def test_a_head_of_another_version_is_refused_in_one_sentence(tmp_path):
    """In Ray's own words, which `refusal` reads."""
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as ray_says:
        check_version_info({"ray_version": "2.50.0", "python_version": "3.12.1"}, "node 10.0.0.2")
    said = refusal("10.0.0.1:6379", tmp_path, str(ray_says.value))
    assert said.startswith("the cluster at 10.0.0.1:6379 runs Ray 2.50.0 with Python 3.12.1 and this machine Ray ")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"ray is not installed; run: pip install 'plaudit\[cluster\]'"):
        need_ray()


def test_a_process_that_took_over_the_number_of_a_node_is_not_it(tmp_path):
    """And is not stopped."""
    write_state(tmp_path, NodeInfo(os.getpid(), 1, "10.0.0.1:6379", "10.0.0.1", ("training",), "token", True))
    assert running(tmp_path) is None
    assert stop(tmp_path) is not None


def test_listening_sockets_are_found_with_their_address():
    with socket.create_server(("127.0.0.1", 0)) as narrow, socket.create_server(("", 0)) as wide:
        found = {one.port: one for one in listeners([os.getpid()])}
        assert found[narrow.getsockname()[1]].address == "127.0.0.1"
        assert found[wide.getsockname()[1]].everywhere


def test_addresses_of_this_machine_are_not_loopback():
    assert all(not address.startswith("127.") for address in own_addresses())


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_no_head_is_told_of_at_once(answer):
    def greet() -> None:
        guest, _ = server.accept()
        with guest:
            guest.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        host = threading.Thread(target=greet)
        host.start()
        with pytest.raises(ClusterError, match="is not the head of a Ray cluster; name one"):
            check_answers(f"127.0.0.1:{server.getsockname()[1]}")
        host.join()


SHORT = ("2", "0", "1.2", "0x7f.1", "127.1:6379", "[1]:1")  # which the system takes for 0.0.0.2 and the like


@pytest.mark.parametrize(
    "address", [*("../../etc", "10.0.0.1:99999", "10.0.0.1:0", "x" * 300, "a b:1", "²:1", ":1"), *SHORT]
)
def test_what_is_no_address_is_told(address):
    with pytest.raises(ClusterError, match="is not the address of a head"):
        with_port(address)
