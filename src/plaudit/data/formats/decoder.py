"""Files from others, decoded by a child process with limits.

    with open_in_worker("somebody's data", ReadOptions()) as dataset:
        episode, labels = dataset.sources[0].load()
    statistics = load_pickle("stats.pkl")                    # a single file

A file that crashes its decoder, takes too long or takes too much memory ends that process. Only the episode that it was
reading is lost; another process reads the next one. Messages are JSON followed by the bytes of arrays: nothing is
unpickled here, and answers are checked like a foreign file, because a hostile file may control the child.
"""

import json
import math
import re
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.data.formats import column_layout
from plaudit.data.formats.base import GB, Dataset, ReadOptions, Source
from plaudit.errors import BadFile, DataError, UnknownFormat, UnsafeFile
from plaudit.files import Root, understood
from plaudit.processes import ForkServer
from plaudit.types import AnyArray, ByteArray, Episode, Labels, Origin

WAITING = 1800.0  # s without an answer: a disk that does not respond, since computing has a limit of its own
MAX_MESSAGE = 256 << 20  # bytes without the arrays
# How many times the size of a file its arrays may have. Columns of a table may hold long runs of equal values.
FILE_COPIES = {"pickle": 4, "npy": 4, "torch": 4, "signals": 32}
_LENGTH = struct.Struct("!q")
_PLAIN_DTYPE = re.compile(r"[<>|]([iu][1248]|f[248]|b1|[US]\d{1,6})")
_ERRORS = {"BadFile": BadFile, "FramesMissing": BadFile, "UnsafeFile": UnsafeFile}
_CONTAINERS: dict[str, type[Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

# The decoders' own threads would be lost in a fork; Arrow's usual allocator reserves more than it uses.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_SERVER = ForkServer("decoder", "plaudit.data.formats.worker:serve", _ENVIRONMENT)

Message = list[Any]  # bytes, one part after the other
PackTensor = Callable[[Any, list[AnyArray]], Any]
UnpackTensor = Callable[[str, Any, list[ByteArray]], Any]


@contextmanager
def open_in_worker(path: str | Path, options: ReadOptions | None = None) -> Iterator[Dataset]:
    """A data set whose files are opened by another process; looks like what `open_dataset` returns."""
    reader = _Reader(Path(path), options or ReadOptions())
    try:
        yield reader.dataset()
    finally:
        reader.process.close()


def load_pickle(path: str | Path, root: Root | None = None) -> Any:
    """Load arrays, numbers, strings and containers from a pickle without running any code.

    root: the folder that the file is in; None: the user named the file, and it may be a link
    """
    return decode_file("pickle", Path(path), root or Root.of_named_file(Path(path)))


def load_npy(path: str | Path, root: Root | None = None) -> Any:
    """The content of a `.npy` file: an array, or the dictionary that `np.save` pickled into it. root: as above"""
    return decode_file("npy", Path(path), root or Root.of_named_file(Path(path)))


def decode_file(
    kind: Literal["pickle", "npy", "torch", "signals"], path: Path, root: Root, tensor: UnpackTensor | None = None
) -> Any:
    """The content of a single file, decoded by another process.

    tensor: makes a tensor, or another value of torch, from its kind, its description and the buffers of a message
    """
    most = FILE_COPIES[kind] * root.size(path) + (1 << 20)
    with closing(WorkerProcess(most, tensor)) as process:
        process.start(imports="torch" if kind == "torch" else "")
        place = {"path": str(path), "root": str(root.path), "follow_links": root.follow_links}
        return process.ask({"op": kind, "cwd": str(Path.cwd()), "most": most, **place}, str(path))["tree"]


class WorkerProcess:
    """A child process that may crash or be killed, and the messages to and from it."""

    def __init__(self, most: int, tensor: UnpackTensor | None = None):
        """most: bytes of arrays that an answer may have. tensor: as for `decode_file`"""
        self._most, self._tensor = most, tensor
        self._connection: socket.socket | None = None
        self._pid = 0
        self.full = False  # it failed at its last request, and earlier ones had left little memory

    @property
    def running(self) -> bool:
        return self._connection is not None

    def start(self, imports: str = "") -> None:
        """Start it. imports: modules that it needs, separated by spaces"""
        self.full = False
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._pid = _SERVER.fork(theirs.fileno(), imports)
        except (EOFError, OSError) as error:
            raise DataError("the process that decodes files could not be started; try again") from error
        ours.settimeout(WAITING)
        self._connection = ours

    def close(self) -> None:
        """End the process. It has ended when this returns."""
        if self._connection is not None:
            self._end(kill=True)

    def _end(self, kill: bool) -> int:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        return _SERVER.wait(self._pid, kill)

    def send_file(self, descriptor: int) -> None:
        """Send an open file to the process."""
        assert self._connection is not None
        socket.send_fds(self._connection, [b"."], [descriptor])

    def ask(self, request: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        with self._losses(where):
            assert self._connection is not None
            send(self._connection, request)
        return self.hear(where)

    def hear(self, where: str) -> dict[str, Any]:
        """Wait for an answer. where: the file that is read meanwhile"""
        with self._losses(where):
            assert self._connection is not None
            reply = receive(self._connection, self._most, self._tensor)
            if not isinstance(reply, dict):
                raise TypeError("an answer that is not a mapping")
        if "error" not in reply:
            return reply
        kind, message = reply.get("kind"), str(reply["error"])
        self.full = reply.get("full") is True
        if kind == "OSError":  # of the disk that it writes to
            raise OSError(reply.get("errno"), message)
        if kind in _ERRORS and "path" in reply:
            raise _ERRORS[kind](reply["path"], message.removeprefix(f"{reply['path']}: "))
        raise UnknownFormat(message) if kind == "UnknownFormat" else DataError(message)

    @contextmanager
    def _losses(self, where: str) -> Iterator[None]:
        try:
            yield
            return
        except TimeoutError:
            self.close()
            reason = f"it did not answer for {WAITING:.0f} s"
        except (EOFError, OSError):
            code = self._end(kill=False)
            crashed = f"its decoder crashed, {signal.Signals(-code).name}" if code < 0 else "its decoder gave up"
            reasons = {
                -signal.SIGXCPU: "it took too long",
                -signal.SIGKILL: "it was killed, perhaps by the system for want of memory",
            }
            reason = reasons.get(code, crashed)
        except (ValueError, TypeError, LookupError, RecursionError):
            self.close()
            reason = "its answer makes no sense"
        raise BadFile(where, f"the process that read this was lost ({reason}); copy it again from its source")


class _Reader:
    """One data set, and the process that reads it now."""

    def __init__(self, path: Path, options: ReadOptions):
        self._path, self._options = path, options
        self.process = WorkerProcess(int(options.max_episode_gb * GB) + MAX_MESSAGE)
        self._notes: list[str] = []

    def dataset(self) -> Dataset:
        reply = self._start()
        self._notes = list(reply["notes"])
        sources = [
            Source(
                index,
                where,
                digest=partial(self._ask, "digest", n, where),
                load=partial(self._load, n, where),
                nbytes=lambda: 0,
                steps=steps,
                codecs=partial(self._ask, "codecs", n, where),
                has_labels=partial(self._ask, "has_labels", n, where),
            )
            for n, (index, where, steps) in enumerate(reply["sources"])
        ]
        described = {name: reply[name] for name in ("format", "metadata", "ignored", "problems", "sizes")}
        return Dataset(path=self._path, sources=sources, notes=self._notes, **described)

    def _start(self) -> dict[str, Any]:
        layout = column_layout(self._path)
        imports = ""  # a package that is missing is an error of the process
        if layout is not None and find_spec(layout.package) is not None:
            imports = layout.imports
        self.process.start(imports=imports)
        place = {"path": str(self._path), "cwd": str(Path.cwd())}
        return self.process.ask({"op": "open", **place, "options": asdict(self._options)}, str(self._path))

    def _ask(self, what: str, number: int, where: str) -> Any:
        if not self.process.running:
            self._start()
        try:
            return self.process.ask({"op": what, "number": number}, where)[what]
        except DataError:
            if not self.process.full:
                raise
        self.process.close()  # a decoder did not free all of its memory, which is no fault of this episode
        self._start()
        return self.process.ask({"op": what, "number": number}, where)[what]

    def _load(self, number: int, where: str) -> tuple[Episode, Labels | None]:
        """An episode as the worker sent it; the constructor checks it again."""
        with understood(Path(where)):
            fields, origin, labels, notes = self._ask("load", number, where)
            self._notes += [note for note in notes if note not in self._notes]
            episode = Episode.of(**fields, origin=Origin(**origin))
            return episode, None if labels is None else Labels.from_targets(*labels)


# Messages, in both directions: a length, JSON, and the bytes of arrays


def send(connection: socket.socket, tree: Any) -> None:
    """Send plain values, arrays and containers of these."""
    for part in encode(tree):
        connection.sendall(part)


def encode(tree: Any, most: float = math.inf, tensor: PackTensor | None = None) -> Message:
    """The parts of a message of plain values, arrays and containers of these.

    most: bytes that all arrays may have; ValueError for more
    tensor: describes any other value as {kind: content}, and appends its bytes to the buffers
    """
    buffers: list[AnyArray] = []
    packed = _pack(tree, buffers, tensor)
    sizes = [buffer.nbytes for buffer in buffers]
    if sum(sizes) > most:
        raise ValueError("its arrays take many times its size")
    text = json.dumps([packed, sizes]).encode()
    return [_LENGTH.pack(len(text)), text, *(buffer.view(np.uint8).data for buffer in buffers if buffer.size)]


def _pack(value: Any, buffers: list[AnyArray], tensor: PackTensor | None) -> Any:
    """Lists and plain values as they are, others as {kind: content}.

    Not a function within `encode`: one that calls itself is a cycle of references, which kept every episode that was
    sent in memory until the garbage collector ran.
    """
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, list):
        return [_pack(item, buffers, tensor) for item in value]
    if isinstance(value, dict):
        pairs = [(_pack(key, buffers, tensor), _pack(item, buffers, tensor)) for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, tuple | set | frozenset):
        kind = next(kind for kind, container in _CONTAINERS.items() if isinstance(value, container))
        return {kind: [_pack(item, buffers, tensor) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, np.ndarray | np.generic):
        buffers.append(np.ascontiguousarray(value).reshape(-1))
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: (value.dtype.str, value.shape, len(buffers) - 1)}
    if tensor is None:
        raise TypeError(f"a {type(value).__name__} in a message")
    return tensor(value, buffers)


def receive(connection: socket.socket, most: float = math.inf, tensor: UnpackTensor | None = None) -> Any:
    """The next message. EOFError if the other side is gone; ValueError, TypeError or LookupError if it is invalid.

    most: bytes that all arrays may have
    """

    def read(buffer: Any) -> Any:
        left = memoryview(buffer)
        while len(left):
            count = connection.recv_into(left)
            if count == 0:
                raise EOFError
            left = left[count:]
        return buffer

    size = _LENGTH.unpack(read(bytearray(_LENGTH.size)))[0]
    if not 0 < size <= MAX_MESSAGE:
        raise ValueError(f"a message of {size:,} bytes")
    tree, sizes = json.loads(read(bytearray(size)))
    if not all(type(n) is int and n >= 0 for n in sizes) or sum(sizes) > most:
        raise ValueError("arrays that are too large")
    buffers = [read(np.empty(n, np.uint8)) for n in sizes]
    return _unpack(tree, buffers, tensor)


def _unpack(tree: Any, buffers: list[ByteArray], tensor: UnpackTensor | None) -> Any:
    if isinstance(tree, list):
        return [_unpack(item, buffers, tensor) for item in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "dict":
        return {_unpack(key, buffers, tensor): _unpack(item, buffers, tensor) for key, item in value}
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](_unpack(item, buffers, tensor) for item in value)
    if kind == "bytes":
        return bytes.fromhex(value)
    if kind not in ("array", "scalar"):
        if tensor is None:
            raise ValueError("an invalid value")
        return tensor(kind, value, buffers)
    dtype, shape, number = value
    if not _PLAIN_DTYPE.fullmatch(dtype):
        raise ValueError("an array that is not numeric")
    array = buffers[number].view(dtype).reshape(shape)
    return array if kind == "array" else array[()]
