"""The blocks of a training config, with their keys and defaults. `TrainingConfig` in config.py combines them."""

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
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    NumEnvs,
    PositiveFloat,
    PositiveInt,
    Seed,
    SmallInt,
    parse,
)
from plaudit.data.frame_codecs import CodecText, ImagesText
from plaudit.data.rewards import RewardConfig
from plaudit.errors import ConfigError, did_you_mean
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import RLinfRewardConfig
from plaudit.judges.config import REFERENCE_SOURCES, JudgeConfig
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.judges.simulator import SimulatorJudgeConfig
from plaudit.policies.config import History, ImageEncoderConfig, PolicyDevice
from plaudit.registry import INFERENCE_REGISTRY, JUDGE_REGISTRY
from plaudit.rollout.engine import InferenceConfig
from plaudit.training.labeling_window import LabelingWindowConfig
from plaudit.training.promotion import PromotionRules
from plaudit.trust import HUB, allow_host_if_typed


def _inference(value: Any) -> Any:
    """Settings of the algorithm in `type`, or of the one that will be chosen."""
    if not isinstance(value, dict):
        return value
    return INFERENCE_REGISTRY.parse(value) if value.get("type") is not None else parse(InferenceConfig, value)


def _inference_tree(config: Any, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
    return handler(config) if type(config) is InferenceConfig else INFERENCE_REGISTRY.dump(config)


class PolicySettings(Config):
    """The policy that acts, and what it sees."""

    path: Path | None = None  # a policy.yaml to start from
    behavior: Literal["learner", "pretrained"] = "learner"  # who acts: the learner's policy, or `path` unchanged
    cameras: tuple[str, ...] | None = None  # that the learner sees; None: all, []: only the state
    encoder: ImageEncoderConfig = ImageEncoderConfig()  # of their images
    history: History = 0  # earlier observations that the learner sees too
    # How the robot is driven. `type` is rtc, sequential or a plugin's; None: rtc for chunks in real time.
    inference: Annotated[Any, BeforeValidator(_inference), WrapSerializer(_inference_tree)] = InferenceConfig()
    device: PolicyDevice | None = None  # where it acts, see NetworkPolicyConfig; None: as its file says, or auto
    normalizer: Path | dict[str, Any] | None = None  # what -1 to 1 is on the robot; None: see training/setup.py
    update_within_episode: bool = False  # new weights are used from the next chunk on, not from the next episode


class RetrainConfig(Config):
    """When a classifier is retrained, on which data, and when the new version is used."""

    min_new_labels: PositiveInt = 20  # episodes with new trusted labels between two retrainings
    min_episodes: PositiveInt = 20  # of the run with such labels, before the first retraining
    sources: tuple[str, ...] = ("human", "simulator")  # of trusted labels; "simulator": the results of an audit
    data: tuple[Path, ...] = ()  # stores with the training data of the first judge
    # Of the episodes that no judge has chosen: the fraction on which candidates are compared, and never trained.
    val_fraction: float = Field(default=0.5, gt=0, lt=1)
    replace: PromotionRules = Field(default_factory=PromotionRules)  # by which a candidate replaces the judge
    train_overrides: dict[str, Any] = Field(default_factory=dict)  # keys of RewardTrainConfig that change
    num_threads: SmallInt = 1  # of torch
    nice: int = Field(default=10, ge=0, le=19)  # of its process: labeling and learning go first

    @field_validator("train_overrides")
    @classmethod
    def _check_overrides(cls, train_overrides: dict[str, Any]) -> dict[str, Any]:
        if train_overrides:  # the config of a reward model needs torch
            from plaudit.judges.classifier.config import RewardTrainConfig

            parse(RewardTrainConfig, train_overrides)
        return train_overrides

    @field_validator("sources")
    @classmethod
    def _check_sources(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for source in set(sources) - set(REFERENCE_SOURCES):
            trusted = ", ".join(REFERENCE_SOURCES)
            raise ValueError(f"a judge is not trained on labels of '{source}'; trusted are: {trusted}")
        return sources


OF_THE_RUN = ("retrain", "window", "certificate")  # keys of `judge` that are not the judge's own


class JudgeSettings(Config):
    """The judge of a run: its own keys (`type`, `model`, `rule`, ...), and these three."""

    config: JudgeConfig = Field(default_factory=SimulatorJudgeConfig)
    retrain: RetrainConfig | None = RetrainConfig()  # a classifier learns from the run's labels; None: it does not
    window: LabelingWindowConfig = LabelingWindowConfig()  # for a human who labels or audits
    certificate: Path | None = None  # of the judge's exam; None: the one next to it

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Hand the judge's own keys to its own config class."""
        if not isinstance(value, dict) or isinstance(value.get("config"), Config):
            return value
        own = {key: value[key] for key in OF_THE_RUN if key in value}
        rest = {key: value[key] for key in value if key not in own}
        for key, block in (("retrain", RetrainConfig), ("window", LabelingWindowConfig)):
            if isinstance(own.get(key), dict):
                try:
                    own[key] = parse(block, own[key])
                except ConfigError as error:  # with the whole key
                    problems = [((key, *at), text.replace("key '", f"key '{key}.", 1)) for at, text in error.problems]
                    raise ConfigError(problems) from None
        return {**own, "config": JUDGE_REGISTRY.parse({"type": "simulator", **rest})} if rest else own

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree = handler(self)
        return {**JUDGE_REGISTRY.dump(self.config), **{key: tree[key] for key in OF_THE_RUN}}

    @property
    def name(self) -> str:
        """The judge's name, as in `judge=`."""
        return JUDGE_REGISTRY.name_of(self.config)

    @property
    def certificate_path(self) -> Path | None:
        """Path of its certificate; None if it has none."""
        return self.certificate or self.config.certificate_path

    @property
    def is_flag_alone(self) -> bool:
        """Whether labels contain only the simulator's success flag, which is recorded with every episode."""
        return self.is_simulator and self.config.progress is None

    @property
    def is_human(self) -> bool:
        """Whether a human labels."""
        return isinstance(self.config, HumanJudgeConfig)

    @property
    def cascade(self) -> CascadeConfig | None:
        """The cascade's config; None for other judges."""
        return self.config if isinstance(self.config, CascadeConfig) else None

    @property
    def is_simulator(self) -> bool:
        """Whether the simulator's success flag decides."""
        return isinstance(self.config, SimulatorJudgeConfig)


class RewardModelBlock(RLinfRewardConfig):
    """What a recipe says about the network of its reward model; it is compared with the model itself."""

    reward_model_type: Literal["resnet"] | None = None  # RLinf's name of the network
    model_type: Literal["resnet"] | None = None  # the newer name of reward_model_type
    dropout: Fraction | None = None  # only matters for training


class RewardSettings(RewardConfig):
    """How rewards follow from labels, and whether success ends an episode."""

    # None: success ends the episode, unless the simulator's dense reward is paid (ending early would cost reward)
    terminate_on_success: bool | None = None
    reward_model: RewardModelBlock | None = None  # RLinf's block, compared with the model itself

    @property
    def terminates(self) -> bool:
        """Whether success ends an episode."""
        return self.env_reward != "dense" if self.terminate_on_success is None else self.terminate_on_success


class EvaluationConfig(Config):
    """Evaluations on seeds that no training episode has; only a simulation can be evaluated."""

    episodes: PositiveInt = 50  # of one evaluation
    freq: PositiveInt = 2000  # env steps between two of them
    stop_success_rate: float | None = Field(default=None, gt=0, le=1)  # end the run at this success rate

    def ends_run(self, success: float | None) -> bool:
        """Whether an evaluation with this success rate, None for none, ends the run."""
        target = self.stop_success_rate
        return target is not None and success is not None and success >= target


class DemosConfig(Config):
    """Demonstrations that are learned from."""

    store: Path | None = None  # a store of them
    scripted: NonNegativeInt = 0  # or this many of the scripted expert, made at the start; built-in tasks only
    noise: NonNegativeFloat = 0.2  # standard deviation on the scripted expert's actions
    relabel: bool | None = None  # label them by the run's judge; None: unless it is the simulator or a human

    @property
    def any(self) -> bool:
        """Whether there are demonstrations."""
        return self.store is not None or self.scripted > 0


TrackerName = Literal["tensorboard", "wandb", "trackio"]
TRACKER_HOSTS = {"wandb": "wandb.ai", "trackio": HUB}  # that they may send to; trackio only if a Space is set


class RunSettings(Config):
    """Length, pace and folder of a run."""

    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")  # of the run folder; None: task, learner and seed
    # The folder of a run to resume, with the same config; None: `train` begins a new one. Not part of the run's config.
    resume_dir: Path | None = Field(default=None, exclude=True)
    seed: Seed = 0  # of weights, batches and simulated tasks
    device: str = "auto"  # of the learner: "cpu", "cuda", "cuda:1"; auto: cuda where there is one
    num_threads: SmallInt | None = None  # of torch; None: one for states, torch's default for images
    # Whether replay keeps frames in the GPU's memory; None: while they fit into half of what is free.
    replay_on_gpu: bool | None = None
    num_envs: NumEnvs = 16  # train: episodes of a rollout, side by side
    # The run ends at whichever comes first. None for both: 40,000 steps (train) or 1,000 episodes (online).
    max_steps: PositiveInt | None = None
    max_episodes: PositiveInt | None = None  # episodes after which the run ends
    checkpoint_freq: PositiveInt = 2000  # env steps between two checkpoints
    publish_freq: PositiveInt = 50  # online: updates between two versions of the weights
    max_unlabeled_episodes: PositiveInt = 16  # online: the robot waits at this many unlabeled episodes
    max_pending_episodes: PositiveInt | None = 4  # online: or at pending updates for this many episodes
    worker_timeout_s: PositiveFloat = 60.0  # online: how long a failing worker is retried
    sampling: Literal["auto", "local", "remote"] = "auto"  # online: from the learner's own disk, or the replay buffer
    # How the run's frames are stored: raw, lossless, jpeg:90 or video:18; for single cameras: video,wrist=raw
    store_images: ImagesText = "raw"
    capacity_gb: PositiveFloat = 50.0  # of the run's episodes; beyond it the oldest are evicted (train: at checkpoints)
    compress_old: CodecText = "raw"  # codec of the oldest episodes beyond it, before any is evicted; raw: none
    keep_episodes: bool = False  # train: store the episodes of an on-policy learner too
    trackers: tuple[TrackerName, ...] = ("tensorboard",)  # what receives the metrics besides metrics.jsonl

    @field_validator("trackers")
    @classmethod
    def _allow_typed(cls, trackers: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
        for name in set(trackers) & {*TRACKER_HOSTS}:
            allow_host_if_typed(TRACKER_HOSTS[name], name)
        return trackers


WorkerName = Literal["learner", "replay", "state", "env", "labeler"]
Role = Literal["training", "inference", "labeling"]

WORKERS: tuple[WorkerName, ...] = ("learner", "replay", "state", "env", "labeler")
ROLES: tuple[Role, ...] = ("training", "inference", "labeling")
COMPONENTS: dict[str, WorkerName] = {"actor": "learner", "env": "env", "rollout": "env", "reward": "labeler"}

Numbers = tuple[int, ...] | Literal["all"]


class RoleResources(Config):
    """The custom resource that a machine of each role offers."""

    training: str = "training_pc"  # the machine of the learner
    inference: str = "inference_pc"  # the robot's machine
    labeling: str = "labeling_pc"  # the machine of the person who labels


class WorkerRoles(Config):
    """The role of the machine that each worker runs on."""

    learner: Role = "training"  # the updates
    replay: Role = "training"  # the store
    state: Role = "training"  # the versions of the weights
    env: Role = "inference"  # the robot or the simulation
    labeler: Role = "labeling"  # the judge


class ClusterConfig(Config):
    """Which worker of an online run lives on which machine.

    By **role**: a machine is started as training, inference or labeling, which gives it a custom resource, and each
    worker asks for the resource of its role. Any machine with the role can take the worker. Or by **number**
    (`component_placement`, as in RLinf's configs): GPUs counted over the nodes, the head's first, or nodes where there
    is no GPU. Not both: they could contradict each other.
    """

    resources: RoleResources = RoleResources()  # the custom resource of each role
    workers: WorkerRoles = WorkerRoles()  # the role of each worker
    component_placement: dict[str, NonNegativeInt | str] | None = None  # "actor: 0-3", "env,rollout: 0", "reward: all"
    num_learners: SmallInt = 1  # data-parallel

    @model_validator(mode="after")
    def _one_way(self) -> "ClusterConfig":
        by_role = " and ".join(sorted(self.model_fields_set & {"resources", "workers"}))
        if self.component_placement is not None and by_role:
            raise ValueError(f"component_placement and {by_role} both say where workers run; keep one of them")
        self.numbers()  # raises on every mistake in it
        return self

    def resource(self, worker: WorkerName) -> str:
        """The custom resource that `worker` asks for."""
        return self.resources.model_dump()[self.workers.model_dump()[worker]]

    def numbers(self) -> dict[WorkerName, Numbers]:
        """`component_placement`, parsed: the numbers of each worker that it names."""
        placed: dict[WorkerName, Numbers] = {}
        pairs = [
            (name.strip(), text)
            for names, text in (self.component_placement or {}).items()
            for name in names.split(",")
        ]
        for name, text in pairs:
            if name not in COMPONENTS:
                raise ValueError(f"unknown component '{name}' in component_placement; {did_you_mean(name, COMPONENTS)}")
            worker, numbers = COMPONENTS[name], _parse_numbers(name, str(text))
            if placed.setdefault(worker, numbers) != numbers:
                both = f"{placed[worker]} and {numbers}"
                raise ValueError(f"env and rollout are one worker here: one placement, not {both}")
        missing = sorted({c for c, worker in COMPONENTS.items() if worker not in placed} - {"rollout"})
        if self.component_placement is not None and missing:
            raise ValueError(f"component_placement does not say where these are: {', '.join(missing)}")
        return placed


def _parse_numbers(component: str, text: str) -> Numbers:
    """'0-1,3' -> (0, 1, 3)."""
    if text.strip() == "all":
        return "all"
    numbers: list[int] = []
    for piece in text.split(","):
        first, dash, last = (word.strip() for word in piece.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            how = "write a number, a range like 0-3, a list like 0,2 or all"
            raise ValueError(f"component_placement.{component} is '{text}'; {how}")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(numbers))
