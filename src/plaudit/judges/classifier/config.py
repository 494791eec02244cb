"""What a reward model is made of and trained with, and the configs of judges with such a model.

Defaults are for real camera images and some dozens of episodes. This module does not import torch: training configs and
`plaudit train-reward --help` read its keys.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import (
    Channels,
    Config,
    Edge,
    Hertz,
    LearningRate,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    SmallInt,
    Width,
)
from plaudit.errors import JudgeError
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import REFERENCE_SOURCES, JudgeConfig
from plaudit.registry import ENCODER_REGISTRY

Size = tuple[Edge, Edge]  # height, width


class NetworkConfig(Config):
    """The size of the network, and what it sees and predicts besides the newest images."""

    encoder: Annotated[Any, ENCODER_REGISTRY.field]  # from an image to features; one of the image encoders
    image_size: Size | None = None  # (height, width) that frames are resized to; None: as they are
    hidden_dim: Width = 256  # units of the head
    latent_dim: Width = 256  # of the embedding of one camera's image
    num_spatial_blocks: Width = 8  # embeddings of each channel
    dropout: float = Field(default=0.1, ge=0, lt=1)  # in the head, during training
    num_history_frames: int = Field(default=0, ge=0, le=1000)  # frames before this one that it sees too
    history_stride: int = Field(default=1, ge=1, le=10_000)  # steps between them; as many embeddings are kept
    predict_progress: bool = False  # whether it also predicts how far the task has come, for shaping
    predict_success: bool = True  # False: progress alone, learned from successes (training.py)
    # Whether the grid is averaged to one cell first, as the recipes do with `use_pretrain: false`.
    global_pool_features: bool = False
    # What comes after the encoder: SERL's embeddings and head; or, of the averaged grid, Linear, ReLU, Linear ("mlp")
    # or a single Linear ("linear"), as RLinf's ResNet has it.
    head: Literal["serl", "mlp", "linear"] = "serl"

    @model_validator(mode="after")
    def _judges_single_frames_of_progress(self) -> Self:
        if self.predict_success:
            return self
        if not self.predict_progress:
            raise ValueError("predict_success=false leaves nothing to learn; set predict_progress=true")
        if self.num_history_frames:
            raise ValueError("progress alone is learned from single frames; set num_history_frames=0")
        return self


class ClassifierConfig(NetworkConfig):
    """Everything needed to build the network."""

    cameras: dict[str, Size]  # the frames that come in
    state_dim: int = Field(default=0, ge=0, le=65_536)  # of the robot's state that it also sees; 0: none
    # Whether the first part of the encoder is frozen and the rest learns. The grid between the two is then cached.
    freeze_stem: bool = False
    # Of models that were trained elsewhere. Frames of any size are taken: resized where `image_size` is set, as they
    # are where it is not.
    any_size: bool = False
    resampling: Literal["antialias", "bilinear"] = "antialias"  # how frames are resized
    # Mean and deviation of each camera's pixels, 0 to 255, in place of the encoder's own.
    pixel_stats: dict[str, tuple[Channels, Channels]] | None = None

    @model_validator(mode="after")
    def _averaged(self) -> Self:
        if self.any_size and self.image_size is None and not self.global_pool_features:
            raise ValueError("any_size takes an image_size or an averaged grid: a kernel pools grids of one size")
        if self.pixel_stats is not None and set(self.pixel_stats) != set(self.cameras):
            raise ValueError(f"pixel_stats is of {sorted(self.pixel_stats)}, the cameras are {sorted(self.cameras)}")
        if self.head != "serl" and (not self.global_pool_features or self.freeze_stem):
            raise ValueError(f"head '{self.head}' takes an averaged grid; set global_pool_features, not freeze_stem")
        if self.freeze_stem and not self.encoder.supports_partial_freeze:
            raise ValueError(f"encoder '{self.encoder.type}' has no parts; set freeze_stem=false")
        return self

    @property
    def num_frames(self) -> int:
        """Frames that it sees of each camera: this one and its history."""
        return 1 + self.num_history_frames

    @property
    def outputs(self) -> int:
        """Logits of a frame: of success first, of progress last."""
        return self.predict_success + self.predict_progress


class AugmentConfig(Config):
    """The largest change of each kind, as a fraction."""

    shift: float = Field(default=0.06, ge=0, lt=0.5)  # of the image size, in each direction
    scale: float = Field(default=0.1, ge=0, lt=0.5)  # of the zoom, in or out
    color: float = Field(default=0.25, ge=0, lt=1)  # of brightness, contrast and saturation


class RewardTrainConfig(NetworkConfig):
    """What a reward model is trained with."""

    encoder: Annotated[Any, ENCODER_REGISTRY.field] = Field(
        default_factory=lambda: ENCODER_REGISTRY.get("efficientnet_lite0")()
    )
    # What of the encoder is frozen: all of it, its first part ("stem") or nothing. None: the stem of a pretrained one,
    # all of it where it has no parts, and nothing of one with random weights.
    freeze_encoder: bool | Literal["stem"] | None = None
    image_keys: tuple[str, ...] = ()  # cameras; () for all that the episodes have
    use_state: bool = False  # whether it sees the robot's state too
    history_stride: int = Field(default=3, ge=1, le=10_000)  # steps between the frames of its history
    label_sources: tuple[str, ...] = REFERENCE_SOURCES  # whose labels to learn from
    # Of the episodes: those that choose the best epoch, the threshold and the calibration, and those that measure what
    # came of it; without any of the latter, it is measured on the former.
    val_fraction: float = Field(default=0.15, gt=0, lt=0.5)
    test_fraction: float = Field(default=0.15, ge=0, lt=0.5)  # share of episodes for the final evaluation
    # Whether the threshold and the calibration are chosen, and figures measured, on all of these episodes, each scored
    # by one of five models that did not learn from it. Six trainings instead of one, for narrower intervals.
    cross_fit: bool = False
    train_fps: Hertz | None = 10.0  # frames per second to learn from at most: neighbors are similar
    epochs: PositiveInt = 15  # at most
    patience: PositiveInt = 6  # epochs without a better held-out loss before it stops
    batch_size: int = Field(default=128, ge=2, le=65_536)  # half of it successes
    lr: LearningRate = 3e-4  # falls to zero along a cosine
    encoder_lr_scale: LearningRate = 0.2  # of an encoder that is trained and was trained elsewhere, as a share of `lr`
    weight_decay: float = Field(default=1e-2, ge=0, le=10)  # of AdamW
    label_smoothing: float = Field(default=0.05, ge=0, lt=0.5)  # how far labels move from 0 and 1
    augment: AugmentConfig = Field(default_factory=AugmentConfig)  # random changes of training images
    # Of each training image that a frozen encoder's features are kept of, all but one augmented.
    num_augmented_views: SmallInt = 4
    ensemble_size: SmallInt = 1  # trained from different seeds; the lowest one's probability counts
    target_fpr: float = Field(default=0.01, ge=1e-6, lt=1)  # failure frames that may be predicted a success
    promise_confidence: float = Field(default=0.9, ge=0.5, lt=1)  # of a promise that this holds on episodes to come
    seed: Seed = 0  # of the split, the weights and the batches
    device: str = "auto"  # cpu, cuda, or auto: a GPU if there is one
    # On a CPU: how long it may take. What is not set of the encoder, image size, history, members and views is chosen
    # to fit (budget.py). None: the defaults above.
    max_minutes: PositiveFloat | None = None
    enforce_max_minutes: bool = False  # a limit instead of a guide: training ends when its share of it is used up

    @property
    def frozen(self) -> bool:
        """Whether all or a first part of the encoder is frozen, so that its features can be cached."""
        return self.encoder.pretrained if self.freeze_encoder is None else bool(self.freeze_encoder)

    @property
    def freezes_stem(self) -> bool:
        """Whether only the first part of the encoder is frozen."""
        parts = self.encoder.supports_partial_freeze and self.head == "serl"
        return self.frozen and parts and self.freeze_encoder in (None, "stem")

    def classifier_config(self, cameras: Mapping[str, tuple[int, int]], state_dim: int) -> ClassifierConfig:
        """The network for frames of these sizes; `state_dim` counts only with `use_state`."""
        if self.use_state and not state_dim:
            raise JudgeError("not all of these episodes have a state of one size; leave out --use-state")
        own = {name: getattr(self, name) for name in NetworkConfig.model_fields}
        state_dim = state_dim if self.use_state else 0
        return ClassifierConfig(cameras=dict(cameras), freeze_stem=self.freezes_stem, state_dim=state_dim, **own)

    def member_seed(self, number: int) -> int:
        return self.seed + 1000 * number

    @model_validator(mode="after")
    def _has_a_stem_to_freeze(self) -> Self:
        if self.freeze_encoder == "stem" and not self.encoder.supports_partial_freeze:
            raise ValueError(f"encoder '{self.encoder.type}' has no parts; freeze all of it (true) or nothing (false)")
        return self


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
