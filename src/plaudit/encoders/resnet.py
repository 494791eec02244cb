"""ResNets with torchvision's names, without torchvision.

`ResNet` is any of them: the blocks of its stages, its convolutions and its norms are arguments. `ResnetConfig` builds
those of torchvision with batch norm, for reward models of RLinf; SERL's ResNet-10 has group norm. Pixels
are normalized by the mean and deviation of ImageNet, or with `normalize: unit` scaled to 0 to 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from plaudit.encoders import (
    NORMALIZATIONS,
    EncoderConfig,
    Normalization,
    PretrainedConfig,
    SameConv2d,
    SameMaxPool2d,
    Shape,
    SplitEncoder,
    read_state_dict,
    select_tensors,
)
from plaudit.errors import BadFile

Arch = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]
Conv = Callable[[int, int, int, int], nn.Module]  # channels in and out, kernel, stride
Norm = Callable[[int], nn.Module]  # channels

# Blocks of each of the four stages, and whether they are bottlenecks.
BLOCKS: dict[Arch, tuple[tuple[int, int, int, int], bool]] = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}


class ResnetConfig(EncoderConfig):
    """A ResNet with random weights; a saved reward model fills it with its own."""

    type: Literal["resnet"] = "resnet"
    arch: Arch = "resnet18"  # of torchvision
    normalize: Normalization = "imagenet"  # by the mean and deviation of ImageNet, or to [0, 1]

    def build(self, *, pretrained: bool = True) -> "ResNet":
        return ResNet(*BLOCKS[self.arch], normalize=self.normalize)


def torch_conv(channels_in: int, channels_out: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution without bias and with symmetric padding."""
    return nn.Conv2d(channels_in, channels_out, kernel, stride=stride, padding=kernel // 2, bias=False)


class ResNet(SplitEncoder):
    """[B, 3, H, W] to [B, C, H/32, W/32], rounded up; C is 512, or 2048 with bottlenecks."""

    def __init__(
        self,
        blocks: Sequence[int],
        bottleneck: bool = False,
        *,
        normalize: Normalization = "imagenet",
        conv: Conv = torch_conv,
        norm: Norm = nn.BatchNorm2d,
        maxpool: nn.Module | None = None,
    ):
        """
        blocks: of each of the four stages
        maxpool: after the first convolution; None: torchvision's
        """
        super().__init__()
        self.mean, self.std = NORMALIZATIONS[normalize]
        self.conv1 = torch_conv(3, 64, 7, 2)
        self.bn1 = norm(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if maxpool is None else maxpool
        channels, stages = 64, []
        for number, count in enumerate(blocks):
            width = 64 * 2**number
            outputs = 4 * width if bottleneck else width
            stage = []
            for i in range(count):
                stride = 2 if i == 0 and number > 0 else 1
                stage.append(Block(channels, width, outputs, stride, conv, norm))
                channels = outputs
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.channels = channels

    def stem(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer3(self.layer2(self.layer1(x)))

    def head(self, x: Tensor) -> Tensor:
        return self.layer4(x)

    def head_modules(self) -> list[nn.Module]:
        return [self.layer4]


class Block(nn.Module):
    """Two convolutions around a shortcut; three where it widens at its end, which makes it a bottleneck."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, conv: Conv, norm: Norm):
        super().__init__()
        self.bottleneck = outputs != width
        if self.bottleneck:
            self.conv1, self.bn1 = conv(inputs, width, 1, 1), norm(width)
            self.conv2, self.bn2 = conv(width, width, 3, stride), norm(width)
            self.conv3, self.bn3 = conv(width, outputs, 1, 1), norm(outputs)
        else:
            self.conv1, self.bn1 = conv(inputs, width, 3, stride), norm(width)
            self.conv2, self.bn2 = conv(width, width, 3, 1), norm(width)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.bottleneck:
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + self.downsample(x))


Padding = Literal["same", "torchvision"]
PUBLISHED = (
    "resnet10_pretrained.pt (https://huggingface.co/RLinf/RLinf-ResNet10-pretrained) or resnet10_params.pkl "
    "(https://github.com/rail-berkeley/serl/releases/tag/resnet10)"
)


class Resnet10Config(PretrainedConfig):
    """ResNet-10, with the weights of one of the published files or random ones."""

    supports_partial_freeze: ClassVar[bool] = True

    type: Literal["resnet10"] = "resnet10"
    weights: Path | None = None  # one of the published files; None: random
    # Other values only for weights that were trained that way.
    padding: Padding = "same"
    normalize: Normalization = "imagenet"  # by the mean and deviation of ImageNet, or to [0, 1]

    def build(self, *, pretrained: bool = True) -> "ResNetEncoderWrapper":
        return ResNetEncoderWrapper(self.weights if pretrained else None, self.padding, self.normalize)


class ResNetEncoderWrapper(ResNet):
    """A ResNet-10 as the encoder of a reward classifier: with the weights of a published file in it.

    The classifier pools its feature map with `SpatialLearnedEmbeddings`, for each camera, and freezes it or its stem.
    """

    def __init__(
        self,
        pretrained_encoder_path: str | Path | None = None,
        padding: Padding = "same",
        normalize: Normalization = "imagenet",
    ):
        """pretrained_encoder_path: one of the published files; None: random weights"""
        same = padding == "same"
        super().__init__(
            (1, 1, 1, 1),
            normalize=normalize,
            conv=SameConv2d if same else torch_conv,
            norm=lambda channels: nn.GroupNorm(4, channels, eps=1e-5),
            maxpool=SameMaxPool2d(3, stride=2) if same else None,
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        if pretrained_encoder_path is not None:
            self.load_state_dict(load_pretrained_resnet10(Path(pretrained_encoder_path)))


def load_pretrained_resnet10(path: Path) -> dict[str, Tensor]:
    """The state of a ResNet-10, out of any of the published files."""
    if not path.exists():
        raise BadFile(path, f"there is no such file of weights; download {PUBLISHED}, or train from random weights")
    return rename_resnet10(read_state_dict(path), path)


def rename_resnet10(published: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Tensors by the names of one of the publishers as the state of a ResNet-10; path: where they were."""
    with torch.device("meta"):
        shapes: dict[str, Shape] = {
            name: tuple(tensor.shape) for name, tensor in ResNetEncoderWrapper().state_dict().items()
        }
    naming = max(_NAMINGS, key=lambda naming: sum(naming.name_of(ours) in published for ours in shapes))
    if not any(naming.name_of(ours) in published for ours in shapes):
        if any(name.startswith("squeezes.") for name in published):
            raise BadFile(path, "this is a whole reward model, not the weights of an encoder; name those of ResNet-10")
        first = ", ".join(f"'{name}'" for name in list(published)[:3]) or "nothing"
        raise BadFile(path, f"this is not a ResNet-10 of SERL, helper2424 or RLinf: its names start with {first}")
    wanted: dict[str, Shape] = {}
    for ours, shape in shapes.items():
        flax = naming.flax and len(shape) == 4  # [H, W, in, out]
        wanted[naming.name_of(ours)] = (*shape[2:], shape[1], shape[0]) if flax else shape
    taken = select_tensors(published, wanted, path=path, network="ResNet-10", skip=naming.skip)
    tensors = {ours: taken[naming.name_of(ours)] for ours in shapes}
    if naming.flax:
        tensors = {name: t.permute(3, 2, 0, 1).contiguous() if t.ndim == 4 else t for name, t in tensors.items()}
    return tensors


@dataclass(frozen=True)
class WeightNaming:
    """How one of the publishers called our tensors."""

    name_of: Callable[[str], str]  # of 'layer2.0.bn1.weight', and so on
    skip: tuple[str, ...] = ()  # the head, which an encoder has not
    flax: bool = False  # whether kernels are [H, W, in, out]


def _serl(ours: str) -> str:
    module, _, kind = ours.rpartition(".")
    stage, block_module = _split(module)
    names = {"conv1": "Conv_0", "conv2": "Conv_1", "bn1": "MyGroupNorm_0", "bn2": "MyGroupNorm_1"}
    names |= {"downsample.0": "conv_proj", "downsample.1": "norm_proj"}
    if stage is None:
        theirs = {"conv1": "conv_init", "bn1": "norm_init"}[module]
    else:
        theirs = f"ResNetBlock_{stage}/{names[block_module]}"
    if kind == "bias":
        return f"{theirs}/bias"
    return f"{theirs}/{'kernel' if 'conv' in theirs.lower() else 'scale'}"


def _helper2424(conv: str, norm: str) -> Callable[[str], str]:
    """Of one generation: what it put behind the names of convolutions and norms in the stages."""

    def name_of(ours: str) -> str:
        module, _, kind = ours.rpartition(".")
        stage, block_module = _split(module)
        if stage is None:
            return {"conv1": f"embedder.0.{kind}", "bn1": f"embedder.1{norm}.{kind}"}[module]
        theirs = block_module.replace("bn", "norm").replace("downsample", "shortcut")
        is_norm = theirs.startswith("norm") or theirs == "shortcut.1"
        return f"encoder.stages.{stage}.{theirs}{norm if is_norm else conv}.{kind}"

    return name_of


def _split(module: str) -> tuple[int | None, str]:
    """'layer2.0.bn1' to (1, 'bn1'); the first layers, before the stages, to (None, ...)."""
    if not module.startswith("layer"):
        return None, module
    stage, _, rest = module.removeprefix("layer").partition(".0.")
    return int(stage) - 1, rest


_NAMINGS = (
    WeightNaming(_serl, skip=("output_head/",), flax=True),
    *(WeightNaming(_helper2424(conv, norm)) for conv in ("", ".conv") for norm in ("", ".group_norm")),
    WeightNaming(lambda ours: ours, skip=("fc.",)),
)
