"""An SO-101 of lerobot's classes: recorded with its leader, then driven by a policy that the leader corrects."""

import sys
from pathlib import Path

import numpy as np
import pytest

import so101_sim
from plaudit.policies.scripted import ScriptedConfig
from plaudit.registry import ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.sequential import Sequential, TeleopOnly
from plaudit.trust import allow_code
from plaudit.types import HUMAN, FloatArray, Observation

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
