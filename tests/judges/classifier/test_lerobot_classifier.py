"""lerobot's reward classifier, read and written; `make interop` does the same with lerobot itself."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from command import plaudit
from plaudit.encoders import SmallConfig
from plaudit.encoders.resnet import Resnet10Config
from plaudit.errors import BadFile, JudgeError
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.lerobot import load_lerobot_classifier, save_lerobot_classifier
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.config import judge_tree

SIZE = 128


class Theirs(nn.Module):
    """lerobot's classifier by its names: a model of transformers, embeddings of a 4x4 grid, a head."""

    def __init__(
        self, encoder: Any, keys: list[str], channels: int, latent: int = 6, hidden: int = 12, blocks: int = 2
    ):
        super().__init__()
        self.encoder, self.keys = encoder, keys
        self.encoders = nn.ModuleDict()
        for key in keys:
            pool = nn.Module()
            pool.kernel = nn.Parameter(torch.randn(channels, 4, 4, blocks) * 0.1)
            parts = [nn.Identity(), pool, nn.Dropout(0.1), nn.Linear(channels * blocks, latent), nn.LayerNorm(latent)]
            self.encoders[key.replace(".", "_")] = nn.Sequential(*parts, nn.Tanh())
        self.classifier_head = nn.Sequential(
            nn.Linear(latent * len(keys), hidden),
            nn.Dropout(0.1),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, images: dict[str, Tensor]) -> Tensor:
        """Of normalized images [B, 3, H, W]."""
        looks = []
        for key in self.keys:
            parts: Any = self.encoders[key.replace(".", "_")]
            grid = self.encoder(images[key]).last_hidden_state
            pooled = (grid.unsqueeze(-1) * parts[1].kernel).sum(dim=(2, 3)).flatten(1)
            looks.append(parts[5](parts[4](parts[3](pooled))))
        return self.classifier_head(torch.cat(looks, dim=-1))[:, 0]


def their_folder(folder: Path, keys: list[str]) -> tuple[Theirs, dict[str, Tensor]]:
    """As lerobot saves one: with a small ResNet of transformers and statistics of each camera."""
    import transformers

    torch.manual_seed(0)
    shape = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1] * 4, layer_type="basic")
    encoder = transformers.ResNetModel(shape).eval()
    encoder.save_pretrained(folder / "resnet")
    network = Theirs(encoder, keys, 16).eval()
    out = folder / "theirs"
    out.mkdir(parents=True)
    save_file(dict(network.state_dict()), out / "model.safetensors")
    features = {key: {"type": "VISUAL", "shape": [3, SIZE, SIZE]} for key in keys}
    config = {"type": "reward_classifier", "model_type": "cnn", "num_classes": 2, "model_name": str(folder / "resnet")}
    mapping = {"VISUAL": "MEAN_STD"}
    (out / "config.json").write_text(
        json.dumps({**config, "input_features": features, "normalization_mapping": mapping, "push_to_hub": False})
    )
    stats = {f"{key}.{name}": torch.rand(3, 1, 1) + 0.1 for key in keys for name in ("mean", "std")}
    save_file(stats, out / "classifier_preprocessor_step_0_normalizer_processor.safetensors")
    return network, stats


def noise(*cameras: str, size: int = SIZE) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {camera: rng.integers(0, 256, (2, size, size, 3), np.uint8) for camera in cameras}


def logits(model: RewardModel, images: dict[str, np.ndarray]) -> Tensor:
    model.check(images, None)
    with torch.inference_mode():
        return model.members[0]({c: torch.from_numpy(pixels) for c, pixels in images.items()})[:, 0]


def as_theirs(images: dict[str, np.ndarray]) -> dict[str, Tensor]:
    return {f"observation.images.{c}": torch.from_numpy(p).permute(0, 3, 1, 2) / 255 for c, p in images.items()}


def test_theirs_scores_here_as_there(tmp_path):
    network, stats = their_folder(tmp_path, ["observation.images.wrist", "observation.images.front"])
    model, images = load_reward_model(tmp_path / "theirs", "cpu"), noise("front", "wrist")
    with torch.inference_mode():
        normalized = {k: (x - stats[f"{k}.mean"]) / stats[f"{k}.std"] for k, x in as_theirs(images).items()}
        expected = network(normalized)
    assert torch.allclose(logits(model, images), expected, atol=1e-4) and np.ptp(expected.numpy()) > 1e-4
    assert model.cameras == {"wrist": (SIZE, SIZE), "front": (SIZE, SIZE)} and model.threshold == 0.5
    assert judge_tree(tmp_path / "theirs") == {"type": "classifier", "model": str(tmp_path / "theirs")}
    (tmp_path / "ours").mkdir()
    model.save_pretrained(tmp_path / "ours")
    assert torch.equal(logits(load_reward_model(tmp_path / "ours", "cpu"), images), logits(model, images))


def ours(size: int = SIZE, **shape: Any) -> RewardModel:
    torch.manual_seed(0)
    shape = {"encoder": SmallConfig(widths=(4, 8, 8, 8, 16)), "latent_dim": 6, "hidden_dim": 12, **shape}
    config = ClassifierConfig(cameras=dict.fromkeys(("wrist", "front"), (size, size)), num_spatial_blocks=2, **shape)
    return RewardModel([BinaryRewardClassifier(config)], RewardModelConfig.untested(config), "cpu")


def test_ours_is_a_folder_of_which_transformers_builds_the_encoder(tmp_path, monkeypatch):
    import transformers

    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # the modules are put on it
    model, folder = ours(), tmp_path / "out"
    folder.mkdir()
    notes = save_lerobot_classifier(model, folder, folder)
    tensors = load_file(folder / "model.safetensors")
    encoder = transformers.AutoModel.from_pretrained(folder / "encoder", trust_remote_code=True)
    network = Theirs(encoder, sorted(f"observation.images.{c}" for c in model.cameras), 16).eval()
    network.load_state_dict(tensors)
    images = noise("front", "wrist")
    with torch.inference_mode():
        assert torch.allclose(network(as_theirs(images)), logits(model, images), atol=1e-5)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_name"] == str(folder / "encoder") and config["num_cameras"] == 2
    assert "lerobot needs plaudit in the same environment" in notes[-1]
    assert torch.equal(logits(load_lerobot_classifier(folder, "cpu"), images), logits(model, images))


def test_resnet10_of_the_hub_is_known_by_its_tensors(tmp_path):
    from plaudit.encoders.resnet import _helper2424

    model = ours(encoder=Resnet10Config(normalize="unit"))
    (tmp_path / "out").mkdir()
    save_lerobot_classifier(model, tmp_path / "out", tmp_path / "out")
    theirs, name_of = {}, _helper2424(".conv", ".group_norm")
    for name, tensor in load_file(tmp_path / "out/model.safetensors").items():
        start = "encoder.network."
        theirs[f"encoder.{name_of(name.removeprefix(start))}" if name.startswith(start) else name] = tensor
    config = json.loads((tmp_path / "out/config.json").read_text())
    (tmp_path / "hub").mkdir()
    save_file(theirs, tmp_path / "hub/model.safetensors")
    (tmp_path / "hub/config.json").write_text(json.dumps({**config, "model_name": "lerobot/resnet10"}))
    images = noise("front", "wrist")
    loaded = load_reward_model(tmp_path / "hub", "cpu")
    assert torch.allclose(logits(loaded, images), logits(model, images), atol=1e-6)
    assert "has no normalizer: its images are taken as numbers from 0 to 1" in loaded.warnings[0]


def test_what_lerobot_has_not_is_refused(tmp_path):
    with pytest.raises(JudgeError, match="pools grids of 4x4, and images of 64x64 give this model 2x2"):
        save_lerobot_classifier(ours(64), tmp_path, tmp_path)
    averaged = {"head": "mlp", "global_pool_features": True}
    with pytest.raises(JudgeError, match="has head 'mlp' over an averaged grid, and lerobot's pools a grid of 4x4"):
        save_lerobot_classifier(ours(**averaged), tmp_path, tmp_path)
    with pytest.raises(JudgeError, match="has progress, which lerobot's have not"):
        save_lerobot_classifier(ours(predict_progress=True), tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "transformer"}, "a classifier of model_type 'transformer' with 2 classes is not read"),
        ({"num_classes": 3}, "with 3 classes is not read"),
        ({"input_features": {}}, "input_features names no camera"),
        ({"input_features": {"observation.images.a": {"shape": [3]}}}, "observation.images.a has no shape of channels"),
        ({"normalization_mapping": {"VISUAL": "MIN_MAX"}}, "images normalized by MIN_MAX are not read"),
        (
            {"input_features": {"observation.images.x": {"shape": [3, 128, 128]}}},
            "_x.1.kernel is missing",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path, change, sentence):
    their_folder(tmp_path, ["observation.images.front"])
    path = tmp_path / "theirs/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadFile, match=sentence):
        load_reward_model(tmp_path / "theirs", "cpu")


@pytest.mark.parametrize(
    "gone",
    [
        "classifier_head.4.bias",
        "encoder.encoder.stages.2.layers.0.layer.0.normalization.bias",
    ],
)
def test_a_folder_that_would_leave_a_tensor_unset_is_refused(tmp_path, gone):
    their_folder(tmp_path, ["observation.images.front"])
    path = tmp_path / "theirs/model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != gone}, path)
    with pytest.raises(BadFile, match=r"these are weights of another network: .* is missing"):
        load_reward_model(tmp_path / "theirs", "cpu")


def test_the_command_exports_and_tells(tmp_path):
    ours().save_pretrained(tmp_path)
    said = plaudit("judge", "export", ".", "out", "--to", "lerobot", cwd=tmp_path)
    assert "note: decide success at a probability of 0.5 there" in said and "lerobot can load" in said
    refused = plaudit("judge", "export", ".", "m.pt", "--to", "rlinf", cwd=tmp_path, ok=False)
    assert "error: RLinf has no reward model with encoder 'small'" in refused and not (tmp_path / "m.pt").exists()
