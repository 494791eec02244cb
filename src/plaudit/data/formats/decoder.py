"""Files from others, decoded by a child process with limits.

    with open_in_worker("somebody's data", ReadOptions()) as dataset:
        episode, labels = dataset.sources[0].load()          # decoded in the child; arrays are checked here
    statistics = load_pickle("stats.pkl")                    # a single file

A file that crashes its decoder, takes too long or takes too much memory ends that process
(`plaudit.data.formats.worker` has the limits). Only the episode that it was reading is lost; another process reads the
next one. Messages are JSON followed by the bytes of arrays: nothing is unpickled here, and answers are checked like a
foreign file, because a hostile file may control the child.
"""

import json
import math
import mmap
import os
import re
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.data.formats.base import GB, Dataset, ReadOptions, Source
from plaudit.errors import BadFile, DataError, UnknownFormat, UnsafeFile
from plaudit.files import Root, readable
from plaudit.processes import ForkServer
from plaudit.types import AnyArray, Episode, Labels, Origin

WAITING = 1800.0  # s without an answer: a disk that does not respond, since computing has a limit of its own
MAX_MESSAGE = 256 << 20  # bytes without the arrays
BLOCK_COPIES = 4  # times the size of a file that its arrays may have
_LENGTH = struct.Struct("!q")
_PLAIN_DTYPE = re.compile(r"[<>|]([iu][1248]|f[248]|b1|[US]\d{1,6})")
_ERRORS = {"BadFile": BadFile, "FramesMissing": BadFile, "UnsafeFile": UnsafeFile}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}

# The decoders' own threads would be lost in a fork; Arrow's usual allocator reserves more than it uses.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_SERVER = ForkServer("decoder", "plaudit.data.formats.worker:serve", _ENVIRONMENT)


@contextmanager
def open_in_worker(path: str | Path, options: ReadOptions | None = None) -> Iterator[Dataset]:
    """A data set whose files are opened by another process; looks like what `open_dataset` returns."""
    reader = _Reader(Path(path), options or ReadOptions())
    try:
        yield reader.dataset()
    finally:
        reader.close()


def load_pickle(path: str | Path, root: Root | None = None) -> Any:
    """The arrays, numbers, strings and containers in a pickle; nothing of it is run.

    root: the folder that the file is in; None: the user named the file, and it may be a link
    """
    return decode_file("pickle", Path(path), root or Root.of_named_file(Path(path)))


def load_npy(path: str | Path, root: Root | None = None) -> Any:
    """The content of a `.npy` file: an array, or the dictionary that `np.save` pickled into it. root: as above"""
    return decode_file("npy", Path(path), root or Root.of_named_file(Path(path)))


def decode_file(
    kind: Literal["pickle", "npy", "torch"],
    path: Path,
    root: Root,
    tensor: Callable[[mmap.mmap, str, Any], Any] | None = None,
) -> Any:
    """The content of a single file, decoded by another process; arrays come back in shared memory.

    tensor: makes a tensor, or another value of torch, from its kind and its description
    """
    with readable(path, "this cannot be read ({}); copy it again from its source"), root.open(path) as file:
        size = os.fstat(file.fileno()).st_size
        block = os.memfd_create("plaudit", os.MFD_CLOEXEC)
        try:
            os.ftruncate(block, BLOCK_COPIES * size + (1 << 20))  # which takes no memory until it is written
            with closing(WorkerProcess(0)) as process:
                process.start(file.fileno(), block, imports="torch" if kind == "torch" else "")
                reply, _ = process.ask({"op": kind, "path": str(path), "size": size}, str(path))
            os.ftruncate(block, max(1, int(reply["nbytes"])))
            memory = mmap.mmap(block, 0, flags=mmap.MAP_PRIVATE)
        finally:
            os.close(block)
        return _unpack(reply["tree"], memory, tensor)


def _unpack(tree: Any, memory: mmap.mmap, tensor: Any) -> Any:
    """What `worker.Packer` packed; ValueError, TypeError or LookupError if it is something else."""
    if not isinstance(tree, dict):
        return tree
    (kind, value), *_ = tree.items()
    if kind == "dict":
        return {_unpack(key, memory, tensor): _unpack(item, memory, tensor) for key, item in value}
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](_unpack(item, memory, tensor) for item in value)
    if kind in ("array", "scalar"):
        dtype, shape, offset = value
        if not _PLAIN_DTYPE.fullmatch(dtype) or any(n < 0 for n in shape):
            raise ValueError("an array that is none")
        count = math.prod(shape)
        array = np.frombuffer(memory, dtype, count, offset) if count else np.empty(0, dtype)
        return array.reshape(shape) if kind == "array" else array[0]
    if kind == "bytes":
        return bytes.fromhex(value)
    return tensor(memory, kind, value)


class WorkerProcess:
    """A child process that may crash or be killed, and the messages to and from it."""

    def __init__(self, most: int):
        """
        most: bytes of arrays that an answer may have
        """
        self._most = most
        self._connection: socket.socket | None = None
        self._pid = 0

    @property
    def running(self) -> bool:
        return self._connection is not None

    def start(self, *descriptors: int, imports: str = "") -> None:
        """Start it with these open files. imports: a module that it needs"""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._pid = _SERVER.fork(theirs.fileno(), *descriptors, imports=imports)
        except (EOFError, OSError) as error:
            raise DataError("the process that decodes files could not be started; try again") from error
        ours.settimeout(WAITING)
        self._connection = ours

    def close(self) -> None:
        """End it, whatever it does; it has ended when this returns."""
        if self._connection is not None:
            self._end(kill=True)

    def _end(self, kill: bool) -> int:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        return _SERVER.wait(self._pid, kill)

    def ask(
        self, request: Mapping[str, Any], where: str, arrays: Sequence[AnyArray] = ()
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        """Send a request and wait for the answer."""
        with self._losses(where):
            assert self._connection is not None
            send(self._connection, request, arrays)
        return self.hear(where)

    def hear(self, where: str) -> tuple[dict[str, Any], list[AnyArray]]:
        """Wait for an answer.

        where: the file that is read meanwhile
        """
        with self._losses(where):
            assert self._connection is not None
            reply = receive(self._connection)
            arrays = receive_arrays(self._connection, reply["arrays"], self._most)
        if "error" in reply:
            raise _error(reply)
        return reply, arrays

    @contextmanager
    def _losses(self, where: str) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            self.close()
            raise _lost(where, f"it did not answer for {WAITING:.0f} s") from None
        except (EOFError, OSError):
            code = self._end(kill=False)
            reasons = {
                -signal.SIGXCPU: "it took too long",
                -signal.SIGKILL: "it was killed, perhaps by the system for want of memory",
            }
            crashed = f"its decoder crashed, {signal.Signals(-code).name}" if code < 0 else "its decoder gave up"
            raise _lost(where, reasons.get(code, crashed)) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            self.close()
            raise _lost(where, "its answer makes no sense") from None


class _Reader:
    """One data set, and the process that reads it now."""

    def __init__(self, path: Path, options: ReadOptions):
        self._path, self._options = path, options
        self._process = WorkerProcess(int(options.max_episode_gb * GB) + MAX_MESSAGE)
        self._notes: list[str] = []

    def dataset(self) -> Dataset:
        reply = self._start()
        self._notes = list(reply["notes"])
        sources = [
            Source(
                index,
                where,
                digest=partial(self._value, "digest", n, where),
                load=partial(self._load, n, where),
                nbytes=lambda: 0,
                steps=steps,
                codecs=partial(self._codecs, n, where),
                has_labels=partial(self._value, "has_labels", n, where),
            )
            for n, (index, where, steps) in enumerate(reply["sources"])
        ]
        described = {name: reply[name] for name in ("format", "metadata", "ignored", "problems", "sizes")}
        return Dataset(path=self._path, sources=sources, notes=self._notes, **described)

    def close(self) -> None:
        self._process.close()

    def _start(self) -> dict[str, Any]:
        self._process.start()
        place = {"path": str(self._path), "cwd": str(Path.cwd())}
        return self._process.ask({"op": "open", **place, "options": asdict(self._options)}, str(self._path))[0]

    def _value(self, what: str, number: int, where: str) -> Any:
        return self._ask({"op": what, "number": number}, where)[0][what]

    def _codecs(self, number: int, where: str) -> dict[str, str]:
        return {str(key): str(codec) for key, codec in self._value("codecs", number, where).items()}

    def _load(self, number: int, where: str) -> tuple[Episode, Labels | None]:
        reply, arrays = self._ask({"op": "load", "number": number}, where)
        self._notes += [note for note in reply["notes"] if note not in self._notes]
        return _unpack_episode(reply, arrays)

    def _ask(self, request: dict[str, Any], where: str) -> tuple[dict[str, Any], list[AnyArray]]:
        if not self._process.running:
            self._start()
        return self._process.ask(request, where)


def _lost(where: str, why: str) -> DataError:
    return BadFile(where, f"the process that read this was lost ({why}); copy it again from its source")


def _error(reply: dict[str, Any]) -> Exception:
    kind, message = reply["kind"], str(reply["error"])
    if kind == "OSError":  # of the disk that it writes to
        return OSError(int(reply["errno"]), message)
    if kind in _ERRORS and "path" in reply:
        return _ERRORS[kind](reply["path"], message.removeprefix(f"{reply['path']}: "))
    return UnknownFormat(message) if kind == "UnknownFormat" else DataError(message)


def _unpack_episode(reply: dict[str, Any], arrays: list[AnyArray]) -> tuple[Episode, Labels | None]:
    """The episode and the labels that `worker.pack_episode` packed; the constructor checks them again."""
    cameras, privileged, metadata = reply["cameras"], reply["privileged"], reply["metadata"]
    parts = iter(arrays)
    episode = Episode.of(
        frames={camera: next(parts) for camera in cameras},
        state=next(parts),
        actions=next(parts),
        control_mode=next(parts),
        privileged={name: next(parts) for name in privileged},
        origin=Origin(**reply["origin"]),
        **metadata,
    )
    if reply["labels"] is None:
        return episode, None
    return episode, Labels.from_targets(next(parts), reply["labels"]["source"])


# Messages, in both directions: a length, JSON, and the bytes of arrays


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Sequence[AnyArray] = ()) -> None:
    """Send a message, followed by arrays of plain numbers."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    shapes = [(array.dtype.str, array.shape) for array in arrays]
    text = json.dumps({**message, "arrays": shapes}).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for array in arrays:
        if array.nbytes:
            connection.sendall(array.reshape(-1).view(np.uint8).data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message; its arrays follow. EOFError if the other side is gone, ValueError for an invalid message."""
    header = bytearray(_LENGTH.size)
    _receive_exactly(connection, memoryview(header))
    size = _LENGTH.unpack(header)[0]
    if not 0 < size <= MAX_MESSAGE:
        raise ValueError(f"a message of {size:,} bytes")
    text = bytearray(size)
    _receive_exactly(connection, memoryview(text))
    return json.loads(text)


def receive_arrays(connection: socket.socket, shapes: Sequence[tuple[str, list[int]]], most: int) -> list[AnyArray]:
    """The arrays after a message; ValueError if they are invalid or too large.

    most: bytes of all of them
    """
    arrays: list[AnyArray] = []
    for dtype, shape in shapes:
        sound = isinstance(dtype, str) and _PLAIN_DTYPE.fullmatch(dtype)
        sound = sound and all(type(n) is int and n >= 0 for n in shape)
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize if sound else most + 1
        if nbytes > most:
            raise ValueError("an array that nobody has")
        array = np.empty(shape, dtype)
        if nbytes:
            _receive_exactly(connection, array.reshape(-1).view(np.uint8).data)
        arrays.append(array)
        most -= nbytes
    return arrays


def _receive_exactly(connection: socket.socket, buffer: memoryview) -> None:
    """Fill the buffer; EOFError if the other side closes before it is full."""
    while len(buffer):
        count = connection.recv_into(buffer)
        if count == 0:
            raise EOFError
        buffer = buffer[count:]
