"""The process that infers: looks at the newest observation, and has the next chunk ready before the last one runs out.

This is the loop of real-time chunking (arXiv 2506.07339): wait until `execute` steps of the chunk at hand have been
asked for, take the newest observation, infer with the steps in mind that will have run by then, publish. How many those
will be is measured: every command is recorded with the chunk it came from, so the delay of a chunk is the number of its
first command. The next one is expected to take as long as the slowest of the last few.

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
from plaudit.protocols import Policy
from plaudit.rollout.clock import set_high_priority
from plaudit.rollout.control import END_OF_EPISODE
from plaudit.rollout.engine import InferenceConfig, PolicyConfig, error_message, validate_chunk
from plaudit.rollout.memory import ActionChunk, EpisodeBuffer, SharedBlock, padded
from plaudit.rollout.processes import ParentGone, exit_with_parent, print_error, receive, receive_block, send
from plaudit.types import HUMAN, EnvSpec, PolicyWeights

READY = "ready"
GONE = 1.0  # s after its parent that this process ends, in the middle of an inference if need be


@dataclass(frozen=True)
class StartInference:
    """One episode to infer for. The block comes behind it."""

    env_spec: EnvSpec
    steps: int


@dataclass(frozen=True)
class WeightsMessage:
    """New weights. The block comes behind it."""

    version: int
    places: Mapping[str, tuple[tuple[int, ...], str]]  # tensor -> shape and type, in the block's order
    size: int  # bytes
    now: bool

    @classmethod
    def of(cls, weights: PolicyWeights, now: bool) -> tuple["WeightsMessage", SharedBlock]:
        tensors = {name: np.asarray(tensor) for name, tensor in weights.tensors.items()}
        size = sum(padded(tensor.nbytes) for tensor in tensors.values())
        block = SharedBlock.allocate(max(size, 1))
        for tensor in tensors.values():
            block.array(tensor.shape, tensor.dtype)[...] = tensor
        places = {name: (tensor.shape, tensor.dtype.str) for name, tensor in tensors.items()}
        return cls(weights.version, places, block.size, now), block

    def unpack(self, descriptor: int) -> PolicyWeights:
        """As views of the block, which they keep alive."""
        block = SharedBlock(descriptor, self.size)
        return PolicyWeights(self.version, {name: block.array(*place) for name, place in self.places.items()})


@dataclass(frozen=True)
class InferenceFailed:
    """The policy, or what leads to it; a sentence."""

    sentence: str


def main(parent: Connection, ticks: int, policy_config: PolicyConfig, config: InferenceConfig) -> None:
    """The process.

    ticks: a pipe's end; the numbers of rows come out of it
    """
    exit_with_parent(parent, GONE)
    os.set_inheritable(ticks, False)
    os.set_blocking(ticks, False)
    try:
        policy = policy_config.build()
        policy.freeze_all_model_params()
        policy.warmup()
        inference = InferenceProcess(policy, config, parent, ticks)
        set_high_priority()
        send(parent, READY)
        inference.serve()
    except Exception as error:  # noqa: BLE001 - the parent says it
        print_error(error)
        send(parent, InferenceFailed(error_message(error)))


class InferenceProcess:
    """Chunks, for as long as an episode lasts."""

    def __init__(self, policy: Policy, config: InferenceConfig, parent: Connection, ticks: int):
        self._policy, self._config = policy, config
        self._parent, self._ticks = parent, ticks
        self._news = select.poll()
        for descriptor in (parent.fileno(), ticks):
            self._news.register(descriptor, select.POLLIN)
        self._told: list[int] = []  # rows, not looked at yet
        self._delays: deque[int] = deque(maxlen=config.delay_window)
        self._waiting: PolicyWeights | None = None  # for the next episode
        self._version = 0  # of the weights; 0: as they were built
        self._watch: tuple[StartInference, int] | None = None  # the next episode, and its block

    def serve(self) -> None:
        while True:
            while self._watch is None:
                self._take(receive(self._parent))
            watch, descriptor = self._watch
            self._normalizer = self._config.load_normalizer(watch.env_spec)
            self._watch = None
            if self._waiting is not None:
                self._load(self._waiting)
            self._episode(EpisodeBuffer.attach(descriptor, watch.env_spec, watch.steps))

    def _episode(self, memory: EpisodeBuffer) -> None:
        chunk: ActionChunk | None = None
        ready = time.monotonic()  # since when nothing else is to be done
        row = self._newest()
        while row != END_OF_EPISODE:
            due = 0 if chunk is None else chunk.row + self._least(len(chunk.actions))
            if row >= due:
                begun = time.monotonic()
                chunk = self._infer(memory, row, chunk)
                memory.chunk_slot.put(chunk)
                late = begun - max(memory.seen_at[due], ready)
                ready = time.monotonic()
                memory.infer(row, late, ready - begun, self._version)
            row = self._newest()

    def _infer(self, memory: EpisodeBuffer, row: int, before: ActionChunk | None) -> ActionChunk:
        observation = memory.observation(row)
        begun = time.monotonic()
        if before is None or not self._goes_on(memory, row, before):
            actions = self._policy.predict(observation, self._normalizer)
            if not self._delays:  # a guess, until one is measured
                self._delays.append(ceil((time.monotonic() - begun) * memory.env_spec.fps))
        else:
            self._measure(memory, row, before)
            actions = self._policy.guided_inference(
                observation, self._normalizer, before.actions, max(self._delays), row - before.row
            )
        actions = validate_chunk(actions, memory.env_spec.action_dim)
        if len(actions) == 1:
            raise RolloutError("a chunk of one action is over before the next is there; use sequential for this policy")
        return ActionChunk(actions, row)

    def _goes_on(self, memory: EpisodeBuffer, row: int, before: ActionChunk) -> bool:
        """Whether what the robot does next is still what the chunk before says: not when it ran out, not when a person
        drives."""
        left = before.row + len(before.actions) - row
        return self._config.guidance and left > 0 and memory.control_mode[row - 1] != HUMAN

    def _measure(self, memory: EpisodeBuffer, row: int, before: ActionChunk) -> None:
        used = np.flatnonzero(memory.source[before.row : row] == before.row)
        if len(used) and before.row:  # the first chunk of an episode was waited for
            self._delays.append(int(used[0]))

    def _least(self, horizon: int) -> int:
        """Steps of a chunk before the next inference."""
        return self._config.execution_horizon or max(horizon // 2, 1)

    def _newest(self) -> int:
        """Wait for the next row; returns the newest that control has told of, or OVER. Messages are taken meanwhile."""
        while True:
            for descriptor, _ in self._news.poll(0 if self._told else None):
                if descriptor == self._ticks:
                    self._read()
                else:
                    self._take(receive(self._parent))
            if self._told:
                break
        if END_OF_EPISODE in self._told:  # what comes behind it is of the next episode
            self._told = self._told[self._told.index(END_OF_EPISODE) + 1 :]
            return END_OF_EPISODE
        *_, newest = self._told
        self._told = []
        return newest

    def _read(self) -> None:
        told = os.read(self._ticks, 1 << 16)
        if not told:
            raise ParentGone  # control is, and so will we be
        self._told += np.frombuffer(told, "<i8").tolist()

    def _take(self, message: Any) -> None:
        descriptor = receive_block(self._parent)
        if isinstance(message, StartInference):
            self._watch = message, descriptor
            return
        weights = message.unpack(descriptor)
        if message.now:
            self._load(weights)
        else:
            self._waiting = weights

    def _load(self, weights: PolicyWeights) -> None:
        self._policy.load_weights(weights)
        self._version = weights.version
        self._waiting = None
