"""Real-time chunking in two processes: one controls at a fixed rate, one infers, and this one supervises both.

    parent --StartEpisode, block--> control --rows--> inference --chunks--> control
       ^                               |                  |
       +-------- EpisodeDone ----------+- InferenceFailed-+     the end of any process is noticed by the others

What may end, and what happens then:

    inference, however         control continues: the rest of the chunk, then the idle action; the parent notices,
                               stops control, and the robot holds
    control, by an exception   it tells the robot to hold, then the parent
    control, killed            the parent starts a third process that connects to the robot again and tells it to hold
    the parent, however        control sees its socket close, tells the robot to hold and ends; inference ends too
    Ctrl-C                     only the parent receives it and stops control; the robot holds

Each time what was recorded is in memory that the parent has open, and becomes an episode with the reason it ended.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from plaudit.errors import RolloutError
from plaudit.policies.config import PolicyConfig
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.robots.config import RobotConfig
from plaudit.rollout.control import EpisodeDone, Ready, StartEpisode, StopEpisode
from plaudit.rollout.engine import EngineBase, InferenceConfig, Outcome
from plaudit.rollout.inference import InferenceFailed, StartInference, WeightsMessage
from plaudit.rollout.memory import EpisodeBuffer
from plaudit.rollout.processes import GRACE_S, ChildProcess
from plaudit.rollout.teleop import TeleopConfig
from plaudit.types import PolicyWeights

POLL_S = 0.1  # between checks that both processes are alive, should no socket say so
HOLD_TIMEOUT_S = 30.0  # for connecting to the robot again and telling it to hold


@INFERENCE_REGISTRY.register("rtc")
class Rtc(EngineBase):
    """An `InferenceEngine` of two processes, which end with `close`."""

    def __init__(
        self,
        robot: RobotConfig,
        policy: PolicyConfig | None,
        config: InferenceConfig = InferenceConfig(),  # noqa: B008 - frozen
        teleop: TeleopConfig | None = None,
    ):
        super().__init__()
        self._robot_config, self._config = robot, config
        self._closed = False
        self._inference: ChildProcess | None = None
        self._rows_out, rows_in = os.pipe()
        try:
            self._control = ChildProcess(
                "control", "plaudit.rollout.control:main", rows_in, robot, config, teleop, descriptors=(rows_in,)
            )
        except BaseException:
            os.close(self._rows_out)
            raise
        finally:
            os.close(rows_in)
        try:
            if policy is not None:  # both start at once: a robot may take as long as a policy
                self._start_inference(policy)
            ready: Ready = self._await_ready(self._children)[self._control.name]
        except BaseException:
            self.close()
            raise
        self.env_spec, self.priority = ready.env_spec, ready.priority

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes, by their names."""
        return {child.name: child.pid for child in self._children}

    def load_policy(self, policy: PolicyConfig) -> None:
        """Start the inference process and wait until its policy is built."""
        self._start_inference(policy)
        self._await_ready([self._inference_process])

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """New weights for the next episode, or with `now` for the next chunk."""
        message, block = WeightsMessage.of(weights, now)
        self._inference_process.send(message, block.descriptor)

    def close(self) -> None:
        """The robot holds, and both processes are gone; calling it twice does nothing."""
        if self._closed:
            return
        self._closed = True
        in_order = self._control.end()
        if self._inference is None:
            os.close(self._rows_out)
        else:
            self._inference.end()
        if not in_order:  # it was killed, and did not tell the robot
            hold = ChildProcess("hold", "plaudit.rollout.control:hold", self._robot_config)
            if not hold.end(HOLD_TIMEOUT_S, hang_up=False):
                print("the robot could not be told to hold; see to it yourself", file=sys.stderr)

    @property
    def _children(self) -> list[ChildProcess]:
        return [self._control] if self._inference is None else [self._control, self._inference]

    @property
    def _inference_process(self) -> ChildProcess:
        if self._inference is None:
            raise RolloutError("this engine has no policy yet; load_policy() comes first")
        return self._inference

    def _start_inference(self, policy: PolicyConfig) -> None:
        rows = self._rows_out
        self._inference = ChildProcess(
            "inference", "plaudit.rollout.inference:main", rows, policy, self._config, descriptors=(rows,)
        )
        os.close(rows)

    def _await_ready(self, started: Sequence[ChildProcess]) -> dict[str, Any]:
        """Wait until processes have built what they need; returns their answers by name."""
        deadline = time.monotonic() + self._config.startup_timeout_s
        answers: dict[str, Any] = {}
        while len(answers) < len(started):
            for child, message in self._receive():
                if isinstance(message, InferenceFailed):
                    raise RolloutError(f"the policy could not be made: {message.reason}")
                if isinstance(message, EpisodeDone):
                    raise RolloutError(f"the robot could not be made: {message.ended}")
                answers[child.name] = message
            if time.monotonic() > deadline:
                raise RolloutError(f"robot and policy were not ready after {self._config.startup_timeout_s:g} s")
        return answers

    def _receive(self) -> Iterator[tuple[ChildProcess, Any]]:
        """The messages that have come in, after a short wait; raises when a process has ended without one."""
        children = self._children
        ready = wait([child.connection for child in children], POLL_S)
        for child in children:
            if child.connection in ready:
                try:
                    yield child, child.connection.recv()
                except (EOFError, ConnectionResetError):
                    raise RolloutError(child.exit_reason()) from None
            elif not child.alive:  # and a process of its own keeps the socket open
                raise RolloutError(child.exit_reason())

    def _run_episode(self, task: str, seed: int | None) -> Outcome:
        if self._closed:
            raise RolloutError("this engine is closed; make a new one")
        inference = self._inference_process
        buffer = EpisodeBuffer.allocate(self.env_spec, self._config.max_episode_steps)
        inference.send(StartInference(self.env_spec, buffer.max_steps), buffer.block.descriptor)
        self._control.send(StartEpisode(buffer.max_steps, seed), buffer.block.descriptor)
        failure: BaseException | None = None
        try:
            done = self._await_done()
            failure = RolloutError(done.ended) if done.failed else None
        except (RolloutError, KeyboardInterrupt) as error:
            failure = error
            done = self._stop_control(str(error) or "interrupted")
        if failure is not None:
            self.close()
        episode = self._recorded(
            buffer, done.privileged, task=task, seed=seed, ended=done.ended, terminated=done.terminated
        )
        return episode, failure

    def _await_done(self) -> EpisodeDone:
        stop_sent = False
        while True:
            if self._stopping.is_set() and not stop_sent:
                self._control.send(StopEpisode("stopped"))
                stop_sent = True
            for _, message in self._receive():
                if isinstance(message, EpisodeDone):
                    return message
                if isinstance(message, InferenceFailed):
                    raise RolloutError(message.reason)

    def _stop_control(self, reason: str) -> EpisodeDone:
        """Stop the episode; returns control's answer, if it is alive to give one."""
        self._control.send(StopEpisode(reason))
        if self._control.connection.poll(GRACE_S):
            with suppress(EOFError, ConnectionResetError):
                return self._control.connection.recv()
        return EpisodeDone(reason, failed=True)
