"""The configs of judges that are reward models. Without torch: a config is read where nothing is built."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

from plaudit.config import Config, Edge, NonNegativeFloat, Width
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import JudgeConfig

SUCCESS, PROGRESS = "classifier", "progress"  # the sources of labels, and the types of their judges


class RLinfRewardConfig(Config):
    """What a config of RLinf says about a checkpoint; None for keys that it does not have."""

    image_keys: tuple[str, ...] | None = None
    # Channels, height, width. None: the default of RLinf's recipes, 64x64 for its first model, 128x128 for its ResNet.
    image_size: tuple[Edge, Edge, Edge] | None = None
    arch: str | None = None
    normalize: bool = True  # its ResNet: by the mean and deviation of ImageNet
    hidden_dim: Width | None = None
    num_spatial_blocks: Width | None = None
    use_pretrain: bool | None = None
    freeze_encoder: bool | None = None  # only matters for training
    pretrained_encoder_path: Path | None = None  # not read: the checkpoint has the encoder's weights


class ClassifierJudgeConfig(JudgeConfig):
    """A reward model as a judge. A `judge.yaml` next to its weights has the defaults of rule and calibration."""

    type: Literal["classifier", "progress"] = SUCCESS
    model: Path  # a reward model: its folder, lerobot's, or a .pt or .safetensors file
    cost_s: NonNegativeFloat = 0.1
    device: str = "auto"
    compile: bool = False  # on a GPU; takes half a minute and a compiler, and is 3 times as fast
    network: RLinfRewardConfig | None = None  # what a checkpoint of RLinf does not contain

    @property
    def certificate_path(self) -> Path | None:
        return certificate_beside(self.model)

    def build(self) -> Any:
        """The `ClassifierJudge`, with its model loaded."""
        return import_module("plaudit.judges.classifier.judge").ClassifierJudge.from_config(self)

    def resolved(self) -> Self:
        """With rule and calibration of the folder's judge.yaml, where this config does not set them."""
        return self.with_judge_file(self.model)


class ProgressJudgeConfig(ClassifierJudgeConfig):
    """A model of progress, made by `plaudit train-progress`."""

    type: Literal["classifier", "progress"] = PROGRESS
