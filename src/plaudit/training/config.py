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
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from plaudit.config import Config
from plaudit.errors import did_you_mean
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.config import HUMAN, PROGRESS, JudgeConfig, check_rewarded, uncalibrated_warning
from plaudit.judges.published.config import PublishedConfig
from plaudit.judges.simulator import NoisyJudgeConfig
from plaudit.learners.config import CriticEnsembleConfig, OffPolicyConfig
from plaudit.policies.config import CLONED
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
from plaudit.rollout.forecast import ForecastConfig
from plaudit.rollout.operator import OperatorConfig
from plaudit.rollout.rerun import Target
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
from plaudit.types import name_of_camera

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
