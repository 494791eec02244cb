"""The config tree of a training run, the same for `plaudit train` and `plaudit online`.

    plaudit train  env=lift learner=sac demos.scripted=20 learner.lr=3e-4
    plaudit online env=lift learner=sac judge=runs/judge demos.store=demos

`train` collects rollouts of a vectorized simulation and learns after each; `online` lets a robot, a judge and a learner
work at the same time. They are two schedules of the same parts and have the same keys; what one of them cannot do, it
refuses with a message. Keys of RLinf, LeRobot and the entry scripts are read by config_file.py.
"""

import re
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from plaudit.config import Config
from plaudit.data.cameras import name_of_camera
from plaudit.errors import did_you_mean
from plaudit.judges.classifier.judge_config import ClassifierJudgeConfig, classifier_stage
from plaudit.judges.config import HUMAN, JudgeConfig
from plaudit.judges.simulator import NoisyJudgeConfig
from plaudit.learners.config import OffPolicyConfig
from plaudit.registry import (
    ENV_REGISTRY,
    INFERENCE_REGISTRY,
    LEARNER_REGISTRY,
    ROBOT_REGISTRY,
    TELEOP_REGISTRY,
    dotted_path,
)
from plaudit.robots.sim import SimRobotConfig
from plaudit.rollout.collector import CollectConfig
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.operator import OperatorConfig
from plaudit.rollout.run import RunConfig, RunPolicyConfig, check_algorithm, engine_config
from plaudit.training.audit import AuditConfig
from plaudit.training.settings import (
    ClusterConfig,
    DemosConfig,
    EvaluationConfig,
    JudgeSettings,
    PolicySettings,
    RewardSettings,
    RunSettings,
)

Schedule = Literal["train", "online"]
BUILT_IN_TASKS = ("lift", "pick_place", "push")
DEFAULT_STEPS, DEFAULT_EPISODES = 40_000, 1000  # of a run that sets no limit: `train`, `online`


class TrainingConfig(Config):
    """A training run."""

    schedule: Schedule  # which command runs it; the command sets this
    env: Annotated[Any, ENV_REGISTRY.optional_field] = None  # a simulated task; `online` drives one of it as a robot
    robot: Annotated[Any, ROBOT_REGISTRY.optional_field] = None  # online: a robot instead
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None  # online: a human may take over
    operator: OperatorConfig = OperatorConfig()  # online: a person says when episodes of a robot begin, and marks them
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
        """As `learner=` names it."""
        return LEARNER_REGISTRY.name_of(self.learner)

    @property
    def target_name(self) -> str:
        """What the policy is trained for: a task of the simulator, or a robot."""
        if self.robot is None:
            return ENV_REGISTRY.name_of(self.env)
        return ROBOT_REGISTRY.name_of(self.robot)

    @property
    def run_name(self) -> str:
        """Of the run's folder; a run of each schedule has one of its own."""
        how = "online_" if self.schedule == "online" else ""
        chosen = self.run.name or f"{self.target_name}_{self.learner_name}_{how}{self.run.seed}"
        return re.sub(r"[^\w.-]", "_", chosen)  # a plugin is named by its module and class

    @property
    def simulation(self) -> Any:
        """The config of the simulated task; None on a robot."""
        return self.robot.env if isinstance(self.robot, SimRobotConfig) else self.env

    @property
    def simulated(self) -> bool:
        """Whether a simulator tells what is true."""
        return self.simulation is not None

    @property
    def off_policy(self) -> bool:
        """Whether the learner learns from replay."""
        return isinstance(self.learner, OffPolicyConfig)

    @property
    def human_labels(self) -> bool:
        """Whether a human gives the labels."""
        return self.judge.is_human

    @property
    def audits(self) -> bool:
        """Whether the judge is compared with what is true: not a human, nor the simulator unless a human audits it."""
        trusted = self.human_labels or (self.judge.is_simulator and self.audit.by != HUMAN)
        return self.audit.fraction > 0 and not trusted

    @property
    def human_audits(self) -> bool:
        """Whether a human has to look at episodes beside the judge."""
        return self.audits and (self.audit.by == HUMAN or (self.audit.by == "auto" and not self.simulated))

    @property
    def asks_human(self) -> bool:
        """Whether a human is shown episodes: all, those to audit, or those that a cascade leaves to them."""
        cascade = self.judge.cascade
        return self.human_labels or self.human_audits or (cascade is not None and cascade.human is not None)

    @property
    def relabels_demos(self) -> bool:
        """Whether the run's judge labels the demonstrations, whatever labels they have."""
        chosen = self.demos.relabel
        return not (self.human_labels or self.judge.is_flag_alone) if chosen is None else chosen

    @property
    def labels_late_by(self) -> int:
        """Episodes that are over before the labels of one may be learned from; only a noisy judge is late here."""
        judge = self.judge.config
        return judge.late_by if isinstance(judge, NoisyJudgeConfig) else 0

    @property
    def max_steps(self) -> int | None:
        """Env steps of the run; None: limited by episodes."""
        unlimited = self.run.max_steps is None and self.run.max_episodes is None
        return DEFAULT_STEPS if unlimited and self.schedule == "train" else self.run.max_steps

    @property
    def max_episodes(self) -> int | None:
        """Episodes of the run; None: limited by steps."""
        unlimited = self.run.max_steps is None and self.run.max_episodes is None
        return DEFAULT_EPISODES if unlimited and self.schedule == "online" else self.run.max_episodes

    @property
    def engine(self) -> RunConfig:
        """What drives the robot."""
        robot = self.robot or SimRobotConfig(env=self.env, realtime=False)
        inference = engine_config(self.inference_type, self.policy.inference)
        return RunConfig(robot=robot, teleop=self.teleop, policy=RunPolicyConfig(inference=inference))

    @property
    def inference_type(self) -> str:
        """The inference algorithm, as `--inference_algorithm` names it."""
        settings = self.policy.inference
        if type(settings) is not InferenceConfig:
            return INFERENCE_REGISTRY.name_of(settings)
        whole = self.backup_horizon == self.learner.action_horizon  # chunks, which rtc never executes to their end
        return "rtc" if self._acts_in_chunks and settings.realtime and not whole else "sequential"

    @property
    def backup_horizon(self) -> int | None:
        """Actions of a chunk that have to be executed for the learner's backup; None: another policy acts."""
        return None if self.policy.behavior == "pretrained" else self.learner.backup_horizon

    @property
    def _acts_in_chunks(self) -> bool:
        """Whether the policy that acts returns several actions at a time; a pretrained one is assumed to."""
        return self.policy.behavior == "pretrained" or self.learner.action_horizon > 1

    @model_validator(mode="after")
    def _check_env(self) -> Self:
        missing = [name for name in ("obs", "cameras", "image_size") if not hasattr(self.simulation, name)]
        if self.simulated and missing:
            raise ValueError(
                f"env: {dotted_path(type(self.simulation))} is no config of an environment, it has no "
                f"{', '.join(missing)}; derive one from plaudit.envs.adapters.AdapterConfig, or name a registered "
                "Gymnasium environment: env=gymnasium env.id=my_package:MyTask-v0"
            )
        return self

    @model_validator(mode="after")
    def _check_schedule(self) -> Self:
        (_check_train if self.schedule == "train" else _check_online)(self)
        return self

    @model_validator(mode="after")
    def _check_cameras(self) -> Self:
        if not self.simulated:
            return self  # known once the robot is connected
        env = self.simulation
        if self.judge.config.sees_images and not self.human_labels and env.obs == "state":
            raise ValueError("a judge sees camera images; write env.obs=both (a policy of states: policy.cameras=[])")
        if self.collect is not None and env.obs == "state":
            raise ValueError(
                "collect keeps camera images, and env.obs is 'state', which has none; write env.obs=both (and "
                "policy.cameras=[] for a policy of states)"
            )
        collected = (self.collect and self.collect.cameras) or ()
        for camera in self.policy.cameras or ():
            self._check_camera("policy.cameras", camera, camera)
        for camera in collected:
            self._check_camera("collect.cameras", camera, name_of_camera(camera, env.cameras, collected))
        return self

    def _check_camera(self, key: str, camera: str, name: str) -> None:
        """Refuse a camera that the environment does not show.

        camera: as the config has it
        name: what the environment calls it
        """
        env = self.simulation
        if env.obs == "state":
            raise ValueError(
                f"{key} has '{camera}', and env.obs is 'state', which shows no camera; write env.obs=both, or "
                "env.obs=pixels for images without the simulation's state"
            )
        if name not in env.cameras:
            raise ValueError(
                f"{key} has '{camera}', which the environment does not show; {did_you_mean(camera, env.cameras)}"
            )

    @model_validator(mode="after")
    def _check_demos(self) -> Self:
        if self.demos.store is not None and self.demos.scripted:
            raise ValueError("name a store of demonstrations (demos.store) or ask for demos.scripted, not both")
        if self.demos.scripted and ENV_REGISTRY.name_of(self.simulation) not in BUILT_IN_TASKS:
            raise ValueError(f"only the built-in tasks ({', '.join(BUILT_IN_TASKS)}) have an expert for demos.scripted")
        if isinstance(self.learner, OffPolicyConfig) and self.learner.clones_demos and not self.demos.any:
            raise ValueError(
                "learner.bc_weight clones demonstrations, and there are none; name a store of them (demos.store) or, "
                "in a built-in task, ask for demos.scripted"
            )
        for key in DEMO_KEYS:
            if not self.demos.any and _changed(self, key, False):
                raise ValueError(f"{key} is set, and there are no demonstrations; leave it out, or set demos.store")
        if self.demos.store is not None and _changed(self, "demos.noise"):
            raise ValueError("demos.noise is for demos.scripted, and demos.store is recorded already; leave it out")
        return self

    @model_validator(mode="after")
    def _check_reward(self) -> Self:
        unread = [key for key in LABEL_REWARD_KEYS if self.reward.env_reward == "dense" and _changed(self, key)]
        if unread:
            raise ValueError(
                f"reward.env_reward=dense pays the simulator's own reward and ignores {unread[0]}; leave one out"
            )
        if self.reward.env_reward == "dense" and not self.judge.is_simulator:
            raise ValueError(
                f"reward.env_reward=dense pays the simulator's own reward, and judge '{self.judge.name}' would not be "
                "asked; leave out one of them (reward.mode=add pays both)"
            )
        blind = self.judge.is_simulator or self.human_labels or self.judge.cascade is not None
        blind = blind or isinstance(self.judge.config, NoisyJudgeConfig)
        if self.reward.shaping and not self.judge.config.progress and blind:
            raise ValueError(
                f"reward.shaping is {self.reward.shaping:g}, and judge '{self.judge.name}' does not measure progress; "
                "name a model that does: judge.progress=runs/progress (plaudit train-progress makes one)"
            )
        if self.reward.shaping and self.demos.any and not self.relabels_demos:
            raise ValueError(
                f"reward.shaping is {self.reward.shaping:g}, and the demonstrations keep labels without progress; "
                "leave out demos.relabel, so that the run's judge labels them"
            )
        return self


# Keys that do nothing without demonstrations, with the simulator's dense reward, and without rtc. A learner's own keys
# for demonstrations are not listed: one recipe may be run with and without them.
DEMO_KEYS = ("demos.noise", "demos.relabel")
LABEL_REWARD_KEYS = ("reward.mode", "reward.reward_type", "reward.shaping")
RTC_KEYS = ("policy.inference.delay_window", "policy.inference.control_cpu")
# Keys that one schedule has no use for, and what to do instead. Pacing of workers is not among them: a synchronous run
# has nothing to pace.
ONLINE_ONLY: Mapping[str, str] = {
    "robot": "a robot cannot be stepped in lockstep; use plaudit online",
    "teleop": "a human takes over a robot that runs by itself; use plaudit online",
    "operator": "nobody attends a simulation; use plaudit online",
    "cluster": "a synchronous run is one process; use plaudit online",
    "policy.path": "use plaudit online, or demos and learner.pretrain_updates to start from demonstrations",
    "policy.behavior": "a synchronous run acts with what it learns; use plaudit online",
    "policy.inference": "a vectorized simulation is stepped, not driven; use plaudit online",
    "policy.device": "a synchronous run acts where it learns; write run.device",
    "policy.normalizer": "a simulation takes actions within [-1, 1] as they are",
    "policy.update_within_episode": "a rollout has one version of the policy; use plaudit online",
    "audit.minutes_per_hour": "no human audits a synchronous run; use plaudit online",
    "judge.retrain": "a synchronous run has nobody to label meanwhile; use plaudit online, or train a judge between "
    "two runs (plaudit train-reward) and resume with judge.model=",
    "judge.window": "no human labels a synchronous run; use plaudit online",
}
TRAIN_ONLY: Mapping[str, str] = {
    "collect": "an online run keeps its episodes anyway, in its folder; use plaudit collect or plaudit train",
    "run.num_envs": "a robot is one",
    "run.keep_episodes": "an online run keeps its episodes anyway",
}


SIMULATOR_RELEASES = (
    "the simulator would decide which episodes the learner may use, which tells it what only the simulator knows; use "
    "skip or pay, or audit.by=human with plaudit online"
)


def _changed(config: TrainingConfig, key: str, *off: Any) -> bool:
    """Whether a key has another value than its default. off: values that are harmless too"""
    *blocks, name = key.split(".")
    owner: Config = reduce(getattr, blocks, config)
    field = type(owner).model_fields.get(name)  # None: the block of a plugin, which has no such key
    return field is not None and getattr(owner, name) not in (field.get_default(call_default_factory=True), *off)


def _refuse(config: TrainingConfig, keys: Mapping[str, str]) -> None:
    for key, reason in keys.items():
        if _changed(config, key):
            raise ValueError(f"{key} is not for plaudit {config.schedule}: {reason}")


def _check_train(config: TrainingConfig) -> None:
    _refuse(config, ONLINE_ONLY)
    if config.env is None:
        raise ValueError(f"name a simulated task: env={BUILT_IN_TASKS[0]}")
    if config.human_labels or config.audit.by == HUMAN:
        key = "judge" if config.human_labels else "audit.by"
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
    name = ENV_REGISTRY.name_of(config.env)
    if name in BUILT_IN_TASKS and config.learner.action_horizon > config.env.max_steps:  # others: once they are built
        raise ValueError(
            f"learner.horizon is {config.learner.action_horizon}, and an episode is over after {config.env.max_steps} "
            "steps"
        )


def _check_online(config: TrainingConfig) -> None:
    _refuse(config, TRAIN_ONLY)
    if config.judge.config.rule.ood == "audit" and not config.human_audits:
        why = SIMULATOR_RELEASES if config.audits else "this run has no audit; set audit.fraction above 0, or use skip"
        raise ValueError(f"judge.ood=audit: {why}")
    if (config.env is None) == (config.robot is None):
        raise ValueError("name what is driven: a simulated task (env=lift) or a robot (robot=igris_b), one of them")
    if not config.off_policy:
        raise ValueError(
            f"learner '{config.learner_name}' does not learn from replay, and here labels come after the policy that "
            "acted was updated; use an off-policy learner: sac, qchunk, or one of your own whose config derives "
            "from plaudit.learners.config.OffPolicyConfig"
        )
    if config.labels_late_by:
        raise ValueError("judge.late_by is for plaudit train: here a judge is as late as it is")
    if config.judge.config.reads_simulator and not config.simulated:
        raise ValueError(f"{config.target_name} has no simulator to judge it; set judge=classifier, vlm or human")
    if config.audit.by == "simulator" and not config.simulated:
        raise ValueError(f"audit.by=simulator: {config.target_name} has no simulator; use audit.by=human")
    if config.evaluation.stop_success_rate is not None and not config.simulated:
        raise ValueError(
            f"evaluation.stop_success_rate would never end the run: {config.target_name} has no simulator to evaluate "
            "the policy in; use run.max_episodes or run.max_steps"
        )
    if config.audit.minutes_per_hour is not None and not config.human_audits:
        raise ValueError(
            "audit.minutes_per_hour is a human's time, and here no human audits; leave it out, or set audit.by=human"
        )
    if config.human_labels and config.judge.config.progress is not None:
        raise ValueError("judge.progress with judge=human: a person's labels carry no progress; use another judge")
    if config.human_labels and config.demos.relabel:
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
    for key, value in (
        ("policy.inference.normalizer", policy.inference.normalizer),
        ("policy.normalizer", policy.normalizer),
    ):
        if config.simulated and value is not None:
            raise ValueError(f"{key} is for robots: a simulation takes actions within [-1, 1] as they are")


def withholding_judge(config: TrainingConfig, judge: JudgeConfig) -> JudgeConfig:
    """A version of a run's judge. Its labels of out-of-distribution episodes do not count unless that is set: where a
    person audits, they are asked about these first."""
    if not isinstance(judge, ClassifierJudgeConfig) or judge.rule.ood is not None:
        return judge
    ood = "audit" if config.human_audits else "skip"
    return judge.model_copy(update={"rule": judge.rule.model_copy(update={"ood": ood})})


def classifier_of(config: TrainingConfig) -> ClassifierJudgeConfig | None:
    """The run's judge, if it is a classifier; of a cascade, its first stage that is one."""
    return classifier_stage(config.judge.config)


EVAL_SEEDS = 1_000_000_000  # evaluations during a run, which may decide when it stops
TEST_SEEDS = EVAL_SEEDS + 1_000_000  # measuring a finished run without that bias
DEMO_SEEDS = 2_000_000_000  # scripted demonstrations


def train_seed(run_seed: int, episode: int) -> int:
    """Of an episode of a run."""
    return (run_seed * 10_000_019 + episode) % EVAL_SEEDS


def demo_seed(run_seed: int) -> int:
    """Of the first scripted demonstration of a run."""
    return DEMO_SEEDS + run_seed * 100_003


def seed_batches(first: int, episodes: int, num_envs: int) -> Iterator[list[int]]:
    """At least so many seeds, a batch for each rollout."""
    for start in range(first, first + episodes, num_envs):
        yield list(range(start, start + num_envs))
