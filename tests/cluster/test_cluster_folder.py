"""The folder of a node lies where every user can make one: what is not this user's own is not trusted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from plaudit.cluster.launch import stop
from plaudit.cluster.state import NodeInfo, began, boot, make_folder, read_state, running, write_state
from plaudit.errors import ClusterError


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def node(pid: int) -> NodeInfo:
    return NodeInfo(pid, began(pid) or 0, "10.0.0.1:6379", "10.0.0.1", ("training",), "token", True, boot=boot())


def test_a_folder_is_closed_to_everybody_else():
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as short:
        (Path(short) / "n").mkdir(mode=0o755)
        make_folder(Path(short) / "n")
        assert (Path(short) / "n").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path, sleeper):
    write_state(tmp_path, node(sleeper.pid))
    tmp_path.chmod(0o777)
    for look in (running, stop):
        with pytest.raises(ClusterError, match=f"other users can write to {tmp_path}, so it is not trusted"):
            look(tmp_path)
    assert sleeper.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_trusted(tmp_path, sleeper):
    write_state(tmp_path, node(sleeper.pid))
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(ClusterError, match=r"belongs to another user \(number 12345\) and is not trusted"):
        stop(tmp_path)
    assert sleeper.poll() is None


def test_a_link_is_not_followed(tmp_path, sleeper):
    (tmp_path / "there").mkdir(mode=0o700)
    write_state(tmp_path / "there", node(sleeper.pid))
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(ClusterError, match="is a link or a file"):
        stop(tmp_path / "link")
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine/node.json").symlink_to(tmp_path / "there/node.json")
    with pytest.raises(ClusterError, match=r"node\.json cannot be read as what 'plaudit cluster start' wrote"):
        stop(tmp_path / "mine")
    assert sleeper.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_not_trusted(tmp_path, sleeper):
    write_state(tmp_path, node(sleeper.pid))
    os.chown(tmp_path / "node.json", 12345, -1)
    with pytest.raises(ClusterError, match="was not written by you alone"):
        stop(tmp_path)
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"pid": "1"}', "[" * 100_000, "null", "\x00"])
def test_half_a_file_is_told_of(tmp_path, text):
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(ClusterError, match="if no node runs here, remove it"):
        read_state(tmp_path)


@pytest.mark.parametrize("other", [{"began": 1}, {"boot": "another"}])
def test_a_process_that_is_not_the_one_is_left_alone(tmp_path, sleeper, other):
    write_state(tmp_path, replace(node(sleeper.pid), **other))
    assert running(tmp_path) is None
    assert stop(tmp_path) is not None
    assert sleeper.poll() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_left_alone(tmp_path):
    theirs = subprocess.Popen(["/bin/sleep", "600"], user=12345, cwd="/", start_new_session=True)
    try:
        write_state(tmp_path, node(theirs.pid))
        assert stop(tmp_path) is not None
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_the_one_that_was_started_is_ended(tmp_path, sleeper):
    write_state(tmp_path, node(sleeper.pid))
    assert json.loads((tmp_path / "node.json").read_text())["pid"] == sleeper.pid
    assert stop(tmp_path) is not None
    assert sleeper.wait(10) is not None


def test_what_a_killed_node_left_behind_is_ended_and_nothing_else(tmp_path):
    """Its first process starts two more, one of which has a file of the node's folder open."""
    log = tmp_path / "ray/agent.log"
    log.parent.mkdir()
    children = f"sleep 600 >{log} & echo $!; sleep 600 >/dev/null & echo $!; wait"
    with subprocess.Popen(["/bin/sh", "-c", children], stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        agent, other = (int(first.stdout.readline()) for _ in range(2))
        write_state(tmp_path, node(first.pid))
        first.kill()
    try:
        assert stop(tmp_path) is not None
        assert began(agent) is None and began(other) is not None
        assert stop(tmp_path) is None
    finally:
        for pid in (agent, other):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
