"""The loop on three Ray nodes, started by our commands: it learns, it survives, it refuses what cannot work."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import glow
from plaudit.data.store import Store
from plaudit.policies.loader import read_weights
from pty_process import PtyProcess
from puppet import lines
from three_nodes import Nodes
from waiting import stretch, wait_until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
LAMP = ["env=glow:GlowConfig", "learner.temperature_init=0.1", "learner.utd_ratio=2", "run.max_pending_episodes=2"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory) -> Path:
    return glow.saved(glow.bright_model(0.8), tmp_path_factory.mktemp("made") / "judge")


def online(nodes: Nodes, folder: Path, judge: Path, *words: str, head: str | None = None, cwd: Path | None = None):
    command = [sys.executable, "-m", "plaudit", "online", *glow.online(judge), *LAMP, *words, "run.name=run"]
    where = ["--folder", str(folder), "--ray", head or nodes.head]
    done = finish(nodes, [*command, *where], cwd)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def finish(nodes: Nodes, command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    limit = stretch(300)
    return subprocess.run(command, env=nodes.environment, cwd=cwd, capture_output=True, text=True, timeout=limit)


def judges_at_work() -> set[Path]:
    """Copies of a judge's files, where it sits."""
    return set(Path(tempfile.gettempdir()).glob("plaudit-judge-*"))


@pytest.mark.slow
def test_a_policy_learns_on_three_nodes_from_the_judge_alone(nodes, tmp_path):
    judge = glow.saved(glow.bright_model(glow.WITHIN_REACH), tmp_path / "judge")
    before = judges_at_work()
    more = ("run.max_episodes=150", f"env.goal={glow.WITHIN_REACH}", "evaluation.stop_success_rate=0.9")
    done = online(nodes, tmp_path, judge, *more, "cluster.num_learners=2")
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [line["eval/success_once"] for line in lines if "eval/success_once" in line]
    assert curve[0] < 0.4 < 0.9 <= curve[-1]
    versions = [line["policy/version"] for line in lines]
    assert versions == sorted(versions)
    assert read_weights(run / "policy/model.safetensors").version == versions[-1]
    assert (run / "report.html").is_file()
    store = Store.open(run / "episodes")
    assert {store.entry(i).line["meta"]["ended"] for i in store.ids} <= {"steps", "stopped"}
    assert judges_at_work() <= before


@pytest.mark.slow
def test_parts_may_be_killed_and_nothing_is_lost(nodes):
    """`benchmarks/faults.py` in small; it counts what was acknowledged and what is there."""
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--head", nodes.head]
    kinds = ["--kinds", "env,replay,learner", "--times", "1", "run.sampling=remote"]
    done = finish(nodes, [*command, *kinds])
    bars = {bar[1]: bar[-1] for bar in map(str.split, done.stdout.splitlines()) if bar[:1] == ["BAR"]}
    counts = {name: passed for name, passed in bars.items() if not name.endswith("_s")}
    survived = [f"faults_{kind}_survived" for kind in ("env", "replay", "learner")]
    assert counts == dict.fromkeys([*survived, "faults_lost", "faults_errors"], "pass"), done.stdout + done.stderr


@pytest.mark.slow
def test_the_keys_of_an_operator_at_the_head_reach_the_robot(nodes, judge, tmp_path):
    words = [word for word in glow.online(judge) if not word.startswith("env=")]
    robot = f"robot=puppet:PuppetConfig robot.log={tmp_path}/log robot.size=[8,8] audit.fraction=0 run.max_episodes=100"
    more = "policy.inference.realtime=true policy.inference.max_episode_steps=9999 learner.utd_ratio=0.1 run.name=run"
    words += ["judge.force=true", "policy.inference.allow_untrained=true"]
    command = ["online", *words, *robot.split(), *more.split(), "--folder", str(tmp_path)]
    with PtyProcess(*command, "--ray", nodes.head, cwd=tmp_path, env=nodes.environment) as run:
        run.expect("scene ready?", "space start  q stop")
        assert not (tmp_path / "log").exists()
        run.press(" ")
        run.expect("episode running")
        wait_until(lambda: len(lines(tmp_path / "log")) > 3)
        run.press("f")
        run.expect("marked as a failure", "scene ready?")
        run.press("q")
        assert run.wait() == 130
    labels = Store.open(tmp_path / "run/episodes").ledger.labels(0)
    assert labels.judge.source == "operator" and not labels.success_once


BRING_BACK = """
import sys, time
from pathlib import Path

from plaudit.training.config import ClusterConfig
from plaudit.cluster.connect import connected
from plaudit.errors import WorkerLost
from plaudit.training.workers.learner import LearnerWorker

gate = Path(sys.argv[1])
gate.touch()


class Learner:
    def rendezvous_address(self):
        return "somewhere"

    def join(self, spaces, source, rank, size, address):
        assert address == "somewhere"
        while not gate.exists():
            time.sleep(0.05)
        return 7

    def update(self, updates):
        return updates


with connected(sys.argv[2], ClusterConfig(), []):
    import ray
    from plaudit.cluster.ray_workers import LearnerGroup

    group = LearnerGroup(lambda rank: ray.remote(Learner).options(num_cpus=0).remote(), 2)
    assert group.call(LearnerWorker.setup, None, "judge") == 7
    gate.unlink()
    group.recover(WorkerLost("learner"))
    answer = group.submit(LearnerWorker.update, 3)
    assert not answer.done(), "they are not back yet"
    gate.touch()
    assert answer.result(60) == 3
    assert group.restarts == 1
    group.close()
    print("brought back")
"""


@pytest.mark.slow
def test_nobody_waits_while_learners_are_brought_back(nodes, tmp_path):
    """They get ready once a file is there, which is written only after the call that brings them back."""
    command = [sys.executable, "-c", BRING_BACK, str(tmp_path / "gate"), nodes.head]
    done = subprocess.run(command, env=nodes.environment, capture_output=True, text=True, timeout=stretch(240))
    assert "brought back" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def short_run(nodes, tmp_path_factory) -> Path:
    """Its judge is one file, named by a relative path; its learner fails at the first update."""
    folder = tmp_path_factory.mktemp("short")
    model = glow.bright_model(0.8)
    described = model.self_contained_config().model_dump(mode="json")
    torch.save({"model_state_dict": model.members[0].state_dict(), "plaudit": described}, folder / "judge.pt")
    learner = ("learner=glow:ForgetfulConfig", f"learner.forgot={folder / 'forgot'}")
    done = online(nodes, folder, Path("judge.pt"), "run.max_episodes=3", *learner, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def test_a_labeling_machine_is_sent_a_judge_of_one_file(short_run):
    store = Store.open(short_run / "episodes")
    assert len(store) == 3 and store.ledger.newest(0, {"classifier"}) is not None


@pytest.mark.slow
def test_what_a_part_raises_and_nobody_foresaw_is_kept_with_its_traceback_and_the_run_goes_on(short_run):
    told = (short_run / "failures.log").read_text()
    assert "the learner failed: RuntimeError: CUDA out of memory" in told
    assert 'glow.py", line' in told  # where it happened, in the learner's own process
    assert json.loads((short_run / "metrics.jsonl").read_text().splitlines()[-1])["learner/updates"] == 3 * 12 * 2


@pytest.mark.slow
def test_a_vision_language_judge_without_a_gpu(nodes, judge, tmp_path):
    command = [sys.executable, "-m", "plaudit", "online", "env=glow:GlowConfig"]
    words = ["learner=sac", "judge=vlm", "run.name=run", "--folder", str(tmp_path), "--ray", nodes.head]
    done = finish(nodes, [*command, *words])
    assert done.returncode == 1
    assert "the labeler needs a GPU and there is none on" in done.stderr
    assert "judge.device=cpu" in done.stderr
