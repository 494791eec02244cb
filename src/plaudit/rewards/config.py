"""What a reward model is trained with. Defaults are for real camera images and a few dozen labelled episodes."""

from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from plaudit.config import Config
from plaudit.registry import ENCODER_REGISTRY
from plaudit.rewards.augment import AugmentConfig
from plaudit.rewards.classifier import Size
from plaudit.rewards.encoders.small import SmallConfig
from plaudit.rewards.frames import TRUSTED


class RewardTrainConfig(Config):
    encoder: Annotated[Any, ENCODER_REGISTRY.field] = Field(default_factory=SmallConfig)
    freeze_encoder: bool | None = None  # None: frozen if it was trained elsewhere, trained with the rest if not
    image_keys: tuple[str, ...] = ()  # cameras; () for all that the episodes have
    image_size: Size | None = None  # (height, width) that frames are resized to; None: as they are
    hidden_dim: PositiveInt = 256
    latent_dim: PositiveInt = 256
    num_spatial_blocks: PositiveInt = 8
    dropout: float = Field(default=0.1, ge=0, lt=1)
    use_state: bool = False  # the robot's own state beside the images
    history: NonNegativeInt = 0  # moments before this one
    history_stride: PositiveInt = 3  # steps between them
    progress: bool = False  # whether it also learns how far the task has come, for shaping
    sources: tuple[str, ...] = TRUSTED  # whose labels to learn from
    epochs: PositiveInt = 40  # at most
    patience: PositiveInt = 10  # epochs without a better held-out loss before it stops
    batch_size: PositiveInt = 128
    lr: PositiveFloat = 3e-4  # falls to zero along a cosine
    encoder_lr: PositiveFloat = 0.2  # of an encoder that is trained and was trained elsewhere, as a share of `lr`
    weight_decay: float = Field(default=1e-2, ge=0)
    label_smoothing: float = Field(default=0.05, ge=0, lt=0.5)
    augment: AugmentConfig = Field(default_factory=AugmentConfig)
    views: PositiveInt = 4  # of each training image that a frozen encoder's features are kept of, all but one augmented
    members: PositiveInt = 1  # trained from different seeds; the lowest one's probability counts
    target_fpr: float = Field(default=0.01, gt=0, lt=1)  # failure frames that may be called success
    seed: NonNegativeInt = 0
    device: str = "auto"

    @property
    def frozen(self) -> bool:
        return self.encoder.pretrained if self.freeze_encoder is None else self.freeze_encoder
