"""One tick of a robot, whoever does the inferring: observe, choose the command, limit it, send it, record it."""

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from plaudit.errors import RolloutError
from plaudit.protocols import Robot, ToldCommand
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.memory import NO_ACTION, TELEOP, ActionChunk, EpisodeBuffer
from plaudit.rollout.teleop import Teleoperator
from plaudit.types import HUMAN, POLICY, AnyArray, FloatArray, Observation

Answer = TypeVar("Answer")


class ControlStep:
    """
    driver.begin(memory, seed)
    for step in range(steps):
        driver.wake(*clock.wait())
        if step and driver.observe(step):       # the result of the command before
            break
        driver.send(step, chunk)

    The first command of an episode may be anything, and the policy answers for it. From there on none is further from
    the one before it than `max_action_delta`, whoever wants it to be: neither a person who lets go nor a chunk that
    comes too late makes the robot jump.
    """

    def __init__(self, robot: Robot, teleop: Teleoperator | None, config: InferenceConfig):
        self._robot, self._teleop, self._config = robot, teleop, config
        self._teller = robot if isinstance(robot, ToldCommand) else None
        self._zero = np.zeros(robot.action_dim, np.float32)
        self._limit = _limit(config.max_action_delta, robot.action_dim)

    def begin(self, memory: EpisodeBuffer, seed: int | None) -> None:
        self.privileged: dict[str, list[AnyArray]] = {}  # name -> one value a step
        self._memory = memory
        self._last: FloatArray | None = None
        self._see(0, self._robot.reset(seed))

    def wake(self, late: float, missed: int) -> None:
        """A tick begins."""
        self._woken, self._elsewhere = time.perf_counter(), 0.0
        self._late, self._missed = late, missed

    def elsewhere(self, call: Callable[[], Answer]) -> Answer:
        """Somebody else's code, whose time is not ours."""
        begun = time.perf_counter()
        answer = call()
        self._elsewhere += time.perf_counter() - begun
        return answer

    def observe(self, row: int) -> bool:
        """Record what the last command led to; returns whether that ends the episode."""
        observation = self.elsewhere(self._robot.observe)
        known = self.elsewhere(self._robot.privileged)
        self._see(row, observation)
        for name, value in known.items():
            self.privileged.setdefault(name, []).append(value)
        until = self._config.stop_on
        if until and until not in known:
            raise RolloutError(f"this robot knows no '{until}'; it knows: {', '.join(known) or 'nothing'}")
        return bool(until) and bool(known[until])

    def send(self, step: int, chunk: ActionChunk) -> None:
        """A person's command, or else the chunk's, or else what is sent when there is none."""
        wanted = chunk.at(step)
        by_hand = None if self._teleop is None else self.elsewhere(self._teleop.command)
        if by_hand is not None:
            command, mode, source = self._persons(by_hand, wanted), HUMAN, TELEOP
        elif wanted is not None:
            command, mode, source = wanted, POLICY, chunk.row
        else:
            command, mode, source = self._nothing(), POLICY, NO_ACTION
        command = self._limited(command)
        self.elsewhere(lambda: self._robot.act(command))
        if self._teller is not None and self._teller.command is not None:
            command = self._teller.command
        self._last = command
        self._memory.send(step, command, mode, source, self._late, self._missed)
        self._memory.spent[step] = time.perf_counter() - self._woken - self._elsewhere

    def _see(self, row: int, observation: Observation) -> None:
        if not np.isfinite(observation.state).all():
            raise RolloutError(f"the robot's state holds NaN or infinity after {row} commands")
        self._memory.see(row, observation, time.monotonic())

    def _persons(self, command: FloatArray, wanted: FloatArray | None) -> FloatArray:
        if command.shape != self._zero.shape or not np.isfinite(command).all():
            raise RolloutError(f"a person's command must be {len(self._zero)} finite numbers, got {command}")
        assert self._teleop is not None
        if not self._teleop.relative:
            return command
        start = wanted if self._last is None else self._last
        assert start is not None, "an episode begins with a chunk"
        return start + command

    def _nothing(self) -> FloatArray:
        assert self._last is not None, "an episode begins with a chunk"
        return self._zero if self._config.idle_action == "zero" else self._last

    def _limited(self, command: FloatArray) -> FloatArray:
        """A new array: the robot may keep it."""
        if self._limit is None or self._last is None:
            return command.astype(np.float32)
        return (self._last + np.clip(command - self._last, -self._limit, self._limit)).astype(np.float32)


def _limit(max_action_delta: float | tuple[float, ...] | None, action_dim: int) -> FloatArray | None:
    if max_action_delta is None:
        return None
    limit = np.asarray(max_action_delta, np.float32)
    if limit.shape not in ((), (action_dim,)) or not (limit > 0).all():
        raise RolloutError(f"max_action_delta must be one positive number, or one for each of {action_dim} joints")
    return limit
