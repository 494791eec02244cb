"""How an episode is recorded: the memory that three processes share while it runs, and what its mark means.

    control process    writes each observation and each command where the finished episode will have it
    inference process  reads frames as views of the same bytes; writes the newest chunk and its latencies
    parent             allocates the block and returns it as an `Episode` that owns it

A row is written once and never changed, so a reader that was notified of row n may use it at any time, and the only
copy is the one out of the camera's buffer. Nothing is allocated while the robot moves: the block has room for the
longest episode, and its pages are mapped before the first tick. The memory is an anonymous file (memfd) whose
descriptor is sent over a socket, so it disappears with its last process. (Rejected: `multiprocessing.shared_memory`,
whose names outlive a SIGKILL; a ring of slots, which needs pins and a second copy to record from.)

Each number has one writer. A reader may rely on what was written before a message that it received: a row's number on
the pipe of ticks, or the lock of the chunk slot. The system call in between makes that hold on every CPU.

An operator's mark (success or failure) is stored in the episode's meta, and becomes a label of source "operator", whose
success starts at the last frame. A discarded episode goes to a store of its own, which nothing learns from, labels or
counts.
"""

import fcntl
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import RolloutError
from plaudit.protocols import InferenceEngine
from plaudit.robots.limits import LIMIT_NAMES
from plaudit.rollout.operator import MARK, Operator, OperatorCommand
from plaudit.types import OPERATOR, AnyArray, EnvSpec, Episode, FloatArray, Labels, Observation

ALIGNMENT = 64  # bytes between places where an array may begin
MAX_CHUNK = 512  # actions
NO_ACTION = -1  # in `source`: no chunk had a command for this step
TELEOP = -2  # in `source`: a human's command


# What became of an inferred chunk: EXPIRED, its last action was in the past; DISCARDED, a person had taken over.
USED, EXPIRED, DISCARDED = 0, 1, 2


class SharedBlock:
    """Memory without a name, and arrays in it."""

    def __init__(self, descriptor: int, size: int):
        """Takes over the descriptor. Maps every page here, which is slow, so that later access is not."""
        self.descriptor, self.size = descriptor, size
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._used = 0

    @classmethod
    def allocate(cls, size: int) -> "SharedBlock":
        """A new block of `size` bytes."""
        descriptor = os.memfd_create("plaudit", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            problem = f"there is no memory for {size / 1e9:.1f} GB ({error.strerror})"
            raise RolloutError(f"{problem}; make episodes of fewer steps") from error
        return cls(descriptor, size)

    def array(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """The next array; processes that ask for the same ones in the same order get the same places."""
        array = np.ndarray(shape, dtype, buffer=self._map, offset=self._used)
        self._used += padded(array.nbytes)
        return array

    def __del__(self) -> None:
        os.close(self.descriptor)


class EpisodeBuffer:
    """One episode of at most `max_steps` actions."""

    def __init__(self, block: SharedBlock, env_spec: EnvSpec, max_steps: int):
        self.block, self.env_spec, self.max_steps = block, env_spec, max_steps
        self.task = ""  # the instruction, which observations carry to the policy
        array, rows = block.array, max_steps + 1
        # Written by the control process.
        self._progress = array((2,), np.int64)  # observations and commands so far
        self.state = array((rows, env_spec.state_dim), np.float32)
        self.actions = array((max_steps, env_spec.action_dim), np.float32)
        self.control_mode = array((max_steps,), np.uint8)
        self.limited = array((max_steps,), np.uint8)  # by which limits a command was changed, bits of robots/limits.py
        self.source = array((max_steps,), np.int32)  # row that a command was inferred from, or NO_ACTION, or TELEOP
        self.observed_at = array((rows,), np.float64)  # of CLOCK_MONOTONIC, s
        self.late = array((max_steps,), np.float32)  # s, from when a tick should have begun to when it did
        self.missed = array((max_steps,), np.int32)  # ticks before this one that did not happen
        self.overhead = array((max_steps,), np.float32)  # s, in our own code, not the robot's
        self.frames = {camera: array((rows, *size, 3), np.uint8) for camera, size in env_spec.cameras.items()}
        # Written by the inference process.
        self.chunk_slot = ChunkSlot(block, array((4,), np.int64), array((MAX_CHUNK, env_spec.action_dim), "f4"))
        self._inferred = array((1,), np.int64)
        self.inferred_from = array((rows,), np.int32)  # the row that inference i observed
        self.start_late = array((rows,), np.float32)  # s, from when it could have begun
        self.took = array((rows,), np.float32)  # s
        self.weights = array((rows,), np.int64)  # the version of the weights it used
        self.fate = array((rows,), np.int8)  # USED, or why its chunk was of no use
        self.guided = array((rows,), np.int8)  # 1: it continued the previous chunk, 0: that had run out, -1: neither

    @classmethod
    def allocate(cls, env_spec: EnvSpec, max_steps: int) -> "EpisodeBuffer":
        """A new one."""
        return cls(SharedBlock.allocate(buffer_size(env_spec, max_steps)), env_spec, max_steps)

    @classmethod
    def attach(cls, descriptor: int, env_spec: EnvSpec, max_steps: int) -> "EpisodeBuffer":
        """The same memory in another process."""
        return cls(SharedBlock(descriptor, buffer_size(env_spec, max_steps)), env_spec, max_steps)

    @property
    def num_observations(self) -> int:
        """Observations so far."""
        return int(self._progress[0])

    @property
    def num_commands(self) -> int:
        """Commands so far."""
        return int(self._progress[1])

    @property
    def num_inferences(self) -> int:
        """Inferences so far."""
        return int(self._inferred[0])

    def add_observation(self, row: int, observation: Observation, at: float) -> None:
        """Record what the robot observed after `row` commands. at: s, of CLOCK_MONOTONIC"""
        for camera, frames in self.frames.items():
            frames[row] = observation.images[camera]
        self.state[row] = observation.state
        self.observed_at[row] = at
        self._progress[0] = row + 1

    def add_command(self, step: int, command: FloatArray, mode: int, source: int, late: float, missed: int) -> None:
        """Record what was sent, who sent it (`control_mode`), where it came from, and how punctual its tick was."""
        self.actions[step] = command
        self.control_mode[step] = mode
        self.source[step] = source
        self.late[step] = late
        self.missed[step] = missed
        self._progress[1] = step + 1

    def add_inference(
        self,
        row: int,
        start_late: float,
        took: float,
        weights: int,
        guided: bool | None = None,
        fate: int = USED,
    ) -> None:
        """Record one inference: the row it observed, its latencies in s, the version of the weights.

        guided: whether it continued the previous chunk; None where it was not to
        fate: whether its chunk was of use
        """
        number = self.num_inferences
        self.fate[number] = fate
        self.guided[number] = -1 if guided is None else guided
        self.inferred_from[number], self.start_late[number] = row, start_late
        self.took[number], self.weights[number] = took, weights
        self._inferred[0] = number + 1

    def observation(self, row: int) -> Observation:
        """Views of a row, which never changes."""
        previous = partial(self.observation, row - 1) if row else None
        images = {camera: frames[row] for camera, frames in self.frames.items()}
        return Observation(images, self.state[row], previous, self.task)

    def weights_meta(self) -> dict[str, Any]:
        """For an episode's meta: the version of the weights, and each change of it, [step, version]."""
        count = self.num_inferences
        versions, rows = self.weights[:count].tolist(), self.inferred_from[:count].tolist()
        changes = [[row, new] for row, old, new in zip(rows[1:], versions, versions[1:]) if new != old]
        return {"weights": versions[0] if versions else 0, **({"weights_changed": changes} if changes else {})}

    def episode(self, privileged: Mapping[str, AnyArray], **fields: Any) -> Episode | None:
        """The episode so far, as views that keep the block alive; None before the first command's result.

        fields: of the episode: task, terminated, meta
        """
        steps = min(self.num_commands, self.num_observations - 1)
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
            **fields,
        )


@dataclass(frozen=True, eq=False)
class ActionChunk:
    """Commands for the steps from `start_step` on, inferred from the observation of that step."""

    actions: FloatArray  # [H, A]
    start_step: int

    def action_at(self, step: int) -> FloatArray | None:
        """[A], or None where the chunk has run out."""
        index = step - self.start_step
        return self.actions[index] if index < len(self.actions) else None


class ChunkSlot:
    """The newest chunk, from inference to control, behind a lock on which neither can hang.

    It is a record lock on the block's own descriptor, which the kernel releases when its process dies. The writer waits
    for microseconds at most. The reader does not wait: it tries again at its next tick. A writer that was killed while
    writing leaves `begun` ahead of `done`, and its chunk is not taken.
    """

    def __init__(self, block: SharedBlock, head: AnyArray, values: AnyArray):
        self._block, self._head, self._values = block, head, values  # head: begun, done, start_step, length
        self._taken = 0

    def put(self, chunk: ActionChunk) -> None:
        """Replace the chunk."""
        length = len(chunk.actions)
        with self._locked(fcntl.LOCK_EX):
            self._head[0] += 1
            self._values[:length] = chunk.actions
            self._head[2:] = chunk.start_step, length
            self._head[1] = self._head[0]

    def take(self) -> ActionChunk | None:
        """A chunk that was not taken yet; None also while one is being written."""
        if self._head[1] == self._taken:
            return None
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                begun, done, start_step, length = self._head.tolist()
                if begun != done:
                    return None
                self._taken = done
                return ActionChunk(self._values[:length].copy(), start_step)
        except BlockingIOError:
            return None

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        fcntl.lockf(self._block.descriptor, operation, 1)
        try:
            yield
        finally:
            fcntl.lockf(self._block.descriptor, fcntl.LOCK_UN, 1)


def buffer_size(env_spec: EnvSpec, max_steps: int) -> int:
    """Bytes that an episode may take."""
    rows = max_steps + 1
    frames = sum(padded(rows * height * width * 3) for height, width in env_spec.cameras.values())
    step_bytes = 4 * (env_spec.state_dim + env_spec.action_dim) + 64
    return frames + rows * step_bytes + MAX_CHUNK * env_spec.action_dim * 4 + 22 * ALIGNMENT


def padded(size: int) -> int:
    """Bytes up to the next place where an array may begin."""
    return -(-size // ALIGNMENT) * ALIGNMENT


MAX_EPISODES = 1000  # whose statistics an engine keeps, the newest; a robot may work for weeks
MAX_HELD = 0.01  # of the ticks, the largest fraction without a command before a warning
BIN_EDGES_MS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of the histogram of lateness


@dataclass(frozen=True, eq=False)
class LatencyStats:
    """Times in seconds, one value per tick or per inference."""

    late: FloatArray  # from when a tick should have begun to when it did
    missed: AnyArray  # ticks before this one that did not happen
    held: AnyArray  # whether there was no command to send
    starved: AnyArray  # whether a chunk had just run out, and the next was not there yet
    limited: AnyArray  # which limits changed the command, bits of robots/limits.py
    overhead: FloatArray  # of a tick, in our own code
    start_late: FloatArray  # from when an inference could have begun to when it did
    took: FloatArray  # of an inference
    delay: AnyArray  # steps, from an observation to the first command of its chunk
    guided: AnyArray  # whether a chunk continued the one before, of those that were to
    fate: AnyArray  # of a chunk: USED, EXPIRED or DISCARDED
    age: FloatArray  # of the observation that a command was inferred from, when it was sent

    @classmethod
    def of(cls, buffer: EpisodeBuffer) -> "LatencyStats":
        """Of one episode."""
        ticks, count = buffer.num_commands, buffer.num_inferences
        source = buffer.source[:ticks]
        first_use = {int(row): step for step, row in reversed(list(enumerate(source.tolist()))) if row >= 0}
        rows = buffer.inferred_from[:count].tolist()
        held, guided = source == NO_ACTION, buffer.guided[:count]
        return cls(
            late=buffer.late[:ticks].copy(),
            missed=buffer.missed[:ticks].copy(),
            held=held,
            starved=held & ~np.concatenate([[False], held])[:-1],
            limited=buffer.limited[:ticks].copy(),
            overhead=buffer.overhead[:ticks].copy(),
            start_late=buffer.start_late[:count].copy(),
            took=buffer.took[:count].copy(),
            delay=np.array([first_use[row] - row for row in rows if row in first_use]),
            guided=guided[guided >= 0] == 1,
            fate=buffer.fate[:count].copy(),
            age=(buffer.observed_at[:ticks] - buffer.observed_at[np.maximum(source, 0)])[source >= 0],
        )

    @classmethod
    def concatenate(cls, parts: Iterable["LatencyStats"]) -> "LatencyStats":
        """Of several episodes."""
        names, empty = [item.name for item in fields(cls)], np.zeros(0, np.float32)
        return cls(**{name: np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names})

    @property
    def ticks(self) -> int:
        """How many there were."""
        return len(self.late)

    @property
    def guided_fraction(self) -> float | None:
        """Of the chunks that were to continue the one before; None where there are none."""
        return float(self.guided.mean()) if len(self.guided) else None

    @property
    def held_fraction(self) -> float:
        """Of the ticks."""
        return float(self.held.sum()) / max(1, self.ticks)

    @property
    def lost_chunks(self) -> dict[str, int]:
        """How many chunks were of no use, where there are any."""
        counts = {"expired_chunks": self.fate == EXPIRED, "discarded_chunks": self.fate == DISCARDED}
        return {name: int(lost.sum()) for name, lost in counts.items() if lost.any()}

    def meta(self) -> dict[str, Any]:
        """For an episode's meta."""
        counts = {"missed_ticks": self.missed, "held_ticks": self.held, "starved_chunks": self.starved}
        guided = {} if self.guided_fraction is None else {"guided_fraction": round(self.guided_fraction, 4)}
        times = {"late_ms": self.late, "inference_ms": self.took, "observation_age_ms": self.age}
        timing = {name: round(1e3 * float(values.mean()), 3) for name, values in times.items() if len(values)}
        held = {name: int(ticks.sum()) for name, ticks in counts.items()}
        return held | self.lost_chunks | guided | {"timing": timing}

    def table(self) -> list[tuple[str, str]]:
        """(quantity, its values as text)"""
        return [
            ("ticks", f"{self.ticks:,}"),
            ("missed", f"{int(self.missed.sum()):,}"),
            ("held", f"{int(self.held.sum()):,} ({self.held_fraction:.1%})"),
            ("starved chunks", f"{int(self.starved.sum()):,}"),
            ("guided chunks", "-" if self.guided_fraction is None else f"{self.guided_fraction:.0%}"),
            *((name.replace("_", " "), f"{count:,}") for name, count in self.lost_chunks.items()),
            ("limited", _limits(self.limited)),
            ("late, ms", _percentiles(1e3 * self.late, 50, 99, 99.9)),
            ("our code a tick, ms", _percentiles(1e3 * self.overhead, 50, 99)),
            ("inferences", f"{len(self.took):,}"),
            ("inference, ms", _percentiles(1e3 * self.took, 50, 99)),
            ("inference begun late, ms", _percentiles(1e3 * self.start_late, 50, 99)),
            ("delay, steps", _percentiles(self.delay, 50, 99)),
            ("age of observations, ms", _percentiles(1e3 * self.age, 50, 99)),
        ]

    def histogram(self) -> list[tuple[str, int]]:
        """(range of lateness, number of ticks)"""
        edges = (0.0, *BIN_EDGES_MS, np.inf)
        counts, _ = np.histogram(1e3 * self.late, edges)
        names = [f"{low:g} to {high:g} ms" for low, high in pairwise(edges[:-1])] + [f"over {BIN_EDGES_MS[-1]:g} ms"]
        return list(zip(names, map(int, counts)))


def held_warning(held_fraction: float, expired_chunks: int = 0) -> str:
    """What to do where too many ticks had no command; "" where they are few."""
    if expired_chunks:
        return (
            f"inference took longer than a whole chunk {expired_chunks} times, so these chunks were not executed; use "
            "longer chunks or fewer samples, or make inference faster (policy.device)"
        )
    if held_fraction <= MAX_HELD:
        return ""
    return (
        f"{held_fraction:.1%} of control steps had no command: a chunk had run out before the next was there; lower "
        "policy.inference.execution_horizon, use longer chunks, or make inference faster (policy.device)"
    )


def _limits(limited: AnyArray) -> str:
    bits = limited.astype(np.uint8)
    by_name = [(name, int((bits & bit > 0).sum())) for bit, name in LIMIT_NAMES.items()]
    parts = ", ".join(f"{name} {count:,}" for name, count in by_name if count)
    return f"{int((bits > 0).sum()):,}" + (f" ({parts})" if parts else "")


def _percentiles(values: AnyArray, *percents: float) -> str:
    if not len(values):
        return "-"
    parts = [f"p{percent:g} {np.percentile(values, percent):.2f}" for percent in percents]
    return ", ".join([*parts, f"max {values.max():.2f}"])


LABELED_MARKS = {OperatorCommand.SUCCESS, OperatorCommand.FAILURE}
DISCARDED_MARKS = {OperatorCommand.DISCARD, OperatorCommand.REPEAT}


def run_episode(
    engine: InferenceEngine, operator: Operator | None, *, task: str = "", seed: int | None = None
) -> Iterator[Episode]:
    """Yields one episode, with the operator's mark, or nothing where none was recorded. The gate comes before this."""
    if operator is None:
        yield from engine.episodes(1, task=task, seed=seed)
        return
    episode = None
    try:
        for recorded in engine.episodes(1, task=task, seed=seed, until=operator.end_reason):
            episode = operator.finish(recorded)
            assert episode is not None
            yield episode
    finally:
        if episode is None:
            operator.finish(None)


def append_marked(store: Store, episode: Episode) -> int:
    """Store an episode, and its mark as a label."""
    episode_id = store.append(episode)
    label_marked(store, episode_id)
    return episode_id


def label_marked(store: Store, episode_id: int) -> None:
    """Write the label that an episode's mark stands for, unless the ledger has it."""
    entry = store.entry(episode_id)
    mark = entry.line["meta"].get(MARK)
    if mark in LABELED_MARKS and store.ledger.newest(episode_id, {OPERATOR}) is None:
        cutoff = entry.steps if mark == OperatorCommand.SUCCESS else None
        store.ledger.append(
            episode_id, Labels.from_cutoff(steps=entry.steps, cutoff=cutoff, source=OPERATOR, note="at the robot")
        )


def is_discarded(episode: Episode) -> bool:
    """Whether the operator discarded it."""
    return episode.meta.get(MARK) in DISCARDED_MARKS


def discarded_folder(folder: Path) -> Path:
    """Where the discarded episodes of a store are."""
    return folder.with_name(f"{folder.name}_discarded")


def discarded_store(folder: Path, capacity_bytes: int | None = None) -> Store:
    """The store of the discarded episodes of a store, for writing; made if it does not exist."""
    return Store.open_or_create(discarded_folder(folder), capacity_bytes=capacity_bytes)
