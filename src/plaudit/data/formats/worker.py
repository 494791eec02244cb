"""The process that decodes files from others, with limits on memory and computing.

Decoders are large, written in C, and not all of them were written for hostile files. So this process opens a data set
and returns episodes as plain arrays, or the content of a single file. It writes no file, starts no program and opens no
connection. Another one writes a copy of a data set with labels, under the same limits. Importing the decoders takes a
second, so a server (`plaudit.processes.ForkServer`) imports them once and forks a process for each data set or file.
"""

import gc
import math
import mmap
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats import lerobot, npy, open_dataset, pkl
from plaudit.data.formats.base import ReadOptions, Source
from plaudit.data.formats.decoder import FILE_COPIES, Message, encode, receive, send
from plaudit.data.formats.lerobot.relabel import EpisodeLabels, copy_with_labels
from plaudit.data.formats.lerobot.signals import load_signals
from plaudit.data.frame_codecs import Codec, decode_packets
from plaudit.data.unpickle import ADMITTED, DAMAGED, Damaged, read_npy, resolve, unpickle
from plaudit.errors import BadFile, PlauditError, UnsafeFile
from plaudit.files import Root, readable
from plaudit.types import AnyArray

MEMORY = 768 << 20  # bytes above what the process has when it starts, in addition to the frames of an episode
COPIES = 5  # of a table that is copied, in memory: compressed pages, itself (which grows by doubling), written pages
SECONDS = 90  # of computing for any one request
BYTES_A_SECOND = 20 << 20  # bytes of frames; each second of them adds one of computing
FILE_MEMORY, FILE_SECONDS = 256 << 20, 10  # the same for a single file
# Of an episode, as they are.
_FIELDS = ("state", "actions", "control_mode", "task", "fps", "robot", "terminated", "padded")

# The audit events of Python that no reader of files causes.
_REFUSED = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system"),
    *("subprocess.", "pty.", "socket.", "ctypes."),
)
_REFUSED_BY_TORCH = re.compile(r"(?:Unsupported global: GLOBAL|Unsupported class|unsupported GLOBAL) ([\w.]+)")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_IMPORTED = (lerobot, npy, pkl)  # the decoders that every fork should have imported


class _NoPandas:
    """Makes pandas look missing: Arrow imports it if it is installed, which takes a second in each fork."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def serve(descriptor: int) -> None:
    """In a fork: answer requests on a connection until it ends; never returns."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        connection = socket.socket(fileno=descriptor)
        sys.meta_path.insert(0, _NoPandas())
        sys.addaudithook(_refuse)
        sys.dont_write_bytecode = True
        request = receive(connection)
        gc.freeze()  # the imported decoders: collecting takes a fraction of a millisecond then
        os.chdir(request["cwd"])  # so that paths in messages are as the user typed them
        if request["op"] == "copy":
            _copy(connection, request)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails instead
            sys.addaudithook(_refuse_writing)
            {"open": _serve_dataset, "frames": _decode_frames}.get(request["op"], _decode_file)(connection, request)
        code = 0
    finally:
        os._exit(code)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} while a file is decoded")


def _refuse_writing(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        raise PermissionError("a file opened for writing while a file is decoded")


class _Limits:
    """The limits of this process, renewed for each request."""

    def __init__(self, memory: int, seconds: int) -> None:
        self._memory, self._seconds = memory, seconds
        self._base = _data_bytes()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.renew(0)

    def renew(self, nbytes: int) -> None:
        """nbytes: memory that the request needs"""
        gc.collect()  # whatever earlier requests left in cycles of references
        seconds = math.ceil(time.process_time() + self._seconds + nbytes / BYTES_A_SECOND)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        if self._base:
            most = self._base + self._memory + nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def full(self) -> bool:
        """Whether a good part of the memory is taken while no request is at work."""
        gc.collect()
        return _data_bytes() > self._base + self._memory // 4


def _data_bytes() -> int:
    """What RLIMIT_DATA counts of this process; 0 if the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def _serve_dataset(connection: socket.socket, request: dict[str, Any]) -> None:
    """Open a data set and answer the requests that follow."""
    limits, sources = _Limits(MEMORY, SECONDS), []
    notes: Collection[str] = ()

    def open_folder() -> Message:
        nonlocal notes
        dataset = open_dataset(request["path"], ReadOptions(**request["options"]))
        sources.extend(dataset.sources)
        notes = dataset.notes
        answer = {name: list(getattr(dataset, name)) for name in ("ignored", "problems", "notes")}
        answer |= {"format": dataset.format, "metadata": dict(dataset.metadata), "sizes": dict(dataset.sizes)}
        answer["sources"] = [(source.index, source.where, source.steps) for source in dataset.sources]
        return encode(answer)

    def read(what: str, source: Source) -> Message:
        if what == "codecs":
            return encode({"codecs": dict(source.codecs())})
        limits.renew(source.nbytes())
        if what == "digest":
            return encode({"digest": source.digest()})
        if what == "has_labels":
            return encode({"has_labels": source.has_labels()})
        episode, labels = source.load()
        assert episode.origin is not None, "an episode of a data set has an origin"
        fields = {name: getattr(episode, name) for name in _FIELDS}
        fields |= {name: dict(getattr(episode, name)) for name in ("frames", "privileged", "meta")}
        labeled = None if labels is None else (labels.targets, labels.judge.source)
        return encode({"load": (fields, vars(episode.origin), labeled, list(notes))})

    _answer(connection, open_folder, request["path"])
    with suppress(EOFError):
        while True:
            request = receive(connection)
            limits.renew(0)
            source = sources[request["number"]]
            _answer(connection, partial(read, request["op"], source), source.where, limits.full)


def _decode_file(connection: socket.socket, request: dict[str, Any]) -> None:
    """Decode a single file."""
    path, root = Path(request["path"]), Root(Path(request["root"]), request["follow_links"])
    load, message = _LOADERS[request["op"]]
    limits = _Limits(FILE_MEMORY, FILE_SECONDS)

    def work() -> Message:
        with readable(path, message), root.open(path) as file:
            limits.renew(FILE_COPIES[request["op"]] * os.fstat(file.fileno()).st_size)
            return encode({"tree": load(file, path)}, request["most"], _TensorPacker())

    _answer(connection, work, request["path"])


def _load_torch(file: BufferedReader, path: Path) -> Any:
    """The tensors, arrays, plain values and containers that `torch.save` wrote."""
    import torch  # noqa: TID251 - the server has imported it

    try:
        with torch.serialization.safe_globals([(stand_in, ".".join(name)) for name, stand_in in ADMITTED.items()]):
            tree = torch.load(f"/dev/fd/{file.fileno()}", map_location="cpu", weights_only=True)
    except Exception as error:
        asked = _REFUSED_BY_TORCH.search(str(error))
        if asked is None:
            raise
        raise UnsafeFile(
            path,
            "this file holds more than plain tensors, which could run code; nothing was run (asks for "
            f"{asked[1][:120]}). Save the network's state_dict() alone where you trust it",
        ) from error
    return resolve(tree, path, (torch.Tensor, torch.dtype, torch.device))


_LOADERS: dict[str, tuple[Callable[[BufferedReader, Path], Any], str]] = {
    "pickle": (unpickle, DAMAGED.format("pickle", "{}")),
    "npy": (read_npy, DAMAGED.format(".npy file", "{}")),
    "signals": (load_signals, "this is no sound parquet file ({}); write it again, or copy it again from its source"),
    "torch": (_load_torch, "this is no sound file of torch ({}); copy it again from its source"),
}


def _decode_frames(connection: socket.socket, request: dict[str, Any]) -> None:
    """Decode frames of a store into memory that is shared with the parent; see data/frame_decoder.py."""
    limits = _Limits(MEMORY, SECONDS)
    send(connection, {"ready": True})
    _, (descriptor, *_), *_ = socket.recv_fds(connection, 1, 1)
    shared = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
    os.close(descriptor)

    def work() -> Message:
        (height, width), codec = request["size"], Codec.parse(request["codec"])
        limits.renew(sum(map(len, request["wanted"])) * height * width * 3)
        packets, place, at = request["data"].tobytes(), 0, 0
        for sizes, wanted in zip(request["packets"], request["wanted"], strict=True):
            edges = [at, *(at + np.cumsum(sizes)).tolist()]
            parts = [packets[start:end] for start, end in pairwise(edges)]
            for number, frame in enumerate(decode_packets(codec, parts, height, width)):
                if number in wanted:
                    shared[place : place + frame.size] = frame.reshape(-1)
                    place += frame.size
            at = edges[-1]
        return encode({"decoded": True})

    with suppress(EOFError):
        while True:
            request = receive(connection)
            _answer(connection, work, "a frame")


class _TensorPacker:
    """Describes tensors, for `weights.unpack_tensor`."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}  # of the buffers; networks may share tensors

    def __call__(self, value: Any, buffers: list[AnyArray]) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
                raise Damaged(f"a {value.layout} tensor on {value.device}; save dense tensors of plain numbers")
            key = (value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in self._numbers:
                self._numbers[key] = len(buffers)
                buffers.append(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
            return {"tensor": (str(value.dtype).removeprefix("torch."), tuple(value.shape), self._numbers[key])}
        if torch is not None and isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if torch is not None and isinstance(value, torch.device):
            return str(value)
        raise Damaged(f"a {type(value).__name__} where data should be")


def _copy(connection: socket.socket, request: dict[str, Any]) -> None:
    """Write a copy of a data set with labels; reports each file before it is written."""
    labels = {index: EpisodeLabels.unpack(*packed) for index, packed in request["labels"].items()}
    limits = _Limits(MEMORY, SECONDS)  # in addition to what the labels take
    current = request["path"]

    def report_files(files: Sequence[Path]) -> Iterator[Path]:
        nonlocal current
        send(connection, {"files": len(files)})
        for file in files:
            current = str(file)
            send(connection, {"file": current})
            limits.renew(0)
            yield file

    def work() -> Message:
        root, folder = Root(Path(request["path"]), request["follow_links"]), Path(request["folder"])
        how = {name: request[name] for name in ("reward_frame", "hard_links", "codecs")}
        try:
            report = copy_with_labels(
                root, folder, labels, **how, reserve=lambda nbytes: limits.renew(COPIES * nbytes), progress=report_files
            )
        except MemoryError as error:
            raise BadFile(current, "this takes more memory than its size promised; copy it again") from error
        except OSError as error:  # of the disk that is written to; files that cannot be read are a BadFile
            return encode({"error": error.strerror or str(error), "kind": "OSError", "errno": error.errno or 0})
        return encode({"report": asdict(report)})

    _answer(connection, work, request["path"])


def _answer(
    connection: socket.socket, work: Callable[[], Message], where: str, full: Callable[[], bool] = lambda: False
) -> None:
    """Send the result of `work`; any error of a decoder becomes an answer.

    full: whether an error may be due to memory that earlier requests took
    """
    failure: dict[str, Any] = {}
    parts: Message = []
    try:
        parts = work()
    except Exception as error:  # noqa: BLE001 - damage leads decoders anywhere
        failure = _describe(error, where)
    if failure:  # outside of the handler, in which the traceback holds what was decoded so far
        parts = encode(failure | {"full": full()})
    for part in parts:
        connection.sendall(part)


def _describe(error: Exception, where: str) -> dict[str, Any]:
    """The fields of an answer for an error of a decoder, as one sentence."""
    problem = error
    if isinstance(error, MemoryError):
        problem = BadFile(where, "it takes more memory than a recording of its size does")
    elif not isinstance(error, PlauditError):
        reason = f"{type(error).__name__}: {error}".strip()[:200]
        problem = BadFile(where, f"this is damaged ({reason}); copy it again from its source")
    path = {"path": str(problem.path)} if isinstance(problem, BadFile) else {}
    return {"error": str(problem), "kind": type(problem).__name__, **path}
