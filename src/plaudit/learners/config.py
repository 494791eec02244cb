"""The configs of learners and of behavior cloning, and of learners that improve a trained policy (docs/pretrained.md).

Without torch, so that reading a training config is fast.
"""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

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
from plaudit.errors import PlauditError, PolicyError
from plaudit.policies.config import FlowConfig, Gripper, ImageEncoderConfig, NetworkPolicyConfig, VelocityNetConfig
from plaudit.policies.loader import POLICY_FILE, PolicySpec, load_policy
from plaudit.types import EnvSpec


class LearnerConfig(Config):
    """Base of a learner's config."""

    on_policy: ClassVar[bool]  # whether it learns only from episodes of its newest policy
    learner_class: ClassVar[str]  # "module:Class" that `build` makes; it is imported where the learner runs
    takes_history: ClassVar[bool] = False  # whether its policy can see earlier observations (`policy.history`)

    gamma: float = Field(default=0.95, ge=0, le=1)  # discount of a step
    # On a GPU: launch a whole update at once, as a CUDA graph; never with a fine-tuned encoder, which would be slower.
    cuda_graphs: bool = True
    # On a GPU: convolutions of the `cnn` encoder and all of a fine-tuned encoder in bfloat16, other products in TF32.
    mixed_precision: bool = True

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
    """When critics start anew (learners/base.py)."""

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


class ChunkCriticsConfig(CriticEnsembleConfig):
    """What learners with critics of chunks share."""

    critic_horizon: SmallInt | None = None  # of a chunk, the first actions, which critics value; None: all
    tau: float = Field(default=0.01, gt=0, le=1)  # how far the target critics move to the critics at each update
    batch_size: BatchSize = 128

    @property
    def backup_horizon(self) -> int:
        """Actions of a chunk that critics value and a backup spans."""
        return self.critic_horizon or self.action_horizon

    @model_validator(mode="after")
    def _check_critic_horizon(self) -> Self:
        if self.backup_horizon > self.action_horizon:
            raise ValueError(
                f"critic_horizon is {self.critic_horizon}, but chunks have {self.action_horizon} actions; lower it"
            )
        return self


class QChunkConfig(ChunkCriticsConfig):
    """Settings of Q-chunking; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.qchunk:QChunk"

    type: Literal["qchunk"] = "qchunk"
    horizon: SmallInt = 5  # actions of a chunk
    num_samples: SmallInt = 8  # chunks to choose from, N above
    num_inference_steps: SmallInt = 5  # of Euler, from noise to actions
    velocity_net: VelocityNetConfig = VelocityNetConfig(width=64, depth=2)  # the network of the flow
    lr: LearningRate = 2e-3  # learning rate
    utd_ratio: PositiveFloat = 0.25
    pretrain_updates: NonNegativeInt = 200

    @property
    def action_horizon(self) -> int:
        """Actions that its policy returns at a time."""
        return self.horizon


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
        self.check_inputs(encoder, history, sees=bool(env_spec.cameras))

    def check_inputs(self, encoder: ImageEncoderConfig, history: int, *, sees: bool) -> None:
        """Refuse a base that needs other images or another history than the run shows. sees: whether it shows images"""
        if not isinstance(self.base_spec.config, NetworkPolicyConfig):
            return
        if self.base_spec.config.history != history:
            wanted = self.base_spec.config.history
            differ = f"the base sees {wanted} earlier observations, and the run shows {history}"
            raise PolicyError(f"{differ}; write policy.history={wanted}")
        if encoder.is_frozen and sees:
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


class CriticsOfBaseConfig(ChunkCriticsConfig, FromBaseConfig):
    """What learners with critics of the base's chunks share."""

    lr: LearningRate = 1e-3  # learning rate
    num_critics: SmallInt = 4
    random_steps: NonNegativeInt = 0  # without updates at the start: critics may learn from the base's first episodes


class ExpoConfig(CriticsOfBaseConfig):
    """Settings of EXPO and of residual learning; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.expo:Expo"

    type: Literal["expo"] = "expo"
    num_samples: SmallInt = 4  # chunks of the base, N
    select: bool = True  # the best of N base and N edited chunks; False: the edited one, with num_samples=1 (residual)
    edit_scale: float = Field(default=0.2, gt=0, le=2)  # largest correction of an action
    edit_warmup: NonNegativeInt = 1000  # updates in which the scale grows from 0
    edit_penalty: NonNegativeFloat = 0.3  # in the editor's loss, of the mean square of the edit, which is 1 at most
    temperature_init: PositiveFloat = 1e-4  # weight of the entropy; it then follows the target entropy
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


class DsrlConfig(CriticsOfBaseConfig):
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


class SteerConfig(CriticsOfBaseConfig):
    """Settings of steering; `learner.KEY` of a training run."""

    learner_class: ClassVar[str] = "plaudit.learners.steer:Steer"
    needs_flow: ClassVar[bool] = False

    type: Literal["steer"] = "steer"
    num_samples: SmallInt = 8  # chunks to choose from
