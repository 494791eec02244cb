"""The commands and files of RLinf's two guides on reward models run as they are written, in `examples/rlinf`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bright_square import square_store
from plaudit.data.formats import WriteOptions
from plaudit.data.transfer import export_dataset
from plaudit.judges.classifier.train_job import load_reward_train_job
from plaudit.training.config_file import load_training_config
from waiting import stretch

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "examples/rlinf"
CONFIGS = GUIDE / "examples/embodiment/config"
TRAINS_A_MODEL = ("maniskill_train_resnet_reward", "maniskill_train_reward_model")
TINY = ["run.num_envs=2", "run.max_steps=20", "env.max_steps=10", "evaluation.episodes=1", "learner.update_epochs=1"]

# As the second guide prints it, without a task and a learner.
COLLECT = """
env:
  train:
    reward_render_mode: "always"
    init_params:
      obs_mode: "state"
      render_mode: "rgb_array"
reward_data_collection:
  enabled: True
  save_dir: "${oc.env:EMBODIED_PATH}/data"
  target_success: 5000
  target_failure: 5000
"""


@pytest.fixture
def guide(tmp_path):
    """A copy, as `plaudit config copy rlinf` makes it."""
    return shutil.copytree(GUIDE, tmp_path / "rlinf", ignore=shutil.ignore_patterns("__pycache__"))


def run(guide: Path, *words: str, ok: bool = True) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHON": sys.executable}
    command = [sys.executable if word == "python" else word for word in words]
    done = subprocess.run(command, cwd=guide, env=environment, capture_output=True, text=True, timeout=stretch(300))
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_a_valid_config(path, monkeypatch):
    monkeypatch.setenv("EMBODIED_PATH", "/robots/examples/embodiment")
    if path.stem in TRAINS_A_MODEL:
        job, _ = load_reward_train_job(path, {})
        assert job.data == (Path("/robots/examples/embodiment/data"),) and job.output_checkpoint.name.endswith(
            "best.pt"
        )
    else:
        config = load_training_config("train", path, [])
        assert config.env.type == "pick_place" and config.learner.type == "ppo"


def test_the_printed_part_of_a_recipe_is_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBODIED_PATH", str(tmp_path))
    (tmp_path / "recipe.yaml").write_text(COLLECT)
    config = load_training_config("train", tmp_path / "recipe.yaml", [])
    assert (config.env.type, config.env.obs, config.learner.type) == ("pick_place", "both", "ppo")
    assert config.policy.cameras == () and config.collect.target_success == 5000
    assert config.reward.env_reward == "dense"


def test_a_reward_model_takes_the_place_of_the_dense_reward():
    path = CONFIGS / "maniskill_ppo_cnn.yaml"
    assert load_training_config("train", path, []).reward.env_reward == "dense"
    config = load_training_config("train", path, ["reward.use_reward_model=True", "reward.collect_data=False"])
    assert config.reward.env_reward == "sparse" and config.judge.name == "classifier" and config.collect is None


def test_a_recipe_that_does_not_exist_is_answered_with_those_that_do(guide):
    said = run(guide, "bash", "examples/embodiment/run_embodiment.sh", "maniskill", ok=False)
    assert "does not exist; --config-path has: maniskill_collect_reward_data, maniskill_ppo_cnn" in said


@pytest.mark.slow
def test_the_first_guide(guide, tmp_path):
    shell, agent = "examples/embodiment/run_embodiment.sh", "examples/embodiment/train_embodied_agent.py"
    run(guide, "bash", shell, "maniskill_ppo_cnn", *TINY)
    assert list((guide / "reward_data/negative").glob("*.npy"))
    shutil.rmtree(guide / "reward_data")  # so few steps show no success
    export_dataset(square_store(tmp_path / "store", cameras=("base_camera",), size=64), guide / "reward_data", "npy")
    module = "rlinf.models.reward_model.train_reward_model"
    folders = ["--positive-dir", "./reward_data/positive", "--negative-dir", "./reward_data/negative"]
    output = ["--output-checkpoint", "./checkpoints/reward_model.pt", "--image-key", "base_camera"]
    network = ["--backbone", "resnet10", "--image-size", "3", "64", "64", "--hidden-dim", "256"]
    run(guide, "python", "-m", module, *folders, *output, *network, "--epochs", "1", "--num-spatial-blocks", "8")
    switches = ["reward.use_reward_model=True", "reward.collect_data=False"]
    place = ["--config-path", "examples/embodiment/config/", "--config-name", "maniskill_ppo_cnn"]
    model = "reward.reward_model.checkpoint_path=./checkpoints/reward_model.pt"
    said = run(guide, "python", agent, *place, *switches, model, "judge.force=true", "audit.on_alarm=warn", *TINY)
    assert " steps, " in said


@pytest.mark.slow
def test_the_second_guide(guide, tmp_path):
    shell = "examples/embodiment/run_embodiment.sh"
    run(guide, "bash", shell, "maniskill_collect_reward_data", *TINY)
    data = guide / "examples/embodiment/data"
    assert list((data / "failure").glob("*.pkl"))
    shutil.rmtree(data)
    export_dataset(square_store(tmp_path / "store", size=64), data, "pkl", WriteOptions())
    run(guide / "examples/embodiment", "./run_embodiment.sh", "maniskill_train_resnet_reward", "epochs=1")
    assert (guide / "logs/reward_checkpoints/reward_model_best.pt").is_file()
    run(
        guide,
        "bash",
        shell,
        "maniskill_ppo_mlp_resnet_reward",
        "judge.force=true",
        "audit.on_alarm=warn",
        "demos.scripted=2",
        "judge.rule.threshold=0.001",  # of a judge that has seen squares only
        *TINY,
        "env.max_steps=50",  # as the expert needs
    )
