"""The process that controls the robot: one tick at a fixed rate, whatever else happens. No torch, and no waiting.

    every tick:  observe -> record -> notify inference -> take a new chunk if there is one -> send a command

The commands of a chunk are numbered by steps, from the observation it was inferred from, so a chunk that arrives late
is entered where it belongs. Where there is no command for a step, the idle action is sent. An episode begins with the
first chunk: until then the robot stays where its reset left it, and no time is counted.
"""

import os
import select
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from plaudit import processes
from plaudit.errors import RobotSilent, RolloutError
from plaudit.protocols import Teleoperator
from plaudit.robots.config import RobotConfig
from plaudit.robots.limits import EmergencyStop, EmergencyStopped, Limited, Rate, connect_robot
from plaudit.rollout import engine
from plaudit.rollout.recording import ActionChunk, EpisodeBuffer
from plaudit.rollout.teleop import SHARED_KEYS, TeleopConfig
from plaudit.types import AnyArray, EnvSpec

END_OF_EPISODE = -1  # on the pipe of ticks: no more rows in this episode
TICK_BYTES = 8
LOOK_MS = 100  # between looks at the cameras while no episode runs
POLL_S = 0.0005  # between looks for the first chunk


@dataclass(frozen=True)
class StartEpisode:
    """To control: run one episode. Its block follows."""

    max_steps: int
    seed: int | None


@dataclass(frozen=True)
class Look:
    """To control: show what the robot observes until the next message. The block of one row follows."""


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
    """From control: an episode has ended, and the robot was commanded to hold."""

    ended: str  # "steps", the flag that turned true, why it was stopped, or what failed
    failed: bool = False
    may_pass: bool = False  # whether what failed may be over soon
    terminated: bool = False
    privileged: dict[str, list[AnyArray]] = field(default_factory=dict)


def main(
    parent: Connection,
    ticks: int,
    emergency_stop: int,
    keys: int | None,
    robot_config: RobotConfig,
    config: engine.InferenceConfig,
    teleop: TeleopConfig | None,
    again: bool,
) -> None:
    """The control process.

    ticks: a pipe's end, into which the numbers of recorded rows are written
    emergency_stop: the descriptor of the latch that it shares with the parent
    keys: that of the keys that the parent reads; None: a keyboard is read here
    again: whether it takes the place of one that ended by a fault, so that the robot must be heard first
    """
    processes.exit_with_parent(parent, processes.GRACE_S)
    os.set_inheritable(ticks, False)
    os.set_blocking(ticks, False)
    os.set_inheritable(emergency_stop, False)
    latch = EmergencyStop(emergency_stop)
    if keys is not None:
        os.set_inheritable(keys, False)
        SHARED_KEYS.descriptor = keys
    try:
        with ExitStack() as stack:
            robot, teleoperator = engine.connect(robot_config, teleop, latch, stack, again)
            env_spec = engine.robot_spec(robot, config)
            control = ControlProcess(robot, teleoperator, env_spec, config, parent, ticks)
            processes.send(parent, Ready(env_spec, processes.set_realtime_priority(config.control_cpu)))
            control.serve()
    except Exception as error:  # noqa: BLE001 - the parent reports it
        processes.print_error(error)
        processes.send(parent, _failed(error))


def _failed(error: Exception, privileged: dict[str, list[AnyArray]] | None = None) -> EpisodeDone:
    return EpisodeDone(
        engine.error_message(error), True, isinstance(error, engine.MAY_PASS), privileged=privileged or {}
    )


def hold(_: Connection, robot_config: RobotConfig) -> None:
    """A process for when the control process was killed: connects to the robot again and tells it to hold."""
    with ExitStack() as stack:
        robot = connect_robot(robot_config, stack)
        with suppress(RobotSilent):
            engine.await_observation(robot)  # a robot that was just connected has not measured its position yet
        robot.hold()


class ControlProcess:
    """Runs one episode for each `StartEpisode` of the parent."""

    def __init__(
        self,
        robot: Limited,
        teleop: Teleoperator | None,
        env_spec: EnvSpec,
        config: engine.InferenceConfig,
        parent: Connection,
        ticks: int,
    ):
        self._robot, self._env_spec, self._config = robot, env_spec, config
        self._control = engine.ControlStep(robot, teleop, config)
        self._parent, self._ticks = parent, ticks
        self._messages = select.poll()  # of the parent; polled at every tick, so it has to be cheap
        self._messages.register(parent.fileno(), select.POLLIN)

    def serve(self) -> None:
        """Until the parent closes its socket or an episode fails."""
        while True:
            message = processes.receive(self._parent)
            if isinstance(message, StopEpisode):
                continue  # of an episode that ended by itself meanwhile
            if isinstance(message, Look):
                self._look(EpisodeBuffer.attach(processes.receive_block(self._parent), self._env_spec, 0))
                continue
            buffer = EpisodeBuffer.attach(processes.receive_block(self._parent), self._env_spec, message.max_steps)
            with engine.gc_disabled():
                done = self._run_episode(buffer, message.seed)
            self._notify(END_OF_EPISODE)
            processes.send(self._parent, done)
            if done.failed:
                return

    def _look(self, buffer: EpisodeBuffer) -> None:
        while not self._messages.poll(LOOK_MS):
            with suppress(Exception):  # of a robot that is not heard, or must be reset first
                buffer.add_observation(0, self._robot.observe(), time.monotonic())

    def _run_episode(self, buffer: EpisodeBuffer, seed: int | None) -> EpisodeDone:
        try:
            ended, terminated = self._drive(buffer, seed)
            return EpisodeDone(ended, terminated=terminated, privileged=self._control.privileged)
        except EmergencyStopped as stopped:  # no fault: the next episode begins when it is released
            return EpisodeDone(str(stopped), privileged=self._control.privileged)
        except Exception as error:  # noqa: BLE001 - of a robot's driver, which may raise anything
            processes.print_error(error)
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
        rate = Rate(self._env_spec.fps, first_now=True)
        for step in range(buffer.max_steps + 1):
            self._control.begin_tick(*rate.wait())
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
            self._control.act(step, chunk, self._control.human_command())
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
            return processes.receive(self._parent)
        except processes.ParentGone:
            return StopEpisode("the process that started this one is gone")

    def _notify(self, row: int) -> None:
        """Tell inference of a row; where it is gone, or thousands of rows behind, control continues all the same."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._ticks, row.to_bytes(TICK_BYTES, "little", signed=True))
