"""The configs of judges with a reward model. Without torch, so that reading a training config is fast."""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

from plaudit.config import Config, Edge, NonNegativeFloat, Width
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import JudgeConfig

SUCCESS, PROGRESS = "classifier", "progress"  # the sources of labels, and the types of their judges


class RLinfRewardConfig(Config):
    """Settings of a checkpoint from RLinf's configs; None if not given."""

    image_keys: tuple[str, ...] | None = None  # the cameras
    # Channels, height, width; None: what RLinf's recipes have, 64x64 for its first model and 128x128 for its ResNet.
    image_size: tuple[Edge, Edge, Edge] | None = None
    arch: str | None = None  # its ResNet
    normalize: bool = True  # of its ResNet: whether by the mean and deviation of ImageNet
    hidden_dim: Width | None = None  # units of the head
    num_spatial_blocks: Width | None = None  # of the spatial embeddings
    use_pretrain: bool | None = None  # whether training started from ImageNet weights
    freeze_encoder: bool | None = None  # of training; nothing learns here
    pretrained_encoder_path: Path | None = None  # the checkpoint's own weights count


class ClassifierJudgeConfig(JudgeConfig):
    """A judge with a reward model. A `judge.yaml` beside its weights has the defaults of rule and calibration."""

    type: Literal["classifier", "progress"] = SUCCESS
    model: Path  # a reward model: its folder, lerobot's, or a .pt or .safetensors file
    cost_s: NonNegativeFloat = 0.1
    device: str = "auto"  # cpu, cuda, or auto: a GPU if there is one
    compile: bool = False  # on a GPU; takes half a minute and a compiler, and is 3 times as fast
    # Of a file of RLinf's, what it does not say itself: image_size, image_keys, normalize; see RLinfRewardConfig.
    network: RLinfRewardConfig | None = None

    @property
    def certificate_path(self) -> Path | None:
        return certificate_beside(self.model)

    def build(self) -> Any:
        """The `ClassifierJudge`, which needs torch."""
        return import_module("plaudit.judges.classifier.judge").build_judge(self)

    def resolved(self) -> Self:
        """The config with rule and calibration from the folder's judge.yaml, unless they are set."""
        return self.with_judge_file(self.model)


class ProgressJudgeConfig(ClassifierJudgeConfig):
    """A judge with a model of progress, which `plaudit train-progress` makes."""

    type: Literal["classifier", "progress"] = PROGRESS


def classifier_stage(judge: JudgeConfig) -> ClassifierJudgeConfig | None:
    """The judge itself, if it is a classifier; of a cascade, its first stage that is one."""
    judges = judge.models if isinstance(judge, CascadeConfig) else (judge,)
    classifiers = (one for one in judges if isinstance(one, ClassifierJudgeConfig) and one.type == SUCCESS)
    return next(classifiers, None)
