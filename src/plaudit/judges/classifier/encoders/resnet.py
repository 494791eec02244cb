"""The ResNets of torchvision, batch norm and all, without torchvision: for reward models that were trained with one.

The module has torchvision's names, so its weights go in as they are. Pixels are normalised by the mean and deviation of
ImageNet, or with `normalise: unit` shown from 0 to 1.
"""

from typing import Literal

from torch import Tensor, nn

from plaudit.config import Config
from plaudit.judges.classifier.encoders.resnet10 import NORMALISATIONS, Normalise

Arch = Literal["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"]

# Blocks of each of the four stages, and whether they are bottlenecks.
BLOCKS: dict[Arch, tuple[tuple[int, int, int, int], bool]] = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}


class ResnetConfig(Config):
    """A ResNet with random weights; a saved reward model fills it with its own."""

    type: Literal["resnet"] = "resnet"
    arch: Arch = "resnet18"
    normalise: Normalise = "imagenet"

    @property
    def pretrained(self) -> bool:
        return False

    @property
    def splits(self) -> bool:
        return False

    def build(self, *, pretrained: bool = True) -> "Resnet":
        return Resnet(self.arch, self.normalise)

    def described(self) -> "ResnetConfig":
        return self


class Resnet(nn.Module):
    """[B, 3, H, W] to [B, C, H/32, W/32], rounded up; C is 512, or 2048 with bottlenecks."""

    def __init__(self, arch: Arch = "resnet18", normalise: Normalise = "imagenet"):
        super().__init__()
        blocks, bottleneck = BLOCKS[arch]
        self.mean, self.std = NORMALISATIONS[normalise]
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = 64, []
        for number, count in enumerate(blocks):
            width = 64 * 2**number
            outputs = 4 * width if bottleneck else width
            stage = []
            for i in range(count):
                stride = 2 if i == 0 and number > 0 else 1
                stage.append(Block(channels, width, outputs, stride))
                channels = outputs
            stages.append(nn.Sequential(*stage))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.channels = channels

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


class Block(nn.Module):
    """Two convolutions around a shortcut; three where it widens at its end, which makes it a bottleneck."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int):
        super().__init__()
        self.bottleneck = outputs != width
        if self.bottleneck:
            self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = _conv(width, width, stride), nn.BatchNorm2d(width)
            self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        else:
            self.conv1, self.bn1 = _conv(inputs, width, stride), nn.BatchNorm2d(width)
            self.conv2, self.bn2 = _conv(width, width, 1), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.bottleneck:
            y = self.bn3(self.conv3(self.relu(y)))
        return self.relu(y + self.downsample(x))


def _conv(inputs: int, outputs: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
