"""The config tree of a training run, the same for `plaudit train` and `plaudit online`.

    plaudit train  env=lift learner=sac demos.scripted=20 learner.lr=3e-4
    plaudit online env=lift learner=sac judge=runs/judge demos.store=demos

`train` collects rollouts of a vectorized simulation and learns after each; `online` lets a robot, a judge and a learner
work at the same time. They are two schedules of the same parts and have the same keys; what one of them cannot do, it
refuses with a message. Keys of RLinf, LeRobot and the entry scripts are read by config_file.py.
"""

import re
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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
from plaudit.data.frame_codecs import CodecText, ImagesText, StoreImages
from plaudit.data.rewards import RewardConfig
from plaudit.errors import ConfigError, PolicyError, did_you_mean
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import ClassifierJudgeConfig, RLinfRewardConfig
from plaudit.judges.config import HUMAN, PROGRESS, REFERENCE_SOURCES, JudgeConfig, check_rewarded, uncalibrated_warning
from plaudit.judges.human.judge import HumanJudgeConfig
from plaudit.judges.human.queue import QueueOrder
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.simulator import NoisyJudgeConfig, SimulatorJudgeConfig
from plaudit.learners.config import CriticEnsembleConfig, FromBaseConfig, OffPolicyConfig
from plaudit.policies.config import CLONED, History, ImageEncoderConfig, PolicyDevice
from plaudit.registry import (
    ENV_REGISTRY,
    INFERENCE_REGISTRY,
    JUDGE_REGISTRY,
    LEARNER_REGISTRY,
    ROBOT_REGISTRY,
    TELEOP_REGISTRY,
    dotted_path,
)
from plaudit.robots.sim import SimRobotConfig
from plaudit.rollout.collector import CollectConfig
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.forecast import ForecastConfig
from plaudit.rollout.operator import OperatorConfig
from plaudit.rollout.rerun import Target
from plaudit.rollout.run import RunConfig, RunPolicyConfig, check_algorithm, engine_config
from plaudit.training.audit import AuditConfig
from plaudit.trust import HUB, allow_host_if_typed
from plaudit.types import name_of_camera


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


class LabelingWindowConfig(Config):
    """The labeling window of a human who labels or audits."""

    labeler: str = ""  # who labels; it stands in the notes of the labels
    order: QueueOrder = "unlabeled"  # in which episodes are shown
    open: bool = True  # open one from here; false: a human opens it
    reopen_after_s: NonNegativeFloat | None = None  # a closed one opens again; None: not by itself


class PromotionRules(Config):
    """What a candidate must achieve to replace the current judge."""

    max_fpr: float = Field(default=0.05, ge=0, le=1)  # of held-out failures, that is always accepted
    max_fnr: float = Field(default=0.2, ge=0, le=1)  # of held-out successes, that is always accepted
    min_val_episodes: PositiveInt = 4  # held out; a comparison on fewer says nothing
    # Lowest confidence with which the candidate must be better; the run's error budget usually asks for more.
    confidence: float = Field(default=0.95, ge=0.5, le=0.9999)


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


Schedule = Literal["train", "online"]
BUILT_IN_TASKS = ("lift", "pick_place", "push")
DEFAULT_STEPS, DEFAULT_EPISODES = 40_000, 1000  # of a run that sets no limit: `train`, `online`


class TrainingConfig(Config):
    """A training run."""

    schedule: Schedule  # which command runs it; the command sets this
    env: Annotated[Any, ENV_REGISTRY.optional_field] = None  # a simulated task; `online` drives one of it as a robot
    robot: Annotated[Any, ROBOT_REGISTRY.optional_field] = None  # online: a robot instead
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None  # online: a human may take over
    operator: OperatorConfig = OperatorConfig()  # online: a person starts the robot's episodes and marks them
    forecast: ForecastConfig | None = None  # online: a hint to that person when the policy is likely to fail
    rerun: Target | None = None  # online: where running episodes are shown by Rerun, on the robot's machine
    task: str = ""  # the instruction, in words
    policy: PolicySettings = PolicySettings()
    learner: Annotated[Any, LEARNER_REGISTRY.field]
    judge: JudgeSettings = JudgeSettings()
    reward: RewardSettings = RewardSettings()
    audit: AuditConfig = AuditConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    demos: DemosConfig = DemosConfig()
    collect: CollectConfig | None = None  # train: episodes with the simulator's labels, to train a judge on
    run: RunSettings = RunSettings()
    cluster: ClusterConfig = ClusterConfig()

    @property
    def learner_name(self) -> str:
        """The learner's name, as in `learner=`."""
        return LEARNER_REGISTRY.name_of(self.learner)

    @property
    def target_name(self) -> str:
        """What the policy is trained for: a task of the simulator, or a robot."""
        return ENV_REGISTRY.name_of(self.env) if self.robot is None else ROBOT_REGISTRY.name_of(self.robot)

    @property
    def run_name(self) -> str:
        """Name of the run's folder; each schedule has one of its own."""
        how = "online_" if self.schedule == "online" else ""
        name = self.run.name or f"{self.target_name}_{self.learner_name}_{how}{self.run.seed}"
        return re.sub(r"[^\w.-]", "_", name)  # a plugin is named by its module and class

    @property
    def simulation(self) -> Any:
        """The config of the simulated task; None on a robot."""
        return self.robot.env if isinstance(self.robot, SimRobotConfig) else self.env

    @property
    def simulated(self) -> bool:
        """Whether a simulator knows the truth."""
        return self.simulation is not None

    @property
    def off_policy(self) -> bool:
        """Whether the learner learns from replay."""
        return isinstance(self.learner, OffPolicyConfig)

    @property
    def resets_after_relabeling(self) -> bool:
        """Whether the learner resets its critics after labels have changed."""
        return isinstance(self.learner, CriticEnsembleConfig) and self.learner.resets.relabeled is not None

    @property
    def audits(self) -> bool:
        """Whether the judge is audited: not a human, nor the simulator unless a human audits it."""
        trusted = self.judge.is_human or (self.judge.is_simulator and self.audit.by != HUMAN)
        return self.audit.fraction > 0 and not trusted

    @property
    def human_audits(self) -> bool:
        """Whether a human audits the judge."""
        return self.audits and (self.audit.by == HUMAN or (self.audit.by == "auto" and not self.simulated))

    @property
    def asks_human(self) -> bool:
        """Whether a human is shown episodes: all, those to audit, or those that a cascade leaves to them."""
        cascade = self.judge.cascade
        return self.judge.is_human or self.human_audits or (cascade is not None and cascade.human is not None)

    @property
    def relabels_demos(self) -> bool:
        """Whether the run's judge labels the demonstrations, whatever labels they have."""
        relabel = self.demos.relabel
        return not (self.judge.is_human or self.judge.is_flag_alone) if relabel is None else relabel

    @property
    def labels_late_by(self) -> int:
        """Episodes after which labels may be learned from; only a noisy judge delays them."""
        judge = self.judge.config
        return judge.late_by if isinstance(judge, NoisyJudgeConfig) else 0

    @property
    def _has_limit(self) -> bool:
        return self.run.max_steps is not None or self.run.max_episodes is not None

    @property
    def max_steps(self) -> int | None:
        """Env steps of the run; None: limited by episodes."""
        return self.run.max_steps if self._has_limit or self.schedule == "online" else DEFAULT_STEPS

    @property
    def max_episodes(self) -> int | None:
        """Episodes of the run; None: limited by steps."""
        return self.run.max_episodes if self._has_limit or self.schedule == "train" else DEFAULT_EPISODES

    def is_complete(self, steps: int, episodes: int) -> bool:
        """Whether a run of this length has reached one of its limits."""
        limits = ((steps, self.max_steps), (episodes, self.max_episodes))
        return any(limit is not None and count >= limit for count, limit in limits)

    @property
    def engine(self) -> RunConfig:
        """What drives the robot."""
        robot = self.robot or SimRobotConfig(env=self.env, realtime=False)
        inference = engine_config(self.inference_type, self.policy.inference)
        return RunConfig(robot=robot, teleop=self.teleop, rerun=self.rerun, policy=RunPolicyConfig(inference=inference))

    @property
    def inference_type(self) -> str:
        """The inference algorithm, as `--inference_algorithm` names it."""
        settings = self.policy.inference
        if type(settings) is not InferenceConfig:
            return INFERENCE_REGISTRY.name_of(settings)
        whole = self.backup_horizon == self.learner.action_horizon  # rtc never executes a whole chunk
        return "rtc" if self._acts_in_chunks and settings.realtime and not whole else "sequential"

    @property
    def backup_horizon(self) -> int | None:
        """Minimum number of executed actions per chunk for the learner's backup; None if another policy acts."""
        return None if self.policy.behavior == "pretrained" else self.learner.backup_horizon

    @property
    def _acts_in_chunks(self) -> bool:
        """Whether the acting policy returns several actions at a time; a pretrained one is assumed to."""
        return self.policy.behavior == "pretrained" or self.learner.action_horizon > 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_env(self)
        for key, reason in REFUSED[self.schedule].items():
            if _changed(self, key):
                raise ValueError(f"{key} is not for plaudit {self.schedule}: {reason}")
        (_check_train if self.schedule == "train" else _check_online)(self)
        if self.simulated:  # the cameras of a robot are not known before it is connected
            _check_cameras(self)
        _check_demos(self)
        _check_reward(self)
        if self.policy.history and not self.learner.takes_history:
            raise ValueError(f"policy.history: learner '{self.learner_name}' sees one observation; leave it out")
        return self


# Keys that do nothing without demonstrations, with the simulator's dense reward, and without rtc. A learner's own keys
# for demonstrations are not listed: one recipe may be run with and without them.
DEMO_KEYS = ("demos.noise", "demos.relabel")
LABEL_REWARD_KEYS = ("reward.mode", "reward.reward_type", "reward.shaping")
RTC_KEYS = ("policy.inference.delay_window", "policy.inference.control_cpu")
# Keys that one schedule has no use for, and what to do instead. Pacing of workers is not among them: a synchronous run
# has nothing to pace.
REFUSED: Mapping[Schedule, Mapping[str, str]] = {
    "train": {
        "robot": "a robot cannot be stepped in lockstep; use plaudit online",
        "teleop": "a human takes over a robot that runs by itself; use plaudit online",
        "operator": "a simulation has no operator; use plaudit online",
        "forecast": "a simulation has no operator; use plaudit online",
        "rerun": "a vectorized simulation is not shown; use plaudit online, or plaudit data view",
        "cluster": "a synchronous run is one process; use plaudit online",
        "policy.path": "use plaudit online, or demos and learner.pretrain_updates to start from demonstrations",
        "policy.behavior": "a synchronous run acts with what it learns; use plaudit online",
        "policy.inference": "a vectorized simulation is stepped, not driven; use plaudit online",
        "policy.device": "a synchronous run acts where it learns; write run.device",
        "policy.normalizer": "a simulation takes actions within [-1, 1] as they are",
        "policy.update_within_episode": "a rollout has one version of the policy; use plaudit online",
        "audit.minutes_per_hour": "no human audits a synchronous run; use plaudit online",
        "judge.retrain": "no person labels during a synchronous run; use plaudit online, or train a judge "
        "between two runs (plaudit train-reward) and resume with judge.model=",
        "judge.window": "no human labels a synchronous run; use plaudit online",
    },
    "online": {
        "collect": "an online run keeps its episodes anyway, in its folder; use plaudit collect or plaudit train",
        "run.num_envs": "a robot is one",
        "run.keep_episodes": "an online run keeps its episodes anyway",
    },
}
SIMULATOR_RELEASES = (
    "the simulator would decide which episodes the learner may use, which tells it what only the simulator knows; use "
    "abstain or accept, or audit.by=human with plaudit online"
)


def _changed(config: TrainingConfig, key: str, *off: Any) -> bool:
    """Whether a key has another value than its default. off: values that are harmless too"""
    *blocks, name = key.split(".")
    owner: Config = reduce(getattr, blocks, config)
    field = type(owner).model_fields.get(name)  # None: the block of a plugin, which has no such key
    return field is not None and getattr(owner, name) not in (field.get_default(call_default_factory=True), *off)


def _check_env(config: TrainingConfig) -> None:
    env = config.simulation
    missing = [name for name in ("obs", "cameras", "image_size") if not hasattr(env, name)]
    if env is not None and missing:
        raise ValueError(
            f"env: {dotted_path(type(env))} is not an environment config: it has no {', '.join(missing)}; "
            "derive one from plaudit.envs.adapters.AdapterConfig, or name a registered Gymnasium environment: "
            "env=gymnasium env.id=my_package:MyTask-v0"
        )


def _check_train(config: TrainingConfig) -> None:
    if config.env is None:
        raise ValueError(f"name a simulated task: env={BUILT_IN_TASKS[0]}")
    if config.judge.is_human or config.audit.by == HUMAN:
        key = "judge" if config.judge.is_human else "audit.by"
        raise ValueError(f"{key}=human: a human cannot answer within a rollout; use plaudit online")
    if not config.judge.config.rule.causal:
        raise ValueError(
            "judge.rule.decode 'cutoff' needs whole episodes, and here success ends them; use k_of_n or per_frame"
        )
    if config.judge.config.rule.ood == "audit":
        raise ValueError(f"judge.ood=audit: {SIMULATOR_RELEASES}")
    if config.labels_late_by and not config.off_policy:
        raise ValueError(
            f"judge.late_by: learner '{config.learner_name}' learns from each rollout at once and waits for no label; "
            "use sac or qchunk"
        )
    name, horizon = ENV_REGISTRY.name_of(config.env), config.learner.action_horizon
    if name in BUILT_IN_TASKS and horizon > config.env.max_steps:  # others: once they are built
        raise ValueError(f"learner.horizon is {horizon}, and an episode is over after {config.env.max_steps} steps")


def _check_online(config: TrainingConfig) -> None:
    if config.judge.config.rule.ood == "audit" and not config.human_audits:
        why = SIMULATOR_RELEASES if config.audits else "the run has no audit; set audit.fraction above 0 or use abstain"
        raise ValueError(f"judge.ood=audit: {why}")
    if (config.env is None) == (config.robot is None):
        raise ValueError("name what is driven: a simulated task (env=lift) or a robot (robot=igris_b), one of them")
    if not config.off_policy:
        raise ValueError(
            f"learner '{config.learner_name}' does not learn from replay, and here labels come after the policy that "
            "acted was updated. Use an off-policy learner: sac, qchunk, or one of your own whose config derives "
            "from plaudit.learners.config.OffPolicyConfig"
        )
    if config.labels_late_by:
        raise ValueError("judge.late_by is for plaudit train: here a judge is as late as it is")
    if not config.simulated:
        robot = config.target_name
        if config.judge.config.reads_simulator:
            raise ValueError(f"{robot} has no simulator to judge it; set judge=classifier, vlm or human")
        if config.audit.by == "simulator":
            raise ValueError(f"audit.by=simulator: {robot} has no simulator; use audit.by=human")
        if config.evaluation.stop_success_rate is not None:
            raise ValueError(
                f"evaluation.stop_success_rate would never end the run: {robot} has no simulator to evaluate the "
                "policy in; use run.max_episodes or run.max_steps"
            )
    if config.audit.minutes_per_hour is not None and not config.human_audits:
        raise ValueError(
            "audit.minutes_per_hour is a human's time, and here no human audits; leave it out, or set audit.by=human"
        )
    if config.judge.is_human and config.judge.config.progress is not None:
        raise ValueError("judge.progress with judge=human: a person's labels carry no progress; use another judge")
    if config.judge.is_human and config.demos.relabel:
        raise ValueError("demos.relabel with judge=human: label the demonstrations first (plaudit label --judge human)")
    _check_policy(config)


def _check_policy(config: TrainingConfig) -> None:
    policy, kind = config.policy, config.inference_type
    check_algorithm(kind, policy.inference)
    if kind == "rtc" and not config._acts_in_chunks:
        chunks = "learner.horizon of 2 or more" if config.learner_name == "qchunk" else "learner=qchunk"
        raise ValueError(
            f"rtc needs chunks of actions, and the policy of learner '{config.learner_name}' returns one at a time; "
            f"write policy.inference=sequential, or {chunks}"
        )
    if policy.inference.stop_on and not config.judge.is_simulator:
        raise ValueError(
            "policy.inference.stop_on ends an episode by what only the simulator knows, and the learner would learn it "
            "from there; leave it out, or use judge=simulator"
        )
    if policy.behavior == "pretrained" and policy.path is None:
        raise ValueError("policy.behavior=pretrained needs a policy.path")
    if policy.behavior == "pretrained" and policy.update_within_episode:
        raise ValueError("policy.update_within_episode does nothing with policy.behavior=pretrained; leave it out")
    for key in RTC_KEYS:
        if kind == "sequential" and _changed(config, key):
            raise ValueError(f"{key} is for rtc, and this run uses sequential; leave it out")
    for key in ("policy.inference.normalizer", "policy.normalizer"):
        if config.simulated and _changed(config, key):
            raise ValueError(f"{key} is for robots: a simulation takes actions within [-1, 1] as they are")


def _check_cameras(config: TrainingConfig) -> None:
    """Refuse cameras that the environment does not show."""
    env, shows_none = config.simulation, config.simulation.obs == "state"
    key_of_env = "env" if config.robot is None else "robot.env"
    if config.judge.config.sees_images and not config.judge.is_human and shows_none:
        raise ValueError(
            f"a judge sees camera images; write {key_of_env}.obs=both (a policy of states: policy.cameras=[])"
        )
    if config.collect is not None and shows_none:
        raise ValueError(
            f"collect keeps camera images, and {key_of_env}.obs is 'state', which has none; "
            f"write {key_of_env}.obs=both (and policy.cameras=[] for a policy of states)"
        )
    collected = (config.collect and config.collect.cameras) or ()
    cameras = [("policy.cameras", camera, camera) for camera in config.policy.cameras or ()]
    cameras += [("collect.cameras", camera, name_of_camera(camera, env.cameras, collected)) for camera in collected]
    cameras += [("run.store_images", c, c) for c, _ in StoreImages.parse(config.run.store_images).cameras]
    for key, camera, env_name in cameras:
        if shows_none:
            raise ValueError(
                f"{key} has '{camera}', and {key_of_env}.obs is 'state', which shows no camera; write "
                f"{key_of_env}.obs=both, or {key_of_env}.obs=pixels for images without the simulation's state"
            )
        if env_name not in env.cameras:
            suggestion = did_you_mean(camera, env.cameras)
            raise ValueError(f"{key} has '{camera}', which the environment does not show; {suggestion}")


def _check_demos(config: TrainingConfig) -> None:
    demos = config.demos
    if demos.store is not None and demos.scripted:
        raise ValueError("name a store of demonstrations (demos.store) or ask for demos.scripted, not both")
    if demos.scripted and ENV_REGISTRY.name_of(config.simulation) not in BUILT_IN_TASKS:
        raise ValueError(f"only the built-in tasks ({', '.join(BUILT_IN_TASKS)}) have an expert for demos.scripted")
    shown = demos.any or config.teleop is not None  # a person's interventions are demonstrations too
    if isinstance(config.learner, OffPolicyConfig) and config.learner.clones_demos and not shown:
        settings = config.learner.model_dump()
        asked = " and ".join(f"learner.{key}" for key in ("bc_weight", "clone_updates") if settings.get(key))
        raise ValueError(
            f"learner={config.learner_name} needs demonstrations to clone{f' ({asked})' * bool(asked)}; name a store "
            "of them (demos.store), a device to correct the robot (teleop.type), or demos.scripted in a built-in task"
        )
    sees = config.policy.cameras != () and not (config.simulated and config.simulation.obs == "state")
    if isinstance(config.learner, FromBaseConfig):
        try:
            config.learner.check_inputs(config.policy.encoder, config.policy.history, sees=sees)
        except PolicyError as error:
            raise ValueError(str(error)) from None
    if config.policy.encoder.type == CLONED and sees and not demos.any:
        raise ValueError(
            "policy.encoder is cloned, and there are no demonstrations to clone; set demos.scripted or demos.store, or "
            "choose another encoder"
        )
    for key in DEMO_KEYS:
        if not demos.any and _changed(config, key, False):
            raise ValueError(f"{key} is set, and there are no demonstrations; leave it out, or set demos.store")
    if demos.store is not None and _changed(config, "demos.noise"):
        raise ValueError("demos.noise is for demos.scripted, and demos.store is recorded already; leave it out")


def _check_reward(config: TrainingConfig) -> None:
    reward, judge = config.reward, config.judge
    for key in LABEL_REWARD_KEYS:
        if reward.env_reward == "dense" and _changed(config, key):
            raise ValueError(f"reward.env_reward=dense pays the simulator's own reward and ignores {key}; drop one")
    if reward.env_reward == "dense" and not judge.is_simulator:
        raise ValueError(
            f"reward.env_reward=dense pays the simulator's own reward, and judge '{judge.name}' would not be asked; "
            "leave out one of them (reward.mode=add pays both)"
        )
    if reward.env_reward == "sparse":
        check_rewarded(judge.config, reward)
    if isinstance(judge.config, PublishedConfig) and judge.config.needs_calibration and not judge.config.force:
        raise ValueError(f"{uncalibrated_warning(judge.config)} (or judge.force=true takes its scores as they are)")
    no_progress = judge.is_simulator or judge.is_human or judge.cascade is not None
    no_progress = no_progress or isinstance(judge.config, NoisyJudgeConfig)
    no_progress = no_progress or (isinstance(judge.config, PublishedConfig) and PROGRESS not in judge.config.signals)
    if reward.shaping and not judge.config.progress and no_progress:
        raise ValueError(
            f"reward.shaping is {reward.shaping:g}, and judge '{judge.name}' does not measure progress; name a model "
            "that does: judge.progress=runs/progress (plaudit train-progress makes one)"
        )
    if isinstance(config.learner, OffPolicyConfig) and config.learner.imitates_progress and not reward.shaping:
        raise ValueError(
            "learner.method=progress imitates windows in which the judge's progress grows; set reward.shaping=1, and a "
            "judge that measures progress (judge.progress=)"
        )
    if reward.shaping and config.demos.any and not config.relabels_demos:
        raise ValueError(
            f"reward.shaping is {reward.shaping:g}, and the demonstrations keep labels without progress; leave out "
            "demos.relabel, so that the run's judge labels them"
        )


def withholding_judge(config: TrainingConfig, judge: JudgeConfig) -> JudgeConfig:
    """A version of a run's judge, which by default withholds its labels of out-of-distribution episodes. Where a person
    audits, they are asked about these first."""
    if not isinstance(judge, ClassifierJudgeConfig) or judge.rule.ood is not None:
        return judge
    ood = "audit" if config.human_audits else "abstain"
    return judge.model_copy(update={"rule": judge.rule.model_copy(update={"ood": ood})})


EVAL_SEEDS = 1_000_000_000  # evaluations during a run, which may decide when it stops
TEST_SEEDS = EVAL_SEEDS + 1_000_000  # measuring a finished run without that bias
DEMO_SEEDS = 2_000_000_000  # scripted demonstrations; 100,003 for each seed of a run


def train_seed(run_seed: int, episode: int) -> int:
    """The seed of an episode of a run."""
    return (run_seed * 10_000_019 + episode) % EVAL_SEEDS


def demo_seed(run_seed: int) -> int:
    """The seed of the first scripted demonstration of a run."""
    return DEMO_SEEDS + run_seed * 100_003
