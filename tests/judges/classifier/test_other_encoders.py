"""Networks of torchvision and transformers, where they are installed: tiny ones, random, made here."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from plaudit.config import parse
from plaudit.encoders import SmallConfig, feature_map_size
from plaudit.encoders.others import TorchvisionConfig, TransformersConfig
from plaudit.errors import JudgeError, MissingExtra, MissingPackage, UnknownName

PREPROCESSING = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2], "rescale_factor": 1 / 255}
TINY: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}
PATCHES: dict[str, Any] = {**TINY, "intermediate_size": 16, "patch_size": 8}
CONVOLUTIONS: dict[str, Any] = {"hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1]}


def save(folder: Path, name: str, **shape: Any) -> Any:
    """A random network of transformers with its preprocessing, as a folder of the hub; returns it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**shape)).eval()
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    return network


@pytest.mark.parametrize(
    ("name", "first"), [("ViT", 1), ("Dinov2", 1), ("Dinov2WithRegisters", 5), ("SiglipVision", 0)]
)
def test_tokens_of_patches_are_laid_out_as_the_image(tmp_path, name, first):
    shape = {**TINY, "patch_size": 8} if name.startswith("Dino") else PATCHES
    network = save(tmp_path, name, **shape)
    encoder = TransformersConfig(name=str(tmp_path)).build().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        tokens, grid = network(pixel_values=images).last_hidden_state, encoder(images)
    assert grid.shape == (2, 16, 4, 4) and encoder.channels == 16
    assert torch.allclose(grid[:, :, 2, 3], tokens[:, first + 2 * 4 + 3], atol=1e-5)


@pytest.mark.parametrize("name", ["ResNet", "ConvNext"])
def test_maps_are_taken_as_they_are(tmp_path, name):
    network = save(tmp_path, name, **CONVOLUTIONS)
    encoder = TransformersConfig(name=str(tmp_path)).build().eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.inference_mode():
        assert torch.allclose(encoder(images), network(pixel_values=images).last_hidden_state, atol=1e-5)
    assert feature_map_size(encoder, (64, 96)) == (2, 3) and encoder.channels == 16


def test_positions_are_stretched_to_other_sizes(tmp_path):
    save(tmp_path, "ViT", **PATCHES)
    assert feature_map_size(TransformersConfig(name=str(tmp_path)).build(), (48, 64)) == (6, 8)


def test_of_a_network_that_reads_too_the_eye_is_taken(tmp_path):
    text = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    network = save(tmp_path, "Siglip", vision_config=PATCHES, text_config={**text, "vocab_size": 20})
    encoder = TransformersConfig(name=str(tmp_path)).build().eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        tokens = network.vision_model(pixel_values=images).last_hidden_state
        assert torch.allclose(encoder(images).flatten(2).transpose(1, 2), tokens, atol=1e-5)


def test_mean_and_deviation_come_with_the_network(tmp_path):
    save(tmp_path, "ConvNext", **CONVOLUTIONS)
    encoder = TransformersConfig(name=str(tmp_path)).build()
    assert encoder.mean == pytest.approx((127.5, 102, 76.5)) and encoder.std == pytest.approx((51, 51, 51))
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(JudgeError, match="has no preprocessor_config"):
        TransformersConfig(name=str(tmp_path)).build()
    given = TransformersConfig(name=str(tmp_path), mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0)).build()
    assert given.mean == (1, 2, 3) and given.std == (4, 5, 6)


@pytest.mark.parametrize(("name", "shape"), [("ViT", PATCHES), ("ConvNext", CONVOLUTIONS)])
def test_a_described_network_is_built_without_its_folder(tmp_path, name, shape):
    save(tmp_path / "there", name, **shape)
    config = TransformersConfig(name=str(tmp_path / "there"))
    encoder, text = config.build().eval(), config.architecture_config().model_dump_json()
    (tmp_path / "there").rename(tmp_path / "gone")
    again = parse(TransformersConfig, json.loads(text))
    copy = again.build(pretrained=False).eval()
    copy.load_state_dict(encoder.state_dict())
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(copy(images), encoder(images))
    assert config.pretrained and not again.pretrained and copy.mean == encoder.mean


def test_a_network_whose_tokens_are_not_of_patches_is_refused(tmp_path):
    save(tmp_path, "Swin", image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 1], window_size=4)
    with pytest.raises(JudgeError, match="16 tokens for 8x8 patches"):
        TransformersConfig(name=str(tmp_path)).build()


def test_weights_that_fill_only_a_part_are_refused(tmp_path):
    save(tmp_path, "ViT", **PATCHES)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(description | {"num_hidden_layers": 2}))
    with pytest.raises(JudgeError, match="lack 16 tensors of its vision network"):
        TransformersConfig(name=str(tmp_path)).build()


def test_nothing_is_downloaded_unasked():
    pytest.importorskip("transformers")
    with pytest.raises(JudgeError, match=r"cannot load 'nobody/nothing'.*set local_files_only: false"):
        TransformersConfig(name="nobody/nothing").build()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(MissingExtra, match=r"pip install 'plaudit\[vision\]'"):
        TransformersConfig(name="anything").build()
    with pytest.raises(MissingPackage, match="torchvision is not installed; run: pip install torchvision"):
        TorchvisionConfig(name="resnet18").build()


@pytest.mark.parametrize(("name", "channels"), [("resnet18", 512), ("mobilenet_v3_small", 576), ("convnext_tiny", 768)])
def test_a_network_of_torchvision_is_cut_before_its_pooling(name, channels):
    pytest.importorskip("torchvision")
    encoder = TorchvisionConfig(name=name).architecture_config().build()
    assert encoder.channels == channels and feature_map_size(encoder, (128, 96)) == (4, 3)


def test_torchvisions_features_are_those_before_its_classes():
    models = pytest.importorskip("torchvision.models")
    network = models.resnet18(weights=None).eval()
    encoder = TorchvisionConfig(name="resnet18").build(pretrained=False).eval()
    encoder.body.load_state_dict({n: t for n, t in network.state_dict().items() if not n.startswith("fc.")})
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.allclose(network.fc(encoder(images).mean((2, 3))), network(images), atol=1e-4)


def test_what_torchvision_has_not_got_is_named(tmp_path, monkeypatch):
    pytest.importorskip("torchvision")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UnknownName, match="did you mean 'resnet18'"):
        TorchvisionConfig(name="resnet81").build()
    with pytest.raises(UnknownName, match="did you mean 'IMAGENET1K_V1'"):
        TorchvisionConfig(name="resnet18", weights="IMAGENET1K_V9").build()
    with pytest.raises(JudgeError, match="not on this machine"):
        TorchvisionConfig(name="resnet18").build()
    with pytest.raises(JudgeError, match="does not end in a map"):
        TorchvisionConfig(name="vit_b_16").build(pretrained=False)


def test_an_encoder_says_which_size_it_takes():
    encoder = SmallConfig().build()
    assert feature_map_size(encoder, (64, 64)) == (4, 4) and SmallConfig().architecture_config() == SmallConfig()
    valid = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 20))
    with pytest.raises(JudgeError, match=r"takes no images of 8x8 \(.*\); it takes 32x32: set image_size"):
        feature_map_size(valid, (8, 8))
