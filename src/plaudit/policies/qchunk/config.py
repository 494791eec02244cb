"""What a Q-chunking policy is made of. Without torch: a config is read where nothing of it runs."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from plaudit.config import Config
from plaudit.policies.config import EyeConfig, NetworkPolicyConfig
from plaudit.policies.flow.config import FlowConfig, VelocityConfig

if TYPE_CHECKING:
    from plaudit.policies.qchunk.policy import QChunkPolicy


class CriticConfig(Config):
    count: PositiveInt = 2  # in the ensemble
    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), min_length=1)


class QChunkPolicyConfig(NetworkPolicyConfig):
    type: Literal["qchunk"] = "qchunk"
    horizon: PositiveInt = 5  # actions of a chunk
    velocity: VelocityConfig = Field(default_factory=VelocityConfig)
    critic_eye: EyeConfig = Field(default_factory=EyeConfig)  # `eye` is the flow's
    critic: CriticConfig = Field(default_factory=CriticConfig)
    samples: PositiveInt = 8  # chunks to choose from
    steps: PositiveInt = 5  # of Euler, from noise to actions
    guidance: Literal["vjp", "identity", "blend"] = "vjp"  # as flow policies have it
    guidance_clip: PositiveFloat = 5.0  # likewise

    @property
    def flow(self) -> FlowConfig:
        """What draws the chunks."""
        return FlowConfig(**self.model_dump(include=set(FlowConfig.model_fields) - {"type"}))

    def build(self) -> "QChunkPolicy":
        from plaudit.policies.qchunk.policy import QChunkPolicy

        return QChunkPolicy(self)
