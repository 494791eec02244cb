"""What inference engines share: their settings, one tick of a robot, and episodes one after the other.

    with Rtc(robot, policy, config) as engine:           # configs: each is built in the process where it runs
        for episode in engine.episodes(10):
            store.append(episode)
            engine.push(learner.weights())               # the next episode acts with them

`Rtc` (rollout/rtc.py) infers in one process while another controls. `Sequential` alternates between the two in one
process. Both validate a chunk before it is used, accept teleoperation, keep commands within the
robot's limits, record what was really sent, and make the robot hold however an episode ends.
"""

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np

from plaudit.config import Config, Hertz, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import PlauditError, PolicyUnavailable, RobotSilent, RolloutError, RolloutFault
from plaudit.policies.config import PolicyConfig
from plaudit.policies.guidance import FixedPolicy
from plaudit.protocols import Policy, Teleoperator
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.robots.config import RobotConfig
from plaudit.robots.limits import (
    STALE_CHUNK,
    EmergencyStop,
    EmergencyStopped,
    Limited,
    Rate,
    connect_robot,
    limited_steps,
)
from plaudit.robots.sim import SimRobot
from plaudit.rollout.recording import (
    MAX_CHUNK,
    MAX_EPISODES,
    NO_ACTION,
    TELEOP,
    ActionChunk,
    EpisodeBuffer,
    LatencyStats,
)
from plaudit.rollout.teleop import TeleopConfig
from plaudit.trust import print_plain
from plaudit.types import HUMAN, POLICY, AnyArray, EnvSpec, Episode, FloatArray, Observation, PolicyWeights

NO_POLICY = "this engine has no policy yet; load_policy() comes first"
FAILURE = "failure"  # the privileged flag of a simulation whose episode is lost
MAX_EPISODE_STEPS = 1000  # of a robot, unless the config sets another limit
# Faults of a robot, a policy or a teleoperator that may be over in a minute.
MAY_PASS = (RobotSilent, PolicyUnavailable, RolloutFault)

RELEASE_POLL_S = 0.05  # between looks at an emergency stop that is engaged

Answer = TypeVar("Answer")
Outcome = tuple[Episode | None, BaseException | None]  # what was recorded of an episode, and what ended it early


class RecordedReset(Config):
    """A recorded motion that resets the scene.

    Its commands are sent at the control rate, through the robot's limits, between two resets of the robot and after the
    operator's gate. They are not part of the episode.
    """

    store: Path  # on the robot's machine
    episode: NonNegativeInt = 0  # its id in the store
    backward: bool = False  # from its last command to its first; for position targets only

    def actions(self, action_dim: int, *, targets: bool) -> FloatArray:
        """[T, A] the commands in the order in which they are sent. targets: whether commands are positions"""
        actions = Store.open(self.store).episode(self.episode).actions
        if actions.shape[1] != action_dim:
            raise RolloutError(
                f"reset: episode {self.episode} of {self.store} has commands of {actions.shape[1]} numbers, and the "
                f"robot takes {action_dim}; record the motion with this robot"
            )
        if self.backward and not targets:
            raise RolloutError("reset: velocities (idle_action=zero) cannot be replayed backward; record the way back")
        return actions[::-1] if self.backward else actions


# start_pose: the robot's own reset(), which may move to a start pose.
# person: the same, and an operator who attends resets the scene.
Reset = Literal["start_pose", "person"] | RecordedReset


class InferenceConfig(Config):
    """How a policy drives a robot; what every inference algorithm has."""

    name: str = ""  # the robot's name in episodes; "": that of its class
    max_episode_steps: PositiveInt | None = None  # None: a simulation's own limit, or 1000
    reset: Reset = "start_pose"  # what happens before an episode
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


@contextmanager
def gc_disabled() -> Iterator[None]:
    """No garbage collection while a robot moves: a full one takes longer than a tick may. Restored afterwards."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
        if not frozen:
            gc.unfreeze()


class ControlStep:
    """One tick of a robot, in either engine: observe, choose the command, limit it, send it, record it.

    control.begin(buffer, seed)
    for step in range(max_steps):
        control.begin_tick(*rate.wait())
        if step and control.observe(step):       # the result of the previous command
            break
        control.act(step, chunk, control.human_command())

    The robot's limiter keeps every command within the robot's limits and `max_action_delta`, so neither a human who
    lets go nor a chunk that arrives late makes the robot jump; the first ones ramp from where the joints are measured.
    """

    def __init__(self, robot: Limited, teleop: Teleoperator | None, config: InferenceConfig):
        self._robot, self._teleop, self._config = robot, teleop, config
        self._zero = np.zeros(robot.action_dim, np.float32)
        max_delta = config.max_action_delta
        if max_delta is not None and np.shape(max_delta) not in ((), (robot.action_dim,)):
            raise RolloutError(f"max_action_delta must be one number, or one for each of {robot.action_dim} joints")
        robot.limiter.set_rate(config.control_hz or robot.fps or 1.0, max_delta)
        self._stale_after = robot.limiter.limits.stale_observation_s
        self.privileged: dict[str, list[AnyArray]] = {}  # name -> one value per step
        self._motion: Sequence[FloatArray] | FloatArray = ()  # of the reset
        if isinstance(config.reset, RecordedReset):
            self._motion = config.reset.actions(robot.action_dim, targets=config.idle_action == "repeat")

    def play_reset(self, stop: Callable[[], Answer]) -> Answer | None:
        """Play the recorded motion of a reset, if there is one; returns what `stop` says, as soon as it says so."""
        if not len(self._motion):
            return None
        hz = self._config.control_hz or self._robot.fps
        rate = Rate(hz, realtime=self._config.realtime, first_now=True)
        self._robot.reset()
        for command in self._motion:
            rate.wait()
            self._robot.observe()
            if answer := stop():
                return answer
            self._robot.act(command)
        return None

    def begin(self, buffer: EpisodeBuffer, seed: int | None) -> None:
        """Reset the robot and record its first observation."""
        self.privileged = {}
        self._buffer = buffer
        self._last: FloatArray | None = None
        self._taken_over_at = -1  # the first step of a person's last takeover; what was inferred before it is stale
        self._record(0, self._robot.reset(seed))
        if self._teleop is not None:
            self._teleop.begin_episode(self._robot)

    def begin_tick(self, late: float, missed: int) -> None:
        """A tick begins. late: s; missed: ticks before it that did not happen"""
        self._began, self._untimed_s = time.perf_counter(), 0.0
        self._late, self._missed = late, missed

    def untimed(self, call: Callable[[], Answer]) -> Answer:
        """Call code that is not ours: its time does not count as our overhead."""
        began = time.perf_counter()
        answer = call()
        self._untimed_s += time.perf_counter() - began
        return answer

    def observe(self, row: int) -> str:
        """Record the result of the last command; returns the flag that terminates the episode, "" to go on.

        The flags are `stop_on` and, as in `plaudit.rollout.vector`, a simulation's own `failure`.
        """
        began = time.monotonic()
        observation = self.untimed(self._robot.observe)
        took = time.monotonic() - began
        if self._stale_after is not None and took > max(self._stale_after, 2 / (self._robot.fps or 1.0)):
            raise RobotSilent(f"an observation took {took:.2f} s, more than {self._stale_after:g} s: it is stale")
        info = self.untimed(self._robot.privileged)
        self._record(row, observation)
        for name, value in info.items():
            self.privileged.setdefault(name, []).append(value)
        flag = self._config.stop_on
        if flag and flag not in info:
            raise RolloutError(f"this robot reports no '{flag}'; it reports: {', '.join(info) or 'nothing'}")
        return next((name for name in (flag, FAILURE) if info.get(name)), "")

    def human_command(self) -> FloatArray | None:
        """A human's command for this tick; None: the policy acts."""
        return None if self._teleop is None else self.untimed(self._teleop.command)

    def act(self, step: int, chunk: ActionChunk, human: FloatArray | None) -> None:
        """Send a human's command, else the chunk's, else the idle action."""
        limiter, stale = self._robot.limiter, 0
        planned = chunk.action_at(step)
        if human is not None and not (step and self._buffer.control_mode[step - 1] == HUMAN):
            self._taken_over_at = step
        if human is None and chunk.start_step <= self._taken_over_at:
            planned = None
        if planned is not None and step - chunk.start_step > limiter.stale_steps:
            planned, stale = None, STALE_CHUNK
        if human is not None:
            command, mode, source = self._teleop_action(human, planned), HUMAN, TELEOP
        elif planned is not None:
            command, mode, source = planned, POLICY, chunk.start_step
        else:
            command, mode, source = self._idle(), POLICY, NO_ACTION
        self.untimed(lambda: self._robot.act(command))
        self._last = self._robot.last_command
        if self._last is None:
            raise RolloutError("the robot's last_command is None after act(); it must be what was sent")
        self._buffer.limited[step] = limiter.limited | stale
        self._buffer.add_command(step, self._last, mode, source, self._late, self._missed)
        self._buffer.overhead[step] = time.perf_counter() - self._began - self._untimed_s + limiter.took

    def _idle(self) -> FloatArray:
        """What is sent while nothing is commanded: zeros or the last target; before the first, where the joints are."""
        if self._config.idle_action == "zero":
            return self._zero
        position = self._robot.joint_position() if self._last is None else self._last
        if position is None:
            raise RolloutError(
                "the robot does not report its joints (joint_position), so it cannot hold before the first command; "
                "use a teleoperator that gives positions at every tick, like a leader arm"
            )
        return position

    def _record(self, row: int, observation: Observation) -> None:
        if not np.isfinite(observation.state).all():
            raise RolloutError(f"the robot's state holds NaN or infinity after {row} commands")
        self._buffer.add_observation(row, observation, time.monotonic())

    def _teleop_action(self, command: FloatArray, planned: FloatArray | None) -> FloatArray:
        if command.shape != self._zero.shape or not np.isfinite(command).all():
            raise RolloutError(f"a teleoperator's command must be {len(self._zero)} finite numbers, got {command}")
        assert self._teleop is not None
        if not self._teleop.relative:
            return command
        start = next((each for each in (self._last, planned) if each is not None), None)
        return (self._idle() if start is None else start) + command


class EngineBase:
    """What both engines share: episodes one after the other, their latencies, and the way to stop."""

    env_spec: EnvSpec  # these three: see `plaudit.protocols.InferenceEngine`
    priority: str
    inference_summary: str = ""

    def __init__(self) -> None:
        self._latencies: deque[LatencyStats] = deque(maxlen=MAX_EPISODES)
        self._stopping = threading.Event()
        self.recording: EpisodeBuffer | None = None  # the running episode
        self.preview: EpisodeBuffer | None = None  # a row and no step, for `look`; None: no viewer
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
            self.recording = None
            if episode is not None:
                yield episode
            if error is not None:
                raise error
            # What the emergency stop ended before its first step, on the way to the start pose, begins again.
            number += episode is not None or bool(self._reason_to_end())

    def recover(self) -> None:
        """See `plaudit.protocols.InferenceEngine`."""
        raise NotImplementedError

    def load_policy(self, policy: Any) -> None:
        """See `plaudit.protocols.InferenceEngine`."""
        raise NotImplementedError

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """See `plaudit.protocols.InferenceEngine`."""
        raise NotImplementedError

    def look(self) -> None:
        """See `plaudit.protocols.InferenceEngine`; an engine without a preview does nothing."""

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


def robot_spec(robot: Limited, config: InferenceConfig) -> EnvSpec:
    """The robot's sizes, with the name and the rate that the config sets."""
    own = robot.robot
    fps, name = float(config.control_hz or robot.fps), config.name or type(own).__name__
    limit = config.max_episode_steps or (own.max_steps if isinstance(own, SimRobot) else MAX_EPISODE_STEPS)
    return EnvSpec(int(robot.state_dim), int(robot.action_dim), dict(robot.cameras), fps, name, limit)


def await_observation(robot: Limited) -> None:
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


def connect(
    robot_config: RobotConfig, teleop: TeleopConfig | None, emergency_stop: EmergencyStop, stack: ExitStack, again: bool
) -> tuple[Limited, Teleoperator | None]:
    """Connect robot and teleoperator; when the stack is closed the robot holds, and both are closed.

    again: after a fault, so that the robot must be heard first
    """
    robot = connect_robot(robot_config, stack)
    robot.limiter.emergency_stop = emergency_stop
    stack.callback(robot.hold)
    teleoperator = None if teleop is None else teleop.build(robot.action_dim)
    if teleoperator is not None:
        stack.callback(teleoperator.close)
    if again:
        await_observation(robot)
    return robot, teleoperator


@INFERENCE_REGISTRY.register("sequential")
class Sequential(EngineBase):
    """Inference and control in turn, in one process: observe, infer, execute the chunk, and again.

    The robot gets no command while the policy infers. Those ticks are counted as missed, in the table and in the
    episode's meta. They cannot be seen in the recorded steps, which follow each other as if no time had passed.
    """

    def __init__(
        self,
        robot: RobotConfig,
        policy: PolicyConfig | None,
        config: InferenceConfig = InferenceConfig(),  # noqa: B008 - frozen
        teleop: TeleopConfig | None = None,
    ):
        super().__init__()
        self._config, self._robot_config, self._teleop = config, robot, teleop
        # Before the robot is connected: a policy that fails leaves it alone.
        self._policy = None if policy is None else build_policy(policy)
        self._pushed: tuple[PolicyWeights, bool] | None = None  # and whether they are for the next chunk already
        self._version = 0
        self._faulty = False  # whether a fault has ended the last episode
        self._connect()

    def _connect(self, again: bool = False) -> None:
        """again: after a fault, so that the robot must be heard first"""
        config = self._config
        with ExitStack() as stack:
            self._robot, teleoperator = connect(self._robot_config, self._teleop, self.emergency_stop, stack, again)
            self._control = ControlStep(self._robot, teleoperator, config)
            self.env_spec, self.priority = robot_spec(self._robot, config), "ordinary priority"
            self._normalizer = config.load_normalizer(self.env_spec)
            self._open = stack.pop_all()

    def recover(self) -> None:
        """Connect the robot and warm up the policy again, where a fault has ended an episode."""
        if not self._faulty:
            return
        with suppress(Exception):  # of a robot that is not there
            self._open.close()
        try:
            self._connect(again=True)
            if self._policy is not None:
                self._policy.warmup()
        except MAY_PASS as error:
            raise RolloutFault(str(error)) from error
        self._faulty = False

    def look(self) -> None:
        """See `plaudit.protocols.InferenceEngine`."""
        if self.preview is not None and not self._faulty:
            with suppress(Exception):  # of a robot that is not heard, or must be reset first
                self.preview.add_observation(0, self._robot.observe(), time.monotonic())

    def load_policy(self, policy: PolicyConfig) -> None:
        """Build the policy and run it once."""
        self._policy = build_policy(policy)

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """New weights for the next episode, or with `now` for the next chunk."""
        self._pushed = weights, now

    def close(self) -> None:
        """The robot holds and is closed; calling it twice does nothing."""
        self._open.close()

    def _run_episode(self, task: str, seed: int | None) -> Outcome:
        policy = self._policy
        if policy is None:
            raise RolloutError(NO_POLICY)
        self._load_pushed(policy, between_episodes=True)
        buffer = self.recording = EpisodeBuffer.allocate(self.env_spec, self.env_spec.max_steps)
        buffer.task, terminated, failure = task, False, None
        try:
            with gc_disabled() if self._config.realtime else nullcontext():
                ended, terminated = self._drive(policy, buffer, seed)
        except KeyboardInterrupt as error:
            ended, failure = "interrupted", error
        except EmergencyStopped as stopped:  # no fault: the next episode begins when it is released
            ended = str(stopped)
        except Exception as error:  # noqa: BLE001 - of a robot or a policy, which may raise anything
            ended, failure = error_message(error), _rollout_error(error)
        try:
            self._robot.hold()
        except Exception as error:  # noqa: BLE001 - the episode must not be lost with it
            ended = f"{ended}; and the robot could not be told to hold: {error_message(error)}"
            if not isinstance(failure, KeyboardInterrupt):
                failure = _rollout_error(error, ended)
        self._faulty = isinstance(failure, RolloutFault)
        privileged = self._control.privileged
        episode = self._recorded(buffer, privileged, task=task, seed=seed, ended=ended, terminated=terminated)
        return episode, failure

    def _drive(self, policy: Policy, buffer: EpisodeBuffer, seed: int | None) -> tuple[str, bool]:
        """Returns why the episode ended, and whether that terminated the task."""
        if reason := self._control.play_reset(self._reason_to_end):
            return reason, False
        self._control.begin(buffer, seed)
        chunk = self._infer(policy, buffer, 0)
        rate = Rate(self.env_spec.fps, realtime=self._config.realtime, first_now=True)
        for step in range(buffer.max_steps + 1):
            self._control.begin_tick(*rate.wait())
            if step and (flag := self._control.observe(step)):
                return flag, True
            if step == buffer.max_steps:
                break
            if reason := self._reason_to_end():
                return reason, False
            human = self._control.human_command()
            if human is None and self._is_over(chunk, step, buffer):
                chunk = self._control.untimed(lambda row=step: self._infer(policy, buffer, row))
            self._control.act(step, chunk, human)
        return "steps", False

    def _is_over(self, chunk: ActionChunk, step: int, buffer: EpisodeBuffer) -> bool:
        """Whether a chunk was executed, or a human has moved the robot away from what it was inferred from."""
        length = len(chunk.actions)
        executed = min(self._config.execution_horizon or length, length, self._robot.limiter.stale_steps)
        return step - chunk.start_step >= executed or bool(step and buffer.control_mode[step - 1] == HUMAN)

    def _infer(self, policy: Policy, buffer: EpisodeBuffer, row: int) -> ActionChunk:
        self._load_pushed(policy, between_episodes=False)
        began = time.monotonic()
        actions = policy.predict(buffer.observation(row), self._normalizer)
        buffer.add_inference(row, began - buffer.observed_at[row], time.monotonic() - began, self._version)
        return ActionChunk(validate_chunk(actions, self.env_spec.action_dim), row)

    def _load_pushed(self, policy: Policy, *, between_episodes: bool) -> None:
        if self._pushed is not None and (between_episodes or self._pushed[1]):
            weights, self._pushed = self._pushed[0], None
            policy.load_weights(weights)
            self._version = weights.version


class TeleopOnly(Sequential):
    """An `InferenceEngine` without a policy: a person drives, and the robot holds where they command nothing.

    All steps count as the person's, so that their pauses are part of the demonstration.
    """

    def __init__(self, robot: RobotConfig, config: InferenceConfig, teleop: TeleopConfig):
        super().__init__(robot, None, config, teleop)
        self._policy = NoPolicy()

    def _run_episode(self, task: str, seed: int | None) -> Outcome:
        episode, error = super()._run_episode(task, seed)
        if episode is not None:
            episode = replace(episode, control_mode=np.full_like(episode.control_mode, HUMAN))
        return episode, error

    def _infer(self, policy: Policy, buffer: EpisodeBuffer, row: int) -> ActionChunk:
        return ActionChunk(np.empty((0, self.env_spec.action_dim), np.float32), row)


class NoPolicy(FixedPolicy):
    """Placeholder for a policy; only a person acts."""

    no_weights = "only a person acts, so no weights can be loaded"


def _rollout_error(cause: Exception, message: str | None = None) -> RolloutError:
    kind = RolloutFault if isinstance(cause, MAY_PASS) else RolloutError
    error = kind(message or error_message(cause))
    error.__cause__ = cause
    return error
