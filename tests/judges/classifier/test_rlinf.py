"""Reward models as one .pt file: our own, and those that RLinf's train_reward_model writes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bright_square import square_store
from plaudit.encoders import SmallConfig, feature_map_size
from plaudit.encoders.resnet import Resnet10Config, ResNetEncoderWrapper
from plaudit.errors import BadFile, ConfigError, JudgeError, UnsafeFile
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.fit import TrainResult, train_reward_model
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.rlinf import load_rlinf_checkpoint, save_rlinf_checkpoint


class Theirs(nn.Module):
    """A classifier with RLinf's names: an encoder a camera, pixels from 0 to 1, torchvision's padding."""

    def __init__(self, cameras: tuple[str, ...], size: int, hidden: int = 12, blocks: int = 2, average: bool = False):
        super().__init__()
        self.average = average
        self.encoders = nn.ModuleDict()
        backbone = ResNetEncoderWrapper(padding="torchvision")
        grid = (1, 1) if average else backbone(torch.zeros(1, 3, size, size)).shape[2:]
        for camera in cameras:
            pooling = nn.Module()
            pooling.kernel = nn.Parameter(torch.randn(512, *grid, blocks))
            parts = {"resnet_backbone": backbone, "pooling_layer": pooling}
            parts["mlp"] = nn.Sequential(nn.Linear(512 * blocks, hidden), nn.LayerNorm(hidden), nn.Tanh())
            self.encoders[camera] = nn.ModuleDict(parts)
        self.classifier = nn.Sequential(
            nn.Linear(hidden * len(cameras), hidden),
            nn.Dropout(0.1),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, images: dict[str, Tensor]) -> Tensor:
        looks = []
        encoders: dict[str, Any] = dict(self.encoders.items())
        for camera, encoder in encoders.items():
            grid = encoder["resnet_backbone"](images[camera].permute(0, 3, 1, 2) / 255)
            grid = grid.mean(dim=(2, 3), keepdim=True) if self.average else grid
            pooled = (grid.unsqueeze(-1) * encoder["pooling_layer"].kernel).sum(dim=(2, 3)).flatten(1)
            looks.append(encoder["mlp"](pooled))
        return self.classifier(torch.cat(looks, dim=-1))

    def save(self, path: Path, **changes: Tensor) -> Path:
        state = {**self.state_dict(), **changes}
        for camera in self.encoders:  # the head for ImageNet, which nobody uses
            state[f"encoders.{camera}.resnet_backbone.fc.weight"] = torch.zeros(1000, 512)
        nothing = {"state": {}, "param_groups": []}
        torch.save(
            {"epoch": 3, "model_state_dict": state, "optimizer_state_dict": nothing, "train_loss": 0.1, "train_acc": 1},
            path,
        )
        return path


def theirs(*cameras: str, size: int = 64, **shape: object) -> Theirs:
    torch.manual_seed(0)
    return Theirs(cameras or ("base_camera",), size, **shape).eval()


def pixels(*cameras: str, size: int = 64) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {camera: rng.integers(0, 256, (3, size, size, 3), np.uint8) for camera in cameras or ("base_camera",)}


def probability(network: Theirs, images: dict[str, np.ndarray]) -> np.ndarray:
    with torch.inference_mode():
        return torch.sigmoid(network({c: torch.from_numpy(i).float() for c, i in images.items()}))[:, 0].numpy()


@pytest.mark.parametrize("average", [False, True], ids=["use_pretrain", "averaged"])
def test_a_checkpoint_of_rlinf_judges_as_it_did_there(tmp_path, average):
    network = theirs("wrist", "base_camera", average=average)  # not in alphabetical order
    images = pixels("base_camera", "wrist")
    model = load_reward_model(network.save(tmp_path / "reward_model.pt"), "cpu")
    assert np.allclose(model.score_frames(images).success_prob, probability(network, images), atol=1e-5)
    assert np.ptp(model.score_frames(images).success_prob) > 1e-3
    assert model.threshold == 0.5 and set(model.cameras) == {"wrist", "base_camera"}
    assert model.classifier.global_pool_features == average and model.classifier.num_spatial_blocks == 2


class PlainBlock(nn.Module):
    """Of torchvision's ResNets: basic, or a bottleneck of a quarter of the channels that come out."""

    def __init__(self, inputs: int, outputs: int, stride: int, bottleneck: bool):
        super().__init__()
        width = outputs // 4 if bottleneck else outputs
        sizes = [(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)]
        widths = [inputs, *[width] * (len(sizes) - 1), outputs]
        for i, (size, step) in enumerate(sizes):
            conv = nn.Conv2d(widths[i], widths[i + 1], size, step, padding=size // 2, bias=False)
            setattr(self, f"conv{i + 1}", conv)
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(widths[i + 1]))
        self.count = len(sizes)
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = torch.relu(y) if i < self.count else y
        return torch.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class TheirsOfToday(nn.Module):
    """RLinf's ResNet reward model: NHWC pixels, resized before; the logit is the last layer's."""

    def __init__(self, blocks: list[int], bottleneck: bool = False, hidden: int | None = 256, normalize: bool = True):
        super().__init__()
        self.normalize = normalize
        backbone = nn.Module()
        backbone.conv1, backbone.bn1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks, start=1):
            outputs = 32 * 2**stage * (4 if bottleneck else 1)
            strides = [1 if stage == 1 else 2, *[1] * (count - 1)]
            chain = [PlainBlock(inputs if i == 0 else outputs, outputs, s, bottleneck) for i, s in enumerate(strides)]
            setattr(backbone, f"layer{stage}", nn.Sequential(*chain))
            inputs = outputs
        mlp = nn.Sequential(nn.Linear(inputs, hidden or 1), nn.ReLU(), nn.Dropout(0.1), nn.Linear(hidden or 1, 1))
        backbone.fc = nn.Linear(inputs, 1) if hidden is None else mlp
        self.backbone: Any = backbone
        for module in self.modules():  # as after some training: no statistics of zero and one
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.1, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, images: dict[str, Tensor]) -> Tensor:
        (x,) = (pixels.permute(0, 3, 1, 2) / 255 for pixels in images.values())
        if self.normalize:
            mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
            x = (x - mean[:, None, None]) / std[:, None, None]
        net = self.backbone
        x = torch.max_pool2d(torch.relu(net.bn1(net.conv1(x))), 3, 2, 1)
        x = net.layer4(net.layer3(net.layer2(net.layer1(x))))
        return net.fc(x.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("arch", "shape"),
    [
        ("resnet18", {"blocks": [2, 2, 2, 2]}),
        ("resnet18", {"blocks": [2, 2, 2, 2], "hidden": None, "normalize": False}),
        pytest.param("resnet34", {"blocks": [3, 4, 6, 3], "hidden": 8}, marks=pytest.mark.slow),
        pytest.param("resnet50", {"blocks": [3, 4, 6, 3], "bottleneck": True}, marks=pytest.mark.slow),
    ],
)
def test_rlinfs_resnet_of_today_judges_as_it_did_there(tmp_path, arch, shape):
    torch.manual_seed(0)
    network = TheirsOfToday(**shape).eval()
    torch.save({f"module.{name}": tensor for name, tensor in network.state_dict().items()}, tmp_path / "m.pt")
    normalize = shape.get("normalize", True)
    model = load_rlinf_checkpoint(
        tmp_path / "m.pt", {"image_size": [3, 64, 64], "normalize": normalize, "image_keys": ["front"]}
    )
    images = pixels("front")
    with torch.inference_mode():
        logits = network({"front": torch.from_numpy(images["front"]).float()})[:, 0].numpy()
        ours = model.members[0]({"front": torch.from_numpy(images["front"])})[:, 0].numpy()
    assert np.allclose(ours, logits, atol=1e-4) and np.ptp(logits) > 1e-4
    assert np.allclose(model.score_frames(images).success_prob, 1 / (1 + np.exp(-logits)), atol=1e-5)
    assert model.classifier.encoder.arch == arch


def test_rlinfs_resnet_of_today_has_124_tensors_and_becomes_a_folder_of_ours(tmp_path):
    network = TheirsOfToday([2, 2, 2, 2]).eval()
    assert len(network.state_dict()) == 124
    torch.save(network.state_dict(), tmp_path / "full_weights.pt")
    model = load_reward_model(tmp_path / "full_weights.pt", "cpu")
    assert model.cameras == {"main": (128, 128)}
    assert model.warnings[0] == "it is taken to see camera 'main' in 128x128; its file does not say"
    (tmp_path / "folder").mkdir()
    model.save_pretrained(tmp_path / "folder")
    images = pixels("main", size=128)
    again = load_reward_model(tmp_path / "folder", "cpu")
    assert again.score_frames(images).success_prob.tolist() == model.score_frames(images).success_prob.tolist()


def test_a_resnet_that_is_none_of_theirs_is_refused(tmp_path):
    state = TheirsOfToday([2, 2, 2, 2]).state_dict()
    odd = {name: tensor for name, tensor in state.items() if not name.startswith("backbone.layer3.1.")}
    torch.save(odd, tmp_path / "odd.pt")
    with pytest.raises(BadFile, match=r"its backbone has \[2, 2, 1, 2\] blocks, which is not a supported ResNet"):
        load_rlinf_checkpoint(tmp_path / "odd.pt")
    torch.save({**state, "backbone.fc.9.bias": torch.zeros(1)}, tmp_path / "more.pt")
    with pytest.raises(BadFile, match=r"nothing takes head.9.bias"):
        load_rlinf_checkpoint(tmp_path / "more.pt")


def test_what_was_never_measured_says_so(tmp_path):
    model = load_rlinf_checkpoint(theirs().save(tmp_path / "m.pt"))
    assert model.config.scores == {} and model.config.problems == ()
    assert model.warnings == (
        "this model was never measured here: its threshold is 0.5 and nothing is known of its mistakes",
    )


def test_where_config_and_checkpoint_disagree_the_checkpoint_is_believed(tmp_path):
    path = theirs(average=True).save(tmp_path / "m.pt")
    model = load_rlinf_checkpoint(
        path, {"use_pretrain": True, "hidden_dim": 256, "num_spatial_blocks": 2, "freeze_encoder": True}
    )
    assert model.classifier.global_pool_features
    assert model.warnings[:2] == (
        "the config says use_pretrain is True, the checkpoint was trained with False; the checkpoint is used",
        "the config says hidden_dim is 256, the checkpoint was trained with 12; the checkpoint is used",
    )
    assert len(load_rlinf_checkpoint(path, {"use_pretrain": False, "image_keys": ["base_camera"]}).warnings) == 1


def test_a_size_that_gives_another_grid_is_refused_with_those_that_fit(tmp_path):
    path = theirs(size=128).save(tmp_path / "m.pt")
    with pytest.raises(BadFile, match=r"pools grids of 4x4 and images of 64x64 give 2x2; set image_size .* 97 to 128"):
        load_rlinf_checkpoint(path, {"image_size": [3, 64, 64]})
    with pytest.raises(BadFile, match="images of 84x84 give 3x3"):
        load_rlinf_checkpoint(path, {"image_size": [3, 84, 84]})
    assert load_rlinf_checkpoint(path, {"image_size": [3, 128, 128]}).cameras == {"base_camera": (128, 128)}
    unsaid = load_rlinf_checkpoint(path)
    assert unsaid.cameras == {"base_camera": (128, 128)}
    assert unsaid.warnings[0] == "it is taken to see images of 128x128; its file does not say"
    with pytest.raises(ConfigError, match="unknown key 'image_sizes'; did you mean 'image_size'"):
        load_rlinf_checkpoint(path, {"image_sizes": [3, 128, 128]})


@pytest.mark.parametrize("padding", ["same", "torchvision"])
def test_sizes_for_a_grid(padding):
    encoder = Resnet10Config(padding=padding).build()
    cells = [feature_map_size(encoder, (edge, 32))[0] for edge in (1, 32, 33, 64, 65, 96, 97, 128)]
    assert cells == [1, 1, 2, 2, 3, 3, 4, 4]


def test_encoders_that_differ_are_refused(tmp_path):
    network = theirs("front", "wrist")
    name = "encoders.wrist.resnet_backbone.layer1.0.conv1.weight"
    path = network.save(tmp_path / "m.pt", **{name: network.state_dict()[name] + 1})
    with pytest.raises(BadFile, match="cameras 'front' and 'wrist' have encoders of different weights"):
        load_rlinf_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"classifier.4.bias": torch.zeros(3)}, r"another network: head.4.bias is \[3\], this one has \[1\]"),
        ({"classifier.6.bias": torch.zeros(3)}, "another network: nothing takes head.6.bias"),
        ({"encoders.base_camera.extra": torch.zeros(3)}, "nothing takes encoders.base_camera.extra"),
        ({"encoders.base_camera.pooling_layer.kernel": torch.zeros(3)}, r"pooling_layer.kernel is \[3\], it should"),
    ],
)
def test_another_network_is_refused_with_the_first_tensor_that_does_not_fit(tmp_path, change, sentence):
    with pytest.raises(BadFile, match=sentence):
        load_rlinf_checkpoint(theirs().save(tmp_path / "m.pt", **change))


def test_other_files_are_refused_with_what_they_are(tmp_path):
    with pytest.raises(BadFile, match="there is no such file"):
        load_reward_model(tmp_path / "nowhere.pt")
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "encoder.pt")
    with pytest.raises(BadFile, match=r"neither RLinf.s nor Plaudit.s reward model; its tensors start with 'conv1"):
        load_rlinf_checkpoint(tmp_path / "encoder.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(BadFile, match="it has no model_state_dict of tensors"):
        load_rlinf_checkpoint(tmp_path / "list.pt")


def test_a_file_that_would_run_code_is_refused_and_not_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    torch.save({"model_state_dict": {"a": Bomb()}}, tmp_path / "m.pt")
    with pytest.raises(UnsafeFile, match="nothing was run"):
        load_rlinf_checkpoint(tmp_path / "m.pt")
    assert not (tmp_path / "pwned").exists()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory) -> TrainResult:
    folder = tmp_path_factory.mktemp("pt")
    config = RewardTrainConfig(
        encoder=SmallConfig(widths=(8, 16)), epochs=6, lr=3e-3, batch_size=32, hidden_dim=16, latent_dim=16
    )
    return train_reward_model(
        square_store(folder / "store"), config, folder / "work", lambda epoch: True, lambda what: iter
    )


def test_ours_has_the_published_keys_and_describes_itself(tmp_path, fitted):
    save_rlinf_checkpoint(tmp_path / "deep/m.pt", fitted.model, fitted.history, fitted.optimizers[0])
    tree = torch.load(tmp_path / "deep/m.pt", weights_only=True)
    assert set(tree) == {
        *("epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc", "plaudit"),
    }
    assert tree["epoch"] == fitted.model.config.training["best_epochs"][0] and tree["train_acc"] > 0.9
    assert tree["optimizer_state_dict"]["state"]
    loaded = load_reward_model(tmp_path / "deep/m.pt", "cpu")
    assert loaded.fingerprint == fitted.model.fingerprint and loaded.config == fitted.model.self_contained_config()
    assert loaded.warnings == ()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["m.pt"]


def test_a_marked_model_is_refused_as_a_file_too(tmp_path, fitted):
    save_rlinf_checkpoint(tmp_path / "m.pt", fitted.model, fitted.history, fitted.optimizers[0])
    tree = torch.load(tmp_path / "m.pt", weights_only=True)
    tree["plaudit"]["problems"] = ["blank white: 100% of 8 frames called success"]
    torch.save(tree, tmp_path / "marked.pt")
    with pytest.raises(JudgeError, match="is marked as not to be trusted: blank white"):
        load_reward_model(tmp_path / "marked.pt")
    assert load_reward_model(tmp_path / "marked.pt", force=True).config.problems


def test_a_description_that_does_not_fit_is_refused(tmp_path, fitted):
    save_rlinf_checkpoint(tmp_path / "m.pt", fitted.model, fitted.history, fitted.optimizers[0])
    tree = torch.load(tmp_path / "m.pt", weights_only=True)
    del tree["plaudit"]["classifier"]
    torch.save(tree, tmp_path / "m.pt")
    with pytest.raises(
        BadFile, match="its description does not fit this version of plaudit: key 'classifier' is missing"
    ):
        load_rlinf_checkpoint(tmp_path / "m.pt")
