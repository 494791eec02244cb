"""Reward models of somebody else: no description makes a network that is larger than its weights."""

import json
import os
from pathlib import Path

import pytest
import torch

from plaudit.errors import BadFile, ConfigError, PlauditError
from plaudit.judges.classifier.judge import load_reward_model
from tiny_reward import tiny_model

WIDE = {"hidden_dim": 2**16, "latent_dim": 2**16}
LARGE = WIDE | {
    "num_spatial_blocks": 2**16,
    "image_size": [2**14, 2**14],
    "cameras": {"front": [2**14, 2**14]},
    "encoder": {"type": "small", "widths": [4, 2**16]},
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
    (folder / "model.json").write_text(json.dumps(described(folder, **WIDE | {key: LARGE[key]})))
    with pytest.raises(
        BadFile, match=r"model\.json: the network that this describes needs more numbers than its weights"
    ):
        load_reward_model(folder, "cpu")


def test_the_same_in_a_single_file(folder):
    tree = {"model_state_dict": {"a": torch.zeros(3)}, "plaudit": described(folder, **WIDE)}
    torch.save(tree, folder / "m.pt")
    with pytest.raises(BadFile, match="needs more numbers than its weights"):
        load_reward_model(folder / "m.pt", "cpu")


@pytest.mark.parametrize("key", ["hidden_dim", "state_dim", "num_history_frames", "history_stride"])
def test_a_number_beyond_its_bound_is_refused(folder, key):
    (folder / "model.json").write_text(json.dumps(described(folder, **{key: 10**30})))
    with pytest.raises(ConfigError, match=key):
        load_reward_model(folder, "cpu")


RATE = {"value": 0.9, "low": 0.8, "high": 1.0}
FAILED = {"name": "frozen frame", "episodes": 5, "frames": 100, "fpr": RATE, "max_fpr": 0.05}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": {"value": float("nan")}}, r"key 'threshold.value' is NaN: input should be"),
        ({"threshold": {}}, "'threshold' has no 'value' above 0"),
        ({"calibration": []}, r"key 'calibration' is \[\]"),
        ({"controls": [{"name": "frozen frame", "episodes": 5}]}, "key 'controls.0.frames' is missing"),
        ({"controls": [FAILED]}, "names no problem, although a control failed .frozen frame: 90% of 100 frames"),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(folder, changes, message):
    tree = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**tree, **changes}))
    with pytest.raises(ConfigError, match=f"model.json: .*{message}"):
        load_reward_model(folder, "cpu")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_the_name_of_the_tensor(folder, value):
    model = tiny_model()
    dict(model.members[0].named_parameters())["head.0.weight"].data[0, 0] = value
    model.save_pretrained(folder)
    with pytest.raises(BadFile, match=r"member_0.safetensors: head.0.weight contains NaN or infinity; train or copy"):
        load_reward_model(folder, "cpu")


def test_a_frozen_stem_of_an_encoder_without_parts_is_refused(folder):
    (folder / "model.json").write_text(json.dumps(described(folder, freeze_stem=True)))
    with pytest.raises(ConfigError, match="encoder 'small' has no parts"):
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
