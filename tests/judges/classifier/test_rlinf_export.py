"""Reward models written by RLinf's names, and the file of its ManiSkill recipe: equal to a plain network there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from plaudit.encoders import SmallConfig
from plaudit.encoders.resnet import Resnet10Config, ResnetConfig
from plaudit.errors import BadFile, JudgeError, TargetNotEmpty
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig
from plaudit.judges.classifier.rlinf import export_rlinf, load_rlinf_checkpoint
from tiny_reward import tiny_model

RECIPE: dict[str, Any] = {
    "encoder": Resnet10Config(padding="torchvision"),
    "head": "mlp",
    "global_pool_features": True,
}
FIRST: dict[str, Any] = {"encoder": Resnet10Config(padding="torchvision", normalize="unit"), "num_spatial_blocks": 2}
TODAY: dict[str, Any] = {"encoder": ResnetConfig(), "head": "mlp", "global_pool_features": True}


def model_of(cameras: tuple[str, ...] = ("main",), size: int = 64, **shape: Any) -> RewardModel:
    torch.manual_seed(0)
    config = ClassifierConfig(cameras=dict.fromkeys(cameras, (size, size)), hidden_dim=12, latent_dim=6, **shape)
    return RewardModel([BinaryRewardClassifier(config)], RewardModelConfig.untested(config), "cpu")


class PlainBlock(nn.Module):
    """A basic block of torchvision's names with group norm."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.GroupNorm(4, outputs), nn.GroupNorm(4, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(4, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class RecipeNetwork(nn.Module):
    """The classifier of the ManiSkill recipe: a ResNet-10 with a head that is unused, and layers 1 and 4 after it."""

    def __init__(self) -> None:
        super().__init__()
        backbone: Any = nn.Module()
        backbone.conv1, backbone.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(4, 64)
        for stage, (inputs, outputs) in enumerate([(64, 64), (64, 128), (128, 256), (256, 512)], start=1):
            setattr(backbone, f"layer{stage}", nn.Sequential(PlainBlock(inputs, outputs, 1 if stage == 1 else 2)))
        backbone.fc = nn.Linear(512, 1000)
        self.backbone = backbone
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(512, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        x = (pixels.permute(0, 3, 1, 2) / 255 - mean[:, None, None]) / std[:, None, None]
        net: Any = self.backbone
        x = F.max_pool2d(torch.relu(net.bn1(net.conv1(x))), 3, 2, 1)
        x = net.layer4(net.layer3(net.layer2(net.layer1(x))))
        return self.classifier(x.mean(dim=(2, 3)))[:, 0]


def noise(size: tuple[int, int], cameras: tuple[str, ...] = ("main",)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {camera: rng.integers(0, 256, (2, *size, 3), np.uint8) for camera in cameras}


def logits(model: RewardModel, images: dict[str, np.ndarray]) -> Tensor:
    model.check(images, None)
    with torch.inference_mode():
        return model.members[0]({c: torch.from_numpy(pixels) for c, pixels in images.items()})[:, 0]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_the_recipes_network_scores_frames_of_any_size_as_there(tmp_path, suffix):
    torch.manual_seed(0)
    network = RecipeNetwork().eval()
    path = tmp_path / f"best_model{suffix}"
    torch.save({"state_dict": network.state_dict()}, path) if suffix == ".pt" else save_file(network.state_dict(), path)
    model = load_reward_model(path, "cpu")
    assert model.classifier.encoder.type == "resnet10" and list(model.cameras) == ["main"]
    for size in ((64, 64), (50, 90)):
        images = noise(size)
        with torch.inference_mode():
            expected = network(torch.from_numpy(images["main"]).float())
        assert torch.allclose(logits(model, images), expected, atol=1e-5)


def test_ours_is_loaded_by_the_recipes_network_with_equal_logits(tmp_path):
    model = model_of(**RECIPE)
    notes = export_rlinf(model, tmp_path / "reward_model.pt")
    network = RecipeNetwork().eval()
    network.load_state_dict(torch.load(tmp_path / "reward_model.pt", weights_only=True)["model_state_dict"])
    images = noise((64, 64))
    with torch.inference_mode():
        assert torch.allclose(network(torch.from_numpy(images["main"]).float()), logits(model, images), atol=1e-5)
    assert notes[0] == "decide success at a probability of 0.5 there (threshold 0.5 here)"


@pytest.mark.parametrize(
    ("shape", "cameras", "suffix"),
    [
        (FIRST, ("base_camera",), ".safetensors"),
        (FIRST, ("wrist", "base_camera"), ".pt"),
        ({**FIRST, "global_pool_features": True}, ("main",), ".pt"),
        (RECIPE, ("main",), ".safetensors"),
        (TODAY, ("main",), ".pt"),
        ({**TODAY, "head": "linear"}, ("main",), ".safetensors"),
    ],
    ids=["first", "two cameras", "averaged", "recipe", "today", "one layer"],
)
def test_every_layout_comes_back_as_it_was_written(tmp_path, shape, cameras, suffix):
    model, path = model_of(cameras, 96, **shape), tmp_path / f"m{suffix}"
    export_rlinf(model, path)
    images = noise((96, 96), cameras)
    again = load_reward_model(path, "cpu", network={"image_size": [3, 96, 96]})
    assert torch.allclose(logits(again, images), logits(model, images), atol=1e-5)
    with pytest.raises(TargetNotEmpty, match="is there already; nothing was written"):
        export_rlinf(model, path)


def test_rlinfs_resnet_of_today_resizes_as_it_does_there(tmp_path):
    model = model_of(size=64, **TODAY)
    export_rlinf(model, tmp_path / "m.pt")
    again = load_rlinf_checkpoint(tmp_path / "m.pt", {"image_size": [3, 64, 64]}, "cpu")
    images = noise((90, 120))
    there = F.interpolate(torch.from_numpy(images["main"]).permute(0, 3, 1, 2) / 255, (64, 64), mode="bilinear")
    with torch.inference_mode():
        expected = model.members[0]({"main": there.permute(0, 2, 3, 1) * 255})[:, 0]
    assert torch.allclose(logits(again, images), expected, atol=1e-4)


@pytest.mark.parametrize("shape", [FIRST, RECIPE, TODAY], ids=["first", "recipe", "today"])
def test_a_file_that_would_leave_a_tensor_unset_is_refused(tmp_path, shape):
    export_rlinf(model_of(**shape), tmp_path / "m.pt")
    tree = torch.load(tmp_path / "m.pt", weights_only=True)
    state = tree.get("model_state_dict", tree)
    for name in (
        next(n for n in state if "layer2.0.conv1" in n),
        next(n for n in reversed(state) if n.endswith("bias")),
    ):
        torch.save({n: t for n, t in state.items() if n != name}, tmp_path / "less.pt")
        with pytest.raises(BadFile, match=r"is missing|blocks, which is not a supported ResNet"):
            load_reward_model(tmp_path / "less.pt", "cpu")


def test_a_file_without_its_encoder_is_refused(tmp_path):
    export_rlinf(model_of(**FIRST), tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt", weights_only=True)["model_state_dict"]
    torch.save({n: t for n, t in state.items() if "resnet_backbone" not in n}, tmp_path / "headless.pt")
    with pytest.raises(BadFile, match=r"encoder.conv1.weight .* is missing"):
        load_reward_model(tmp_path / "headless.pt", "cpu")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: tiny_model(members=2), "has an ensemble of 2, which RLinf's have not"),
        (lambda: tiny_model(num_history_frames=1), "has a history of frames"),
        (lambda: model_of(encoder=SmallConfig(widths=(4, 8))), "RLinf has no reward model with encoder 'small'"),
        (lambda: model_of(encoder=Resnet10Config()), "encoder.padding is 'same' here and 'torchvision' there"),
        (lambda: model_of(("a", "b"), **RECIPE), "sees 2 cameras, and RLinf's of this kind one"),
    ],
)
def test_a_network_that_rlinf_does_not_have_is_refused(tmp_path, model, sentence):
    with pytest.raises(JudgeError, match=sentence):
        export_rlinf(model(), tmp_path / "m.pt")
    assert not list(tmp_path.iterdir())


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(JudgeError, match=r"files like reward_model.pt or .safetensors, not"):
        export_rlinf(model_of(**TODAY), Path(tmp_path / "folder"))
