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
from plaudit.rollout.clock import Clock, be_punctual, no_garbage_collection
from plaudit.rollout.driver import Driver
from plaudit.rollout.engine import InferenceConfig, RobotConfig, described, opened
from plaudit.rollout.memory import Body, Chunk, EpisodeMemory
from plaudit.rollout.processes import GRACE, Gone, exit_with_parent, heard, received_block, report, tell
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import AnyArray

OVER = -1  # on the pipe of ticks: no more rows in this episode
TICK_BYTES = 8


@dataclass(frozen=True)
class Order:
    """One episode, please. The block comes behind it."""

    steps: int
    seed: int | None


@dataclass(frozen=True)
class Stop:
    """No further; why, in words."""

    reason: str


@dataclass(frozen=True)
class Ready:
    """The robot is there."""

    body: Body
    priority: str  # what the machine granted, in words


@dataclass(frozen=True, eq=False)
class Over:
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
            robot = opened(robot_config.build(), stack)
            stack.callback(robot.hold)
            person = None if teleop is None else teleop.build(robot.action_dim)
            if person is not None:
                stack.callback(person.close)
            body = Body.of(robot, config.name, config.control_hz)
            control = Control(robot, Driver(robot, person, config), body, config, parent, ticks)
            tell(parent, Ready(body, be_punctual(config.control_cpu)))
            control.serve()
    except Exception as error:  # noqa: BLE001 - the parent says it
        report(error)
        tell(parent, Over(described(error), failed=True))


def hold(_: Connection, robot_config: RobotConfig) -> None:
    """A process for when the other was killed: a robot of the same config is told to stay where it is."""
    with ExitStack() as stack:
        robot = opened(robot_config.build(), stack)
        with suppress(Exception):
            robot.observe()  # one that has just been made does not know yet where it is
        robot.hold()


class Control:
    """Episodes, one after the other, as they are ordered."""

    def __init__(
        self, robot: Robot, driver: Driver, body: Body, config: InferenceConfig, parent: Connection, ticks: int
    ):
        self._robot, self._driver, self._body, self._config = robot, driver, body, config
        self._parent, self._ticks = parent, ticks
        self._said = select.poll()  # the parent's socket; asked at every tick, and this is the cheapest way to
        self._said.register(parent.fileno(), select.POLLIN)

    def serve(self) -> None:
        while True:
            order = heard(self._parent)
            if isinstance(order, Stop):
                continue  # of an episode that ended by itself meanwhile
            memory = EpisodeMemory.attach(received_block(self._parent), self._body, order.steps)
            with no_garbage_collection():
                over = self._episode(memory, order)
            self._tell(OVER)
            tell(self._parent, over)
            if over.failed:
                return

    def _episode(self, memory: EpisodeMemory, order: Order) -> Over:
        try:
            ended, terminated = self._drive(memory, order)
            return Over(ended, False, terminated, self._driver.privileged)
        except Exception as error:  # noqa: BLE001 - of a robot's driver, which may raise anything
            report(error)
            return Over(described(error), True, False, self._driver.privileged)
        finally:
            with suppress(Exception):  # what raised above may raise again; `main` has the last word
                self._robot.hold()

    def _drive(self, memory: EpisodeMemory, order: Order) -> tuple[str, bool]:
        """Why it ended, and whether the task did."""
        self._driver.begin(memory, order.seed)
        self._tell(0)
        chunk = self._first_chunk(memory)
        if isinstance(chunk, Stop):
            return chunk.reason, False
        clock = Clock(self._body.fps)
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
            chunk = memory.mailbox.take() or chunk
            self._driver.send(step, chunk)
        return "steps", False

    def _first_chunk(self, memory: EpisodeMemory) -> Chunk | Stop:
        until = time.monotonic() + self._config.startup_timeout_s
        while time.monotonic() < until:
            chunk = memory.mailbox.take()
            if chunk is not None:
                return chunk
            if (stop := self._stop()) is not None:
                return stop
            time.sleep(0.0005)
        raise RolloutError(f"no chunk came in {self._config.startup_timeout_s:g} s")

    def _stop(self) -> Stop | None:
        if not self._said.poll(0):
            return None
        try:
            return heard(self._parent)
        except Gone:
            return Stop("the process that started this one is gone")

    def _tell(self, row: int) -> None:
        """Inference, if it is there; if not, or if it is thousands of rows behind, the robot is driven all the same."""
        with suppress(BrokenPipeError, BlockingIOError):
            os.write(self._ticks, row.to_bytes(TICK_BYTES, "little", signed=True))
