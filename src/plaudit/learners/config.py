"""What configs of learners have in common, and how a policy is trained from a store. Without torch."""

from typing import Any, ClassVar

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from plaudit.config import Config, Seed, parse
from plaudit.policies.config import FlowConfig


class LearnerConfig(Config):
    """Base of a learner's config."""

    on_policy: ClassVar[bool]  # whether it learns only from episodes of its newest policy

    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return 1

    def build(self, env_spec: Any, seed: int, device: str) -> Any:
        """The `Learner` of an env or a robot with these `plaudit.types.EnvSpec`."""
        raise NotImplementedError(f"{type(self).__name__} has no build(env_spec, seed, device)")


class OffPolicyConfig(LearnerConfig):
    """Base of the config of a learner that learns from replay: whoever acted, and however long ago.

    `plaudit online` takes any learner whose config derives from this: there labels come after an episode, when the
    policy has been updated already.
    """

    on_policy: ClassVar[bool] = False

    batch_size: PositiveInt = 256
    utd_ratio: PositiveFloat = 0.5  # update-to-data: updates for each step of the robot
    random_steps: NonNegativeInt = 0  # steps that earn no update; `train` acts at random meanwhile
    demo_ratio: float = Field(default=0.5, ge=0, le=1)  # of each batch, when there are demonstrations

    def updates_due(self, steps: int) -> float:
        """Updates that so many steps of the robot have earned; those before `random_steps` earn none, then or later."""
        return self.utd_ratio * max(0, steps - self.random_steps)


class BCConfig(Config):
    """How a flow policy is trained from demonstrations."""

    steps: PositiveInt = 2000
    batch_size: PositiveInt = 256
    lr: PositiveFloat = 1e-3  # at its highest; it rises over the first steps and falls along a cosine
    warmup_steps: NonNegativeInt = 100
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    seed: Seed = 0


class TrainPolicyConfig(Config):
    """A policy and its training, as a file or the command line gives them; its inputs and outputs come from a store."""

    policy: dict[str, Any] = Field(default_factory=dict)  # keys of FlowConfig
    fit: BCConfig = Field(default_factory=BCConfig)

    def flow(self, **env_spec: Any) -> FlowConfig:
        """The policy for these inputs and outputs."""
        return parse(FlowConfig, {**env_spec, **self.policy})
