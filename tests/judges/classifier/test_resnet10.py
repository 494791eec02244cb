"""ResNet-10: the network as published, and its weights out of each of the files that are around."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from plaudit.config import parse
from plaudit.encoders import SameConv2d, SameMaxPool2d, feature_map_size, same_padding, weights_digest
from plaudit.encoders.resnet import Resnet10Config, ResNetEncoderWrapper, load_pretrained_resnet10
from plaudit.errors import BadFile, UnsafeFile

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def published() -> State:
    """Every tensor random, the norms' too, so that a swap of any two shows."""
    torch.manual_seed(0)
    return {name: torch.randn_like(tensor) * 0.1 for name, tensor in ResNetEncoderWrapper().state_dict().items()}


def test_encoders_of_equal_weights_share_maps_only_if_they_see_equal_pixels(published):
    digests = []
    for settings in ({}, {}, {"normalize": "unit"}, {"padding": "torchvision"}):
        encoder = Resnet10Config(**settings).build()
        encoder.load_state_dict(published)
        digests.append(weights_digest(encoder))
    assert digests[0] == digests[1] and len(set(digests)) == 3


def features(state: State) -> Tensor:
    encoder = ResNetEncoderWrapper()
    encoder.load_state_dict(state)
    with torch.inference_mode():
        return encoder(torch.linspace(-2, 2, 3 * 64 * 64).reshape(1, 3, 64, 64))


def write_serl(state: State, path: Path) -> None:
    tree: dict = {"output_head": {"kernel": np.zeros((512, 10), np.float32), "bias": np.zeros(10, np.float32)}}
    for name, tensor in state.items():
        name = re.sub(r"^conv1\.weight", "conv_init/kernel", name)
        name = re.sub(r"^bn1", "norm_init", name)
        name = re.sub(r"layer(\d)\.0\.", lambda m: f"ResNetBlock_{int(m[1]) - 1}/", name)
        name = re.sub(r"/conv(\d)\.weight", lambda m: f"/Conv_{int(m[1]) - 1}/kernel", name)
        name = re.sub(r"/bn(\d)", lambda m: f"/MyGroupNorm_{int(m[1]) - 1}", name)
        name = name.replace("downsample.0.weight", "conv_proj/kernel").replace("downsample.1", "norm_proj")
        *folders, leaf = name.replace(".weight", "/scale").replace(".bias", "/bias").split("/")
        node = tree
        for folder in folders:
            node = node.setdefault(folder, {})
        node[leaf] = (tensor.permute(2, 3, 1, 0) if tensor.ndim == 4 else tensor).contiguous().numpy()
    path.write_bytes(pickle.dumps(tree))


def write_helper2424(state: State, path: Path, conv: str, norm: str) -> None:
    """conv, norm: what this generation puts behind the names of convolutions and of norms"""
    renamed = {}
    for name, tensor in state.items():
        name = re.sub(r"^conv1", "embedder.0", name)
        name = re.sub(r"^bn1", f"embedder.1{norm}", name)
        name = re.sub(r"layer(\d)\.0", lambda m: f"encoder.stages.{int(m[1]) - 1}", name)
        name = re.sub(r"(stages.*conv\d)", rf"\1{conv}", name)
        name = re.sub(r"\.bn(\d)", rf".norm\1{norm}", name)
        name = name.replace("downsample.0", f"shortcut.0{conv}").replace("downsample.1", f"shortcut.1{norm}")
        renamed[name] = tensor
    save_file(renamed, path)


def write_rlinf(state: State, path: Path) -> None:
    torch.save(state | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}, path)


def test_it_has_the_published_number_of_tensors_and_parameters():
    tensors = ResNetEncoderWrapper().state_dict().values()
    assert len(tensors) == 36 and sum(tensor.numel() for tensor in tensors) == 4_905_792


@pytest.mark.parametrize("padding", ["same", "torchvision"])
@pytest.mark.parametrize(("size", "grid"), [((64, 64), (2, 2)), ((84, 84), (3, 3)), ((128, 96), (4, 3))])
def test_images_are_halved_five_times(padding, size, grid):
    encoder = Resnet10Config(padding=padding).build()
    assert feature_map_size(encoder, size) == grid and encoder.channels == 512


def test_same_padding_is_that_of_flax():
    assert same_padding(128, kernel=3, stride=2) == (0, 1)
    assert same_padding(21, kernel=3, stride=2) == (1, 1)
    assert same_padding(64, kernel=7, stride=2) == (2, 3)
    assert same_padding(64, kernel=3, stride=1) == (1, 1)
    assert same_padding(64, kernel=1, stride=2) == (0, 0)


def windows(image: np.ndarray, kernel: int, stride: int, outside: float) -> np.ndarray:
    """[h, w, kernel, kernel] of an image [H, W]: what each output of a SAME operation sees, pixel by pixel."""
    height, width = image.shape
    h, w = -(-height // stride), -(-width // stride)
    top = max((h - 1) * stride + kernel - height, 0) // 2
    left = max((w - 1) * stride + kernel - width, 0) // 2
    seen = np.full((h, w, kernel, kernel), outside)
    for i, j, a, b in np.ndindex(seen.shape):
        y, x = i * stride + a - top, j * stride + b - left
        if 0 <= y < height and 0 <= x < width:
            seen[i, j, a, b] = image[y, x]
    return seen


@pytest.mark.parametrize("size", [(6, 6), (7, 5), (5, 8)])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2), (1, 2)])
def test_a_convolution_sees_what_flax_shows_it(size, kernel, stride):
    image = np.arange(np.prod(size), dtype=np.float32).reshape(size) - 20
    conv = SameConv2d(1, 1, kernel, stride)
    with torch.inference_mode():
        found = conv(torch.from_numpy(image)[None, None])[0, 0]
    expected = (windows(image, kernel, stride, 0.0) * conv.weight[0, 0].detach().numpy()).sum(axis=(2, 3))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("size", [(6, 6), (7, 5), (5, 8)])
def test_the_edge_of_the_pool_never_wins(size):
    image = -1.0 - np.arange(np.prod(size), dtype=np.float32).reshape(size)  # all below zero
    found = SameMaxPool2d(3, 2)(torch.from_numpy(image)[None, None])[0, 0]
    np.testing.assert_array_equal(found, windows(image, 3, 2, -np.inf).max(axis=(2, 3)))


def test_torchvisions_padding_is_another_network(published):
    same, other = ResNetEncoderWrapper(padding="same"), ResNetEncoderWrapper(padding="torchvision")
    same.load_state_dict(published)
    other.load_state_dict(published)
    image = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert not torch.allclose(same(image), other(image), atol=1e-2)
    assert isinstance(other.maxpool, nn.MaxPool2d)


def test_a_classifiers_encoder_takes_the_weights_of_a_path(tmp_path, published):
    write_serl(published, tmp_path / "params")
    encoder = ResNetEncoderWrapper(pretrained_encoder_path=tmp_path / "params")
    assert all(torch.equal(tensor, published[name]) for name, tensor in encoder.state_dict().items())
    built = Resnet10Config(weights=tmp_path / "params").build()
    assert isinstance(built, ResNetEncoderWrapper) and torch.equal(built.conv1.weight, published["conv1.weight"])


def test_serls_pickle_is_read(tmp_path, published):
    write_serl(published, tmp_path / "params")
    assert torch.equal(features(load_pretrained_resnet10(tmp_path / "params")), features(published))


@pytest.mark.parametrize("conv", ["", ".conv"])
@pytest.mark.parametrize("norm", ["", ".group_norm"])
def test_every_generation_of_helper2424s_file_is_read(tmp_path, published, conv, norm):
    write_helper2424(published, tmp_path / "model", conv, norm)
    assert torch.equal(features(load_pretrained_resnet10(tmp_path / "model")), features(published))


def test_rlinfs_file_is_read(tmp_path, published):
    write_rlinf(published, tmp_path / "resnet10")
    assert torch.equal(features(load_pretrained_resnet10(tmp_path / "resnet10")), features(published))


def test_a_dictionary_around_the_weights_does_not_matter(tmp_path, published):
    torch.save({"state_dict": published}, tmp_path / "wrapped.pt")
    assert torch.equal(features(load_pretrained_resnet10(tmp_path / "wrapped.pt")), features(published))


def test_a_config_builds_it_with_its_weights_and_a_described_one_without_the_file(tmp_path, published):
    write_rlinf(published, tmp_path / "a.pt")
    config = parse(Resnet10Config, {"type": "resnet10", "weights": str(tmp_path / "a.pt"), "padding": "torchvision"})
    assert config.pretrained and torch.equal(config.build().state_dict()["bn1.bias"], published["bn1.bias"])
    (tmp_path / "a.pt").unlink()
    described = config.architecture_config()
    assert not described.pretrained and described.padding == "torchvision"
    described.build(pretrained=False)


def test_the_first_tensor_that_does_not_fit_is_named(tmp_path, published):
    write_serl(published | {"layer2.0.conv1.weight": torch.zeros(128, 64, 1, 1)}, tmp_path / "wrong.pkl")
    with pytest.raises(BadFile, match=r"ResNetBlock_1/Conv_0/kernel' is \[1, 1, 64, 128\].*\[3, 3, 64, 128\] there"):
        load_pretrained_resnet10(tmp_path / "wrong.pkl")


def test_a_missing_tensor_is_named(tmp_path, published):
    rest = {name: tensor for name, tensor in published.items() if name != "layer3.0.bn2.bias"}
    write_helper2424(rest, tmp_path / "part.safetensors", ".conv", ".group_norm")
    with pytest.raises(BadFile, match=r"'encoder.stages.2.norm2.group_norm.bias' \[256\] of ResNet-10 is missing"):
        load_pretrained_resnet10(tmp_path / "part.safetensors")


def test_a_deeper_resnet_is_refused(tmp_path, published):
    torch.save(published | {"layer1.1.conv1.weight": torch.zeros(64, 64, 3, 3)}, tmp_path / "resnet18.pt")
    with pytest.raises(BadFile, match=r"'layer1.1.conv1.weight' \[64, 64, 3, 3\] has no place in ResNet-10"):
        load_pretrained_resnet10(tmp_path / "resnet18.pt")


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"blocks.0.weight": torch.zeros(2)}, "names start with 'blocks.0.weight'"),
        ({"encoder.conv1.weight": torch.zeros(2), "squeezes.front.0.kernel": torch.zeros(2)}, "whole reward model"),
        ({}, "names start with nothing"),
    ],
)
def test_other_things_are_refused_with_what_they_are(tmp_path, tensors, sentence):
    save_file(tensors, tmp_path / "other.safetensors")
    with pytest.raises(BadFile, match=sentence):
        load_pretrained_resnet10(tmp_path / "other.safetensors")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "not a weights file"),
        (b"", "not a weights file"),
        (b"PK\x03\x04 and then nothing", "this is no sound file of torch"),
        (b"\x08\0\0\0\0\0\0\0{damaged", "this safetensors file is damaged"),
        (b"\x80\x04damaged", "cut short or damaged"),
        (pickle.dumps([1, 2]), "holds a list"),
    ],
)
def test_files_that_hold_no_weights_are_refused(tmp_path, content, sentence):
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(BadFile, match=sentence):
        load_pretrained_resnet10(tmp_path / "weights")


def test_a_file_that_is_not_there_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(BadFile, match="no such file"):
        load_pretrained_resnet10(tmp_path / "nowhere.pkl")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(BadFile, match=r"this is a folder.*it has: model\.safetensors"):
        load_pretrained_resnet10(tmp_path)


class Touch:
    """Makes a file when it is unpickled by someone who trusts it."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("write", [lambda thing, path: path.write_bytes(pickle.dumps(thing)), torch.save])
def test_a_file_that_wants_to_run_code_is_refused_and_not_run(tmp_path, write):
    write({"conv1.weight": Touch(tmp_path / "ran")}, tmp_path / "weights")
    with pytest.raises(UnsafeFile, match="nothing was run"):
        load_pretrained_resnet10(tmp_path / "weights")
    assert not (tmp_path / "ran").exists()
