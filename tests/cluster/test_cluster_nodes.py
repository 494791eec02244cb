"""Three nodes on this machine, on 127.0.0.1, started, looked at and stopped by the commands that a user types."""

import json
import re

import pytest

import plaudit
from plaudit.cluster.launch import NodePorts
from plaudit.cluster.network import listeners
from plaudit.cluster.state import members, read_state
from three_nodes import SOURCE

pytestmark = pytest.mark.cluster


def test_the_token_that_the_head_made_is_for_its_user_alone(nodes):
    assert (nodes.root / "token").stat().st_mode & 0o777 == 0o600


def test_status_shows_nodes_and_their_roles(nodes):
    said = nodes.cluster("status", at="inference")
    assert re.findall(r"127\.0\.0\.1 +(\w+) +0 ", said) == ["training", *re.findall("labeling|inference", said)]
    assert f"plaudit {plaudit.__version__}" in said


@pytest.mark.slow
def test_check_measures_every_way_and_finds_nothing_wrong(nodes):
    said = nodes.cluster("check", "--megabytes", "5")
    assert re.search(r"ok +bandwidth +inference -> training +\d+ MB/s", said)
    assert re.search(r"ok +token +all nodes +the same", said)
    assert re.search(r"ok +listens on +labeling 127.0.0.1 +127.0.0.1", said)
    assert "!" not in said


def test_nothing_listens_beyond_loopback_nor_outside_of_the_ports_of_the_node(nodes):
    for role in ("training", "inference", "labeling"):
        found = listeners(members(read_state(nodes.root / role).pid))
        ports = NodePorts(nodes.ports[role])
        assert len(found) >= 3
        assert {one.address for one in found} == {"127.0.0.1"}
        assert all(ports.first <= one.port <= ports.last for one in found)


LOOP = """
import json, os, sys
import ray
from plaudit.cluster.connect import connected

class Part:
    def where(self):
        return os.environ["PLAUDIT_CLUSTER_DIR"], os.environ["CUDA_VISIBLE_DEVICES"]

with connected() as cluster:
    parts = {p: ray.remote(Part).options(**cluster.placement.options(p)).remote() for p in sys.argv[1:]}
    print(json.dumps([cluster.local, {p: ray.get(actor.where.remote()) for p, actor in parts.items()}]))
"""


def test_each_part_of_a_loop_lands_on_the_machine_of_its_role(nodes):
    done = nodes.python("-c", LOOP, "learner", "env", "labeler", at="labeling")
    assert done.returncode == 0, done.stderr
    local, where = json.loads(done.stdout)
    assert not local
    assert where == {
        "learner": [str(nodes.root / "training"), ""],
        "env": [str(nodes.root / "inference"), ""],
        "labeler": [str(nodes.root / "labeling"), ""],
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
    assert f"127.0.0.1) has plaudit 0.0.9 instead of {plaudit.__version__}; install the same versions" in done.stderr


@pytest.mark.slow
def test_stop_leaves_nothing_of_its_node_and_the_loop_says_what_is_missing(nodes):
    first = read_state(nodes.root / "labeling").pid
    assert nodes.stop("labeling").startswith("stopped: labeling")
    done = nodes.python("-c", LOOP, "labeler", at="training")
    nodes.start("labeling")  # others need it
    assert members(first) == []
    assert members(read_state(nodes.root / "inference").pid)
    assert "no node offers 'labeling_pc', which the labeler asks for; start one with: plaudit cluster" in done.stderr
