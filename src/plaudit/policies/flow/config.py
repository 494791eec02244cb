"""What a flow policy is made of, and how it is taught. Without torch: a config is read where nothing of it runs."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from plaudit.config import Config, parse
from plaudit.policies.config import NetworkPolicyConfig

if TYPE_CHECKING:
    from plaudit.policies.flow.policy import FlowPolicy


class VelocityConfig(Config):
    width: PositiveInt = 384  # of the residual stream; 384 x 3 is 2.8 million parameters
    depth: PositiveInt = 3  # residual blocks


class FlowConfig(NetworkPolicyConfig):
    type: Literal["flow"] = "flow"
    horizon: PositiveInt = 16  # actions of a chunk
    velocity: VelocityConfig = Field(default_factory=VelocityConfig)
    steps: PositiveInt = 5  # of Euler, from noise to actions
    # How guided_inference holds on to the previous chunk: by the vector-Jacobian product through the network, as the
    # paper does; by the plain difference ("identity"), which needs no gradient; or by an average at the end ("blend").
    guidance: Literal["vjp", "identity", "blend"] = "vjp"
    guidance_clip: PositiveFloat = 5.0  # the paper's beta: the most weight that guidance gets

    def build(self) -> "FlowPolicy":
        from plaudit.policies.flow.policy import FlowPolicy

        return FlowPolicy(self)


class FitConfig(Config):
    """How one is taught."""

    steps: PositiveInt = 2000
    batch_size: PositiveInt = 256
    lr: PositiveFloat = 1e-3  # at its highest; it rises over the first steps and falls along a cosine
    warmup_steps: NonNegativeInt = 100
    shift: NonNegativeInt = 4  # pixels by which images are moved at random; 0 for none
    seed: NonNegativeInt = 0


class TeachConfig(Config):
    """A policy and how it is taught, as a file or the command line says it; what it sees and does, a store says."""

    policy: dict[str, Any] = Field(default_factory=dict)  # keys of FlowConfig
    fit: FitConfig = Field(default_factory=FitConfig)

    def flow(self, **spaces: Any) -> FlowConfig:
        return parse(FlowConfig, {**spaces, **self.policy})
