"""SERL's ResNet-10: five million parameters, pretrained on ImageNet, the usual encoder of a reward on a real robot.

A ResNet of one basic block a stage, with group norm in place of batch norm, so that it does the same in training and
at run time. It was published by three hands with three sets of names; `load_pretrained_resnet10` reads them all, by
what is in the file:

    SERL         resnet10_params.pkl      a flax pickle, kernels [H, W, in, out]
    helper2424   model.safetensors        three generations, which put `.conv` and `.group_norm` into some names
    RLinf        resnet10_pretrained.pt   torchvision's names

The module has torchvision's names. The weights were learned in Flax with its SAME padding, see `same.py`; the first
convolution is the exception, which was written with three pixels on every side. `padding: torchvision` is for
weights that were learned, or tuned further, with torchvision's symmetrical padding, and `normalize: unit` for those
that were shown pixels from 0 to 1 and not by the mean and deviation of ImageNet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from plaudit.errors import BadFile
from plaudit.judges.classifier.encoders import EncoderConfig, Normalization
from plaudit.judges.classifier.encoders.resnet import ResNet, torch_conv
from plaudit.judges.classifier.encoders.same import SameConv2d, SameMaxPool2d
from plaudit.judges.classifier.encoders.weights import Shape, read_state_dict, select_tensors

Padding = Literal["same", "torchvision"]
PUBLISHED = (
    "resnet10_pretrained.pt (https://huggingface.co/RLinf/RLinf-ResNet10-pretrained) or resnet10_params.pkl "
    "(https://github.com/rail-berkeley/serl/releases/tag/resnet10)"
)


class Resnet10Config(EncoderConfig):
    """ResNet-10, with the weights of one of the published files or random ones."""

    supports_partial_freeze: ClassVar[bool] = True

    type: Literal["resnet10"] = "resnet10"
    weights: Path | None = None  # one of the published files; None: random
    # Other values only for weights that were trained that way.
    padding: Padding = "same"
    normalize: Normalization = "imagenet"

    @property
    def pretrained(self) -> bool:
        return self.weights is not None

    def build(self, *, pretrained: bool = True) -> "ResNetEncoderWrapper":
        return ResNetEncoderWrapper(self.weights if pretrained else None, self.padding, self.normalize)

    def architecture_config(self) -> Self:
        return self.model_copy(update={"weights": None})


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


def rename_resnet10(found: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    """Tensors by the names of one of the publishers as the state of a ResNet-10; path: where they were."""
    with torch.device("meta"):
        shapes: dict[str, Shape] = {
            name: tuple(tensor.shape) for name, tensor in ResNetEncoderWrapper().state_dict().items()
        }
    naming = max(_NAMINGS, key=lambda naming: sum(naming.name_of(ours) in found for ours in shapes))
    if not any(naming.name_of(ours) in found for ours in shapes):
        raise BadFile(path, _what_else(found))
    wanted = {naming.name_of(ours): _in_flax(shape) if naming.flax else shape for ours, shape in shapes.items()}
    taken = select_tensors(found, wanted, path=path, network="ResNet-10", skip=naming.skip)
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


def _in_flax(shape: Shape) -> Shape:
    return (shape[2], shape[3], shape[1], shape[0]) if len(shape) == 4 else shape


_NAMINGS = (
    WeightNaming(_serl, skip=("output_head/",), flax=True),
    *(WeightNaming(_helper2424(conv, norm)) for conv in ("", ".conv") for norm in ("", ".group_norm")),
    WeightNaming(lambda ours: ours, skip=("fc.",)),
)


def _what_else(found: Mapping[str, Any]) -> str:
    if any(name.startswith("squeezes.") for name in found):
        return "this is a whole reward model and not the weights of an encoder; name a published file of ResNet-10"
    first = ", ".join(f"'{name}'" for name in list(found)[:3])
    return (
        f"nothing in this file is known from the published ones of ResNet-10 (SERL's, helper2424's, RLinf's), its "
        f"names start with {first or 'nothing'}; name one of those files"
    )
