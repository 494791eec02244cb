"""Where an episode is recorded while it happens: one block of memory an episode, open in three processes.

    control process    writes each observation and each command where the finished episode will have it
    inference process  reads frames as views of the same bytes; writes the newest chunk and what it timed
    parent             made the block, and hands it out as an `Episode` that owns it

A row is written once and never again, so whoever was told of row n may look at it for as long as it likes: there is no
ring to be overtaken in, no slot to pin and no copy but the one out of the camera's buffer. Nothing is allocated while
the robot moves: the block is as long as the longest episode, and its pages are there before the first tick (a copy of
three 240x320 frames takes 0.04 ms into such pages, 0.4 ms into pages that have yet to be found).

The memory has no name: it is an anonymous file (memfd) that travels as a descriptor over a socket. When its last
process is gone, so is it, whatever that process died of. (Rejected: `multiprocessing.shared_memory`, whose names
outlive a SIGKILL; a ring of slots, which needs pins, and a second copy to record from.)

Each number has one writer. What a reader may rely on was written before a message that it got: a row's number on the
pipe of ticks, or the lock of the mailbox. The system call in between is what makes that hold on every processor.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.errors import RolloutError
from plaudit.types import AnyArray, EnvSpec, Episode, FloatArray, Observation

ALIGNMENT = 64  # bytes between places where an array may begin
MAX_CHUNK = 512  # actions
NO_ACTION = -1  # in `source`: no chunk had a command for this step
TELEOP = -2  # in `source`: a person's


class SharedBlock:
    """Memory without a name, and arrays in it."""

    def __init__(self, descriptor: int, size: int):
        """Takes over the descriptor. Every page is made ready here: this is slow, and later is not."""
        self.descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._used = 0

    @classmethod
    def allocate(cls, size: int) -> "SharedBlock":
        descriptor = os.memfd_create("plaudit", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            raise RolloutError(
                f"there is no memory for {size / 1e9:.1f} GB ({error.strerror}); make episodes of fewer steps"
            ) from error
        return cls(descriptor, size)

    def array(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """The next one; who asks for the same ones in the same order finds them in the same places."""
        array = np.ndarray(shape, dtype, buffer=self._map, offset=self._used)
        self._used += padded(array.nbytes)
        return array

    def __del__(self) -> None:
        os.close(self.descriptor)


class EpisodeBuffer:
    """One episode of at most `steps` actions."""

    def __init__(self, block: SharedBlock, env_spec: EnvSpec, steps: int):
        self.block, self.env_spec, self.steps = block, env_spec, steps
        array, rows = block.array, steps + 1
        # Written by the control process.
        self._progress = array((2,), np.int64)  # rows seen, commands sent
        self.state = array((rows, env_spec.state_dim), np.float32)
        self.actions = array((steps, env_spec.action_dim), np.float32)
        self.control_mode = array((steps,), np.uint8)
        self.source = array((steps,), np.int32)  # the row that a command's chunk was inferred from, HELD or BY_HAND
        self.seen_at = array((rows,), np.float64)  # of CLOCK_MONOTONIC, s
        self.late = array((steps,), np.float32)  # s, from when a tick should have begun to when it did
        self.missed = array((steps,), np.int32)  # ticks before this one that did not happen
        self.spent = array((steps,), np.float32)  # s, in our own code: all but the robot's and the person's
        self.frames = {camera: array((rows, *size, 3), np.uint8) for camera, size in env_spec.cameras.items()}
        # Written by the inference process.
        self.chunk_slot = ChunkSlot(block, array((4,), np.int64), array((MAX_CHUNK, env_spec.action_dim), "f4"))
        self._inferred = array((1,), np.int64)
        self.asked = array((rows,), np.int32)  # the row that inference i looked at
        self.start_late = array((rows,), np.float32)  # s, from when it could have begun
        self.took = array((rows,), np.float32)  # s
        self.weights = array((rows,), np.int64)  # the version it used

    @classmethod
    def allocate(cls, env_spec: EnvSpec, steps: int) -> "EpisodeBuffer":
        return cls(SharedBlock.allocate(buffer_size(env_spec, steps)), env_spec, steps)

    @classmethod
    def attach(cls, descriptor: int, env_spec: EnvSpec, steps: int) -> "EpisodeBuffer":
        """The same memory in another process."""
        return cls(SharedBlock(descriptor, buffer_size(env_spec, steps)), env_spec, steps)

    @property
    def rows(self) -> int:
        """Observations so far."""
        return int(self._progress[0])

    @property
    def sent(self) -> int:
        """Commands so far."""
        return int(self._progress[1])

    @property
    def inferences(self) -> int:
        return int(self._inferred[0])

    def see(self, row: int, observation: Observation, at: float) -> None:
        for camera, frames in self.frames.items():
            frames[row] = observation.images[camera]
        self.state[row] = observation.state
        self.seen_at[row] = at
        self._progress[0] = row + 1

    def send(self, step: int, command: FloatArray, mode: int, source: int, late: float, missed: int) -> None:
        self.actions[step] = command
        self.control_mode[step] = mode
        self.source[step] = source
        self.late[step] = late
        self.missed[step] = missed
        self._progress[1] = step + 1

    def infer(self, row: int, late: float, took: float, weights: int) -> None:
        number = self.inferences
        self.asked[number], self.start_late[number] = row, late
        self.took[number], self.weights[number] = took, weights
        self._inferred[0] = number + 1

    def observation(self, row: int) -> Observation:
        """Views; they stay what they are."""
        return Observation({camera: frames[row] for camera, frames in self.frames.items()}, self.state[row])

    def weights_facts(self) -> dict[str, Any]:
        """For an episode's meta: the version, and where another took over, [step, version]."""
        versions, rows = self.weights[: self.inferences].tolist(), self.asked[: self.inferences].tolist()
        changes = [[row, new] for row, old, new in zip(rows[1:], versions, versions[1:]) if new != old]
        return {"weights": versions[0] if versions else 0, **({"weights_changed": changes} if changes else {})}

    def episode(self, privileged: Mapping[str, AnyArray], **facts: Any) -> Episode | None:
        """What was sent and what came of it, as views; None before anything did. It keeps the block alive."""
        steps = min(self.sent, self.rows - 1)
        if steps < 1:
            return None
        return Episode.of(
            frames={camera: frames[: steps + 1] for camera, frames in self.frames.items()},
            state=self.state[: steps + 1],
            actions=self.actions[:steps],
            control_mode=self.control_mode[:steps],
            privileged={name: values[:steps] for name, values in privileged.items()},
            fps=self.env_spec.fps,
            robot=self.env_spec.name,
            **facts,
        )


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """Commands for the steps from `row` on."""

    actions: FloatArray  # [H, A]
    row: int  # of the observation they were inferred from

    def at(self, step: int) -> FloatArray | None:
        return self.actions[step - self.row] if step - self.row < len(self.actions) else None


class ChunkSlot:
    """The newest chunk, on its way from inference to control, behind a lock that neither can be stuck at.

    It is a record lock on the block's own descriptor: the kernel takes it away from a process that dies, which no
    lock in memory knows how to do, and a reader may try it without waiting. Who writes waits for microseconds at
    most. Who reads does not wait: it goes on with the chunk it has and looks again at its next tick. A writer that
    was killed half way left `begun` ahead of `done`, and its chunk is not taken.
    """

    def __init__(self, block: SharedBlock, head: AnyArray, values: AnyArray):
        self._block, self._head, self._values = block, head, values  # head: begun, done, row, length
        self._taken = 0

    def put(self, chunk: ActionChunk) -> None:
        length = len(chunk.actions)
        with self._locked(fcntl.LOCK_EX):
            self._head[0] += 1
            self._values[:length] = chunk.actions
            self._head[2:] = chunk.row, length
            self._head[1] = self._head[0]

    def take(self) -> ActionChunk | None:
        """One that was not taken yet; None also while it is being written."""
        if self._head[1] == self._taken:
            return None
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                begun, done, row, length = self._head.tolist()
                if begun != done:
                    return None
                self._taken = done
                return ActionChunk(self._values[:length].copy(), row)
        except BlockingIOError:
            return None

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        fcntl.lockf(self._block.descriptor, how, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._block.descriptor, fcntl.LOCK_UN, 1)


def buffer_size(env_spec: EnvSpec, steps: int) -> int:
    """Bytes that an episode may take."""
    rows = steps + 1
    frames = sum(padded(rows * height * width * 3) for height, width in env_spec.cameras.values())
    a_step = 4 * (env_spec.state_dim + env_spec.action_dim) + 64
    return frames + rows * a_step + MAX_CHUNK * env_spec.action_dim * 4 + 20 * ALIGNMENT


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
