"""What configs of policies with networks have in common. Without torch: a config is read where nothing of it runs."""

from typing import Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from plaudit.config import Config


class EyeConfig(Config):
    features: PositiveInt = 64  # that each camera is squeezed into


class NetworkPolicyConfig(Config):
    """What one sees and does, and where it runs."""

    state_dim: NonNegativeInt
    action_dim: PositiveInt
    cameras: dict[str, tuple[PositiveInt, PositiveInt]] = Field(default_factory=dict)  # name -> (H, W); {} for none
    eye: EyeConfig = Field(default_factory=EyeConfig)
    seed: NonNegativeInt = 0  # of the weights before any are loaded, and of what is drawn
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda|mps|xpu)(:\d{1,3})?$")

    @model_validator(mode="after")
    def _there_is_something_to_see(self) -> Self:
        if not self.state_dim and not self.cameras:
            raise ValueError("a policy needs something to see: a state_dim, or cameras")
        return self
