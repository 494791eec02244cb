"""ResNets with torchvision's names, without torchvision.

`ResNet` is any of them: the blocks of its stages, its convolutions and its norms are arguments. `ResnetConfig` builds
those of torchvision with batch norm, for reward models of RLinf; SERL's ResNet-10 has group norm (resnet10.py). Pixels
are normalized by the mean and deviation of ImageNet, or with `normalize: unit` scaled to 0 to 1.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from plaudit.judges.classifier.encoders import NORMALIZATIONS, EncoderConfig, Normalization, SplitEncoder

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
    arch: Arch = "resnet18"
    normalize: Normalization = "imagenet"

    def build(self, *, pretrained: bool = True) -> "ResNet":
        return ResNet(*BLOCKS[self.arch], normalize=self.normalize)


def torch_conv(channels_in: int, channels_out: int, kernel: int, stride: int) -> nn.Conv2d:
    """A convolution without bias, padded on all sides alike."""
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
