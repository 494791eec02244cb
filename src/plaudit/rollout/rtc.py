"""Real-time chunking in two processes: one controls at a fixed rate, one infers, and this one looks after both.

    parent --order, block--> control --rows--> inference --chunks--> control
       ^                        |                  |
       +------ episode over ----+---- failed ------+        any end of any process is noticed by the others

What ends, and what happens then:

    inference, however         control goes on: the rest of the chunk, then the last command again; the parent hears
                               of it and stops it, and the robot holds
    control, by an exception   it tells the robot to hold, then the parent
    control, killed            the parent has a third process build the robot once more, only to hold it
    the parent, however        control sees its socket close, holds the robot and ends; inference ends too
    Ctrl-C                     the parent alone hears it and stops control; the robot holds

Each time what was recorded is in memory that the parent has open, and comes out as an episode that says how it ended.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Self

import numpy as np

from plaudit.errors import RolloutError
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.rollout.control import EpisodeDone, Ready, StartEpisode, StopEpisode
from plaudit.rollout.engine import InferenceConfig, PolicyConfig, RobotConfig
from plaudit.rollout.inference import InferenceFailed, StartInference, WeightsMessage
from plaudit.rollout.memory import EpisodeBuffer
from plaudit.rollout.processes import GRACE, ChildProcess
from plaudit.rollout.teleop import TeleopConfig
from plaudit.rollout.timing import KEPT, LatencyStats
from plaudit.types import Episode, PolicyWeights

LOOK = 0.1  # s between looks at whether everyone is alive, should no socket say so
HOLD = 30.0  # s that a robot may take to be built once more and held


@INFERENCE_REGISTRY.register("rtc")
class Rtc:
    """An `InferenceEngine`. Both processes start here and end with `close`."""

    def __init__(
        self,
        robot: RobotConfig,
        policy: PolicyConfig,
        config: InferenceConfig = InferenceConfig(),  # noqa: B008 - frozen
        teleop: TeleopConfig | None = None,
    ):
        self._robot_config, self._config = robot, config
        self._parts: deque[LatencyStats] = deque(maxlen=KEPT)
        self._stopping = threading.Event()
        self._closed = False
        rows_out, rows_in = os.pipe()
        try:
            self._control = ChildProcess(
                "control", "plaudit.rollout.control:main", rows_in, robot, config, teleop, descriptors=(rows_in,)
            )
            self._inference = ChildProcess(
                "inference", "plaudit.rollout.inference:main", rows_out, policy, config, descriptors=(rows_out,)
            )
        finally:
            os.close(rows_out)
            os.close(rows_in)
        try:
            ready = self._await_ready()
        except BaseException:
            self.close()
            raise
        self.env_spec, self.priority = ready.env_spec, ready.priority

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        return {child.name: child.pid for child in (self._control, self._inference)}

    @property
    def timing(self) -> LatencyStats:
        return LatencyStats.joined(self._parts)

    def episodes(self, count: int, *, task: str = "", seed: int | None = None) -> Iterator[Episode]:
        for number in range(count):
            if self._closed:
                raise RolloutError("this executor is closed; make a new one")
            episode, trouble = self._episode(task, None if seed is None else seed + number)
            if trouble is not None:
                self.close()
            if episode is not None:
                yield episode
            if trouble is not None:
                raise trouble
            if self._stopping.is_set():
                return

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        parcel, block = WeightsMessage.of(weights, now)
        self._inference.send(parcel, block.descriptor)

    def stop(self) -> None:
        self._stopping.set()

    def close(self) -> None:
        """The robot holds, and both processes are gone; asked twice, does nothing."""
        if self._closed:
            return
        self._closed = True
        in_order = self._control.end()
        self._inference.end()
        if not in_order:  # killed, by whomever: nobody told the robot
            helper = ChildProcess("hold", "plaudit.rollout.control:hold", self._robot_config)
            if not helper.end(HOLD, hang_up=False):
                print("the robot could not be told to hold; see to it yourself", file=sys.stderr)

    def _await_ready(self) -> Ready:
        """Both at once: a robot may take as long as a policy."""
        until = time.monotonic() + self._config.startup_timeout_s
        answers: dict[str, Any] = {}
        while len(answers) < 2:
            for child, message in self._messages():
                if isinstance(message, InferenceFailed):
                    raise RolloutError(f"the policy could not be made: {message.sentence}")
                if isinstance(message, EpisodeDone):
                    raise RolloutError(f"the robot could not be made: {message.ended}")
                answers[child.name] = message
            if time.monotonic() > until:
                raise RolloutError(f"robot and policy were not ready after {self._config.startup_timeout_s:g} s")
        return answers["control"]

    def _messages(self) -> Iterator[tuple[ChildProcess, Any]]:
        """What has come in, after a short wait; raises when a child is gone without a word."""
        children = (self._control, self._inference)
        ready = wait([child.connection for child in children], LOOK)
        for child in children:
            if child.connection in ready:
                try:
                    yield child, child.connection.recv()
                except (EOFError, ConnectionResetError):
                    raise RolloutError(child.exit_reason()) from None
            elif not child.alive:  # with a process of its own that keeps the socket open
                raise RolloutError(child.exit_reason())

    def _episode(self, task: str, seed: int | None) -> tuple[Episode | None, BaseException | None]:
        """What was recorded, and what went wrong."""
        memory = EpisodeBuffer.allocate(self.env_spec, self._config.max_episode_steps)
        self._inference.send(StartInference(self.env_spec, memory.steps), memory.block.descriptor)
        self._control.send(StartEpisode(memory.steps, seed), memory.block.descriptor)
        trouble: BaseException | None = None
        try:
            over = self._await_over()
            trouble = RolloutError(over.ended) if over.failed else None
        except (RolloutError, KeyboardInterrupt) as error:
            trouble = error
            over = self._stopped(str(error) or "interrupted")
        self._parts.append(LatencyStats.of(memory))
        privileged = {name: np.stack(values) for name, values in over.privileged.items()}
        meta = {**({} if seed is None else {"seed": seed}), "ended": over.ended, **memory.weights_facts()}
        return memory.episode(privileged, task=task, terminated=over.terminated, meta=meta), trouble

    def _await_over(self) -> EpisodeDone:
        told = False
        while True:
            if self._stopping.is_set() and not told:
                self._control.send(StopEpisode("stopped"))
                told = True
            for _, message in self._messages():
                if isinstance(message, EpisodeDone):
                    return message
                if isinstance(message, InferenceFailed):
                    raise RolloutError(message.sentence)

    def _stopped(self, reason: str) -> EpisodeDone:
        """Control's last word, if it is there to have one."""
        self._control.send(StopEpisode(reason))
        if self._control.connection.poll(GRACE):
            with suppress(EOFError, ConnectionResetError):
                return self._control.connection.recv()
        return EpisodeDone(reason, failed=True)
