"""`plaudit run`: from names and files to episodes in a store."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from plaudit.cli import load_app, main
from plaudit.data.store import Store
from plaudit.errors import ConfigError, PolicyError
from plaudit.policies.config import GaussianConfig
from plaudit.policies.loader import save_policy
from plaudit.registry import ROBOT_REGISTRY
from plaudit.robots.transport import ZenohConfig
from plaudit.robots.twin import TwinProcess
from plaudit.robots.twin.log import compare_episode
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.run import load_run
from plaudit.types import PolicyWeights
from processes import Forked
from puppet import lines, received
from slow import slow_but
from twins import QUICK, free_endpoint
from waiting import wait_until

PUPPET = ("run", "--robot", "puppet:PuppetConfig")


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(load_app(), [str(word) for word in words])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("policy: {type: 'puppet:CounterConfig'}")
    return path


@pytest.mark.parametrize("algorithm", ["rtc", "sequential"])
def test_it_drives_records_and_says_how_punctual_it_was(algorithm, policy, tmp_path):
    words = ("--policy_yaml", policy, "--inference_algorithm", algorithm, "--store", tmp_path / "store")
    log = f"robot.log={tmp_path / 'log'}"
    said = run(
        *PUPPET, *words, "--episodes", 2, "--steps", 5, "--seed", 3, log, "policy.inference.max_action_delta=0.5"
    )
    assert "100 Hz, 2 joints, 2 cameras" in said and "ticks                     10" in said
    assert "2 episodes of at most 5 steps each: 0 s" in said
    assert "episode 0: 5 steps, ended by: steps; 1 to go\nepisode 1: 5 steps, ended by: steps\n" in said
    assert ": 2 episodes." in said and "Ended by: steps; weights [0]." in " ".join(said.split())
    store = Store.open(tmp_path / "store")
    assert [episode.meta["seed"] for _, episode in store] == [3, 4]
    assert np.array_equal(np.concatenate([e.actions for _, e in store]), received(tmp_path / "log"))
    assert store.episode(0).actions[:, 0].tolist() == [0, 0.5, 1, 1.5, 2]


class HalfConfig(InferenceConfig):
    share: float = 0.5


class Half(Sequential):
    """An inference algorithm of the user's own, with a setting of its own: it runs a share of the steps."""

    def __init__(self, robot: Any, policy: Any, config: HalfConfig, teleop: Any = None):
        steps = int((config.max_episode_steps or 1000) * config.share)
        super().__init__(robot, policy, config.model_copy(update={"max_episode_steps": steps}), teleop)


def test_an_algorithm_of_the_users_own_is_chosen_by_its_dotted_path(policy, tmp_path):
    words = ("--policy_yaml", policy, "--inference_algorithm", f"{__name__}:Half", "--store", tmp_path / "store")
    log = f"robot.log={tmp_path / 'log'}"
    run(*PUPPET, *words, "--episodes", 1, "--steps", 8, log)
    run(*PUPPET, *words, "--episodes", 1, "--steps", 8, log, "policy.inference.share=0.25")
    assert [episode.steps for _, episode in Store.open(tmp_path / "store")] == [4, 2]


def test_an_algorithm_that_is_not_there_is_answered_with_the_nearest(policy, tmp_path):
    words = ("--policy_yaml", policy, "--inference_algorithm", "rct", "--store", tmp_path / "store")
    with pytest.raises(ConfigError, match="there is no inference algorithm 'rct'; did you mean 'rtc'"):
        CliRunner().invoke(load_app(), [*map(str, (*PUPPET, *words))], catch_exceptions=False)


def test_a_policy_of_one_action_at_a_time_is_run_in_turn_and_others_while_the_robot_moves(policy, tmp_path):
    words = ("--policy_yaml", policy, "--store", tmp_path / "store", "--steps", 3, f"robot.log={tmp_path / 'log'}")
    assert "ordinary priority" not in run(*PUPPET, *words)
    said = run(*PUPPET, *words, "policy.horizon=1")
    assert "sequential inference, since this policy returns one action at a time" in said
    assert "control has ordinary priority" in said


def test_a_policy_of_other_sizes_than_the_robot_is_refused_before_anything_moves(tmp_path):
    (tmp_path / "policy.yaml").write_text("policy: {type: gaussian, state_dim: 24, action_dim: 7}")
    words = ("--policy_yaml", tmp_path / "policy.yaml", "--store", tmp_path / "store", f"robot.log={tmp_path / 'log'}")
    sentence = "made for a state of 24 numbers, and that of puppet:PuppetConfig has 1; name the robot"
    with pytest.raises(PolicyError, match=sentence):
        CliRunner().invoke(load_app(), [*map(str, (*PUPPET, *words, "--allow-untrained"))], catch_exceptions=False)
    assert not (tmp_path / "store").exists() and not len(received(tmp_path / "log"))


def test_a_real_robot_refuses_a_network_without_weights_or_without_statistics(tmp_path):
    net = GaussianConfig(state_dim=1, action_dim=2)
    policy = save_policy(tmp_path, net, PolicyWeights(0, {}))  # trained, in no units
    words = (
        *PUPPET,
        "--policy_yaml",
        policy,
        "--steps",
        2,
        "--store",
        tmp_path / "store",
        f"robot.log={tmp_path / 'log'}",
    )
    with pytest.raises(PolicyError, match="nothing says what this policy's actions are on puppet:PuppetConfig, and "):
        CliRunner().invoke(load_app(), [*map(str, words)], catch_exceptions=False)
    policy.write_text("policy: {type: gaussian, state_dim: 1, action_dim: 2}")
    with pytest.raises(PolicyError, match=r"this policy is untrained: .* would move at random; .*: --allow-untrained"):
        CliRunner().invoke(load_app(), [*map(str, words)], catch_exceptions=False)
    assert not len(received(tmp_path / "log"))
    run(*words, "--allow-untrained")
    assert len(received(tmp_path / "log")) == 2


def test_too_many_steps_without_a_command_are_a_warning(tmp_path):
    (tmp_path / "policy.yaml").write_text("policy: {type: 'puppet:CounterConfig', horizon: 4, took: 0.5}")
    words = ("--policy_yaml", tmp_path / "policy.yaml", "--store", tmp_path / "store", f"robot.log={tmp_path / 'log'}")
    said = run(*PUPPET, *words, "--steps", 8)
    assert "held                      4 (50.0%)" in said and "starved chunks            1" in said
    assert "50.0% of control steps had no command" in said and "lower policy.inference.execution_horizon" in said


def test_a_failure_returns_1_and_keeps_the_episode(policy, tmp_path):
    words = ("--policy_yaml", policy, "--store", tmp_path / "store", f"robot.log={tmp_path / 'log'}")
    said = run(*PUPPET, *words, "robot.fails_at=4", code=1)
    assert "OSError: a wire came off; the robot was commanded to hold" in said
    assert Store.open(tmp_path / "store").episode(0).steps == 4
    assert lines(tmp_path / "log")[-1] == "hold"


def test_a_failure_before_the_first_step_is_told_and_nothing_else(policy, tmp_path):
    words = ("--policy_yaml", policy, "--inference_algorithm", "sequential", "--store", tmp_path / "store")
    said = run(*PUPPET, *words, f"robot.log={tmp_path / 'log'}", "robot.fails_at=0", code=1)
    assert "a wire came off; the robot was commanded to hold" in said
    assert "late, ms" not in said and "episodes added" not in said
    assert not (tmp_path / "store").exists()


def in_background(*words: str) -> None:
    """A command in a child process that ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.argv = ["plaudit", *words]
    main()


@pytest.mark.parametrize("algorithm", slow_but("sequential", of=["rtc", "sequential"]))
def test_a_scheduler_that_ends_it_costs_nothing(algorithm, policy, tmp_path):
    """In the background, where a shell has Ctrl-C ignored."""
    words = ("--policy_yaml", policy, "--inference_algorithm", algorithm, "--store", tmp_path / "store")
    with Forked(in_background, *PUPPET, *map(str, words), f"robot.log={tmp_path / 'log'}") as process:
        wait_until(lambda: len(lines(tmp_path / "log")) >= 20)
        process.send_signal(signal.SIGTERM)
        said = process.read()
    assert process.returncode == 130 and "interrupted; the robot was commanded to hold" in said, said
    episode = Store.open(tmp_path / "store").episode(0)
    assert 10 < episode.steps < 1000 and episode.meta["ended"] == "interrupted"
    assert lines(tmp_path / "log")[-1] == "hold"


@pytest.mark.parametrize("algorithm", slow_but("sequential", of=["rtc", "sequential"]))
def test_a_robot_that_cannot_be_made_leaves_no_store_behind(algorithm, policy, tmp_path):
    words = ("--policy_yaml", policy, "--inference_algorithm", algorithm, "--store", tmp_path / "store")
    result = CliRunner().invoke(
        load_app(), [*PUPPET, *map(str, words), f"robot.log={tmp_path / 'log'}", "robot.size=[0,0]"]
    )
    said = result.output + str(result.exception)
    assert result.exit_code == 1 and "camera front cannot have the size (0, 0)" in said
    assert "commanded to hold" not in said
    assert not (tmp_path / "store").exists()


def test_a_key_that_does_not_exist_is_said_before_anything_is_built(policy, tmp_path):
    result = CliRunner().invoke(load_app(), [*PUPPET, "--policy_yaml", str(policy), "robot.logg=x"])
    assert "unknown key 'robot.logg'; did you mean 'log'?" in str(result.exception)


def test_the_robots_own_file_says_how_often_to_infer(tmp_path):
    options = {"robot": "igris_b", "algorithm": "rtc", "teleop": "topic", "robot_files": {}}
    config = load_run(["teleop.timeout_s=0.5"], **options)
    assert config.inference.execution_horizon == 35 and config.robot.realtime is False
    assert config.teleop.timeout_s == 0.5 and config.teleop.robot == config.robot
    assert load_run(["policy.inference.execution_horizon=7"], **options).inference.execution_horizon == 7


def test_a_twin_of_igris_b_over_zenoh_is_driven_and_recorded(tmp_path):
    params, endpoint = tmp_path / "params.json", free_endpoint()
    params.write_text(json.dumps(QUICK | {"joint_max_velocity": 1.5, "joint_max_acceleration": 10.0}))
    (tmp_path / "policy.yaml").write_text("policy: {type: scripted, function: 'puppet:wave', horizon: 50}")
    config = ROBOT_REGISTRY.get("igris_b")(
        inference_runtime_params_config=params, transport=ZenohConfig(connect=(endpoint,))
    )
    with TwinProcess(config, tmp_path / "sent.jsonl") as twin:
        files = ("--inference_runtime_params_config", params, "--policy_yaml", tmp_path / "policy.yaml")
        there = (f"robot.transport.connect=[{endpoint}]", "robot.transport.type=zenoh")
        limits = ("--steps", 40, "--allow-code", "puppet")
        run("run", "--robot", "igris_b", *files, "--store", tmp_path / "store", *limits, *there)
        log = twin.log()
    episode = Store.open(tmp_path / "store").episode(0)
    assert (
        episode.steps == 40
        and episode.robot == "igris_b"
        and not compare_episode(episode, log, ("position",)).mismatches
    )
    assert log[-1]["commands"] > 40 and log[-1]["violations"] == 0, [line["violated"] for line in log]
    obeyed = {tuple(np.float32(line["target"])) for line in log}
    assert obeyed & {tuple(action) for action in episode.actions}
