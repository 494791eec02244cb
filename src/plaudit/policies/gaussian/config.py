"""What a Gaussian policy is made of. Without torch, so that a config can be read on a machine that will not run it."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from plaudit.config import Config

if TYPE_CHECKING:
    from plaudit.policies.gaussian.policy import GaussianPolicy


class EyeConfig(Config):
    features: PositiveInt = 64  # that each camera is squeezed into


class ActorConfig(Config):
    kind: Literal["squashed", "plain"] = "squashed"  # squeezed by tanh, as SAC trains them; or not, as PPO does
    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), min_length=1)


class GaussianConfig(Config):
    type: Literal["gaussian"] = "gaussian"
    state_dim: NonNegativeInt
    action_dim: PositiveInt
    horizon: PositiveInt = 1  # actions of a chunk
    cameras: dict[str, tuple[PositiveInt, PositiveInt]] = Field(default_factory=dict)  # name -> (H, W); {} for none
    eye: EyeConfig = Field(default_factory=EyeConfig)
    actor: ActorConfig = Field(default_factory=ActorConfig)
    # Draw actions instead of taking the middle. Only a squashed actor can: the spread of a plain one is not among
    # the weights that a robot gets.
    explore: bool = False
    seed: NonNegativeInt = 0  # of the weights before any are loaded, and of what is drawn
    device: str = "cpu"

    @model_validator(mode="after")
    def _it_can_see_and_draw(self) -> Self:
        if not self.state_dim and not self.cameras:
            raise ValueError("a policy needs something to see: a state_dim, or cameras")
        if self.explore and self.actor.kind == "plain":
            raise ValueError("a plain actor cannot explore: its weights do not say how far; leave out 'explore'")
        return self

    def build(self) -> "GaussianPolicy":
        from plaudit.policies.gaussian.policy import GaussianPolicy

        return GaussianPolicy(self)
