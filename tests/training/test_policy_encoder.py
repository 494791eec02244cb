"""Runs whose policy sees cameras through a frozen image encoder."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from plaudit.data.normalize import Normalizer
from plaudit.errors import ConfigError
from plaudit.policies.loader import load_policy
from plaudit.training.config_file import load_training_config
from plaudit.training.evaluation import evaluate_run
from plaudit.training.online import OnlineTrainer
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import open_demos
from plaudit.training.workers.group import LocalWorkerGroup
from plaudit.types import Observation
from training_runs import create, train

CAMERAS = "env=lift env.obs=pixels env.cameras=[front,wrist] env.image_size=[16,16] env.max_steps=20 demos.scripted=2 "
CLONED = CAMERAS + "policy.encoder=cloned policy.encoder.clone_updates=3 policy.encoder.clone_batch_size=8 "
IMAGENET = CAMERAS.replace("16,16", "32,32").replace(",wrist", "").replace("max_steps=20", "max_steps=12")
IMAGENET += "policy.encoder=efficientnet_lite0 policy.encoder.features=8 run.max_steps=20 run.checkpoint_freq=10 "
SAC = "learner=sac learner.hidden_dims=[16] learner.utd_ratio=0.1 learner.batch_size=16 learner.random_steps=0 "
RUN = "run.num_envs=1 run.max_steps=32 run.checkpoint_freq=16 evaluation.freq=1000 evaluation.episodes=1 "
PPO = "learner=ppo learner.hidden_dims=[16] learner.update_epochs=1 learner.pretrain_updates=2 "


def actions_of(folder: Path) -> np.ndarray:
    """What the policy in a folder does about a gray image."""
    spec = load_policy(folder / "policy.yaml")
    config = spec.config
    images = {camera: np.full((*size, 3), 100, np.uint8) for camera, size in config.cameras.items()}
    observation = Observation(images, np.ones(config.state_dim, np.float32))
    return spec.build().predict(observation, Normalizer.identity(config.state_dim, config.action_dim))


WORDS = {
    "cloned": CLONED + SAC,
    "efficientnet_lite0": IMAGENET + SAC,
    "ppo": CLONED + PPO,
    "history and gripper": CLONED + SAC + "policy.history=2 learner.gripper=discrete learner.bc_weight=0.1 "
    "learner.pretrain_updates=2 ",
    "history, ppo": CLONED + PPO + "policy.history=2 ",
}


SLOW = ("cloned", "ppo")  # those with a history do the same


@pytest.mark.parametrize(
    "words", [pytest.param(w, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, w in WORDS.items()]
)
def test_a_run_is_resumed_exactly_and_its_policy_is_complete(tmp_path: Path, words: str):
    train(create(tmp_path / "whole", RUN + words))
    create(tmp_path / "parts", RUN + words)
    train(RunFolder.reopen(tmp_path / "parts"), lambda _: False)  # stopped after the first rollout
    train(RunFolder.reopen(tmp_path / "parts"))
    whole, parts = (load_file(tmp_path / name / "policy/model.safetensors") for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    frozen = load_file(tmp_path / "whole/policy/frozen.safetensors")
    assert frozen and not [name for name in whole if name.startswith("frozen")]
    shutil.copytree(tmp_path / "whole/policy", tmp_path / "robot")
    assert np.isfinite(actions_of(tmp_path / "robot")).all()
    assert evaluate_run(RunFolder.reopen(tmp_path / "whole"), 1).episodes == 1


def test_a_cloned_encoder_needs_demonstrations(tmp_path: Path):
    words = CLONED.replace("demos.scripted=2", "") + SAC + RUN
    with pytest.raises(ConfigError, match="there are no demonstrations to clone"):
        create(tmp_path / "run", words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("policy.encoder=small", "encoder 'small' has no pretrained weights, so it must not stay frozen"),
        ("policy.encoder=resnet11", "did you mean 'resnet10'"),
        ("policy.encoder.options.weights=x", "encoder 'cnn' takes no options"),
    ],
)
def test_an_encoder_that_cannot_work_is_refused(words: str, message: str):
    with pytest.raises(ConfigError, match=message):
        load_training_config("train", None, [*CAMERAS.split(), *SAC.split(), words])


@pytest.mark.parametrize(
    ("sampling", "more"),
    [
        ("local", ""),
        pytest.param("remote", "", marks=pytest.mark.slow),
        ("remote", "policy.history=1 learner.gripper=discrete"),
    ],
)
def test_an_online_run_acts_and_learns_with_a_frozen_encoder(tmp_path: Path, sampling: str, more: str):
    words = f"{CLONED} {SAC} judge=simulator run.max_episodes=4 run.sampling={sampling} run.seed=1 evaluation.freq=1000"
    config = load_training_config("online", None, [*words.split(), *more.split()])
    frozen: list[dict[str, np.ndarray]] = []
    for episodes in (2, 4):  # the second session loads what the first has trained
        folder = RunFolder.open(tmp_path / "run", config)
        open_demos(folder, lambda _: iter)
        workers = LocalWorkerGroup(folder, serial=True)
        try:
            end = OnlineTrainer(folder, workers).run(lambda now, episodes=episodes: now.episodes < episodes)
        finally:
            workers.close()
            folder.close()
        assert not end.errors and end.episodes >= episodes
        frozen.append(load_file(tmp_path / "run/policy/frozen.safetensors"))
        assert all(np.array_equal(frozen[0][name], value) for name, value in frozen[-1].items())
    assert RunFolder.reopen(tmp_path / "run").metrics()[-1]["learner/updates"] > 0
    assert not [name for name in load_file(tmp_path / "run/policy/model.safetensors") if name.startswith("frozen")]
    assert np.isfinite(actions_of(tmp_path / "run/policy")).all()
