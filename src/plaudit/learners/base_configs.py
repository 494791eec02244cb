"""The configs of learners that improve a trained policy, the base (docs/pretrained.md). Without torch."""

from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from plaudit.config import (
    BatchSize,
    Fraction,
    LearningRate,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    SmallInt,
    Width,
)
from plaudit.errors import PlauditError, PolicyError
from plaudit.learners.config import CriticEnsembleConfig, OffPolicyConfig
from plaudit.policies.config import FlowConfig, ImageEncoderConfig, NetworkPolicyConfig
from plaudit.policies.loader import POLICY_FILE, PolicySpec, load_policy
from plaudit.types import EnvSpec


class FromBaseConfig(OffPolicyConfig):
    """Base of these configs: where the base policy is, and how much of a chunk is executed."""

    takes_history: ClassVar[bool] = True
    random_actions: ClassVar[bool] = False  # the base acts
    needs_flow: ClassVar[bool] = True  # whether the base has to be a flow of ours

    base: Path  # a policy.yaml, its folder, or the folder of a run
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    random_steps: NonNegativeInt = 500  # at the start, of the base alone and without updates

    @field_validator("base")
    @classmethod
    def _file_of_base(cls, base: Path) -> Path:
        places = [base / POLICY_FILE, base / "policy" / POLICY_FILE, base]
        return next((place for place in places if place.is_file()), base).absolute()

    @cached_property
    def base_spec(self) -> PolicySpec:
        """The base policy, as its file describes it."""
        return load_policy(self.base)

    @property
    def flow(self) -> FlowConfig:
        """The config of a base that is a flow."""
        return self.base_spec.config

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return self.base_spec.horizon or 1

    def check_fits(self, env_spec: EnvSpec, encoder: ImageEncoderConfig, history: int) -> None:
        """Refuse a base that does not fit what the run shows to its learner and does with its actions."""
        self.base_spec.check_fits(env_spec)
        if not isinstance(self.base_spec.config, NetworkPolicyConfig):
            return
        if self.base_spec.config.history != history:
            sees = f"the base sees {self.base_spec.config.history} earlier observations, and the run shows {history}"
            raise PolicyError(f"{sees}; write policy.history={self.base_spec.config.history}")
        if encoder.is_frozen and env_spec.cameras:
            raise PolicyError(
                f"policy.encoder={encoder.type} is frozen, so that the learner sees features instead of images, and "
                "the base needs the images; write policy.encoder=cnn, or policy.encoder.frozen=false"
            )

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        try:
            spec = self.base_spec
        except PlauditError as error:
            raise ValueError(f"learner.base: {error}") from None
        kind = spec.policy["type"]
        if self.needs_flow and not isinstance(spec.config, FlowConfig):
            raise ValueError(
                f"learner.base: {self.base} is a '{kind}' policy, and this learner needs a flow; see plaudit "
                "train-policy. learner=steer takes any policy that can be sampled"
            )
        if isinstance(spec.config, FlowConfig) and spec.config.tasks and self.needs_flow:
            raise ValueError(
                f"base: {self.base} takes the task as input, and this learner trains for one task; train a base on the "
                "demonstrations of that task alone. learner=steer takes this base"
            )
        if isinstance(spec.config, FlowConfig) and spec.weights is None:
            raise ValueError(f"learner.base: {self.base} names no weights: it is untrained; see plaudit train-policy")
        return self


class WeightedBcConfig(FromBaseConfig):
    """Settings of weighted behavior cloning; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.weighted_bc:WeightedBC"

    type: Literal["weighted_bc"] = "weighted_bc"
    # success: demonstrations and the run's successes. advantage: all windows, by exp(advantage / temperature).
    # progress: windows in which the judge's progress grows. conditioned: all, with a flag of improvement (RECAP).
    method: Literal["success", "advantage", "progress", "conditioned"] = "success"
    lr: LearningRate = 3e-4  # learning rate
    batch_size: BatchSize = 128
    utd_ratio: PositiveFloat = 0.25
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # of the value
    value_lr: LearningRate = 1e-3  # learning rate of the value network
    gamma: float = Field(default=0.98, ge=0, lt=1)
    # advantage, conditioned: steps of rewards before the value of what follows; None: the whole episode
    advantage_steps: SmallInt | None = None
    temperature: PositiveFloat = 0.1  # advantage
    max_weight: PositiveFloat = 20.0  # advantage
    min_gain: Number = 0.0  # progress: reward of a window above which it is imitated
    positive_share: float = Field(default=0.3, gt=0, lt=1)  # conditioned: of the run's windows that count as improving
    flag_dropout: Fraction = 0.3  # conditioned: how often the flag is left out in training
    guidance: NonNegativeFloat = 1.5  # conditioned: weight of the flag when acting; 1: none beyond the flag itself
    pretrain_updates: NonNegativeInt = 0  # with demonstrations alone, before the first episode

    @property
    def backup_horizon(self) -> int:
        """No backup spans several actions."""
        return 1

    @property
    def imitates_successes(self) -> bool:
        return self.method == "success"

    @property
    def imitates_progress(self) -> bool:
        return self.method == "progress"

    @property
    def flow(self) -> FlowConfig:
        """The config of the flow that is trained; it has statistics of its own, and perhaps the flag."""
        base = self.base_spec.config
        flag = self.guidance if self.method == "conditioned" else base.improvement
        return base.model_copy(update={"own_units": True, "improvement": flag})


class CriticsOfChunksConfig(CriticEnsembleConfig, FromBaseConfig):
    """What learners with critics of the base's chunks share."""

    gamma: float = Field(default=0.95, ge=0, le=1)
    critic_horizon: SmallInt | None = None  # of a chunk, the first actions, which critics value; None: all
    lr: LearningRate = 1e-3  # learning rate
    tau: float = Field(default=0.01, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: BatchSize = 128
    utd_ratio: PositiveFloat = 0.5
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)
    num_critics: SmallInt = 4

    @property
    def backup_horizon(self) -> int:
        """Actions of a chunk that critics value and a backup spans."""
        return self.critic_horizon or self.action_horizon

    @model_validator(mode="after")
    def _check_critic_horizon(self) -> Self:
        if self.backup_horizon > self.action_horizon:
            raise ValueError(
                f"critic_horizon is {self.critic_horizon}, but the base returns chunks of {self.action_horizon} "
                f"actions ({self.base}); lower it"
            )
        return self


class ExpoConfig(CriticsOfChunksConfig):
    """Settings of EXPO and of residual learning; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.expo:Expo"

    type: Literal["expo"] = "expo"
    num_samples: SmallInt = 4  # chunks of the base, N
    select: bool = True  # the best of N base and N edited chunks; False: the edited one, with num_samples=1 (residual)
    edit_scale: float = Field(default=0.2, gt=0, le=2)  # largest correction of an action
    edit_warmup: NonNegativeInt = 1000  # updates in which the scale grows from 0
    temperature_init: PositiveFloat = 0.01  # weight of the entropy; it then follows the target entropy
    target_entropy: Number | None = None  # of the edit before it is scaled; None: minus half its numbers
    finetune_lr: NonNegativeFloat = 0.0  # of the base, on demonstrations and successes; 0: it stays as it is

    @model_validator(mode="after")
    def _check_select(self) -> Self:
        if not self.select and self.num_samples != 1:
            raise ValueError(
                f"select is false and num_samples is {self.num_samples}: without a choice one chunk is sampled; write "
                "num_samples=1 (residual learning)"
            )
        if self.num_critics < 2:
            raise ValueError("num_critics is 1, and a random pair of critics chooses a chunk; write 2 or more")
        return self

    @property
    def imitates_successes(self) -> bool:
        return self.finetune_lr > 0


class DsrlConfig(CriticsOfChunksConfig):
    """Settings of DSRL; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.dsrl:Dsrl"

    type: Literal["dsrl"] = "dsrl"
    noise_bound: float = Field(default=1.5, gt=0, le=10)  # largest number of the noise
    repeat_noise: bool = False  # the same noise for all actions of a chunk
    temperature_init: PositiveFloat = 0.01  # weight of the entropy; it then follows the target entropy
    target_entropy: Number | None = None  # of the noise divided by its bound; None: minus half its numbers
    # Episodes of a check before the run: success from random noise of this form next to success from normal noise. In
    # simulation only; 0: no check.
    check_episodes: NonNegativeInt = 50


class SteerConfig(CriticsOfChunksConfig):
    """Settings of steering; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.steer:Steer"
    needs_flow: ClassVar[bool] = False

    type: Literal["steer"] = "steer"
    num_samples: SmallInt = 8  # chunks to choose from
