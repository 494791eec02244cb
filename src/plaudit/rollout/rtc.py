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
    Ctrl-C                     only the parent receives it and stops control; the robot holds, also on its way to
                               the start pose

Each time what was recorded is in memory that the parent has open, and becomes an episode with the reason it ended.
A process that a fault has ended (it was killed, the robot fell silent, the policy's server is away) is started again
by `recover`; the other goes on meanwhile. For that the parent keeps both ends of the pipe between the two open.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any

from plaudit.errors import RolloutError, RolloutFault
from plaudit.policies.config import FlowSettings, PolicyConfig
from plaudit.policies.loader import PolicySpec
from plaudit.processes import GRACE_S, ChildProcess
from plaudit.registry import INFERENCE_REGISTRY
from plaudit.robots.config import RobotConfig, SafetyConfig
from plaudit.rollout.control import EpisodeDone, Look, Ready, StartEpisode, StopEpisode
from plaudit.rollout.engine import NO_POLICY, EngineBase, InferenceConfig, Outcome
from plaudit.rollout.inference import InferenceFailed, StartInference, WarmUp, Warmup, WeightsMessage
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.rollout.teleop import SHARED_KEYS, TeleopConfig
from plaudit.trust import print_plain
from plaudit.types import PolicyWeights

POLL_S = 0.1  # between checks that both processes are alive, should no socket say so
STOP_S = 0.5  # that control may take to stop an episode; where it takes longer, the robot is not in an episode yet
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
        self._robot_config, self._config, self._teleop, self._policy = robot, config, teleop, policy
        self._closed = False
        self._control: ChildProcess | None = None
        self._inference: ChildProcess | None = None
        self._weights: PolicyWeights | None = None  # the newest that were pushed
        self._rows_out, self._rows_in = os.pipe()
        os.set_blocking(self._rows_out, False)
        try:
            self._start_control(again=False)
            if policy is not None:  # both start at once: a robot may take as long as a policy
                self._start_inference(policy)
            ready: Ready = self._await_ready(self._children)["control"]
            self.env_spec, self.priority = ready.env_spec, ready.priority
            if policy is not None:
                self._try_out(policy)
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes, by their names."""
        return {child.name: child.pid for child in self._children}

    def load_policy(self, policy: PolicyConfig) -> None:
        """Start the inference process, and wait until its policy is built and has shown that it is fast enough."""
        self._policy = policy
        self._await_ready([self._start_inference(policy)])
        self._try_out(policy)

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """New weights for the next episode, or with `now` for the next chunk."""
        if self._policy is None:
            raise RolloutError(NO_POLICY)
        self._weights, inference = weights, self._inference  # a fault may end it meanwhile, in another thread
        if inference is not None:
            message, block = WeightsMessage.of(weights, now)
            inference.send(message, block.descriptor)

    def look(self) -> None:
        """See `plaudit.protocols.InferenceEngine`. The control process goes on by itself until the next episode."""
        if self.preview is not None and self._control is not None and not self._is_looking:
            self._control.send(Look(), self.preview.block.descriptor)
            self._is_looking = True

    def recover(self) -> None:
        """Start the processes again that a fault has ended, and wait until they are ready."""
        started: list[ChildProcess] = []
        if self._control is None:
            started.append(self._start_control(again=True))
        if self._inference is None and self._policy is not None:
            started.append(self._start_inference(self._policy))
            if self._weights is not None:
                self.push(self._weights)
        self._await_ready(started)
        if self._inference is not None and self._inference in started:
            self._warm_up(self._inference)

    def close(self) -> None:
        """The robot holds, and both processes are gone; calling it twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end_control()
        self._end_inference()
        os.close(self._rows_out)
        os.close(self._rows_in)

    def _end_control(self) -> None:
        """The robot holds; where control was killed and did not tell it to, another process does."""
        control, self._control = self._control, None
        if control is None or control.end():
            return
        self._end_inference()  # it may wait for rows that will not be recorded
        hold = ChildProcess("hold", "plaudit.rollout.control:hold", self._robot_config)
        if not hold.end(HOLD_TIMEOUT_S, hang_up=False):
            print_plain("the robot could not be told to hold; see to it yourself")

    def _end_inference(self) -> None:
        inference, self._inference = self._inference, None
        if inference is not None:
            inference.end()

    @property
    def _children(self) -> list[ChildProcess]:
        return [child for child in (self._control, self._inference) if child is not None]

    def _start_control(self, again: bool) -> ChildProcess:
        """again: in place of one that a fault has ended"""
        inherited, keys = (self._rows_in, self.emergency_stop.descriptor), SHARED_KEYS.descriptor
        arguments = (*inherited, keys, self._robot_config, self._config, self._teleop, again)
        descriptors = inherited if keys is None else (*inherited, keys)
        self._is_looking = False
        self._control = ChildProcess("control", "plaudit.rollout.control:main", *arguments, descriptors=descriptors)
        return self._control

    def _start_inference(self, policy: PolicyConfig) -> ChildProcess:
        rows = self._rows_out
        with suppress(BlockingIOError):  # rows of an episode that another process inferred for
            os.read(rows, 1 << 16)
        self._inference = ChildProcess(
            "inference", "plaudit.rollout.inference:main", rows, policy, self._config, descriptors=(rows,)
        )
        return self._inference

    def _try_out(self, policy: PolicyConfig) -> None:
        """Before anything moves: does the policy fit the robot, and are its chunks there in time?"""
        if isinstance(policy, PolicySpec):
            policy.check_fits(self.env_spec)
        assert self._inference is not None
        warmup, robot = self._warm_up(self._inference), self._robot_config
        safety = robot.safety if isinstance(robot, RobotConfig) else SafetyConfig()
        if warmup is not None and (problem := warmup.problem(safety.stale_chunk_s)):
            raise RolloutError(problem)
        config = policy.config if isinstance(policy, PolicySpec) else policy
        if isinstance(config, FlowSettings) and config.guidance == "prefix" and warmup is not None:
            delay = warmup.fastest_delay
            if delay > config.max_prefix:
                raise RolloutError(
                    f"inference takes {delay} control steps, and this policy was trained to continue chunks over at "
                    f"most {config.max_prefix} (max_prefix); write policy.guidance=vjp, or train it with {delay}"
                )
        self.inference_summary = "" if warmup is None else warmup.summary

    def _warm_up(self, inference: ChildProcess) -> Warmup | None:
        inference.send(WarmUp(self.env_spec))
        return self._await_ready([inference])[inference.name]

    def _await_ready(self, started: Sequence[ChildProcess]) -> dict[str, Any]:
        """Wait until processes have built what they need; returns their answers by name."""
        deadline = time.monotonic() + self._config.startup_timeout_s
        answers: dict[str, Any] = {}
        while len(answers) < len(started):
            for child, message in self._receive():
                if isinstance(message, InferenceFailed):
                    self._end_inference()
                    raise _failure(message.reason, message.may_pass, "the policy could not be made: ")
                if isinstance(message, EpisodeDone):
                    self._end_control()
                    raise _failure(message.ended, message.may_pass, "the robot could not be made: ")
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
                    raise RolloutFault(child.exit_reason()) from None
            elif not child.alive:  # and a process of its own keeps the socket open
                raise RolloutFault(child.exit_reason())

    def _run_episode(self, task: str, seed: int | None) -> Outcome:
        if self._closed:
            raise RolloutError("this engine is closed; make a new one")
        if self._policy is None:
            raise RolloutError(NO_POLICY)
        control, inference = self._control, self._inference
        if control is None or inference is None:
            raise RolloutFault("a fault has ended a process of this engine; recover() comes first")
        buffer = self.recording = EpisodeBuffer.allocate(self.env_spec, self.env_spec.max_steps)
        self._is_looking = False
        inference.send(StartInference(self.env_spec, buffer.max_steps, task), buffer.block.descriptor)
        control.send(StartEpisode(buffer.max_steps, seed), buffer.block.descriptor)
        failure: BaseException | None = None
        try:
            done = self._await_done(control)
            failure = _failure(done.ended, done.may_pass) if done.failed else None
        except (RolloutError, KeyboardInterrupt) as error:
            failure = error
            done = self._stop(control, str(error) or "interrupted")
        if isinstance(failure, RolloutFault):
            self._end_control() if done.failed else self._end_inference()
        elif failure is not None:
            self.close()
        episode = self._recorded(
            buffer, done.privileged, task=task, seed=seed, ended=done.ended, terminated=done.terminated
        )
        return episode, failure

    def _await_done(self, control: ChildProcess) -> EpisodeDone:
        stop_sent = False
        while True:
            if not stop_sent and (reason := self._reason_to_end()):
                control.send(StopEpisode(reason))
                stop_sent = True
            for _, message in self._receive():
                if isinstance(message, EpisodeDone):
                    return message
                if isinstance(message, InferenceFailed):
                    raise _failure(message.reason, message.may_pass)

    def _stop(self, control: ChildProcess, reason: str) -> EpisodeDone:
        """Stop the episode; returns control's answer, if it is alive to give one.

        A robot on its way to the start pose reads no message. The emergency stop ends its motion too.
        """
        control.send(StopEpisode(reason))
        with suppress(EOFError, ConnectionResetError):
            if control.connection.poll(STOP_S):
                return control.connection.recv()
            self.emergency_stop.engage()
            answered = control.connection.poll(GRACE_S)
            self.emergency_stop.release("program")
            if answered:
                return replace(control.connection.recv(), ended=reason)
        return EpisodeDone(reason, failed=True)


def _failure(reason: str, may_pass: bool, event: str = "") -> RolloutError:
    """event: that it led to, if this cannot pass"""
    return RolloutFault(reason) if may_pass else RolloutError(f"{event}{reason}")
