"""Inference engines: what drives a robot with a policy, episode after episode, and what all of them have in common.

    with Rtc(robot, policy, config) as engine:           # configs: each is built in the process where it runs
        for episode in engine.episodes(10):
            store.append(episode)
            engine.push(learner.weights())               # the next episode acts with them

`Rtc` (rollout/rtc.py) infers in one process while another controls; `Sequential` (rollout/sequential.py) does one after
the other, and its robot waits meanwhile. Both check a chunk before it is used, accept teleoperation, limit how fast a
command may change, record what was really sent, and tell the robot to hold on every way out.

`load_run` makes what `plaudit run` runs: names and `a.b=c` overrides in, a config of everything but the policy out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator

from plaudit.config import Config, load
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import PlauditError, RolloutError
from plaudit.protocols import InferenceEngine, Policy, Robot
from plaudit.registry import INFERENCE_REGISTRY, ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.ros import RosRobotConfig
from plaudit.rollout.memory import MAX_CHUNK
from plaudit.types import EnvSpec, FloatArray


class RobotConfig(Protocol):
    """A config of `ROBOT_REGISTRY`."""

    def build(self) -> Robot: ...


class PolicyConfig(Protocol):
    """A config of `POLICY_REGISTRY`."""

    def build(self) -> Policy: ...


class InferenceConfig(Config):
    """How a policy drives a robot; what every inference algorithm has."""

    name: str = ""  # the robot's name in episodes; "": that of its class
    max_episode_steps: int = Field(default=1000, ge=1)
    stop_on: str = ""  # a privileged flag of a simulation, like success: an episode ends when it turns true
    control_hz: float | None = Field(default=None, gt=0)  # control steps per second; None: the robot's own fps
    realtime: bool = True  # False (sequential, in a simulation): as fast as possible, control_hz is only recorded
    execution_horizon: int | None = Field(default=None, ge=1)  # steps of a chunk to execute; None: half (rtc), or all
    max_action_delta: float | tuple[float, ...] | None = None  # from one command to the next, for all joints or each
    idle_action: Literal["repeat", "zero"] = "repeat"  # when a chunk has run out: the last command (targets), or zeros
    guidance: bool = True  # rtc: continue the previous chunk (`guided_inference`); False: `predict` anew
    delay_window: int = Field(default=8, ge=1)  # rtc: the next delay is estimated as the longest of the last few
    # Statistics of state and action, a file or its content; None: the policy uses the robot's own units.
    normalizer: Path | dict[str, Any] | None = None
    control_cpu: int | None = None  # rtc: the core that the control process is pinned to
    startup_timeout_s: float = Field(default=120.0, gt=0)  # for building robot and policy, and for a first chunk

    def load_normalizer(self, env_spec: EnvSpec) -> Normalizer:
        if self.normalizer is None:
            return Normalizer.identity(env_spec.state_dim, env_spec.action_dim)
        return Normalizer.load(self.normalizer)


def record_episodes(
    executor: InferenceEngine, store: Store, count: int, *, task: str = "", seed: int | None = None
) -> Iterator[int]:
    """Drive and store, and tell the number of each episode that is. What fails is raised after what was recorded is
    stored."""
    for episode in executor.episodes(count, task=task, seed=seed):
        yield store.append(episode)


def validate_chunk(chunk: Any, action_dim: int) -> FloatArray:
    """A policy's answer, if it can be sent to a robot."""
    if not isinstance(chunk, np.ndarray) or chunk.ndim != 2 or chunk.shape[1] != action_dim or not len(chunk):
        what = list(chunk.shape) if isinstance(chunk, np.ndarray) else type(chunk).__name__
        raise RolloutError(f"the policy must return actions [H, {action_dim}], it returned {what}")
    if len(chunk) > MAX_CHUNK:
        raise RolloutError(f"the policy returned {len(chunk)} actions at once; {MAX_CHUNK} are the most")
    bad = np.flatnonzero(~np.isfinite(chunk).all(axis=1))
    if len(bad):
        raise RolloutError(
            f"the policy returned NaN or infinity in action {bad[0]} of {len(chunk)}; nothing of it was sent"
        )
    return chunk.astype(np.float32, copy=False)


def robot_spec(robot: Robot, name: str = "", control_hz: float | None = None) -> EnvSpec:
    """The sizes of a robot, under a name and at a rate of its own or given ones."""
    fps = float(control_hz or robot.fps)
    return EnvSpec(robot.state_dim, robot.action_dim, dict(robot.cameras), fps, name or type(robot).__name__)


def enter_if_context(robot: Robot, stack: ExitStack) -> Robot:
    """One that has to be closed is, with the stack."""
    return stack.enter_context(robot) if isinstance(robot, AbstractContextManager) else robot


def error_message(error: BaseException) -> str:
    """For who does not see the traceback."""
    return str(error) if isinstance(error, PlauditError) else f"{type(error).__name__}: {error}"


InferenceT = TypeVar("InferenceT", bound="InferenceConfig")


def check_algorithm(algorithm: str, executor: InferenceConfig) -> None:
    """Whether there is such an algorithm, and whether it can run as the settings say."""
    INFERENCE_REGISTRY.get(algorithm)
    if algorithm == "rtc" and not executor.realtime:
        raise ValueError("rtc controls in real time; write executor.realtime=true, or take algorithm 'sequential'")


def engine_config(algorithm: str, settings: InferenceConfig) -> Any:
    """The config of an inference algorithm, by its name or dotted path, with settings that all of them have."""
    return INFERENCE_REGISTRY.parse({**settings.model_dump(mode="json"), "type": algorithm})


class RunConfig(Config):
    """Everything but the policy, which has a file of its own."""

    robot: Annotated[Any, ROBOT_REGISTRY.field]
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None
    executor: Annotated[Any, INFERENCE_REGISTRY.field]  # settings of the algorithm that its `type` names

    @property
    def algorithm(self) -> str:
        """As `--inference_algorithm` names it."""
        return INFERENCE_REGISTRY.name_of(self.executor)

    @model_validator(mode="after")
    def _it_can_be_driven(self) -> Self:
        check_algorithm(self.algorithm, self.executor)
        return self

    def start(self, policy: PolicyConfig) -> InferenceEngine:
        """The engine, with robot and policy ready."""
        return self.executor.build(self.robot, policy, self.teleop)


def load_run(
    overrides: Sequence[str],
    *,
    robot: str,
    algorithm: str,
    teleop: str,
    robot_files: Mapping[str, Path | None],
    **executor: Any,
) -> RunConfig:
    """
    overrides: robot.x=y, teleop.x=y, executor.x=y; they win
    teleop: a name, or "none"
    robot_files: key of the robot -> file
    executor: its settings
    """
    known = ROBOT_REGISTRY.get(robot).model_fields
    of_robot: dict[str, Any] = {key: str(path.absolute()) for key, path in robot_files.items() if path is not None}
    if "realtime" in known:  # robots that can keep a rate by themselves are not to: the executor does
        of_robot["realtime"] = False

    def translate(tree: dict[str, Any]) -> dict[str, Any]:
        body = {"type": robot, **of_robot, **tree.get("robot", {})}
        person = {"type": teleop, **({"robot": body} if teleop == "topic" else {}), **tree.pop("teleop", {})}
        return {
            **tree,
            **({} if teleop == "none" else {"teleop": person}),
            "robot": body,
            "executor": {"name": robot, **executor, **tree.get("executor", {}), "type": algorithm},
        }

    config = load(RunConfig, None, overrides, translate)
    return config.model_copy(update={"executor": with_params(config.executor, config.robot)})


def with_params(how: InferenceT, robot: Any) -> InferenceT:
    """What a robot's own file says of policies fills in what nobody else did."""
    if not isinstance(robot, RosRobotConfig):
        return how
    params = robot.params()
    filled = {
        "execution_horizon": how.execution_horizon or params.policy_update_period,
        "normalizer": how.normalizer or params.norm_stats_file_path,
    }
    return how.model_copy(update=filled)
