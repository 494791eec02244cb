"""What a Gaussian policy is made of. Without torch, so that a config can be read on a machine that will not run it."""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from plaudit.config import Config
from plaudit.policies.config import NetworkPolicyConfig

if TYPE_CHECKING:
    from plaudit.policies.gaussian.policy import GaussianPolicy


class ActorConfig(Config):
    kind: Literal["squashed", "plain"] = "squashed"  # squeezed by tanh, as SAC trains them; or not, as PPO does
    hidden: tuple[PositiveInt, ...] = Field(default=(128, 128), min_length=1)


class GaussianConfig(NetworkPolicyConfig):
    type: Literal["gaussian"] = "gaussian"
    horizon: PositiveInt = 1  # actions of a chunk
    actor: ActorConfig = Field(default_factory=ActorConfig)
    # Draw actions instead of taking the middle. Only a squashed actor can: the spread of a plain one is not among
    # the weights that a robot gets.
    explore: bool = False

    @model_validator(mode="after")
    def _it_can_draw(self) -> Self:
        if self.explore and self.actor.kind == "plain":
            raise ValueError("a plain actor cannot explore: its weights do not say how far; leave out 'explore'")
        return self

    def build(self) -> "GaussianPolicy":
        from plaudit.policies.gaussian.policy import GaussianPolicy

        return GaussianPolicy(self)
