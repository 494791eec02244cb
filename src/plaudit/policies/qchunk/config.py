"""What a Q-chunking policy is made of. Without torch: a config is read where nothing of it runs."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from plaudit.config import Config
from plaudit.policies.flow.config import EyeConfig, FlowConfig, VelocityConfig

if TYPE_CHECKING:
    from plaudit.policies.qchunk.policy import QChunkPolicy


class CriticConfig(Config):
    count: PositiveInt = 2  # in the ensemble
    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), min_length=1)


class QChunkPolicyConfig(Config):
    type: Literal["qchunk"] = "qchunk"
    state_dim: NonNegativeInt
    action_dim: PositiveInt
    horizon: PositiveInt = 5  # actions of a chunk
    cameras: dict[str, tuple[PositiveInt, PositiveInt]] = Field(default_factory=dict)  # name -> (H, W); {} for none
    eye: EyeConfig = Field(default_factory=EyeConfig)  # of the flow
    velocity: VelocityConfig = Field(default_factory=VelocityConfig)
    critic_eye: EyeConfig = Field(default_factory=EyeConfig)
    critic: CriticConfig = Field(default_factory=CriticConfig)
    samples: PositiveInt = 8  # chunks to choose from
    steps: PositiveInt = 5  # of Euler, from noise to actions
    guidance: Literal["vjp", "identity", "blend"] = "vjp"  # as flow policies have it
    guidance_clip: PositiveFloat = 5.0  # likewise
    seed: NonNegativeInt = 0  # of the weights before any are loaded, and of the noise that chunks begin as
    device: str = "cpu"

    @property
    def flow(self) -> FlowConfig:
        """What draws the chunks."""
        return FlowConfig(**self.model_dump(include=set(FlowConfig.model_fields) - {"type"}))

    @model_validator(mode="after")
    def _there_is_something_to_see(self) -> Self:
        if not self.state_dim and not self.cameras:
            raise ValueError("a policy needs something to see: a state_dim, or cameras")
        return self

    def build(self) -> "QChunkPolicy":
        from plaudit.policies.qchunk.policy import QChunkPolicy

        return QChunkPolicy(self)
