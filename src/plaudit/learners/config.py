"""The configs of learners and of behavior cloning. Without torch, so that reading a training config is fast."""

from importlib import import_module
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import (
    BatchSize,
    Config,
    Fraction,
    LearningRate,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Seed,
    SmallInt,
    Width,
    parse,
)
from plaudit.data.demonstrations import InterventionConfig
from plaudit.policies.config import FlowConfig, Gripper, VelocityNetConfig
from plaudit.types import EnvSpec


class LearnerConfig(Config):
    """Base of a learner's config."""

    on_policy: ClassVar[bool]  # whether it learns only from episodes of its newest policy
    learner_class: ClassVar[str]  # "module:Class" that `build` makes; it is imported where the learner runs
    takes_history: ClassVar[bool] = False  # whether its policy can see earlier observations (`policy.history`)

    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step
    cuda_graphs: bool = True  # on a GPU: launch a whole update at once, as a CUDA graph
    mixed_precision: bool = True  # on a GPU: convolutions of the `cnn` encoder in bfloat16, other products in TF32

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return 1

    @property
    def backup_horizon(self) -> int:
        """Actions of a chunk that a backup spans; a robot has to execute as many before the next inference."""
        return self.action_horizon

    def build(self, env_spec: EnvSpec, seed: int, device: str, **encoder: Any) -> Any:
        """The `Learner` of an env or a robot. encoder: an `EncoderSpec`, if it is not the default"""
        module, _, name = self.learner_class.partition(":")
        return getattr(import_module(module), name)(self, env_spec, seed, device, **encoder)


class OffPolicyConfig(LearnerConfig):
    """Base of the config of a learner from replay.

    `plaudit online` takes any learner whose config derives from this: there the labels of an episode come later, when
    the policy has been updated already.
    """

    on_policy: ClassVar[bool] = False
    random_actions: ClassVar[bool] = True  # whether `train` acts at random in the first `random_steps`

    batch_size: BatchSize = 256  # steps or windows in an update
    utd_ratio: PositiveFloat = 0.5  # update-to-data: updates for each step of the robot
    random_steps: NonNegativeInt = 0  # at the start, without updates; `train` acts at random
    demo_ratio: float = Field(default=0.5, ge=0, le=1)  # of each batch: demonstrations and interventions
    interventions: InterventionConfig = InterventionConfig()  # how the steps in which a person acted are used

    @property
    def clones_demos(self) -> bool:
        """Whether it asks for demonstrations, to imitate their actions."""
        return False

    @property
    def imitates_successes(self) -> bool:
        """Whether the run's own successes count as demonstrations, whatever `interventions.successes` says."""
        return False

    @property
    def imitates_progress(self) -> bool:
        """Whether it cannot learn without the judge's progress (reward.shaping)."""
        return False

    @model_validator(mode="after")
    def _check_cloning(self) -> Self:
        if self.clones_demos and round(self.demo_ratio * self.batch_size) < 1:
            raise ValueError(
                f"demo_ratio is {self.demo_ratio:g} of a batch of {self.batch_size}, so no batch holds demonstrations; "
                "raise demo_ratio, or set bc_weight and clone_updates to 0, because they would have no effect"
            )
        return self

    def updates_due(self, steps: int) -> float:
        """Updates due after a number of steps of the robot; the first `random_steps` never count."""
        return self.utd_ratio * max(0, steps - self.random_steps)


class ResetConfig(Config):
    """When critics start anew (learners/resets.py)."""

    every: PositiveInt | None = None  # updates; for many updates per step (utd_ratio up to 20); None: never
    # After labels changed the success of this fraction of the labeled episodes; 0: at each such change; None: never.
    relabeled: Fraction | None = None
    relearn_updates: NonNegativeInt = 1000  # of the critics alone after a reset; extra ones after changed labels


class CriticEnsembleConfig(OffPolicyConfig):
    """Base of the configs of `Sac` and `QChunk`, which have an ensemble of critics."""

    takes_history: ClassVar[bool] = True

    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # units of the hidden layers
    num_critics: SmallInt = 2  # in the ensemble
    num_subsample_critics: SmallInt = 2  # sampled for each target, of which the minimum counts
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    pretrain_updates: NonNegativeInt = 0  # with demonstrations alone, where there are some, before the first episode
    resets: ResetConfig = ResetConfig()  # when critics start anew

    @model_validator(mode="after")
    def _check_resets(self) -> Self:
        if self.resets.every is not None and self.resets.every <= self.resets.relearn_updates:
            raise ValueError(
                f"resets.every is {self.resets.every}, at most resets.relearn_updates ({self.resets.relearn_updates}), "
                "so the policy would never learn; increase resets.every"
            )
        return self

    @model_validator(mode="after")
    def _check_subsample(self) -> Self:
        if self.num_subsample_critics > self.num_critics:
            raise ValueError(
                f"num_subsample_critics is {self.num_subsample_critics}, but there are {self.num_critics} critics"
            )
        return self


class SacConfig(CriticEnsembleConfig):
    """Settings of SAC; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.sac:Sac"

    type: Literal["sac"] = "sac"
    gamma: float = Field(default=0.95, ge=0, le=1)  # tasks here take 15 to 50 steps
    lr: LearningRate = 1e-3  # learning rate
    n_step: SmallInt = 1  # rewards in a target before the critics' value
    tau: float = Field(default=0.005, gt=0, le=1)  # how far the target critics move to the critics at each update
    num_subsample_critics: SmallInt = 1  # the fastest with sparse rewards
    policy_update_freq: PositiveInt = 2  # critic updates to one of the actor
    temperature_init: PositiveFloat = 0.01  # it then follows the target entropy
    target_entropy: Number | None = None  # None: minus half the number of actions
    bc_weight: NonNegativeFloat = 0.0  # in the actor's loss, of cloning the demonstrations in a batch
    # The first updates, those of pretraining too, in which the actor only clones: HG-DAgger, while the critics learn.
    clone_updates: NonNegativeInt = 0
    # The last number of an action; discrete: -1, 0 or 1, chosen by a grasp critic, as in HIL-SERL.
    gripper: Gripper = "continuous"
    random_steps: NonNegativeInt = 100

    @property
    def clones_demos(self) -> bool:
        return self.bc_weight > 0 or self.clone_updates > 0


class PpoConfig(LearnerConfig):
    """Settings of PPO; `learner.KEY` of a training run."""

    on_policy: ClassVar[bool] = True
    takes_history: ClassVar[bool] = True

    learner_class: ClassVar[str] = "plaudit.learners.ppo:Ppo"

    type: Literal["ppo"] = "ppo"
    gamma: float = Field(default=0.9, ge=0, le=1)
    gae_lambda: float = Field(default=0.9, ge=0, le=1)  # of generalized advantage estimation
    lr: LearningRate = 3e-4  # learning rate
    clip_coef: PositiveFloat = 0.2  # how far the ratio of probabilities may move
    update_epochs: SmallInt = 8  # over each rollout
    num_minibatches: SmallInt = 4  # of each epoch
    vf_coef: PositiveFloat = 0.5  # weight of the value loss
    ent_coef: NonNegativeFloat = 0.0  # weight of the entropy in the loss
    max_grad_norm: PositiveFloat = 0.5  # gradients are clipped to it
    target_kl: PositiveFloat | None = 0.1  # an update stops when the policy has moved this far; None: never
    hidden_dims: tuple[Width, ...] = Field(default=(128, 128), min_length=1)  # units of the hidden layers
    log_std_init: float = Field(default=-0.5, ge=-20, le=20)  # of the actions
    pretrain_updates: NonNegativeInt = 2000  # of behavior cloning before the first rollout, with demonstrations
    pretrain_batch_size: BatchSize = 256  # batch size of cloning before the first rollout
    pretrain_lr: LearningRate = 1e-3  # learning rate of cloning before the first rollout
    # Rollouts after cloning from which only the value learns: with an untrained value every advantage is noise, and a
    # few updates of noise undo what was cloned.
    critic_warmup_iterations: NonNegativeInt = 2
    # Pixels by which images of demonstrations are shifted at random. Those of a rollout are not: it would change the
    # densities that the old ones are compared with, and undo in a few updates what was learned.
    random_shift_pad: NonNegativeInt = 4


class QChunkConfig(CriticEnsembleConfig):
    """Settings of Q-chunking; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.qchunk:QChunk"

    type: Literal["qchunk"] = "qchunk"
    horizon: SmallInt = 5  # actions of a chunk
    critic_horizon: SmallInt | None = None  # of these, the first that critics value, h above; None: all
    num_samples: SmallInt = 8  # chunks to choose from, N above
    num_inference_steps: SmallInt = 5  # of Euler, from noise to actions
    velocity_net: VelocityNetConfig = VelocityNetConfig(width=64, depth=2)  # the network of the flow
    lr: LearningRate = 2e-3  # learning rate
    tau: float = Field(default=0.01, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: BatchSize = 128
    utd_ratio: PositiveFloat = 0.25
    pretrain_updates: NonNegativeInt = 200

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return self.horizon

    @property
    def backup_horizon(self) -> int:
        """Actions of a chunk that critics value and a backup spans."""
        return self.critic_horizon or self.horizon

    @model_validator(mode="after")
    def _check_critic_horizon(self) -> Self:
        if self.backup_horizon > self.horizon:
            raise ValueError(
                f"critic_horizon is {self.critic_horizon}, but chunks have {self.horizon} actions (horizon)"
            )
        return self


class DaggerConfig(OffPolicyConfig):
    """Settings of HG-DAgger; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.dagger:Dagger"
    takes_history: ClassVar[bool] = True

    type: Literal["dagger"] = "dagger"
    horizon: SmallInt = 5  # actions of a chunk
    num_inference_steps: SmallInt = 5  # of Euler, from noise to actions
    velocity_net: VelocityNetConfig = VelocityNetConfig(width=64, depth=2)  # the network of the flow
    lr: LearningRate = 1e-3  # learning rate
    batch_size: BatchSize = 128
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    demo_ratio: float = Field(default=1.0, gt=0, le=1)  # of each batch; what the policy did is not learned from
    pretrain_updates: NonNegativeInt = 2000  # with demonstrations alone, before the first episode

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return self.horizon

    @property
    def backup_horizon(self) -> int:
        """No backup spans several actions."""
        return 1

    @property
    def clones_demos(self) -> bool:
        return True


class BCConfig(Config):
    """How a flow policy is trained from demonstrations."""

    steps: PositiveInt = 2000  # updates
    batch_size: BatchSize = 256  # windows of demonstrations in an update
    lr: LearningRate = 1e-3  # at its highest; it rises over the first steps and falls along a cosine
    warmup_steps: NonNegativeInt = 100  # updates in which the learning rate rises from 0
    random_shift_pad: NonNegativeInt = 4  # pixels by which images are shifted at random; 0 for none
    include_failures: bool = False  # clone labeled failures too
    precision: Literal["float32", "bfloat16"] = "float32"  # of the network's products; weights stay in float32
    # Train low-rank additions to the flow's layers instead of all weights; they are merged into these afterwards.
    lora_rank: SmallInt | None = None
    seed: Seed = 0  # of the weights and the batches


class TrainPolicyConfig(Config):
    """The config of `plaudit train-policy`; the policy's inputs and outputs are those of the store."""

    policy: dict[str, Any] = Field(default_factory=dict)  # keys of FlowConfig
    fit: BCConfig = Field(default_factory=BCConfig)  # the updates

    def flow(self, **env_spec: Any) -> FlowConfig:
        """The policy for these inputs and outputs."""
        return parse(FlowConfig, {**env_spec, **self.policy})
