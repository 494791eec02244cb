"""Chunks that fit: what is refused before anything moves, and what the shipped configs do."""

from pathlib import Path

import pytest

from plaudit.errors import ConfigError
from plaudit.rollout.chunks import chunk_problem
from plaudit.rollout.engine import load_run
from plaudit.training.config_file import load_training_config

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
        (20, 4, 10, "it would not be done when the next is due; set that to 10"),
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


def test_a_run_is_refused_where_its_chunks_are_too_short():
    options = {"robot": "igris_b", "teleop": "none", "robot_files": {}}
    assert load_run([], algorithm="rtc", horizon=20, **options).inference.execution_horizon == 10
    with pytest.raises(ConfigError, match=r"of chunks of 8 actions 8 are to be executed .* set that to 1 to 7"):
        load_run(["policy.inference.execution_horizon=8"], algorithm="rtc", horizon=8, **options)
    assert load_run(["policy.inference.execution_horizon=8"], algorithm="sequential", horizon=8, **options)
    with pytest.raises(ConfigError, match="execution_horizon is 9, and chunks have 8 actions"):
        load_run(["policy.inference.execution_horizon=9"], algorithm="sequential", horizon=8, **options)
