"""Nodes on this machine, started, looked at and stopped by the commands that a user types."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import plaudit
from plaudit.cluster.launch import NodePorts
from plaudit.cluster.state import listeners, members, read_state
from plaudit.judges.human.app import has_display
from three_nodes import SOURCE, Nodes, free_ports
from waiting import stretch, wait_until

pytestmark = pytest.mark.cluster


def test_the_token_that_the_head_made_is_for_its_user_alone(nodes):
    assert (nodes.root / "token").stat().st_mode & 0o777 == 0o600


def test_status_shows_nodes_and_their_roles(nodes):
    said = nodes.cluster("status", at="inference")
    found = re.findall(rf"{re.escape(nodes.address)} +(\w+) +0 ", said)
    assert found == ["training", *re.findall("labeling|inference", said)]
    assert f"plaudit {plaudit.__version__}" in said


@pytest.mark.slow
def test_check_measures_every_way_and_finds_nothing_wrong(nodes):
    said = nodes.cluster("check", "--megabytes", "5")
    assert re.search(r"ok +bandwidth +inference -> training +\d+ MB/s", said)
    assert re.search(r"ok +token +all nodes +the same", said)
    assert re.search(rf"listens on +labeling {re.escape(nodes.address)} +all addresses", said)


def test_nothing_listens_outside_of_the_ports_of_the_node(nodes):
    for role in ("training", "inference", "labeling"):
        found = listeners(members(read_state(nodes.root / role).pid))
        ports = NodePorts(nodes.ports[role])
        assert len(found) >= 3
        assert all(ports.first <= one.port <= ports.last for one in found)


@pytest.fixture(scope="module")
def lone() -> Iterator[Nodes]:
    """One node at 127.0.0.1, with a folder of its own; not started."""
    with tempfile.TemporaryDirectory(prefix="plt-", dir="/tmp") as root:
        yield Nodes(Path(root), {"alone": free_ports(1, "127.0.0.1")[0]}, "127.0.0.1", ("--gpus", "0"))


def start_alone(lone: Nodes) -> list[str]:
    roles = [word for role in ("training", "inference", "labeling") for word in ("--role", role)]
    return ["start", *roles, "--port", str(lone.ports["alone"]), "--token", str(lone.root / "token"), *lone.options]


def test_a_start_that_is_interrupted_leaves_nothing_behind(lone):
    command = [sys.executable, "-m", "plaudit", "cluster", *start_alone(lone)]
    with subprocess.Popen(command, env=lone.at("alone"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as starting:
        wait_until(lambda: started(lone, "gcs_server"))
        node = read_state(lone.root / "alone")
        starting.terminate()
        said = starting.communicate(timeout=stretch(60))[0].decode()
    assert starting.returncode == 130 and "starting Ray at 127.0.0.1; its output is in " in said
    assert "stopping what was started" in said and "Traceback" not in said
    assert members(node.pid) == [] and read_state(lone.root / "alone") is None
    assert "this machine belongs to no cluster" in lone.cluster("check", at="alone", ok=False)


def started(lone: Nodes, process: str) -> bool:
    """Whether a process of this name runs in the node's session."""
    node = read_state(lone.root / "alone") if (lone.root / "alone").exists() else None
    titles = [] if node is None else [psutil.Process(pid).name() for pid in members(node.pid)]
    return process in titles


def test_a_node_at_loopback_is_reached_from_this_machine_alone(lone):
    said = lone.cluster(*start_alone(lone), at="alone")
    try:
        assert f"Head of a new cluster at 127.0.0.1:{lone.ports['alone']}: training, inference, labeling" in said
        assert ("DISPLAY is not set" in said) == (not has_display())
        found = listeners(members(read_state(lone.root / "alone").pid))
        assert len(found) >= 3 and {one.address for one in found} == {"127.0.0.1"}
        done = lone.python("-c", LOST, at="alone")
        assert done.stdout.splitlines() == ["EnvActor 127.0.0.1"], done.stdout + done.stderr
        assert not done.stderr
    finally:
        lone.cluster("stop", at="alone")


LOST = """
import os
from plaudit.cluster.check import running_actors
from plaudit.cluster.connect import cluster_nodes, connected

class EnvActor:
    def ready(self):
        return True

with connected() as placement:
    import ray
    actor = ray.remote(EnvActor).options(**placement.options("env")).remote()
    assert ray.get(actor.ready.remote())
    (found,) = running_actors(cluster_nodes())
    os.kill(found.pid, 9)  # Ray would print what the process wrote last
    try:
        ray.get(actor.ready.remote())
    except ray.exceptions.RayActorError:
        print(found.kind, found.address)
"""


LOOP = """
import json, os, sys

from plaudit.cluster.connect import cluster_nodes, connected
class Part:
    def where(self):
        return os.environ["PLAUDIT_CLUSTER_DIR"], os.environ["CUDA_VISIBLE_DEVICES"], os.nice(0)

with connected() as placement:
    import ray
    parts = {p: ray.remote(Part).options(**placement.options(p)).remote() for p in sys.argv[1:]}
    print(json.dumps([len(cluster_nodes()), {p: ray.get(actor.where.remote()) for p, actor in parts.items()}]))
"""


def test_each_part_of_a_loop_lands_on_the_machine_of_its_role_with_full_priority(nodes):
    done = nodes.python("-c", LOOP, "learner", "env", "labeler", at="labeling")
    assert done.returncode == 0, done.stderr
    num_nodes, where = json.loads(done.stdout)
    assert num_nodes == 3
    assert where == {
        "learner": [str(nodes.root / "training"), "", os.nice(0)],
        "env": [str(nodes.root / "inference"), "", os.nice(0)],
        "labeler": [str(nodes.root / "labeling"), "", os.nice(0)],
    }


def test_one_folder_holds_one_node(nodes):
    assert "a node runs here already (inference" in nodes.start("inference", ok=False)


@pytest.mark.slow
def test_a_wrong_token_is_told_apart(nodes):
    (nodes.root / "wrong").write_text("0" * 64)
    (nodes.root / "wrong").chmod(0o600)
    said = nodes.start("inference", at="fourth", token="wrong", ok=False)
    assert re.search(r"does not accept this machine's token; \S+/wrong must be the same file on all machines", said)


@pytest.mark.slow
def test_a_node_of_another_version_is_refused_before_anything_starts(nodes, tmp_path):
    (tmp_path / "plaudit").mkdir()
    for room in (SOURCE / "plaudit").iterdir():
        (tmp_path / "plaudit" / room.name).symlink_to(room)
    (tmp_path / "plaudit/__init__.py").unlink()
    (tmp_path / "plaudit/__pycache__").unlink(missing_ok=True)
    (tmp_path / "plaudit/__init__.py").write_text('__version__ = "0.0.9"\n')
    nodes.start("labeling", at="fourth", source=tmp_path)
    done = nodes.python("-c", LOOP, "labeler", at="training")
    nodes.stop("fourth")
    there = f"{nodes.address}) has plaudit 0.0.9"
    assert f"{there} instead of {plaudit.__version__}; install the same versions" in done.stderr


@pytest.mark.slow
def test_stop_leaves_nothing_of_its_node_and_the_loop_says_what_is_missing(nodes):
    first = read_state(nodes.root / "labeling").pid
    assert "Stopped: labeling, of the cluster" in nodes.stop("labeling")
    done = nodes.python("-c", LOOP, "labeler", at="training")
    nodes.start("labeling")  # others need it
    assert members(first) == []
    assert members(read_state(nodes.root / "inference").pid)
    assert "no node offers 'labeling_pc', which the labeler asks for; start one with: plaudit cluster" in done.stderr
