"""A run of `plaudit run`: its config, whether chunks fit, and its episodes, stored with the operator's marks.

    config = load_run(["robot.env.type=lift"], robot="sim", algorithm="rtc", teleop="none", robot_files={})
    with config.start(policy) as engine:
        for done in record_episodes(engine, store, 10, operator=operator):
            print(done.id, done.mark)

Of H actions of a chunk s are executed before the next inference begins, and that takes d control steps:

    d <= s        an inference is done before the next is due
    s <= H - d    the next chunk is there before this one has run out

This is what real-time chunking asks for (arXiv 2506.07339). Otherwise the robot stops at the end of every chunk, so
nothing is driven like that. It is checked when a config is read, with a delay of one step, and with the measured one
before the first episode. A learner whose critics value h actions of a chunk needs s >= h.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import model_validator

from plaudit.config import Config, expand_type_override, load
from plaudit.data.store import Store
from plaudit.errors import ConfigError, DataError, MissingExtra, PlauditError, RolloutError, RolloutFault, format_count
from plaudit.policies.loader import PolicySpec
from plaudit.protocols import InferenceEngine
from plaudit.registry import INFERENCE_REGISTRY, ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.config import RobotConfig
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.forecast import ForecastConfig, load_forecast
from plaudit.rollout.operator import MARK, Operator, OperatorCommand, OperatorConfig
from plaudit.rollout.recording import append_marked, discarded_store, is_discarded, run_episode
from plaudit.rollout.rerun import Target
from plaudit.rollout.teleop import teleop_defaults
from plaudit.types import Episode

EXECUTION_HORIZON = "policy.inference.execution_horizon"


def executed_steps(horizon: int, execution_horizon: int | None) -> int:
    """Steps of a chunk to execute: as configured, or half of the chunk."""
    return execution_horizon or max(horizon // 2, 1)


def chunk_problem(horizon: int, execution_horizon: int | None, delay: int = 1, latency: str = "") -> str:
    """One sentence that says which number to change; "" where chunks fit.

    latency: of an inference, as text; "" where it was not measured
    """
    if horizon == 1:
        return "a chunk of one action is over before the next is there; use sequential for this policy"
    executed = executed_steps(horizon, execution_horizon)
    if delay <= executed <= horizon - delay:
        return ""
    steps = format_count(delay, "control step")
    takes = f"takes {steps} ({latency})" if latency else f"takes at least {steps}"
    late = executed > horizon - delay
    why = (
        "a chunk would run out before the next is there"
        if late
        else "it would still be running when the next one starts"
    )
    if horizon >= 2 * delay:
        last = horizon - delay
        fix = f"set that to {delay}" + (f" to {last}" if last > delay else "")
        fix += f", or the policy's horizon to at least {executed + delay}" if late else ""
    else:
        fix = (
            f"that needs a policy with a horizon of at least {2 * delay}, or an inference within {horizon // 2} steps: "
            "another policy.device, or a lower policy.inference.control_hz"
        )
    return (
        f"of chunks of {horizon} actions {executed} are to be executed before the next inference begins "
        f"({EXECUTION_HORIZON}), which {takes}: {why}; {fix}"
    )


def backup_problem(algorithm: str, horizon: int, execution_horizon: int | None, backup_horizon: int) -> str:
    """Why a learner's values would be of actions that are not executed; "" where the engine executes enough.

    backup_horizon: actions of a chunk that the learner's backup spans
    """
    executed = executed_steps(horizon, execution_horizon) if algorithm == "rtc" else execution_horizon or horizon
    if executed >= backup_horizon:
        return ""
    enough = f"set that to {backup_horizon} or more, " if backup_horizon < horizon or algorithm != "rtc" else ""
    other = "write policy.inference=sequential, " if algorithm == "rtc" else ""
    return (
        f"the learner's backup spans {backup_horizon} actions, and {algorithm} executes {executed} of a chunk before "
        f"the next inference ({EXECUTION_HORIZON}); {enough}{other}or shorten the backup (qchunk: "
        f"learner.critic_horizon={executed})"
    )


def check_chunks(
    algorithm: str, execution_horizon: int | None, horizon: int | None, backup_horizon: int | None = None
) -> None:
    """Refuse settings with which the algorithm cannot execute as much of a chunk as it has to.

    horizon: actions of the policy's chunks, where that is known
    backup_horizon: of these, how many a learner's backup spans; None: nothing learns from them
    """
    if horizon is None:
        return
    problem = "" if backup_horizon is None else backup_problem(algorithm, horizon, execution_horizon, backup_horizon)
    if not problem and algorithm == "rtc":
        problem = chunk_problem(horizon, execution_horizon)
    elif not problem and algorithm == "sequential" and (execution_horizon or 1) > horizon:
        problem = f"{EXECUTION_HORIZON} is {execution_horizon}, and chunks have {horizon} actions; lower it"
    if problem:
        raise ConfigError([(tuple(EXECUTION_HORIZON.split(".")), problem)])


RETRY_S = 0.5  # between two attempts to recover robot and policy
InferenceT = TypeVar("InferenceT", bound=InferenceConfig)


def check_algorithm(algorithm: str, config: InferenceConfig) -> None:
    """Whether there is such an algorithm, and whether it can run with these settings."""
    INFERENCE_REGISTRY.get(algorithm)
    if algorithm == "rtc" and not config.realtime:
        raise ValueError("rtc controls in real time; write policy.inference.realtime=true, or choose 'sequential'")


def engine_config(algorithm: str, settings: InferenceConfig) -> Any:
    """The config of an inference algorithm, by its name or dotted path, with settings that all of them have."""
    return INFERENCE_REGISTRY.parse({**settings.model_dump(mode="json"), "type": algorithm})


class RunPolicyConfig(Config):
    """What `plaudit run` needs to know about a policy besides the policy's own file."""

    inference: Annotated[Any, INFERENCE_REGISTRY.field]  # settings of the algorithm that its `type` names


class RunConfig(Config):
    """A robot and how a policy drives it, under the same keys as in a training run."""

    robot: Annotated[Any, ROBOT_REGISTRY.field]  # one of the robots
    # A device by which a person takes over; None: no one can.
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None
    operator: OperatorConfig = OperatorConfig()  # how an operator starts and marks episodes
    forecast: ForecastConfig | None = None  # a hint when the policy is likely to fail
    rerun: Target | None = None  # where running episodes are shown by Rerun
    policy: RunPolicyConfig  # settings for running the policy

    @property
    def inference(self) -> Any:
        """The settings of the inference algorithm."""
        return self.policy.inference

    @property
    def algorithm(self) -> str:
        """As `--inference_algorithm` names it."""
        return INFERENCE_REGISTRY.name_of(self.inference)

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        check_algorithm(self.algorithm, self.inference)
        return self

    def start(self, policy: Any | None) -> InferenceEngine:
        """The engine, with the robot connected. policy: its config; None: loaded later, by `load_policy`"""
        if self.rerun is not None and find_spec("rerun") is None:
            raise MissingExtra("rerun", "rerun")
        real = not (isinstance(self.robot, RobotConfig) and self.robot.simulated)
        if isinstance(policy, PolicySpec) and real and not self.inference.allow_untrained:
            policy.check_trained(ROBOT_REGISTRY.name_of(self.robot), scaled=self.inference.normalizer is not None)
        engine = self.inference.build(self.robot, policy, self.teleop)
        try:
            if isinstance(policy, PolicySpec):
                policy.check_fits(engine.env_spec)
        except PlauditError:
            engine.close()
            raise
        return engine


def load_run(
    overrides: Sequence[str],
    *,
    robot: str,
    algorithm: str,
    teleop: str,
    robot_files: Mapping[str, str],
    horizon: int | None = None,
    **settings: Any,
) -> RunConfig:
    """
    overrides: robot.x=y, teleop.x=y, operator.x=y, policy.inference.x=y; they win
    teleop: a name, or "none"
    robot_files: key of the robot -> path
    horizon: actions of the policy's chunks, where that is known
    settings: of `InferenceConfig`
    """
    # The engine keeps the rate, so a robot that can keep it must not.
    unpaced = {"realtime": False} if issubclass(ROBOT_REGISTRY.get(robot), RobotConfig) else {}

    def translate(tree: dict[str, Any]) -> dict[str, Any]:
        robot_tree = {"type": robot, **robot_files, **unpaced, **tree.get("robot", {})}
        chosen = tree.get("policy", {}).get("inference", {})
        teleop_tree = {"type": teleop, **tree.pop("teleop", {})}
        return {
            **tree,
            **({} if teleop == "none" else {"teleop": {**teleop_defaults(teleop, robot_tree), **teleop_tree}}),
            "robot": robot_tree,
            "policy": {"inference": {"name": robot, **settings, "type": algorithm, **chosen}},
        }

    example = "policy.inference=sequential"
    overrides = [expand_type_override(one, ("policy.inference",), example) for one in overrides]
    config = load(RunConfig, None, overrides, translate)
    inference = with_robot_defaults(config.inference, config.robot, horizon)
    check_chunks(config.algorithm, inference.execution_horizon, horizon)
    return config.model_copy(update={"policy": RunPolicyConfig(inference=inference)})


def with_robot_defaults(config: InferenceT, robot: Any, horizon: int | None) -> InferenceT:
    """The settings, with those that the user left open filled in by the robot's own files."""
    defaults = robot.inference_defaults(horizon) if isinstance(robot, RobotConfig) else {}
    return config.model_copy(update={key: value for key, value in defaults.items() if getattr(config, key) is None})


def check_attended(inference: InferenceConfig, forecast: ForecastConfig | None, operator: OperatorConfig) -> None:
    """Refuse a reset by a person, and hints, in a run without an operator."""
    if inference.reset == "person" and not (operator.attended and operator.gate):
        raise DataError(
            "policy.inference.reset=person needs an operator before every episode, and this run waits for none; "
            "remove --auto (or add --no-auto) and operator.gate=false"
        )
    if forecast is not None and not operator.attended:
        raise DataError(
            "forecast.* gives hints to an operator, but this run has none; remove --auto (or add --no-auto), or "
            "leave these keys out"
        )


def advising(
    forecast: ForecastConfig | None, engine: InferenceEngine, operator: Operator | None
) -> AbstractContextManager[None]:
    """Give the operator hints in this block, if there is a forecast."""
    if forecast is None or operator is None:
        return nullcontext()
    return load_forecast(forecast).watch(engine, operator)


@dataclass(frozen=True, eq=False)
class RecordedEpisode:
    """An episode that was stored."""

    episode: Episode
    id: int  # in its store
    store: Path  # that of the run, or that of its discarded episodes
    left: int  # episodes to record after it

    @property
    def mark(self) -> str:
        """The operator's; "" without one."""
        return self.episode.meta.get(MARK, "")

    @property
    def discarded(self) -> bool:
        """Whether the operator discarded it."""
        return is_discarded(self.episode)


def record_episodes(
    engine: InferenceEngine,
    store: Store,
    count: int,
    *,
    operator: Operator | None = None,
    discarded_count: bool = True,
    task: str = "",
    seed: int | None = None,
    patience_s: float = 0.0,
    on_fault: Callable[[str], None] = lambda _: None,
) -> Iterator[RecordedEpisode]:
    """Run and store episodes. An error is raised after the episode so far is stored.

    count: episodes to record; those that the operator repeats do not count
    operator: attends the episodes and may stop the run
    discarded_count: whether those that the operator discards count too
    patience_s: from the first fault until an episode ends without one
    on_fault: called with each fault
    """
    if operator is not None:
        operator.emergency_stop = engine.emergency_stop
    number, left, stopped, deadline = 0, count, False, None

    def more() -> bool:
        return left > 0 and not (stopped if operator is None else operator.status.stopped)

    while more():
        recorded = False
        try:
            if operator is None or operator.wait_until_ready(engine.look):
                for episode in run_episode(engine, operator, task=task, seed=None if seed is None else seed + number):
                    recorded = True
                    if episode.meta.get(MARK) != OperatorCommand.REPEAT:
                        number += 1
                        left -= discarded_count or not is_discarded(episode)
                    yield _store(store, episode, left)
            stopped, deadline = not recorded, None
        except RolloutFault as fault:
            deadline = deadline or time.monotonic() + patience_s
            on_fault(str(fault))
            while more():  # the operator may stop the run meanwhile
                if time.monotonic() >= deadline:
                    raise RolloutError(f"{fault}; it did not recover within {patience_s:g} s") from fault
                try:
                    engine.recover()
                    break
                except RolloutFault as again:
                    fault = again
                    time.sleep(RETRY_S)


def _store(store: Store, episode: Episode, left: int) -> RecordedEpisode:
    if not is_discarded(episode):
        return RecordedEpisode(episode, append_marked(store, episode), store.folder, left)
    with discarded_store(store.folder) as discarded:
        return RecordedEpisode(episode, discarded.append(episode), discarded.folder, left)
