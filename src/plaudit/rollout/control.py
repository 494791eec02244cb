"""The process that controls the robot: a tick at a fixed rate, whatever else happens. No torch, and no waiting.

    every tick:  observe -> record -> tell inference -> take a new chunk if one is there -> send a command

A chunk's commands are numbered by steps, from the observation it was inferred from, so one that arrives late is entered
where it belongs and not at its beginning. Where there is no command for a step, the last one is sent again.

An episode begins with the first chunk: until it is there the robot stands where its reset left it, and no clock runs.
"""

import os
import select
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from plaudit.errors import RolloutError
from plaudit.protocols import Robot
from plaudit.rollout.clock import RateLimiter, gc_disabled, set_realtime_priority
from plaudit.rollout.driver import ControlStep
from plaudit.rollout.engine import InferenceConfig, RobotConfig, enter_if_context, error_message, robot_spec
from plaudit.rollout.memory import ActionChunk, EpisodeBuffer
from plaudit.rollout.processes import GRACE, ParentGone, exit_with_parent, print_error, receive, receive_block, send
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import AnyArray, EnvSpec

END_OF_EPISODE = -1  # on the pipe of ticks: no more rows in this episode
TICK_BYTES = 8


@dataclass(frozen=True)
class StartEpisode:
    """One episode, please. The block comes behind it."""

    steps: int
    seed: int | None


@dataclass(frozen=True)
class StopEpisode:
    """No further; why, in words."""

    reason: str


@dataclass(frozen=True)
class Ready:
    """The robot is there."""

    env_spec: EnvSpec
    priority: str  # what the machine granted, in words


@dataclass(frozen=True, eq=False)
class EpisodeDone:
    """An episode's end, after the robot was told to hold."""

    ended: str  # "steps", the flag that turned true, why it was stopped, or what failed
    failed: bool = False
    terminated: bool = False
    privileged: dict[str, list[AnyArray]] = field(default_factory=dict)


def main(
    parent: Connection, ticks: int, robot_config: RobotConfig, config: InferenceConfig, teleop: TeleopConfig | None
) -> None:
    """The process.

    ticks: a pipe's end; the numbers of rows go into it
    """
    exit_with_parent(parent, GRACE)
    os.set_inheritable(ticks, False)
    os.set_blocking(ticks, False)
    try:
        with ExitStack() as stack:
            robot = enter_if_context(robot_config.build(), stack)
            stack.callback(robot.hold)
            person = None if teleop is None else teleop.build(robot.action_dim)
            if person is not None:
                stack.callback(person.close)
            env_spec = robot_spec(robot, config.name, config.control_hz)
            control = ControlProcess(robot, ControlStep(robot, person, config), env_spec, config, parent, ticks)
            send(parent, Ready(env_spec, set_realtime_priority(config.control_cpu)))
            control.serve()
    except Exception as error:  # noqa: BLE001 - the parent says it
        print_error(error)
        send(parent, EpisodeDone(error_message(error), failed=True))


def hold(_: Connection, robot_config: RobotConfig) -> None:
    """A process for when the other was killed: a robot of the same config is told to stay where it is."""
    with ExitStack() as stack:
        robot = enter_if_context(robot_config.build(), stack)
        with suppress(Exception):
            robot.observe()  # one that has just been made does not know yet where it is
        robot.hold()


class ControlProcess:
    """Episodes, one after the other, as they are ordered."""

    def __init__(
        self,
        robot: Robot,
        driver: ControlStep,
        env_spec: EnvSpec,
        config: InferenceConfig,
        parent: Connection,
        ticks: int,
    ):
        self._robot, self._driver, self._body, self._config = robot, driver, env_spec, config
        self._parent, self._ticks = parent, ticks
        self._said = select.poll()  # the parent's socket; asked at every tick, and this is the cheapest way to
        self._said.register(parent.fileno(), select.POLLIN)

    def serve(self) -> None:
        while True:
            order = receive(self._parent)
            if isinstance(order, StopEpisode):
                continue  # of an episode that ended by itself meanwhile
            memory = EpisodeBuffer.attach(receive_block(self._parent), self._body, order.steps)
            with gc_disabled():
                over = self._episode(memory, order)
            self._tell(END_OF_EPISODE)
            send(self._parent, over)
            if over.failed:
                return

    def _episode(self, memory: EpisodeBuffer, order: StartEpisode) -> EpisodeDone:
        try:
            ended, terminated = self._drive(memory, order)
            return EpisodeDone(ended, False, terminated, self._driver.privileged)
        except Exception as error:  # noqa: BLE001 - of a robot's driver, which may raise anything
            print_error(error)
            return EpisodeDone(error_message(error), True, False, self._driver.privileged)
        finally:
            with suppress(Exception):  # what raised above may raise again; `main` has the last word
                self._robot.hold()

    def _drive(self, memory: EpisodeBuffer, order: StartEpisode) -> tuple[str, bool]:
        """Why it ended, and whether the task did."""
        self._driver.begin(memory, order.seed)
        self._tell(0)
        chunk = self._first_chunk(memory)
        if isinstance(chunk, StopEpisode):
            return chunk.reason, False
        clock = RateLimiter(self._body.fps)
        for step in range(order.steps + 1):
            self._driver.wake(*clock.wait())
            if step:
                done = self._driver.observe(step)
                self._tell(step)
                if done:
                    return self._config.stop_on, True
            if step == order.steps:
                break
            stop = self._stop()
            if stop is not None:
                return stop.reason, False
            chunk = memory.chunk_slot.take() or chunk
            self._driver.send(step, chunk)
        return "steps", False

    def _first_chunk(self, memory: EpisodeBuffer) -> ActionChunk | StopEpisode:
        until = time.monotonic() + self._config.startup_timeout_s
        while time.monotonic() < until:
            chunk = memory.chunk_slot.take()
            if chunk is not None:
                return chunk
            if (stop := self._stop()) is not None:
                return stop
            time.sleep(0.0005)
        raise RolloutError(f"no chunk came in {self._config.startup_timeout_s:g} s")

    def _stop(self) -> StopEpisode | None:
        if not self._said.poll(0):
            return None
        try:
            return receive(self._parent)
        except ParentGone:
            return StopEpisode("the process that started this one is gone")

    def _tell(self, row: int) -> None:
        """Inference, if it is there; if not, or if it is thousands of rows behind, the robot is driven all the same."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._ticks, row.to_bytes(TICK_BYTES, "little", signed=True))
