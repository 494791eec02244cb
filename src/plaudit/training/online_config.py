"""What an online run is made of, as a YAML file or the command line says it.

plaudit online robot=sim robot.env.type=lift learner=sac judge.type=classifier judge.model=runs/judge demos=demos
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    WrapSerializer,
    model_validator,
)

from plaudit.config import Config, Seed, load, spelled_out
from plaudit.errors import did_you_mean
from plaudit.judges.config import HUMAN
from plaudit.judges.simulator import SimulatorJudgeConfig
from plaudit.learners.config import OffPolicyConfig
from plaudit.policies.loader import load_policy
from plaudit.registry import JUDGE_REGISTRY, LEARNER_REGISTRY, ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.sim import SimRobotConfig
from plaudit.rollout.engine import InferenceConfig, RunConfig, check_algorithm, engine_config, with_params
from plaudit.training.audit import AuditConfig
from plaudit.training.compat import translated
from plaudit.training.labeling_window import WindowConfig
from plaudit.training.retrain import RetrainConfig


class HumanConfig(Config):
    """A person, who is asked in a window on the labelling machine."""

    type: Literal["human"] = HUMAN


def _judge(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == HUMAN:
        return HumanConfig()
    return value if isinstance(value, HumanConfig) else JUDGE_REGISTRY.parse(value)


def _judge_tree(config: Any, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
    """With a `type` that `_judge` finds the class by again."""
    kind = HUMAN if isinstance(config, HumanConfig) else JUDGE_REGISTRY.name_of(config)
    return {**plain(config), "type": kind}


class HeldBack(Config):
    """Evaluations on seeds that no episode of the run has. Only a simulation can be asked."""

    episodes: PositiveInt = 50
    every: PositiveInt = 40  # episodes of the robot between two of them
    stop_at: float | None = Field(default=None, gt=0, le=1)  # end the run at this success rate


class OnlineConfig(Config):
    robot: Annotated[Any, ROBOT_REGISTRY.field]
    learner: Annotated[Any, LEARNER_REGISTRY.field]
    judge: Annotated[Any, BeforeValidator(_judge), WrapSerializer(_judge_tree)]
    name: str | None = Field(default=None, pattern=r"^[\w.-]+$")  # of the folder under runs/; None: robot and learner
    # How the robot is driven.
    # rtc, sequential, or my_module:MyEngine; None: rtc where it can be, in real time and with a policy of chunks
    algorithm: str | None = None
    executor: InferenceConfig = InferenceConfig()
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None
    task: str = ""  # the instruction, in words
    policy_cameras: tuple[str, ...] | None = None  # that the learner looks at; None: all, (): only the state
    policy_yaml: Path | None = None  # a policy to begin with
    # Who acts: what is learned here, or that policy as it is (an openpi server, say) while the learner watches.
    act_with: Literal["learner", "policy"] = "learner"
    weights_during: bool = False  # new weights take over within an episode, with the next chunk
    units: Path | dict[str, Any] | None = None  # statistics of a robot: what -1 to 1 is; None: see normalization.py
    # What is learned from.
    demos: Path | None = None  # a store of demonstrations
    judge_demos: bool | None = None  # the judge labels them too; None: unless it is a person
    capacity_gb: PositiveFloat = 50.0  # of the run's episodes; beyond it the oldest go
    sampling: Literal["auto", "direct", "served"] = "auto"  # from the disk that the trainer sees, or by the service
    device: str = "auto"  # of the learner: "cpu", "cuda", "cuda:1"; auto: cuda where there is one
    threads: PositiveInt | None = None  # of torch in each worker; None: one for states, as torch likes for images
    # How far one may run ahead of the other.
    episodes: PositiveInt = 1000  # of the robot; then the run is over
    backlog: PositiveInt = 16  # episodes that may wait for the judge before the robot waits too
    ahead: PositiveInt | None = 4  # episodes' worth of updates that may wait before the robot does; None: no bound
    publish_every: PositiveInt = 50  # updates between two versions of the weights
    checkpoint_every: PositiveInt = 1000  # updates
    patience: PositiveFloat = 60.0  # s that a part which failed gets to come back before the run stops
    evaluation: HeldBack = HeldBack()
    # Whether the judge is right, and who comes after it.
    audit: AuditConfig = AuditConfig()
    retrain: RetrainConfig | None = RetrainConfig()  # of a classifier; None: it stays as it is
    window: WindowConfig = WindowConfig()  # of a person who judges or audits
    seed: Seed = 0

    @property
    def simulated(self) -> bool:
        return isinstance(self.robot, SimRobotConfig)

    @property
    def learner_name(self) -> str:
        """As `learner=` names it."""
        return LEARNER_REGISTRY.name_of(self.learner)

    @property
    def by_hand(self) -> bool:
        """Whether a person is in charge of the labels."""
        return isinstance(self.judge, HumanConfig)

    @property
    def audited(self) -> bool:
        """Whether what is true is looked up beside the judge: not where a person judges, nor where the simulator does
        and no person is to audit it."""
        knows = self.by_hand or (isinstance(self.judge, SimulatorJudgeConfig) and self.audit.by != HUMAN)
        return self.audit.share > 0 and not knows

    @property
    def audited_by_hand(self) -> bool:
        """Whether a person has to look at episodes beside the judge."""
        return self.audited and (self.audit.by == HUMAN or (self.audit.by == "auto" and not self.simulated))

    @property
    def judges_demos(self) -> bool:
        return (not self.by_hand) if self.judge_demos is None else self.judge_demos

    @property
    def run(self) -> RunConfig:
        executor = engine_config(self.driven, self.executor)
        return RunConfig(robot=self.robot, teleop=self.teleop, executor=executor)

    @property
    def driven(self) -> str:
        if self.algorithm is not None:
            return self.algorithm
        return "rtc" if self._says_chunks and self.executor.realtime else "sequential"

    @property
    def _says_chunks(self) -> bool:
        """Whether who acts says several actions at a time; a policy of somebody else is taken to."""
        return self.act_with == "policy" or self.learner.action_horizon > 1

    @model_validator(mode="after")
    def _the_learner_learns_from_replay(self) -> Self:
        if not isinstance(self.learner, OffPolicyConfig):
            raise ValueError(
                f"learner '{self.learner_name}' does not learn from replay, and here labels come after the policy that "
                "acted was updated; use an off-policy learner: sac, qchunk, or one of your own whose config derives "
                "from plaudit.learners.config.OffPolicyConfig"
            )
        return self

    @model_validator(mode="after")
    def _it_can_be_driven(self) -> Self:
        check_algorithm(self.driven, self.executor)
        if self.driven == "rtc" and not self._says_chunks:
            raise ValueError(
                f"rtc needs chunks of actions, and the policy of learner '{self.learner_name}' says one at a time; "
                "write algorithm=sequential, or learner=qchunk"
            )
        return self

    @model_validator(mode="after")
    def _the_judge_alone_knows_of_success(self) -> Self:
        if self.executor.stop_on and not isinstance(self.judge, SimulatorJudgeConfig):
            raise ValueError(
                "executor.stop_on ends an episode by what only the simulator knows, and the learner would learn it "
                "from there; leave it out, or take judge=simulator"
            )
        return self

    @model_validator(mode="after")
    def _somebody_acts(self) -> Self:
        if self.act_with == "policy" and self.policy_yaml is None:
            raise ValueError("act_with=policy needs a policy_yaml")
        return self

    @model_validator(mode="after")
    def _a_simulation_has_units_of_its_own(self) -> Self:
        for key, value in (("executor.normalizer", self.executor.normalizer), ("units", self.units)):
            if self.simulated and value is not None:
                raise ValueError(f"{key} is for robots: a simulation takes actions within [-1, 1] as they are")
        return self

    @model_validator(mode="after")
    def _a_person_cannot_be_hurried(self) -> Self:
        if self.by_hand and self.judge_demos:
            raise ValueError("judge_demos with a person: label the demonstrations first (plaudit label --judge human)")
        return self


ConfigT = TypeVar("ConfigT", bound=OnlineConfig)
SHORT = ("robot", "learner", "judge", "teleop")  # `learner=sac` is short for `learner.type=sac`


def load_online(
    cls: type[ConfigT],
    path: Path | None,
    overrides: Sequence[str],
    *,
    robot_files: Mapping[str, str] | None = None,
    **given: Any,
) -> ConfigT:
    """From a file, `a.b=c` overrides and flags, of which the later win.

    robot_files: key of the robot -> path
    given: flags; None where one was not
    """

    def translate(tree: dict[str, Any]) -> dict[str, Any]:
        tree = translated(tree)
        named = {key: value for key, value in given.items() if value is not None}
        for key in SHORT:
            if isinstance(named.get(key), str):
                named[key] = {**_section(tree, key), "type": named[key]}
            elif isinstance(tree.get(key), str):
                tree[key] = {"type": tree[key]}
        return _with_robot({**tree, **named}, robot_files or {})

    full = [spelled_out(one, SHORT, f"learner=sac; {did_you_mean(one, SHORT)}") for one in overrides]
    return _completed(load(cls, path, full, translate))


def _completed(config: ConfigT) -> ConfigT:
    """What the policy's and the robot's own files say of units and chunks fills in what nobody else did."""
    named = None if config.policy_yaml is None else load_policy(config.policy_yaml).normalizer
    acting = _absolute(config.executor.normalizer or named)
    units = _absolute(config.units) or (acting if config.act_with == "learner" else None)
    executor = config.executor.model_copy(update={"normalizer": acting})
    config = config.model_copy(update={"executor": executor, "units": units})
    return config.model_copy(update={"executor": with_params(config.executor, config.robot)})


def _absolute(named: Path | dict[str, Any] | None) -> Path | dict[str, Any] | None:
    """Other processes have other working folders."""
    return named.absolute() if isinstance(named, Path) else named


def _section(tree: dict[str, Any], key: str) -> dict[str, Any]:
    return tree[key] if isinstance(tree.get(key), dict) else {}


def _with_robot(tree: dict[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """The robot's own files and what follows from them for the executor."""
    robot = tree.get("robot")
    if not isinstance(robot, dict) or not isinstance(robot.get("type"), str):
        return tree
    paced = "realtime" in ROBOT_REGISTRY.get(robot["type"]).model_fields  # the executor keeps the rate
    robot = {**({"realtime": False} if paced else {}), **robot, **files}
    person = _section(tree, "teleop")
    if person.get("type") == "topic":  # what a person sends comes over the robot's own transport
        tree = {**tree, "teleop": {"robot": robot, **person}}
    return {**tree, "robot": robot, "executor": {"name": robot["type"], **tree.get("executor", {})}}
