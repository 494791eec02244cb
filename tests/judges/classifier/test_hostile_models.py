"""Reward models of somebody else: no description makes a network that is larger than its weights."""

import json
import os
from pathlib import Path

import pytest
import torch

from plaudit.errors import BadFile, ConfigError, PlauditError
from plaudit.judges.classifier.loader import load_reward_model
from tiny_reward import tiny_model

LARGE = {
    "hidden_dim": 2**31,
    "latent_dim": 10**9,
    "num_spatial_blocks": 10**9,
    "state_dim": 10**12,
    "num_history_frames": 10**9,
    "image_size": [10**5, 10**5],
    "cameras": {"front": [10**5, 10**5]},
    "encoder": {"type": "small", "widths": [4, 2**20]},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model().save_pretrained(tmp_path)
    return tmp_path


def described(folder: Path, **changes) -> dict:
    tree = json.loads((folder / "model.json").read_text())
    return {**tree, "classifier": {**tree["classifier"], **changes}}


@pytest.mark.parametrize("key", LARGE)
def test_a_folder_whose_network_would_not_fit_its_weights_is_refused_before_it_is_built(folder, key):
    (folder / "model.json").write_text(json.dumps(described(folder, **{key: LARGE[key]})))
    with pytest.raises(
        BadFile, match=r"model\.json: the network that this describes needs more numbers than its weights"
    ):
        load_reward_model(folder, "cpu")


def test_the_same_in_a_single_file(folder):
    tree = {"model_state_dict": {"a": torch.zeros(3)}, "plaudit": described(folder, hidden_dim=2**31)}
    torch.save(tree, folder / "m.pt")
    with pytest.raises(BadFile, match="needs more numbers than its weights"):
        load_reward_model(folder / "m.pt", "cpu")


def test_looks_are_not_kept_for_ever(folder):
    (folder / "model.json").write_text(json.dumps(described(folder, history_stride=10**30)))
    with pytest.raises(ConfigError, match="history_stride"):
        load_reward_model(folder, "cpu")


def test_a_network_without_layers_is_refused(folder):
    (folder / "model.json").write_text(json.dumps(described(folder, encoder={"type": "small", "widths": []})))
    with pytest.raises(ConfigError, match="widths"):
        load_reward_model(folder, "cpu")


@pytest.mark.parametrize("name", ["model.json", "member_0.safetensors"])
def test_pipes_and_devices_in_a_folder_are_not_waited_for(folder, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(PlauditError):
        load_reward_model(folder, "cpu")
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")
    with pytest.raises(PlauditError):
        load_reward_model(folder, "cpu")
