"""Chunks that fit: what is refused before anything moves, and what the shipped configs do."""

import json
from pathlib import Path
from typing import Any

import pytest

from plaudit.errors import ConfigError, TrainingError
from plaudit.learners.config import SacConfig
from plaudit.policies.loader import PolicySpec
from plaudit.robots.twin import TwinProcess
from plaudit.rollout.run import chunk_problem, load_run
from plaudit.training.config_file import load_training_config
from plaudit.training.setup import build_learner, learner_env_spec
from plaudit.types import EnvSpec
from twins import free_endpoint
from waiting import stretch

CONFIGS = Path(__file__).parents[2] / "examples/configs"
IGRIS = ["online_igris_b.yaml", "online_igris_b_human.yaml", "online_igris_c.yaml"]


@pytest.mark.parametrize(
    ("horizon", "executed", "delay"), [(2, None, 1), (20, None, 10), (20, 19, 1), (50, 35, 15), (50, 15, 15)]
)
def test_chunks_fit_up_to_the_last_step(horizon, executed, delay):
    assert chunk_problem(horizon, executed, delay) == ""


@pytest.mark.parametrize(
    ("horizon", "executed", "delay", "sentence"),
    [
        (1, None, 1, "use sequential for this policy"),
        (20, 35, 1, "a chunk would run out before the next is there; set that to 1 to 19, or the policy's horizon to"),
        (20, 14, 7, "takes 7 control steps (350 ms): a chunk would run out before the next is there; set that to 7 to"),
        (20, 4, 10, "it would still be running when the next one starts; set that to 10"),
        (10, 5, 7, "a horizon of at least 14, or an inference within 5 steps: another policy.device, or a lower"),
    ],
)
def test_the_sentence_says_which_number_to_change(horizon, executed, delay, sentence):
    problem = chunk_problem(horizon, executed, delay, "350 ms" if delay > 1 else "")
    assert sentence in problem and "\n" not in problem


@pytest.mark.parametrize("name", IGRIS)
def test_the_shipped_igris_configs_execute_half_of_a_chunk(name):
    def executed(*overrides: str) -> int:
        return load_training_config("online", CONFIGS / name, overrides).policy.inference.execution_horizon

    assert executed() == 10
    assert executed("learner.horizon=50") == 35  # as the robot's policy_update_period says
    assert executed("policy.inference.execution_horizon=15") == 15
    with pytest.raises(ConfigError, match=r"of chunks of 20 actions 35 are to be executed .* set that to 1 to 19"):
        executed("policy.inference.execution_horizon=35")


@pytest.mark.parametrize("robot", [["robot=sim", "robot.env.type=lift"], ["robot=igris_b", "judge=human"]])
def test_a_robot_executes_all_actions_that_a_backup_spans_by_default(robot):
    def chosen(*words: str) -> tuple[str, int | None]:
        config = load_training_config("online", None, [*robot, "learner=qchunk", *words])
        return config.inference_type, config.policy.inference.execution_horizon

    algorithm, executed = chosen()
    assert algorithm == "sequential" and executed in (None, 5)  # None: the whole chunk
    assert chosen("learner.horizon=8", "learner.critic_horizon=5") == ("rtc", 5)  # half would be 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "policy.inference=rtc",
            "spans 5 actions, and rtc executes 2 of a chunk .*; write policy.inference=sequential",
        ),
        (
            "policy.inference=sequential policy.inference.execution_horizon=2",
            "sequential executes 2 .*set that to 5 or",
        ),
        (
            "policy.inference=rtc learner.critic_horizon=3 policy.inference.execution_horizon=2",
            "spans 3 actions, and rtc executes 2 .*; set that to 3 or more, .*learner.critic_horizon=2",
        ),
    ],
)
def test_a_backup_over_actions_that_are_not_executed_is_refused(words, sentence):
    robot = ["robot=sim", "robot.env.type=lift", "learner=qchunk"]
    with pytest.raises(ConfigError, match=sentence):
        load_training_config("online", None, [*robot, *words.split()])


def test_a_learner_of_your_own_is_refused_the_same_way(monkeypatch):
    """One with chunks says nothing of its backup: all of a chunk is assumed."""
    monkeypatch.setattr(SacConfig, "action_horizon", 6)
    words = ["robot=sim", "robot.env.type=lift", "learner=sac", "policy.inference=rtc"]
    with pytest.raises(ConfigError, match="backup spans 6 actions, and rtc executes 3 of a chunk"):
        load_training_config("online", None, words)


def test_a_pretrained_policy_may_be_replanned_as_often_as_it_likes(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("policy: {type: flow, state_dim: 20, action_dim: 4, horizon: 8}")
    words = [f"policy.path={policy}", "policy.behavior=pretrained", "policy.inference=rtc", "learner=qchunk"]
    config = load_training_config("online", None, ["robot=sim", "robot.env.type=lift", *words])
    assert config.inference_type == "rtc" and config.backup_horizon is None


def test_a_backup_that_lasts_longer_than_commands_stay_fresh_is_refused():
    """100 actions are 5 s at 20 Hz, and commands are sent for 3 s."""
    words = ["robot=igris_b", "judge=human", "learner=qchunk", "learner.horizon=100"]
    config = load_training_config("online", None, words)
    with pytest.raises(TrainingError, match=r"spans 100 actions, 5.0 s of this robot, .*stale_chunk_s"):
        learner_env_spec(config, EnvSpec(2, config.robot.params().action_dim, {}, fps=20.0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["online_igris_b.yaml", "online_igris_c.yaml"])
def test_chunks_of_the_shipped_igris_configs_follow_each_other_without_a_gap(name, tmp_path):
    """At the robot's own rate and with its own images; nothing counts as late or silent on a busy machine."""
    params, endpoint = tmp_path / "params.json", free_endpoint()
    patient = {"late_after_ms": 60_000.0, "silent_after_ms": 60_000.0, "first_message_s": stretch(20.0)}
    params.write_text(json.dumps({**patient, "start_speed": 5.0}))
    asked = ["policy.inference.max_episode_steps=80", "robot.transport.type=zenoh"]
    asked += [f"robot.transport.connect=[{endpoint}]", f"robot.inference_runtime_params_config={params}"]
    config = load_training_config("online", CONFIGS / name, asked)
    start: Any = config.engine.start
    with TwinProcess(config.robot, tmp_path / "sent.jsonl", watchdog_ms=60_000), start(None) as engine:
        learner = build_learner(config, learner_env_spec(config, engine.env_spec))
        engine.load_policy(PolicySpec.of(learner.policy_config(explore=True)).on(config.policy.device))
        (episode,) = engine.episodes(1)
    assert (episode.steps, episode.fps) == (80, 20)
    assert episode.meta["guided_fraction"] >= 0.95
    assert (episode.meta["held_ticks"], episode.meta["starved_chunks"]) == (0, 0)


def test_a_run_is_refused_where_its_chunks_are_too_short():
    options = {"robot": "igris_b", "teleop": "none", "robot_files": {}}
    assert load_run([], algorithm="rtc", horizon=20, **options).inference.execution_horizon == 10
    with pytest.raises(ConfigError, match=r"of chunks of 8 actions 8 are to be executed .* set that to 1 to 7"):
        load_run(["policy.inference.execution_horizon=8"], algorithm="rtc", horizon=8, **options)
    assert load_run(["policy.inference.execution_horizon=8"], algorithm="sequential", horizon=8, **options)
    with pytest.raises(ConfigError, match="execution_horizon is 9, and chunks have 8 actions"):
        load_run(["policy.inference.execution_horizon=9"], algorithm="sequential", horizon=8, **options)
