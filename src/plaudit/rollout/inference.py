"""The process that infers: it observes the newest row, and has the next chunk ready before the current one runs out.

This is the loop of real-time chunking (arXiv 2506.07339): wait until `execution_horizon` steps of the current chunk
have run, take the newest observation, infer with the steps in mind that will have run by then, publish. How many those
will be is measured: every command is recorded with the chunk it came from, so the delay of a chunk is the number of its
first command. The next one is expected to take as long as the slowest of the last few, or of the warm-up.

Steps are counted from the episode's first observation in both processes, so nothing has to be renumbered under the lock
when a chunk replaces another.

Torch is imported here, if the policy does, and nowhere else; this module has none of it.
"""

import os
import select
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from plaudit.errors import RolloutError
from plaudit.policies.config import PolicyConfig
from plaudit.processes import ParentGone, exit_with_parent, print_error, receive, receive_block, send
from plaudit.protocols import Policy
from plaudit.rollout.chunks import chunk_problem, executed_steps
from plaudit.rollout.clock import set_high_priority
from plaudit.rollout.control import END_OF_EPISODE
from plaudit.rollout.engine import MAY_PASS, InferenceConfig, build_policy, error_message, validate_chunk
from plaudit.rollout.memory import ActionChunk, EpisodeBuffer, SharedBlock, padded
from plaudit.rollout.warmup import warm_up
from plaudit.types import HUMAN, EnvSpec, PolicyWeights

READY = "ready"
GRACE_S = 1.0  # after its parent that this process ends, in the middle of an inference if need be


@dataclass(frozen=True)
class StartInference:
    """To inference: an episode to infer for. Its block follows."""

    env_spec: EnvSpec
    max_steps: int


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
    """The inference process.

    ticks: a pipe's end, from which the numbers of recorded rows are read
    """
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
            self._run_episode(EpisodeBuffer.attach(descriptor, start.env_spec, start.max_steps))

    def _run_episode(self, buffer: EpisodeBuffer) -> None:
        chunk: ActionChunk | None = None
        idle_since = time.monotonic()
        row = self._newest_row()
        while row != END_OF_EPISODE:
            due = 0
            if chunk is not None:
                due = chunk.start_step + executed_steps(len(chunk.actions), self._config.execution_horizon)
            if row >= due:
                began, guided = time.monotonic(), self._continues(buffer, row, chunk)
                chunk = self._infer(buffer, row, chunk if guided else None)
                buffer.chunk_slot.put(chunk)
                start_late = began - max(buffer.observed_at[due], idle_since)
                idle_since = time.monotonic()
                buffer.add_inference(row, start_late, idle_since - began, self._version, guided)
            row = self._newest_row()

    def _infer(self, buffer: EpisodeBuffer, row: int, previous: ActionChunk | None) -> ActionChunk:
        observation = buffer.observation(row)
        began = time.monotonic()
        if previous is None:
            actions = self._policy.predict(observation, self._normalizer)
            self._delays.append(ceil((time.monotonic() - began) * buffer.env_spec.fps))
        else:
            self._measure_delay(buffer, row, previous)
            actions = self._policy.guided_inference(
                observation, self._normalizer, previous.actions, max(self._delays), row - previous.start_step
            )
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

    def _measure_delay(self, buffer: EpisodeBuffer, row: int, previous: ActionChunk) -> None:
        used = np.flatnonzero(buffer.source[previous.start_step : row] == previous.start_step)
        if len(used) and previous.start_step:  # control waited for the first chunk of the episode
            self._delays.append(int(used[0]))

    def _newest_row(self) -> int:
        """Wait for the next row; returns the newest one, or END_OF_EPISODE. Messages are handled meanwhile."""
        while True:
            for descriptor, _ in self._incoming.poll(0 if self._rows else None):
                if descriptor == self._ticks:
                    self._read_rows()
                else:
                    self._handle(receive(self._parent))
            if self._rows:
                break
        if END_OF_EPISODE in self._rows:  # rows behind it belong to the next episode
            self._rows = self._rows[self._rows.index(END_OF_EPISODE) + 1 :]
            return END_OF_EPISODE
        newest, self._rows = self._rows[-1], []
        return newest

    def _read_rows(self) -> None:
        data = os.read(self._ticks, 1 << 16)
        if not data:
            raise ParentGone  # control is gone, and the parent ends this process too
        self._rows += np.frombuffer(data, "<i8").tolist()

    def _handle(self, message: Any) -> None:
        if isinstance(message, WarmUp):
            self._warm_up(message.env_spec)
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

    def _warm_up(self, env_spec: EnvSpec) -> None:
        warmup = warm_up(self._policy, env_spec, self._config)
        if warmup is not None:
            self._delays.append(warmup.delay)
        send(self._parent, warmup)

    def _load(self, weights: PolicyWeights) -> None:
        self._policy.load_weights(weights)
        self._version = weights.version
        self._pending_weights = None
