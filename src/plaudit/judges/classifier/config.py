"""What a reward model is trained with. Defaults are for real camera images and a few dozen labeled episodes."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator

from plaudit.config import Config, Hertz, LearningRate, PositiveFloat, PositiveInt, Seed, SmallInt
from plaudit.errors import JudgeError
from plaudit.judges.classifier.encoders.efficientnet import EfficientNetConfig
from plaudit.judges.classifier.model import BinaryRewardClassifier, ClassifierConfig, NetworkConfig
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.registry import ENCODER_REGISTRY


class AugmentConfig(Config):
    """The largest change of each kind, as a fraction."""

    shift: float = Field(default=0.06, ge=0, lt=0.5)  # of the image size, in each direction
    scale: float = Field(default=0.1, ge=0, lt=0.5)  # of the zoom, in or out
    color: float = Field(default=0.25, ge=0, lt=1)  # of brightness, contrast and saturation


class RewardTrainConfig(NetworkConfig):
    """What a reward model is trained with."""

    encoder: Annotated[Any, ENCODER_REGISTRY.field] = Field(default_factory=EfficientNetConfig)
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
    test_fraction: float = Field(default=0.15, ge=0, lt=0.5)
    # Whether the threshold and the calibration are chosen, and figures measured, on all of these episodes, each scored
    # by one of five models that did not learn from it. Six trainings instead of one, for narrower intervals.
    cross_fit: bool = False
    train_fps: Hertz | None = 10.0  # frames per second to learn from at most: neighbors are similar
    epochs: PositiveInt = 15  # at most
    patience: PositiveInt = 6  # epochs without a better held-out loss before it stops
    batch_size: int = Field(default=128, ge=2, le=65_536)  # half of it successes
    lr: LearningRate = 3e-4  # falls to zero along a cosine
    encoder_lr_scale: LearningRate = 0.2  # of an encoder that is trained and was trained elsewhere, as a share of `lr`
    weight_decay: float = Field(default=1e-2, ge=0, le=10)
    label_smoothing: float = Field(default=0.05, ge=0, lt=0.5)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    num_augmented_views: SmallInt = (
        4  # of each training image that a frozen encoder's features are kept of, all but one augmented
    )
    ensemble_size: SmallInt = 1  # trained from different seeds; the lowest one's probability counts
    target_fpr: float = Field(default=0.01, ge=1e-6, lt=1)  # failure frames that may be predicted a success
    promise_confidence: float = Field(default=0.9, ge=0.5, lt=1)  # of a promise that this holds on episodes to come
    seed: Seed = 0
    device: str = "auto"
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

    def build_member(self, classifier: ClassifierConfig, number: int) -> BinaryRewardClassifier:
        """A member of the ensemble before its first step. An encoder that does not learn is the same in all of them."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed if self.frozen else self.member_seed(number))
            encoder = self.encoder.build()
            torch.manual_seed(self.member_seed(number))
            model = BinaryRewardClassifier(classifier, encoder)
        if self.frozen:
            model.freeze_encoder()
        return model

    def member_seed(self, number: int) -> int:
        return self.seed + 1000 * number

    @model_validator(mode="after")
    def _has_a_stem_to_freeze(self) -> Self:
        if self.freeze_encoder == "stem" and not self.encoder.supports_partial_freeze:
            raise ValueError(f"encoder '{self.encoder.type}' has no parts; freeze all of it (true) or nothing (false)")
        return self
