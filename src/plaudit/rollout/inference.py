"""The process that infers: it observes the newest row, and has the next chunk ready before the current one runs out.

This is the loop of real-time chunking (arXiv 2506.07339): wait until `execution_horizon` steps of the current chunk
have run, take the newest observation, infer with the steps in mind that will have run by then, publish. How many those
will be is measured: every command is recorded with the chunk it came from, so the delay of a chunk is the number of its
first command. The next one is expected to take as long as the slowest of the last few, or of the warm-up. Steps are
counted from the episode's first observation in both processes.

Torch is imported here, if the policy does, and nowhere else.
"""

import os
import select
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from plaudit.errors import RolloutError, format_count
from plaudit.policies.config import PolicyConfig
from plaudit.policies.guidance import FixedPolicy, PreviousChunk
from plaudit.processes import ParentGone, exit_with_parent, print_error, receive, receive_block, send, set_high_priority
from plaudit.protocols import Policy, RefiningPolicy
from plaudit.rollout.control import END_OF_EPISODE
from plaudit.rollout.engine import MAY_PASS, InferenceConfig, build_policy, error_message, validate_chunk
from plaudit.rollout.recording import DISCARDED, EXPIRED, USED, ActionChunk, EpisodeBuffer, SharedBlock, padded
from plaudit.rollout.run import EXECUTION_HORIZON, chunk_problem, executed_steps
from plaudit.types import ANY_TASK, HUMAN, EnvSpec, FloatArray, PolicyWeights

NUM_INFERENCES = 5  # that are timed, after one that is not


@dataclass(frozen=True)
class Warmup:
    """How long a policy's inferences take on a robot's observations, and whether its chunks fit.

    The first inferences of a network are slow, so the policy infers a few times from blank observations before the
    robot moves. The slowest inference is the first estimate of the delay. The fastest decides whether chunks fit: a
    machine that was busy for a moment is no reason to refuse.
    """

    fps: float  # control steps per second
    horizon: int  # actions of a chunk
    executed: int  # of these, before the next inference begins
    took: tuple[float, ...]  # s, of each inference; none where chunks do not fit however fast it is
    device: str  # of the policy's networks; "" where it has none
    samples: int = 1  # chunks among which it chooses

    @property
    def delay(self) -> int:
        """Control steps that the slowest inference took."""
        return self._steps(max(self.took, default=0.0))

    @property
    def fastest_delay(self) -> int:
        """Control steps that the fastest inference took."""
        return self._steps(min(self.took, default=0.0))

    def problem(self, stale_chunk_s: float | None = None) -> str:
        """Why chunks do not fit; "" where they do. stale_chunk_s: how old a command's observation may be"""
        fastest = min(self.took, default=0.0)
        latency, delay = f"{1e3 * fastest:.0f} ms at {self.fps:g} Hz" if self.took else "", self.fastest_delay
        among = f", for {self.samples} samples" if self.samples > 1 and latency else ""
        if problem := chunk_problem(self.horizon, self.executed, delay, latency + among):
            return problem + ("; or choose among fewer samples (num_samples)" if among else "")
        last = self.executed + delay - 1  # command of a chunk that is sent before the next is there
        if stale_chunk_s is None or last <= stale_chunk_s * self.fps:
            return ""
        return (
            f"{self.executed} steps of a chunk are executed ({EXECUTION_HORIZON}), the last of them "
            f"{last / self.fps:.1f} s after its observation, and commands are not sent after {stale_chunk_s:g} s "
            "(robot.safety.stale_chunk_s). Lower the first, or raise the second"
        )

    @property
    def summary(self) -> str:
        """For people: 12 ms (at most 15) on cpu, 1 step; 10 of 20 actions executed, so 10 steps fit"""
        fastest, slowest = 1e3 * min(self.took), 1e3 * max(self.took)
        where = f" on {self.device}" if self.device else ""
        steps = format_count(self.delay, "step")
        fits = min(self.executed, self.horizon - self.executed)
        return (
            f"{fastest:.0f} to {slowest:.0f} ms{where}, {steps}; {self.executed} of {self.horizon} actions executed, "
            f"{fits} steps fit"
        )

    def _steps(self, seconds: float) -> int:
        return max(1, ceil(seconds * self.fps))


def warm_up(policy: Policy, env_spec: EnvSpec, config: InferenceConfig) -> Warmup | None:
    """Infer a few times; None for a script or a recording, which may count how often it was asked."""
    if isinstance(policy, FixedPolicy) and policy.counts_calls:
        return None
    blank, normalizer = EpisodeBuffer.allocate(env_spec, 1).observation(0), config.load_normalizer(env_spec)
    blank = replace(blank, task=ANY_TASK)
    chunk = validate_chunk(policy.predict(blank, normalizer), env_spec.action_dim)
    executed, took = executed_steps(len(chunk), config.execution_horizon), list[float]()
    for _ in range(0 if chunk_problem(len(chunk), executed) else NUM_INFERENCES):
        began = time.monotonic()
        if config.guidance:
            policy.guided_inference(blank, normalizer, chunk, 1, executed)
        else:
            policy.predict(blank, normalizer)
        took.append(time.monotonic() - began)
    parameters = (parameter for component in policy.components.values() for parameter in component.parameters())
    device = next((str(parameter.device) for parameter in parameters), "")
    samples: int = getattr(policy, "num_samples", 1)  # that it chooses a chunk among
    return Warmup(env_spec.fps, len(chunk), executed, tuple(took), device, samples)


READY = "ready"
GRACE_S = 1.0  # after its parent that this process ends, in the middle of an inference if need be


@dataclass(frozen=True)
class StartInference:
    """To inference: an episode to infer for. Its block follows."""

    env_spec: EnvSpec
    max_steps: int
    task: str = ""  # the instruction


@dataclass(frozen=True)
class WeightsMessage:
    """To inference: new weights. Their block follows."""

    version: int
    layout: Mapping[str, tuple[tuple[int, ...], str]]  # tensor -> shape and dtype, in the block's order
    size: int  # bytes
    now: bool  # for the next chunk, not only for the next episode

    @classmethod
    def of(cls, weights: PolicyWeights, now: bool) -> tuple["WeightsMessage", SharedBlock]:
        """The message, and a block with a copy of the tensors."""
        tensors = {name: np.asarray(tensor) for name, tensor in weights.tensors.items()}
        size = sum(padded(tensor.nbytes) for tensor in tensors.values())
        block = SharedBlock.allocate(max(size, 1))
        for tensor in tensors.values():
            block.array(tensor.shape, tensor.dtype)[...] = tensor
        layout = {name: (tensor.shape, tensor.dtype.str) for name, tensor in tensors.items()}
        return cls(weights.version, layout, block.size, now), block

    def unpack(self, descriptor: int) -> PolicyWeights:
        """The weights, as views of the block, which they keep alive."""
        block = SharedBlock(descriptor, self.size)
        return PolicyWeights(self.version, {name: block.array(*place) for name, place in self.layout.items()})


@dataclass(frozen=True)
class WarmUp:
    """To inference: try the policy out on this robot's observations. The answer is a `Warmup`, or None."""

    env_spec: EnvSpec


@dataclass(frozen=True)
class InferenceFailed:
    """From inference: the policy raised."""

    reason: str
    may_pass: bool = False  # whether that may be over soon


def main(parent: Connection, ticks: int, policy_config: PolicyConfig, config: InferenceConfig) -> None:
    """The inference process. ticks: a pipe's end, from which the numbers of recorded rows are read"""
    exit_with_parent(parent, GRACE_S)
    os.set_inheritable(ticks, False)
    os.set_blocking(ticks, False)
    try:
        inference = InferenceProcess(build_policy(policy_config), config, parent, ticks)
        set_high_priority()
        send(parent, READY)
        inference.serve()
    except Exception as error:  # noqa: BLE001 - the parent reports it
        print_error(error)
        send(parent, InferenceFailed(error_message(error), isinstance(error, MAY_PASS)))


class InferenceProcess:
    """Infers chunks for as long as an episode lasts, episode after episode."""

    def __init__(self, policy: Policy, config: InferenceConfig, parent: Connection, ticks: int):
        self._policy, self._config = policy, config
        self._parent, self._ticks = parent, ticks
        self._incoming = select.poll()
        for descriptor in (parent.fileno(), ticks):
            self._incoming.register(descriptor, select.POLLIN)
        self._rows: list[int] = []  # that control has recorded since the last look
        self._delays: deque[int] = deque(maxlen=config.delay_window)
        self._pending_weights: PolicyWeights | None = None  # for the next episode
        self._version = 0  # of the weights; 0: as they were built
        self._next: tuple[StartInference, int] | None = None  # the next episode, and its block

    def serve(self) -> None:
        """Until the parent closes its socket."""
        while True:
            while self._next is None:
                self._handle(receive(self._parent))
            start, descriptor = self._next
            self._normalizer = self._config.load_normalizer(start.env_spec)
            self._next = None
            if self._pending_weights is not None:
                self._load(self._pending_weights)
            buffer = EpisodeBuffer.attach(descriptor, start.env_spec, start.max_steps)
            buffer.task = start.task
            self._run_episode(buffer)

    def _run_episode(self, buffer: EpisodeBuffer) -> None:
        chunk: ActionChunk | None = None
        idle_since = time.monotonic()
        row = self._newest_row()
        while row != END_OF_EPISODE:
            due = 0
            if row and buffer.control_mode[row - 1] == HUMAN:
                due = row  # so that the chunk is new when the human lets go
            elif chunk is not None:
                due = chunk.start_step + executed_steps(len(chunk.actions), self._config.execution_horizon)
            if row >= due:
                began, guided = time.monotonic(), self._continues(buffer, row, chunk)
                chunk = self._infer(buffer, row, chunk if guided else None)
                fate = self._fate(buffer, chunk)
                if fate == DISCARDED:
                    chunk = None  # so that the next one is inferred at once
                else:
                    buffer.chunk_slot.put(chunk)
                start_late = began - max(buffer.observed_at[due], idle_since)
                idle_since = time.monotonic()
                buffer.add_inference(row, start_late, idle_since - began, self._version, guided, fate)
            row = self._newest_row()

    def _fate(self, buffer: EpisodeBuffer, chunk: ActionChunk) -> int:
        """Whether a chunk that was just inferred is still used: no takeover, and the episode goes on."""
        row, now = chunk.start_step, buffer.num_commands
        was_driven = row > 0 and buffer.control_mode[row - 1] == HUMAN
        if not was_driven and (buffer.control_mode[row:now] == HUMAN).any():
            return DISCARDED
        return EXPIRED if now - row >= len(chunk.actions) and now else USED

    def _refined(self, policy: RefiningPolicy, candidates: Any, buffer: EpisodeBuffer, row: int) -> FloatArray:
        """The chunk that the policy makes of candidates from a row, by the newest observation."""
        newest = buffer.num_observations - 1
        return policy.refine(candidates, buffer.observation(newest), self._normalizer, newest - row)

    def _infer(self, buffer: EpisodeBuffer, row: int, previous: ActionChunk | None) -> ActionChunk:
        observation, policy = buffer.observation(row), self._policy
        began = time.monotonic()
        if previous is None:
            if isinstance(policy, RefiningPolicy):
                actions = self._refined(policy, policy.propose(observation, self._normalizer), buffer, row)
            else:
                actions = policy.predict(observation, self._normalizer)
            self._delays.append(ceil((time.monotonic() - began) * buffer.env_spec.fps))
        else:
            used = np.flatnonzero(buffer.source[previous.start_step : row] == previous.start_step)
            if len(used) and previous.start_step:  # control waited for the first chunk of the episode
                self._delays.append(int(used[0]))
            delay, executed = max(self._delays), row - previous.start_step
            if isinstance(policy, RefiningPolicy):
                continued = PreviousChunk(previous.actions, delay, executed)
                actions = self._refined(policy, policy.propose(observation, self._normalizer, continued), buffer, row)
            else:
                actions = policy.guided_inference(observation, self._normalizer, previous.actions, delay, executed)
        actions = validate_chunk(actions, buffer.env_spec.action_dim)
        if row == 0 and (problem := chunk_problem(len(actions), self._config.execution_horizon)):
            raise RolloutError(problem)  # control waits for the first chunk, so nothing has moved
        return ActionChunk(actions, row)

    def _continues(self, buffer: EpisodeBuffer, row: int, previous: ActionChunk | None) -> bool | None:
        """Whether the robot still follows the previous chunk, so that the next one can continue it.

        None where it is not to: for the first chunk, without guidance, during teleoperation.
        """
        if previous is None or not self._config.guidance or buffer.control_mode[row - 1] == HUMAN:
            return None
        return previous.start_step + len(previous.actions) > row

    def _newest_row(self) -> int:
        """Wait for the next row; returns the newest one, or END_OF_EPISODE. Messages are handled meanwhile."""
        while True:
            for descriptor, _ in self._incoming.poll(0 if self._rows else None):
                if descriptor == self._ticks:
                    data = os.read(self._ticks, 1 << 16)
                    if not data:
                        raise ParentGone  # control is gone, and the parent ends this process too
                    self._rows += np.frombuffer(data, "<i8").tolist()
                else:
                    self._handle(receive(self._parent))
            if self._rows:
                break
        if END_OF_EPISODE in self._rows:  # rows behind it belong to the next episode
            self._rows = self._rows[self._rows.index(END_OF_EPISODE) + 1 :]
            return END_OF_EPISODE
        newest, self._rows = self._rows[-1], []
        return newest

    def _handle(self, message: Any) -> None:
        if isinstance(message, WarmUp):
            warmup = warm_up(self._policy, message.env_spec, self._config)
            if warmup is not None:
                self._delays.append(warmup.delay)
            send(self._parent, warmup)
            return
        descriptor = receive_block(self._parent)
        if isinstance(message, StartInference):
            self._next = message, descriptor
            return
        weights = message.unpack(descriptor)
        if message.now:
            self._load(weights)
        else:
            self._pending_weights = weights

    def _load(self, weights: PolicyWeights) -> None:
        self._policy.load_weights(weights)
        self._version = weights.version
        self._pending_weights = None
