"""examples/plugins: each is copied into an empty folder, keeps its contract there, and works in a command."""

import shutil
from pathlib import Path

import pytest

from conftest import counting_episode
from plaudit.data.store import Store
from processes import run_plaudit, run_pytest

PLUGINS = Path(__file__).parents[2] / "examples/plugins"


@pytest.fixture
def folder(tmp_path) -> Path:
    return Path(shutil.copytree(PLUGINS, tmp_path / "plugins", ignore=shutil.ignore_patterns("__pycache__")))


def test_every_plugin_keeps_its_contract(folder):
    assert "5 passed" in run_pytest(folder)


def test_a_command_trains_with_the_learner(folder):
    small = ("env.max_steps=10", "run.num_envs=2", "run.max_steps=40", "evaluation.episodes=1")
    run_plaudit(folder, "train", "env=push", "learner=my_learner:AwbcConfig", *small, "run.name=run")
    assert (folder / "runs/run/policy/policy.yaml").exists()


def test_a_command_trains_in_the_environment(folder):
    small = ("run.num_envs=2", "run.max_steps=40", "evaluation.episodes=1")
    run_plaudit(folder, "train", "env=my_env:LampEnvConfig", "learner=sac", *small, "run.name=run")
    assert (folder / "runs/run/policy/policy.yaml").exists()


def test_a_command_runs_the_policy_on_the_robot(folder):
    words = ("--policy_yaml", "my_policy/policy.yaml", "--allow-code", "my_policy", "--steps", "4", "--store", "store")
    run_plaudit(folder, "run", "--robot", "my_robot:LampConfig", "--inference_algorithm", "sequential", *words)
    assert Store.open(folder / "store").episode(0).steps == 4


def test_a_command_labels_with_the_judge(folder):
    with Store.create(folder / "store") as store:
        store.append(counting_episode())
    run_plaudit(folder, "label", "store", "--judge", "my_judge:BrightnessConfig")
    labels = Store.open(folder / "store").ledger.labels(0)
    assert labels is not None and labels.judge.source == "brightness"
