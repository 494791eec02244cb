"""What configs of learners share, and the config of behavior cloning. Without torch."""

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from plaudit.config import (
    BatchSize,
    Config,
    LearningRate,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Seed,
    SmallInt,
    Width,
    parse,
)
from plaudit.policies.config import FlowConfig


class LearnerConfig(Config):
    """Base of a learner's config."""

    on_policy: ClassVar[bool]  # whether it learns only from episodes of its newest policy

    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return 1

    @property
    def backup_horizon(self) -> int:
        """Actions of a chunk that a backup spans; a robot has to execute as many before the next inference."""
        return self.action_horizon

    def build(self, env_spec: Any, seed: int, device: str) -> Any:
        """The `Learner` of an env or a robot with these `plaudit.types.EnvSpec`."""
        raise NotImplementedError(f"{type(self).__name__} has no build(env_spec, seed, device)")


class OffPolicyConfig(LearnerConfig):
    """Base of the config of a learner from replay.

    `plaudit online` takes any learner whose config derives from this: there the labels of an episode come later, when
    the policy has been updated already.
    """

    on_policy: ClassVar[bool] = False

    batch_size: BatchSize = 256
    utd_ratio: PositiveFloat = 0.5  # update-to-data: updates for each step of the robot
    random_steps: NonNegativeInt = 0  # at the start, without updates; `train` acts at random
    demo_ratio: float = Field(default=0.5, ge=0, le=1)  # of each batch, when there are demonstrations

    @property
    def clones_demos(self) -> bool:
        """Whether it asks for demonstrations, to imitate their actions."""
        return False

    @model_validator(mode="after")
    def _check_cloning(self) -> Self:
        if self.clones_demos and round(self.demo_ratio * self.batch_size) < 1:
            raise ValueError(
                f"demo_ratio is {self.demo_ratio:g} of a batch of {self.batch_size}, so no batch holds demonstrations, "
                "and cloning them (bc_weight) would do nothing; raise demo_ratio, or set bc_weight to 0"
            )
        return self

    def updates_due(self, steps: int) -> float:
        """Updates due after so many steps of the robot; the first `random_steps` do not count, then or later."""
        return self.utd_ratio * max(0, steps - self.random_steps)


class CriticEnsembleConfig(OffPolicyConfig):
    """Base of the configs of `Sac` and `QChunk`, which have an ensemble of critics."""

    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
    num_critics: SmallInt = 2  # in the ensemble
    num_subsample_critics: SmallInt = 2  # sampled for each target, of which the minimum counts
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none

    @model_validator(mode="after")
    def _check_subsample(self) -> Self:
        if self.num_subsample_critics > self.num_critics:
            raise ValueError(
                f"num_subsample_critics is {self.num_subsample_critics}, but there are {self.num_critics} critics"
            )
        return self


class BCConfig(Config):
    """How a flow policy is trained from demonstrations."""

    steps: PositiveInt = 2000
    batch_size: BatchSize = 256
    lr: LearningRate = 1e-3  # at its highest; it rises over the first steps and falls along a cosine
    warmup_steps: NonNegativeInt = 100
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    include_failures: bool = False  # clone labeled failures too
    seed: Seed = 0


class TrainPolicyConfig(Config):
    """The config of `plaudit train-policy`; the policy's inputs and outputs are those of the store."""

    policy: dict[str, Any] = Field(default_factory=dict)  # keys of FlowConfig
    fit: BCConfig = Field(default_factory=BCConfig)

    def flow(self, **env_spec: Any) -> FlowConfig:
        """The policy for these inputs and outputs."""
        return parse(FlowConfig, {**env_spec, **self.policy})
