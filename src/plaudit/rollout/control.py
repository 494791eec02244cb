"""The process that controls the robot: one tick at a fixed rate, whatever else happens. No torch, and no waiting.

    every tick:  observe -> record -> notify inference -> take a new chunk if there is one -> send a command

The commands of a chunk are numbered by steps, from the observation it was inferred from, so a chunk that arrives late
is entered where it belongs and not at its beginning. Where there is no command for a step, the idle action is sent.

An episode begins with the first chunk: until then the robot stays where its reset left it, and no time is counted.
"""

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np

from plaudit.errors import RobotSilent, RolloutError
from plaudit.processes import GRACE_S, ParentGone, exit_with_parent, print_error, receive, receive_block, send
from plaudit.protocols import Teleoperator
from plaudit.robots.config import RobotConfig
from plaudit.robots.emergency_stop import EmergencyStop, EmergencyStopped
from plaudit.robots.limiter import STALE_CHUNK, LimitedRobot
from plaudit.rollout.clock import NoRateLimiter, RateLimiter, gc_disabled, set_realtime_priority
from plaudit.rollout.engine import (
    MAY_PASS,
    InferenceConfig,
    await_observation,
    connect_robot,
    error_message,
    robot_spec,
)
from plaudit.rollout.memory import NO_ACTION, TELEOP, ActionChunk, EpisodeBuffer
from plaudit.rollout.reset import RecordedReset
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import HUMAN, POLICY, AnyArray, EnvSpec, FloatArray, Observation

FAILURE = "failure"  # the privileged flag of a simulation whose episode is lost
END_OF_EPISODE = -1  # on the pipe of ticks: no more rows in this episode
TICK_BYTES = 8
POLL_S = 0.0005  # between looks for the first chunk

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class StartEpisode:
    """To control: run one episode. Its block follows."""

    max_steps: int
    seed: int | None


@dataclass(frozen=True)
class StopEpisode:
    """To control: end the episode, for this reason."""

    reason: str


@dataclass(frozen=True)
class Ready:
    """From control: the robot is connected."""

    env_spec: EnvSpec
    priority: str  # that the machine granted, as text


@dataclass(frozen=True, eq=False)
class EpisodeDone:
    """From control: an episode has ended, and the robot was told to hold."""

    ended: str  # "steps", the flag that turned true, why it was stopped, or what failed
    failed: bool = False
    may_pass: bool = False  # whether what failed may be over soon
    terminated: bool = False
    privileged: dict[str, list[AnyArray]] = field(default_factory=dict)


class ControlStep:
    """One tick of a robot, in either engine: observe, choose the command, limit it, send it, record it.

    control.begin(buffer, seed)
    for step in range(max_steps):
        control.begin_tick(*rate_limiter.wait())
        if step and control.observe(step):       # the result of the previous command
            break
        control.act(step, chunk)

    The robot's limiter keeps every command within the robot's limits and `max_action_delta`, so neither a human who
    lets go nor a chunk that arrives late makes the robot jump; the first ones ramp from where the joints are measured.
    """

    def __init__(self, robot: LimitedRobot, teleop: Teleoperator | None, config: InferenceConfig):
        self._robot, self._teleop, self._config = robot, teleop, config
        self._zero = np.zeros(robot.action_dim, np.float32)
        max_delta = _max_delta(config.max_action_delta, robot.action_dim)
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
        rate_limiter = RateLimiter(hz) if self._config.realtime else NoRateLimiter()
        self._robot.reset()
        for command in self._motion:
            rate_limiter.wait()
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
        self._record(0, self._robot.reset(seed))

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

    def act(self, step: int, chunk: ActionChunk) -> None:
        """Send a human's command, else the chunk's, else the idle action."""
        limiter, stale = self._robot.limiter, 0
        planned = chunk.action_at(step)
        if planned is not None and step - chunk.start_step > limiter.stale_steps:
            planned, stale = None, STALE_CHUNK
        human = None if self._teleop is None else self.untimed(self._teleop.command)
        if human is not None:
            command, mode, source = self._teleop_action(human, planned), HUMAN, TELEOP
        elif planned is not None:
            command, mode, source = planned, POLICY, chunk.start_step
        else:
            command, mode, source = self._idle_action(), POLICY, NO_ACTION
        self.untimed(lambda: self._robot.act(command))
        self._last = self._sent()
        self._buffer.limited[step] = limiter.limited | stale
        self._buffer.add_command(step, self._last, mode, source, self._late, self._missed)
        self._buffer.overhead[step] = time.perf_counter() - self._began - self._untimed_s + limiter.took

    def _record(self, row: int, observation: Observation) -> None:
        if not np.isfinite(observation.state).all():
            raise RolloutError(f"the robot's state holds NaN or infinity after {row} commands")
        self._buffer.add_observation(row, observation, time.monotonic())

    def _sent(self) -> FloatArray:
        sent = self._robot.last_command
        if sent is None:
            raise RolloutError("the robot's last_command is None after act(); it must be what was sent")
        return sent

    def _teleop_action(self, command: FloatArray, planned: FloatArray | None) -> FloatArray:
        if command.shape != self._zero.shape or not np.isfinite(command).all():
            raise RolloutError(f"a teleoperator's command must be {len(self._zero)} finite numbers, got {command}")
        assert self._teleop is not None
        if not self._teleop.relative:
            return command
        start = planned if self._last is None else self._last
        assert start is not None, "an episode begins with a chunk"
        return start + command

    def _idle_action(self) -> FloatArray:
        assert self._last is not None, "an episode begins with a chunk"
        return self._zero if self._config.idle_action == "zero" else self._last


def _max_delta(setting: float | tuple[float, ...] | None, action_dim: int) -> FloatArray | None:
    if setting is None:
        return None
    limit = np.asarray(setting, np.float32)
    if limit.shape not in ((), (action_dim,)):
        raise RolloutError(f"max_action_delta must be one number, or one for each of {action_dim} joints")
    return limit


def main(
    parent: Connection,
    ticks: int,
    emergency_stop: int,
    robot_config: RobotConfig,
    config: InferenceConfig,
    teleop: TeleopConfig | None,
    again: bool,
) -> None:
    """The control process.

    ticks: a pipe's end, into which the numbers of recorded rows are written
    emergency_stop: the descriptor of the latch that it shares with the parent
    again: whether it takes the place of one that ended by a fault, so that the robot must be heard first
    """
    exit_with_parent(parent, GRACE_S)
    os.set_inheritable(ticks, False)
    os.set_blocking(ticks, False)
    os.set_inheritable(emergency_stop, False)
    latch = EmergencyStop(emergency_stop)
    try:
        with ExitStack() as stack:
            robot = connect_robot(robot_config, stack)
            robot.limiter.emergency_stop = latch
            stack.callback(robot.hold)
            teleoperator = None if teleop is None else teleop.build(robot.action_dim)
            if teleoperator is not None:
                stack.callback(teleoperator.close)
            env_spec = robot_spec(robot, config)
            if again:
                await_observation(robot)
            control = ControlProcess(robot, teleoperator, env_spec, config, parent, ticks)
            send(parent, Ready(env_spec, set_realtime_priority(config.control_cpu)))
            control.serve()
    except Exception as error:  # noqa: BLE001 - the parent reports it
        print_error(error)
        send(parent, _failed(error))


def _failed(error: Exception, privileged: dict[str, list[AnyArray]] | None = None) -> EpisodeDone:
    return EpisodeDone(error_message(error), True, isinstance(error, MAY_PASS), privileged=privileged or {})


def hold(_: Connection, robot_config: RobotConfig) -> None:
    """A process for when the control process was killed: connects to the robot again and tells it to hold."""
    with ExitStack() as stack:
        robot = connect_robot(robot_config, stack)
        with suppress(RobotSilent):
            await_observation(robot)  # a robot that was just connected has not measured its position yet
        robot.hold()


class ControlProcess:
    """Runs one episode for each `StartEpisode` of the parent."""

    def __init__(
        self,
        robot: LimitedRobot,
        teleop: Teleoperator | None,
        env_spec: EnvSpec,
        config: InferenceConfig,
        parent: Connection,
        ticks: int,
    ):
        self._robot, self._env_spec, self._config = robot, env_spec, config
        self._control = ControlStep(robot, teleop, config)
        self._parent, self._ticks = parent, ticks
        self._messages = select.poll()  # of the parent; polled at every tick, so it has to be cheap
        self._messages.register(parent.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Until the parent closes its socket or an episode fails."""
        while True:
            message = receive(self._parent)
            if isinstance(message, StopEpisode):
                continue  # of an episode that ended by itself meanwhile
            buffer = EpisodeBuffer.attach(receive_block(self._parent), self._env_spec, message.max_steps)
            with gc_disabled():
                done = self._run_episode(buffer, message.seed)
            self._notify(END_OF_EPISODE)
            send(self._parent, done)
            if done.failed:
                return

    def _run_episode(self, buffer: EpisodeBuffer, seed: int | None) -> EpisodeDone:
        try:
            ended, terminated = self._drive(buffer, seed)
            return EpisodeDone(ended, terminated=terminated, privileged=self._control.privileged)
        except EmergencyStopped as stopped:  # no fault: the next episode begins when it is released
            return EpisodeDone(str(stopped), privileged=self._control.privileged)
        except Exception as error:  # noqa: BLE001 - of a robot's driver, which may raise anything
            print_error(error)
            return _failed(error, self._control.privileged)
        finally:
            with suppress(Exception):  # what raised above may raise again; `main` calls hold() once more
                self._robot.hold()

    def _drive(self, buffer: EpisodeBuffer, seed: int | None) -> tuple[str, bool]:
        """Returns why the episode ended, and whether that terminated the task."""
        if stop := self._control.play_reset(self._stop_message):
            return stop.reason, False
        self._control.begin(buffer, seed)
        self._notify(0)
        chunk = self._first_chunk(buffer)
        if isinstance(chunk, StopEpisode):
            return chunk.reason, False
        rate_limiter = RateLimiter(self._env_spec.fps)
        for step in range(buffer.max_steps + 1):
            self._control.begin_tick(*rate_limiter.wait())
            if step:
                ended = self._control.observe(step)
                self._notify(step)
                if ended:
                    return ended, True
            if step == buffer.max_steps:
                break
            stop = self._stop_message()
            if stop is not None:
                return stop.reason, False
            chunk = buffer.chunk_slot.take() or chunk
            self._control.act(step, chunk)
        return "steps", False

    def _first_chunk(self, buffer: EpisodeBuffer) -> ActionChunk | StopEpisode:
        deadline = time.monotonic() + self._config.startup_timeout_s
        while time.monotonic() < deadline:
            chunk = buffer.chunk_slot.take()
            if chunk is not None:
                return chunk
            if (stop := self._stop_message()) is not None:
                return stop
            time.sleep(POLL_S)
        raise RolloutError(f"no chunk came in {self._config.startup_timeout_s:g} s")

    def _stop_message(self) -> StopEpisode | None:
        if not self._messages.poll(0):
            return None
        try:
            return receive(self._parent)
        except ParentGone:
            return StopEpisode("the process that started this one is gone")

    def _notify(self, row: int) -> None:
        """Tell inference of a row; where it is gone, or thousands of rows behind, control continues all the same."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._ticks, row.to_bytes(TICK_BYTES, "little", signed=True))
