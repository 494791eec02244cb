"""Encoded frames of a store, decoded by processes with limits.

A store may come from somebody else, and image decoders are large and written in C. So frames are decoded where other
files from others are (data/formats/worker.py). A few such processes are kept, and write into memory that they share
with this one. The memory is sealed: a file that takes over a process cannot shrink it, and can only change pixels.

Decoded episodes stay in a small cache, so that code that reads an episode frame by frame decodes it once.
"""

import fcntl
import mmap
import os
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from plaudit.data.formats.decoder import WorkerProcess
from plaudit.data.frame_codecs import Codec, packets_of
from plaudit.data.segments import MappedColumn, Segment, camera_column
from plaudit.errors import DataError, StoreDamaged
from plaudit.types import ByteArray

MAX_WORKERS = min(4, os.cpu_count() or 1)
SHARED = 8 << 20  # bytes of frames that one request decodes, unless a single group of frames is larger
MAX_DECODED = 64 << 30  # bytes of one camera of one episode
MAX_CACHED = 512 << 20  # bytes of decoded cameras that are kept
MAX_ANSWER = 1 << 20

Wanted = tuple[int, int, ByteArray]  # first row of an episode, frame in it, where the frame goes


@dataclass(frozen=True)
class EncodedColumn:
    """The encoded frames of a camera in a segment."""

    column: MappedColumn
    codec: Codec
    height: int
    width: int
    blocks: dict[int, tuple[int, int]]  # first row of an episode -> place and size of its block

    def read(self, wanted: Iterable[Wanted]) -> None:
        """Decode frames into their places. Frames that are wanted twice are decoded once."""
        groups: defaultdict[tuple[int, int], list[tuple[int, ByteArray]]] = defaultdict(list)
        for start, frame, out in wanted:
            groups[start, frame - frame % self.codec.group].append((frame, out))
        requests = [self._group(start, first, items) for (start, first), items in groups.items()]
        size = self.height * self.width * 3
        batch: list[_Group] = []
        for request in requests:
            if batch and size * sum(len(one.frames) for one in [request, *batch]) > SHARED:
                _decode(self.column.path, self.codec, self.height, self.width, batch)
                batch = []
            batch.append(request)
        if batch:
            _decode(self.column.path, self.codec, self.height, self.width, batch)

    def episode(self, start: int, rows: int, key: object) -> ByteArray:
        """uint8 [rows, H, W, 3] all frames of an episode, from the cache if it was decoded before.

        key: identifies the frames in the cache
        """
        with _cache_guard:
            if key in _cache:
                _cache.move_to_end(key)
                return _cache[key]
        nbytes = rows * self.height * self.width * 3
        if nbytes > MAX_DECODED:
            raise DataError(f"{self.column.path}: an episode of {rows:,} frames takes {nbytes:,} bytes, too many")
        frames = np.empty((rows, self.height, self.width, 3), np.uint8)
        group, many = self.codec.group, min(MAX_WORKERS, rows // self.codec.group + 1)
        edges = [*(rows * n // many // group * group for n in range(many)), rows]
        with ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="decode-frames") as threads:
            pieces = [[(start, i, frames[i]) for i in range(first, end)] for first, end in pairwise(edges)]
            list(threads.map(self.read, pieces))  # raises what a thread did
        frames.flags.writeable = False
        with _cache_guard:
            _cache[key] = frames
            while len(_cache) > 1 and sum(one.nbytes for one in _cache.values()) > MAX_CACHED:
                _cache.popitem(last=False)
        return frames

    def _group(self, start: int, first: int, items: list[tuple[int, ByteArray]]) -> "_Group":
        offset, size = self.blocks[start]
        block = self.column.checked(offset + size)[offset:]
        try:
            return _Group(packets_of(block, first, max(frame for frame, _ in items)), first, items)
        except ValueError as error:
            raise _damaged(self.column.path, str(error)) from error


def encoded_column(segment: Segment, camera: str) -> EncodedColumn:
    """The encoded frames of a camera."""
    height, width = next((h, w) for name, h, w in segment.schema.cameras if name == camera)
    column = camera_column(camera)
    return EncodedColumn(
        segment.mapped_column(column), segment.schema.codecs[column], height, width, segment.blocks[column]
    )


@dataclass(frozen=True)
class _Group:
    """Packets that are decoded together, and the frames of them that are wanted."""

    packets: list[bytes]
    first: int
    items: list[tuple[int, ByteArray]] = field(repr=False)

    @cached_property
    def frames(self) -> list[int]:
        """The different frames that are wanted."""
        return sorted({frame for frame, _ in self.items})


def _decode(path: Path, codec: Codec, height: int, width: int, groups: Sequence[_Group]) -> None:
    """Decode groups of one camera by a worker, and copy their frames to their places."""
    request = {
        "codec": str(codec),
        "size": [height, width],
        "packets": [[len(packet) for packet in group.packets] for group in groups],
        "wanted": [[frame - group.first for frame in group.frames] for group in groups],
        "data": np.frombuffer(b"".join(packet for group in groups for packet in group.packets), np.uint8),
    }
    count = sum(len(group.frames) for group in groups)
    with _worker(count * height * width * 3) as worker:
        try:
            worker.process.ask(request, str(path))
        except DataError as error:
            raise _damaged(path, str(error).removeprefix(f"{path}: ")) from error
        pixels = np.frombuffer(worker.shared, np.uint8, count * height * width * 3)
        decoded = iter(pixels.reshape(count, height, width, 3))
        for group in groups:
            by_frame = dict(zip(group.frames, decoded))
            for frame, out in group.items:
                out[...] = by_frame[frame]


def _damaged(path: Path, reason: str) -> StoreDamaged:
    what = "frames match their checksum and cannot be decoded"
    return StoreDamaged(f"{path}: {what} ({reason}); restore the store from a backup, or import the episode again")


class _Worker:
    """A process that decodes, and the memory that it writes to."""

    def __init__(self, size: int):
        descriptor = os.memfd_create("plaudit", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            try:
                os.ftruncate(descriptor, size)
            except OSError as error:
                what = f"{size:,} bytes of memory for decoded frames cannot be reserved ({error.strerror})"
                raise DataError(f"{what}; raise the limit on file sizes (ulimit -f), which counts them") from error
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self.shared = mmap.mmap(descriptor, size)
            self.process = WorkerProcess(MAX_ANSWER)
            self.process.start()
            self.process.ask({"op": "frames", "cwd": "/"}, "the decoder of frames")
            self.process.send_file(descriptor)
        finally:
            os.close(descriptor)


_idle: list[_Worker] = []
_slots = threading.BoundedSemaphore(MAX_WORKERS)
_cache: OrderedDict[object, ByteArray] = OrderedDict()
_cache_guard = threading.Lock()


def _forget_workers() -> None:
    """In a fork: the workers are the parent's, and a thread of it may have held a lock."""
    global _slots, _cache_guard
    _idle.clear()
    _slots, _cache_guard = threading.BoundedSemaphore(MAX_WORKERS), threading.Lock()


os.register_at_fork(after_in_child=_forget_workers)


@contextmanager
def _worker(size: int) -> Iterator[_Worker]:
    """A worker with at least `size` bytes of shared memory. It is ended if the block fails."""
    with _slots:
        worker = _idle.pop() if _idle else None
        if worker is not None and len(worker.shared) < size:
            worker.process.close()
            worker = None
        worker = worker or _Worker(max(size, SHARED))
        try:
            yield worker
        except BaseException:  # an answer may be on its way
            worker.process.close()
            raise
        _idle.append(worker)
