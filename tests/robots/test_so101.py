"""An SO-101 of lerobot's classes: recorded with its leader, then driven by a policy that the leader corrects."""

import sys
from pathlib import Path

import numpy as np
import pytest

import brightness
import so101_sim
from command import plaudit
from plaudit.data.store import Store
from plaudit.files import read_metrics
from plaudit.policies.loader import load_policy
from plaudit.policies.scripted import ScriptedConfig
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.rollout.engine import InferenceConfig, Sequential, TeleopOnly
from plaudit.trust import allow_code
from plaudit.types import HUMAN, POLICY, FloatArray, Observation

OPTIONS = {"port": "/dev/ttyACM0"}
ROBOT = {"type": "lerobot", "robot_type": "so101_sim_follower", "module": "so101_sim", "options": OPTIONS}
LEADER = {"type": "lerobot", "teleop_type": "so101_sim_leader", "module": "so101_sim", "options": OPTIONS}
STEP = 4.0 + 1e-4  # of a joint, at 120 degrees per second and 30 Hz


@pytest.fixture
def lerobot(tmp_path: Path, monkeypatch):
    so101_sim.write_stand_in(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "so101_sim")
    allow_code("so101_sim")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in ("lerobot", "draccus", "so101_sim")]:
        del sys.modules[name]


def stay(observation: Observation) -> FloatArray:
    return np.repeat(observation.state[None], 10, axis=0)


def play(kind, policy: bool):
    config = InferenceConfig(max_episode_steps=60, realtime=False)
    robot = ROBOT_REGISTRY.parse({**ROBOT, "realtime": False})
    leader = TELEOP_REGISTRY.parse({**LEADER, "always": not policy, "release_s": 0.001})
    parts = (ScriptedConfig(function=f"{__name__}:stay", horizon=10),) if policy else ()
    with kind(robot, *parts, config, leader) as engine:
        return next(iter(engine.episodes(1, task="lift the cube")))


def test_the_follower_follows_the_leader_and_every_step_is_a_persons(lerobot):
    episode = play(TeleopOnly, policy=False)
    assert episode.steps == 60 and (episode.control_mode == HUMAN).all()
    leader = np.clip(np.arange(1, 61) % 60 - 20, 0, 20)
    assert np.allclose(episode.actions[:-1, 0], leader[:-1], atol=4.5)  # the limits let it lag a little
    assert episode.frames["front"][30, 0, 0].tolist() == [int(128 + 2 * episode.state[30, 0])] * 3
    assert np.abs(np.diff(episode.actions, axis=0)).max() <= STEP


def test_the_leader_corrects_a_policy_without_a_jump(lerobot):
    episode = play(Sequential, policy=True)
    human = np.flatnonzero(episode.control_mode == HUMAN)
    assert 0 < len(human) < 60 and human[0] > 20  # it rests first
    assert episode.actions[:20].max() == 0 and episode.actions[-1, 0] > 3
    assert np.abs(np.diff(episode.actions, axis=0)).max() <= STEP


ARM = (
    *("robot.robot_type=so101_sim_follower", "robot.module=so101_sim", "robot.options.port=/dev/ttyACM0"),
    *("robot.realtime=false", "policy.inference.realtime=false", "--auto", "--allow-code", "so101_sim"),
)
HAND = ("teleop.teleop_type=so101_sim_leader", "teleop.module=so101_sim", "teleop.options.port=/dev/ttyACM1")
SMALL = "velocity_net={width: 16, depth: 1}"


@pytest.mark.parametrize("updates", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_record_clone_run_correct_and_learn(lerobot, updates, tmp_path):
    """The commands of docs/so101.md, one after the other. updates: of each training"""
    robot, leader = ("--robot", "lerobot", *ARM), ("--teleop", "lerobot", *HAND)
    policy, steps = tmp_path / "policy/policy.yaml", ("--steps", 60)
    plaudit("record", "demos", *robot, *leader, *steps, "--episodes", 2, "--task", "Lift it", cwd=tmp_path)
    demos = dict(Store.open(tmp_path / "demos"))
    assert [(one.steps, one.task, set(one.control_mode)) for one in demos.values()] == 2 * [(60, "Lift it", {HUMAN})]

    fit = (f"fit.steps={updates}", "fit.batch_size=16", "policy.horizon=10", f"policy.{SMALL}")
    plaudit("train-policy", "demos", "--camera", "front", "--output-dir", "policy", *fit, cwd=tmp_path)
    drive = ("--policy_yaml", policy, "--inference_algorithm", "sequential", "--store", "evaluation", "--episodes", 1)
    plaudit("run", *robot, *drive, "policy.inference.max_episode_steps=60", cwd=tmp_path)
    (episode,) = dict(Store.open(tmp_path / "evaluation")).values()
    assert episode.steps == 60 and set(episode.control_mode) == {POLICY}

    takes_over = ("teleop.release_s=0.01", "policy.inference=sequential", "--episodes", 1, "--policy", policy)
    plaudit("record", "corrections", *robot, *leader, *steps, *takes_over, cwd=tmp_path)
    (episode,) = dict(Store.open(tmp_path / "corrections")).values()
    assert set(episode.control_mode) == {HUMAN, POLICY}

    dagger = (
        *("learner=dagger", "learner.horizon=10", f"learner.pretrain_updates={updates}", f"learner.{SMALL}"),
        "learner.batch_size=16",
        *("demos.store=demos", "policy.cameras=[front]", "task=Lift it"),
        *(
            f"judge={brightness.NAME}",
            "judge.cut=150",
            "judge.brightest=255",
            "judge.obeys=false",
            "judge.force=true",
            "judge.window.open=false",
        ),
        *("--allow-code", "brightness"),
        *("policy.inference=sequential", "policy.inference.max_episode_steps=60", "run.max_episodes=2"),
    )
    both = ("robot=lerobot", *ARM, "teleop=lerobot", *HAND, "teleop.release_s=0.01")
    plaudit("online", *both, *dagger, "run.name=so101", cwd=tmp_path)
    run = tmp_path / "runs/so101"
    modes = np.concatenate([episode.control_mode for _, episode in Store.open(run / "episodes")])
    assert len(modes) == 120 and set(modes) == {HUMAN, POLICY}
    metrics = read_metrics(run / "metrics.jsonl")
    assert metrics[-1]["person/intervention_rate"] == pytest.approx(np.mean(modes == HUMAN), abs=1e-6)
    assert metrics[-1]["learner/updates"] > 0 and metrics[-1]["policy/version"] > 0
    assert load_policy(run / "policy/policy.yaml").config.cameras == {"front": (48, 64)}
