"""Inference engines: what runs a policy on a robot, episode after episode, and what all of them have in common.

    with Rtc(robot, policy, config) as engine:           # configs: each is built in the process where it runs
        for episode in engine.episodes(10):
            store.append(episode)
            engine.push(learner.weights())               # the next episode acts with them

`Rtc` (rollout/rtc.py) infers in one process while another controls; `Sequential` (rollout/sequential.py) does one after
the other, and its robot waits meanwhile. Both validate a chunk before it is used, accept teleoperation, keep
commands within the robot's limits, record what was really sent, and tell the robot to hold however an episode ends.

`load_run` reads what `plaudit run` runs: names and `a.b=c` overrides in, a config of everything but the policy out.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import model_validator

from plaudit.config import Config, Hertz, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, load
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import PlauditError, PolicyUnavailable, RobotSilent, RolloutError, RolloutFault
from plaudit.policies.config import PolicyConfig
from plaudit.policies.loader import PolicySpec
from plaudit.protocols import InferenceEngine, Policy, Robot
from plaudit.registry import INFERENCE_REGISTRY, ROBOT_REGISTRY, TELEOP_REGISTRY
from plaudit.robots.config import RobotConfig
from plaudit.robots.emergency_stop import EmergencyStop
from plaudit.robots.limiter import Limited, LimitedRobot, limited_steps
from plaudit.robots.sim import SimRobot
from plaudit.rollout.chunks import check_chunks
from plaudit.rollout.memory import MAX_CHUNK, EpisodeBuffer
from plaudit.rollout.operator_input import OperatorConfig
from plaudit.rollout.reset import Reset
from plaudit.rollout.timing import MAX_EPISODES, LatencyStats
from plaudit.trust import print_plain
from plaudit.types import AnyArray, EnvSpec, Episode, FloatArray

MAX_EPISODE_STEPS = 1000  # of a robot, unless the config sets another limit
RETRY_S = 0.5  # between two attempts to have robot and policy back
MAY_PASS = (RobotSilent, PolicyUnavailable)  # faults of a robot or a policy that may be over in a minute

Outcome = tuple[Episode | None, BaseException | None]  # what was recorded of an episode, and what ended it early


RELEASE_POLL_S = 0.05  # between looks at an emergency stop that is engaged


class InferenceConfig(Config):
    """How a policy drives a robot; what every inference algorithm has."""

    name: str = ""  # the robot's name in episodes; "": that of its class
    max_episode_steps: PositiveInt | None = None  # None: a simulation's own limit, or 1000
    reset: Reset = "start_pose"  # what happens before an episode; see rollout/reset.py
    stop_on: str = ""  # a privileged flag of a simulation, like success: an episode ends when it turns true
    control_hz: Hertz | None = None  # control steps per second; None: the robot's own fps
    realtime: bool = True  # False (sequential, in a simulation): as fast as possible, control_hz is only recorded
    execution_horizon: PositiveInt | None = None  # steps of a chunk to execute; None: half (rtc), or all
    # From one command to the next, for all joints or each.
    max_action_delta: PositiveFloat | tuple[PositiveFloat, ...] | None = None
    idle_action: Literal["repeat", "zero"] = "repeat"  # when a chunk has run out: the last command (targets), or zeros
    guidance: bool = True  # rtc: continue the previous chunk by `guided_inference`; False: `predict`
    delay_window: PositiveInt = 8  # rtc: the next delay is estimated as the longest of the last few
    allow_untrained: bool = False  # drive a real robot with a policy that learned nothing, or has no statistics
    # Statistics of state and action, a file or its content; None: the policy uses the robot's own units.
    normalizer: Path | dict[str, Any] | None = None
    control_cpu: NonNegativeInt | None = None  # rtc: the core that the control process is pinned to
    startup_timeout_s: PositiveFloat = 120.0  # for building robot and policy, and for a first chunk
    patience_s: NonNegativeFloat = 60.0  # from a first fault to an episode without one; then the run ends

    def load_normalizer(self, env_spec: EnvSpec) -> Normalizer:
        """Read the statistics; without any, the identity."""
        if self.normalizer is None:
            return Normalizer.identity(env_spec.state_dim, env_spec.action_dim)
        return Normalizer.load(self.normalizer)


InferenceT = TypeVar("InferenceT", bound=InferenceConfig)
RecordedT = TypeVar("RecordedT")


class EngineBase:
    """What both engines share: episodes one after the other, their latencies, and the way to stop."""

    inference_summary: str = ""  # see `plaudit.protocols.InferenceEngine`

    def __init__(self) -> None:
        self._latencies: deque[LatencyStats] = deque(maxlen=MAX_EPISODES)
        self._stopping = threading.Event()
        self._until: Callable[[], str] = str  # asked for a reason to end the current episode; str() is none
        self.emergency_stop = EmergencyStop()  # for whoever watches the robot; no episode begins while it is engaged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def latency(self) -> LatencyStats:
        """Of the newest episodes."""
        return LatencyStats.concatenate(self._latencies)

    def episodes(
        self, count: int, *, task: str = "", seed: int | None = None, until: Callable[[], str] = str
    ) -> Iterator[Episode]:
        """See `plaudit.protocols.InferenceEngine`."""
        self._until, number = until, 0
        while number < count and not self._stopping.is_set():
            episode, error = None, None
            if self._released():
                episode, error = self._run_episode(task, None if seed is None else seed + number)
            if episode is not None:
                yield episode
            if error is not None:
                raise error
            # What the emergency stop ended before its first step, on the way to the start pose, begins again.
            number += episode is not None or bool(self._reason_to_end())

    def recover(self) -> None:
        """See `plaudit.protocols.InferenceEngine`."""
        raise NotImplementedError

    def stop(self) -> None:
        """End the current episode, from another thread; it is yielded, and it is the last."""
        self._stopping.set()

    def _reason_to_end(self) -> str:
        """Why the current episode is to end now; "" to go on."""
        return "stopped" if self._stopping.is_set() else self._until()

    def _released(self) -> bool:
        """Wait until a person has released the emergency stop; False where the episode is to end before it begins."""
        if self.emergency_stop.engaged and not self._reason_to_end():
            print_plain("the emergency stop is engaged: nothing moves until it is released")
        while self.emergency_stop.engaged and not self._reason_to_end():
            time.sleep(RELEASE_POLL_S)
        return not self.emergency_stop.engaged

    def close(self) -> None:
        """The robot holds, and nothing is left running."""
        raise NotImplementedError

    def _run_episode(self, task: str, seed: int | None) -> Outcome:
        raise NotImplementedError

    def _recorded(
        self,
        buffer: EpisodeBuffer,
        privileged: Mapping[str, Sequence[AnyArray]],
        *,
        task: str,
        seed: int | None,
        ended: str,
        terminated: bool,
    ) -> Episode | None:
        """The episode in a buffer, if it has a step; its latencies are counted."""
        latency = LatencyStats.of(buffer)
        self._latencies.append(latency)
        meta = {} if seed is None else {"seed": seed}
        limited = limited_steps(latency.limited.tolist())
        meta |= {"ended": ended, **latency.meta(), **buffer.weights_meta(), **({"limited": limited} if limited else {})}
        values = {name: np.stack(steps) for name, steps in privileged.items()}
        return buffer.episode(values, task=task, terminated=terminated, meta=meta)


def record_episodes(
    engine: InferenceEngine,
    store: Store,
    count: int,
    *,
    task: str = "",
    seed: int | None = None,
    patience_s: float = 0.0,
    on_fault: Callable[[str], None] = lambda _: None,
) -> Iterator[int]:
    """Run and store episodes; yields the id of each. An error is raised after what was recorded is stored.

    patience_s: from the first fault until an episode ends without one; on_fault: is called with each fault
    """
    done, stopped = 0, False

    def play() -> Iterator[int]:
        nonlocal done, stopped
        before = done
        for episode in engine.episodes(1, task=task, seed=None if seed is None else seed + done):
            done += 1
            yield store.append(episode)
        stopped = done == before

    yield from outlast_faults(engine, play, lambda: done < count and not stopped, patience_s, on_fault)


def outlast_faults(
    engine: InferenceEngine,
    play: Callable[[], Iterator[RecordedT]],
    more: Callable[[], bool],
    patience_s: float,
    on_fault: Callable[[str], None],
) -> Iterator[RecordedT]:
    """What `play` yields, one episode per call; it is called again while there is `more` to do.

    patience_s: from the first fault until an episode ends without one
    """
    deadline = None
    while more():
        try:
            yield from play()
            deadline = None
        except RolloutFault as fault:
            deadline = deadline or time.monotonic() + patience_s
            on_fault(str(fault))
            if more():
                _recover(engine, fault, deadline, patience_s)


def _recover(engine: InferenceEngine, fault: RolloutFault, deadline: float, patience_s: float) -> None:
    """Try until the engine is ready again."""
    while True:
        if time.monotonic() >= deadline:
            raise RolloutError(f"{fault}; it was not back within {patience_s:g} s") from fault
        try:
            return engine.recover()
        except RolloutFault as again:
            fault = again
            time.sleep(RETRY_S)


def validate_chunk(chunk: Any, action_dim: int) -> FloatArray:
    """A policy's answer, if it can be sent to a robot."""
    if not isinstance(chunk, np.ndarray) or chunk.ndim != 2 or chunk.shape[1] != action_dim or not len(chunk):
        returned = list(chunk.shape) if isinstance(chunk, np.ndarray) else type(chunk).__name__
        raise RolloutError(f"the policy must return actions [H, {action_dim}], it returned {returned}")
    if len(chunk) > MAX_CHUNK:
        raise RolloutError(f"the policy returned {len(chunk)} actions at once; {MAX_CHUNK} are the most")
    bad = np.flatnonzero(~np.isfinite(chunk).all(axis=1))
    if len(bad):
        raise RolloutError(
            f"the policy returned NaN or infinity in action {bad[0]} of {len(chunk)}; nothing of it was sent"
        )
    return chunk.astype(np.float32, copy=False)


def robot_spec(robot: Robot, config: InferenceConfig) -> EnvSpec:
    """The robot's sizes, with the name and the rate that the config sets."""
    own = robot.robot if isinstance(robot, Limited) else robot
    fps, name = float(config.control_hz or robot.fps), config.name or type(own).__name__
    limit = config.max_episode_steps or (own.max_steps if isinstance(own, SimRobot) else MAX_EPISODE_STEPS)
    return EnvSpec(int(robot.state_dim), int(robot.action_dim), dict(robot.cameras), fps, name, limit)


def connect_robot(config: RobotConfig, stack: ExitStack) -> LimitedRobot:
    """Build a robot whose commands are kept within its limits; one that can be closed is closed with the stack."""
    robot = config.build()
    if isinstance(robot, AbstractContextManager):
        stack.enter_context(robot)
    if isinstance(robot, LimitedRobot):
        return robot
    limits = config.limits if isinstance(config, RobotConfig) else RobotConfig().limits
    return Limited(robot, limits(robot.action_dim))


def await_observation(robot: Robot) -> None:
    """Whether a robot that was connected again is heard; raises `RobotSilent`."""
    try:
        robot.observe()
    except RobotSilent:
        raise
    except Exception:  # noqa: BLE001 - of a robot that must be reset first; the next episode does
        pass


def build_policy(config: PolicyConfig) -> Policy:
    """A policy, ready to infer."""
    policy: Policy = config.build()
    policy.freeze_all_model_params()
    policy.warmup()
    return policy


def error_message(error: BaseException) -> str:
    """An error in one line, for a reader who does not see the traceback."""
    return str(error) if isinstance(error, PlauditError) else f"{type(error).__name__}: {error}"


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

    robot: Annotated[Any, ROBOT_REGISTRY.field]
    teleop: Annotated[Any, TELEOP_REGISTRY.optional_field] = None
    operator: OperatorConfig = OperatorConfig()
    policy: RunPolicyConfig

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
    robot_files: Mapping[str, Path | None],
    horizon: int | None = None,
    **settings: Any,
) -> RunConfig:
    """
    overrides: robot.x=y, teleop.x=y, operator.x=y, policy.inference.x=y; they win
    teleop: a name, or "none"
    robot_files: key of the robot -> file
    horizon: actions of the policy's chunks, where that is known
    settings: of `InferenceConfig`
    """
    files = {key: str(path.absolute()) for key, path in robot_files.items() if path is not None}
    # The engine keeps the rate, so a robot that can keep it must not.
    unpaced = {"realtime": False} if issubclass(ROBOT_REGISTRY.get(robot), RobotConfig) else {}

    def translate(tree: dict[str, Any]) -> dict[str, Any]:
        robot_tree = {"type": robot, **files, **unpaced, **tree.get("robot", {})}
        shared = {"robot": robot_tree} if teleop == "topic" else {}  # the commands come over the robot's own transport
        chosen = tree.get("policy", {}).get("inference", {})
        teleop_tree = {"type": teleop, **shared, **tree.pop("teleop", {})}
        return {
            **tree,
            **({} if teleop == "none" else {"teleop": teleop_tree}),
            "robot": robot_tree,
            "policy": {"inference": {"name": robot, **settings, **chosen, "type": algorithm}},
        }

    config = load(RunConfig, None, overrides, translate)
    inference = with_robot_defaults(config.inference, config.robot, horizon)
    check_chunks(config.algorithm, inference.execution_horizon, horizon)
    return config.model_copy(update={"policy": RunPolicyConfig(inference=inference)})


def with_robot_defaults(config: InferenceT, robot: Any, horizon: int | None) -> InferenceT:
    """The settings, with those that the user left open filled in by the robot's own files."""
    defaults = robot.inference_defaults(horizon) if isinstance(robot, RobotConfig) else {}
    return config.model_copy(update={key: value for key, value in defaults.items() if getattr(config, key) is None})
