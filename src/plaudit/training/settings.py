"""The blocks of a training config, with their keys and defaults; `TrainingConfig` in config.py puts them together."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    field_validator,
    model_serializer,
    model_validator,
)

from plaudit.config import (
    Config,
    Edge,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    NumEnvs,
    PositiveFloat,
    PositiveInt,
    Seed,
    SmallInt,
    Width,
    parse,
)
from plaudit.data.rewards import RewardConfig
from plaudit.errors import ConfigError
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.config import REFERENCE_SOURCES, JudgeConfig
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.judges.simulator import SimulatorJudgeConfig
from plaudit.policies.config import PolicyDevice
from plaudit.registry import INFERENCE_REGISTRY, JUDGE_REGISTRY
from plaudit.rollout.engine import InferenceConfig
from plaudit.training.labeling_window import LabelingWindowConfig
from plaudit.training.promotion import PromotionRules


def _inference(value: Any) -> Any:
    """Settings of the algorithm that `type` names, or of whichever will be chosen."""
    if isinstance(value, dict):
        return INFERENCE_REGISTRY.parse(value) if value.get("type") is not None else parse(InferenceConfig, value)
    return value


def _inference_tree(config: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return handler(config) if type(config) is InferenceConfig else INFERENCE_REGISTRY.dump(config)


class RetrainConfig(Config):
    """When a classifier is trained again, on what, and when the new version is used."""

    min_new_labels: PositiveInt = 20  # episodes with new trusted labels, before it is trained again
    min_episodes: PositiveInt = 20  # of the run with such labels, before it is trained again for the first time
    sources: tuple[str, ...] = ("human", "simulator")  # of trusted labels; "simulator" is what an audit wrote down
    data: tuple[Path, ...] = ()  # stores that the first judge was trained on
    # Fraction of the episodes that no judge has chosen on which candidates are compared and never trained.
    val_fraction: float = Field(default=0.5, gt=0, lt=1)
    replace: PromotionRules = Field(default_factory=PromotionRules)  # by which a candidate replaces the judge
    train_overrides: dict[str, Any] = Field(default_factory=dict)  # of RewardTrainConfig, on the current judge's own
    num_threads: SmallInt = 1  # of torch
    nice: int = Field(default=10, ge=0, le=19)  # of its process: labeling and learning go first

    @field_validator("train_overrides")
    @classmethod
    def _check_overrides(cls, train_overrides: dict[str, Any]) -> dict[str, Any]:
        from plaudit.judges.classifier.config import RewardTrainConfig  # which imports torch

        parse(RewardTrainConfig, train_overrides)
        return train_overrides

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for source in sources:
            if source not in REFERENCE_SOURCES:
                raise ValueError(
                    f"a judge is not trained on labels of '{source}'; trusted are: {', '.join(REFERENCE_SOURCES)}"
                )
        return sources


class PolicySettings(Config):
    """The policy that acts, and what it sees."""

    path: Path | None = None  # a policy.yaml to start from
    behavior: Literal["learner", "pretrained"] = "learner"  # who acts: the learner's policy, or `path` unchanged
    cameras: tuple[str, ...] | None = None  # that the learner sees; None: all, []: only the state
    # How the robot is driven. `type` is rtc, sequential or a plugin's; None: rtc for chunks in real time.
    inference: Annotated[Any, BeforeValidator(_inference), WrapSerializer(_inference_tree)] = InferenceConfig()
    device: PolicyDevice | None = None  # where it acts, see NetworkPolicyConfig; None: as its file says, or auto
    normalizer: Path | dict[str, Any] | None = None  # what -1 to 1 is on the robot; None: see training/normalization.py
    update_within_episode: bool = False  # new weights are used from the next chunk on, not from the next episode


def _parse_block(key: str, value: Any, cls: type[Config]) -> Any:
    """A block within a validator that gets plain values; what is wrong in it is told by its whole key."""
    if not isinstance(value, dict):
        return value
    try:
        return parse(cls, value)
    except ConfigError as error:
        raise ConfigError(
            ((key, *where), message.replace("key '", f"key '{key}.", 1)) for where, message in error.problems
        ) from None


class JudgeSettings(Config):
    """Who decides about success: the keys of a judge (`type`, `model`, `rule`, ...), and these three."""

    config: JudgeConfig = Field(default_factory=SimulatorJudgeConfig)
    retrain: RetrainConfig | None = RetrainConfig()  # a classifier learns from the run's labels; None: it does not
    window: LabelingWindowConfig = LabelingWindowConfig()  # of a human who labels or audits
    certificate: Path | None = None  # of the judge's exam; None: the one beside it

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """The judge's own keys go to its own config class."""
        if not isinstance(value, dict) or isinstance(value.get("config"), Config):
            return value
        blocks = {"retrain": RetrainConfig, "window": LabelingWindowConfig}
        own = {key: _parse_block(key, value[key], blocks[key]) for key in blocks if key in value}
        own |= {key: value[key] for key in ("certificate",) if key in value}
        rest = {key: value[key] for key in value if key not in own}
        if not rest:
            return own
        return {**own, "config": JUDGE_REGISTRY.parse({"type": "simulator", **rest})}

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree = handler(self)
        own = {key: tree[key] for key in ("retrain", "window", "certificate")}
        return {**JUDGE_REGISTRY.dump(self.config), **own}

    @property
    def name(self) -> str:
        """As `judge=` names it."""
        return JUDGE_REGISTRY.name_of(self.config)

    @property
    def certificate_path(self) -> Path | None:
        """Where its certificate is to be; None where nobody has said."""
        return self.certificate or self.config.certificate_path

    @property
    def is_flag_alone(self) -> bool:
        """Whether labels say no more than the simulator's own success flag, which is recorded with every episode."""
        return self.is_simulator and self.config.progress is None

    @property
    def is_human(self) -> bool:
        """Whether a human labels."""
        return isinstance(self.config, HumanJudgeConfig)

    @property
    def cascade(self) -> CascadeConfig | None:
        """The stages that are asked in turn, where it is a cascade."""
        return self.config if isinstance(self.config, CascadeConfig) else None

    @property
    def is_simulator(self) -> bool:
        """Whether the simulator's own success flag is what counts."""
        return isinstance(self.config, SimulatorJudgeConfig)


class RewardModelBlock(Config):
    """What a recipe says of the network of its reward model; it is compared with what the model says itself."""

    image_keys: tuple[str, ...] | None = None
    image_size: tuple[Edge, Edge, Edge] | None = None  # channels, height, width
    hidden_dim: Width | None = None
    num_spatial_blocks: Width | None = None
    pretrained_encoder_path: Path | None = None  # not read: the weights of the encoder are in the checkpoint
    use_pretrain: bool | None = None
    freeze_encoder: bool | None = None
    reward_model_type: Literal["resnet"] | None = None
    arch: str | None = None  # of RLinf's ResNet of today: resnet18, ...
    normalize: bool | None = None  # and whether its pixels are normalized as ImageNet's
    dropout: Fraction | None = None  # of training
    model_type: Literal["resnet"] | None = None  # today's name of reward_model_type


class RewardSettings(RewardConfig):
    """How rewards follow from labels, and whether success ends an episode."""

    # None: success ends the episode, unless the simulator's dense reward is paid (ending early would cost reward)
    terminate_on_success: bool | None = None
    reward_model: RewardModelBlock | None = None

    @property
    def terminates(self) -> bool:
        """Whether success ends an episode."""
        return self.env_reward != "dense" if self.terminate_on_success is None else self.terminate_on_success


class EvaluationConfig(Config):
    """Evaluations on seeds that no training episode has; only a simulation can be evaluated."""

    episodes: PositiveInt = 50
    freq: PositiveInt = 2000  # env steps between two of them
    stop_success_rate: float | None = Field(default=None, gt=0, le=1)  # end the run at this success rate


class DemosConfig(Config):
    """Demonstrations that are learned from."""

    store: Path | None = None  # a store of them
    scripted: NonNegativeInt = 0  # or so many of the scripted expert, made at the start; built-in tasks only
    noise: NonNegativeFloat = 0.2  # standard deviation on the scripted expert's actions
    relabel: bool | None = None  # label them by the run's judge; None: unless it is the simulator or a human

    @property
    def any(self) -> bool:
        """Whether there are demonstrations."""
        return self.store is not None or self.scripted > 0


class RunSettings(Config):
    """How long, how fast, where."""

    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")  # of the run folder; None: task, learner and seed
    # The folder of a run to resume, with the same config; None: `train` begins a new one. Not part of the run's config.
    resume_dir: Path | None = Field(default=None, exclude=True)
    seed: Seed = 0
    device: str = "auto"  # of the learner: "cpu", "cuda", "cuda:1"; auto: cuda where there is one
    num_threads: SmallInt | None = None  # of torch; None: one for states, torch's default for images
    num_envs: NumEnvs = 16  # train: episodes of a rollout, side by side
    # The run ends at whichever comes first. None for both: 40,000 steps (train) or 1,000 episodes (online).
    max_steps: PositiveInt | None = None
    max_episodes: PositiveInt | None = None
    checkpoint_freq: PositiveInt = 2000  # env steps between two checkpoints
    publish_freq: PositiveInt = 50  # online: updates between two versions of the weights
    max_unlabeled_episodes: PositiveInt = 16  # online: the robot waits when so many have no label
    max_pending_episodes: PositiveInt | None = 4  # online: or so many are not learned from yet; None: no limit
    worker_timeout_s: PositiveFloat = 60.0  # online: for which a worker that failed is retried
    sampling: Literal["auto", "local", "remote"] = "auto"  # online: from the learner's own disk, or the replay buffer
    capacity_gb: PositiveFloat = 50.0  # of the run's episodes; beyond it the oldest are evicted
    keep_episodes: bool = False  # train: store the episodes of an on-policy learner too
