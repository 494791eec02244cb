"""The process that decodes files from others, with limits on memory and computing.

Decoders of images, videos and tables are large, written in C, and not all of them were written for hostile files. So
this process opens a data set and returns episodes as plain arrays, or the content of a single file. It writes no file,
starts no program and opens no connection. Another one writes a copy of a data set with labels, under the same limits.
`plaudit.data.formats.decoder` is the other side.

Importing the decoders takes a second, so a server (`plaudit.processes.ForkServer`) imports them once, reads no data,
and forks a process for each data set or file.
"""

import math
import mmap
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats import lerobot, npy, open_dataset, pkl
from plaudit.data.formats.base import Dataset, ReadOptions, Source
from plaudit.data.formats.decoder import receive, receive_arrays, send
from plaudit.data.formats.lerobot.relabel import copy_with_labels, unpack_labels
from plaudit.data.unpickle import ADMITTED, DAMAGED, Damaged, read_npy, resolve, unpickle
from plaudit.errors import BadFile, DataError, PlauditError, UnsafeFile
from plaudit.files import Root, readable
from plaudit.types import AnyArray, Episode, Labels

MEMORY = 768 << 20  # bytes above what the process has when it starts, in addition to the frames of an episode
COPIES = 5  # of a table that is copied, in memory: compressed pages, itself (which grows by doubling), written pages
SECONDS = 90  # of computing for any one request
BYTES_A_SECOND = 20 << 20  # bytes of frames; each second of them adds one of computing
FILE_MEMORY, FILE_SECONDS = 256 << 20, 10  # the same for a single file
FILE_COPIES = 4  # of a single file, in memory

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


def serve(descriptor: int, file: int = -1, block: int = -1) -> None:
    """In a fork: answer requests on a connection until it ends; never returns.

    file, block: the single file to decode, and the memory for its arrays
    """
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
        if request["op"] == "copy":
            _copy(connection, request)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails instead
            sys.addaudithook(_refuse_writing)
            if request["op"] == "open":
                _serve_dataset(connection, request)
            else:
                _decode_file(connection, request, file, block)
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

    def __init__(self, memory: int = MEMORY, seconds: int = SECONDS) -> None:
        self._base = _private_memory()
        self._memory, self._seconds = memory, seconds
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def renew(self, nbytes: int) -> None:
        """
        nbytes: memory that the request needs
        """
        seconds = math.ceil(time.process_time() + self._seconds + nbytes / BYTES_A_SECOND)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        if self._base:
            most = self._base + self._memory + nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _private_memory() -> int:
    """Bytes of this process that RLIMIT_DATA counts; 0 if the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def _serve_dataset(connection: socket.socket, request: dict[str, Any]) -> None:
    """Open a data set and answer the requests that follow."""
    limits = _Limits()
    limits.renew(0)
    os.chdir(request["cwd"])  # so that paths in messages are as the user typed them
    work = partial(_open, request["path"], ReadOptions(**request["options"]))
    answer, arrays, dataset = _catch_errors(work, request["path"])
    while True:
        send(connection, answer, arrays)
        try:
            request = receive(connection)
        except EOFError:
            return
        limits.renew(0)
        assert dataset is not None
        source = dataset.sources[request["number"]]
        answer, arrays, _ = _catch_errors(partial(_read, request["op"], dataset, source, limits), source.where)


def _open(path: str, options: ReadOptions) -> "Answer":
    dataset = open_dataset(path, options)
    answer = {
        "format": dataset.format,
        "sources": [(source.index, source.where, source.steps) for source in dataset.sources],
        "metadata": dict(dataset.metadata),
        "ignored": list(dataset.ignored),
        "problems": list(dataset.problems),
        "notes": list(dataset.notes),
        "sizes": {camera: list(size) for camera, size in dataset.sizes.items()},
    }
    return answer, (), dataset


def _read(what: str, dataset: Dataset, source: Source, limits: _Limits) -> "Answer":
    """What is asked about one episode."""
    if what == "codecs":
        return {"codecs": dict(source.codecs())}, (), None
    limits.renew(source.nbytes())
    if what == "digest":
        return {"digest": source.digest()}, (), None
    if what == "has_labels":
        return {"has_labels": source.has_labels()}, (), None
    answer, arrays = pack_episode(*source.load())
    return {**answer, "notes": list(dataset.notes)}, arrays, None


def _decode_file(connection: socket.socket, request: dict[str, Any], file: int, block: int) -> None:
    """Decode one open file into a block of shared memory."""
    packer, path = Packer(mmap.mmap(block, 0)), Path(request["path"])
    load, message = _LOADERS[request["op"]]
    _Limits(FILE_MEMORY, FILE_SECONDS).renew(FILE_COPIES * request["size"])

    def work() -> Answer:
        with os.fdopen(file, "rb") as opened, readable(path, message):
            return {"tree": packer.pack(load(opened, path)), "nbytes": packer.used}, (), None

    send(connection, _catch_errors(work, request["path"])[0])


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
    "torch": (_load_torch, "this is no sound file of torch ({}); copy it again from its source"),
}


class Packer:
    """A tree of arrays, tensors and plain values as JSON, with the bytes of its arrays in a block of memory."""

    def __init__(self, block: mmap.mmap):
        self._block, self.used = block, 0
        self._tensors: dict[Any, int] = {}  # offsets; networks may share tensors

    def pack(self, value: Any) -> Any:
        """JSON for `decoder`; a container is {its type: its items}."""
        if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, np.generic)):
            return value
        if isinstance(value, dict):
            return {"dict": [(self.pack(key), self.pack(item)) for key, item in value.items()]}
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return {kind.__name__: [self.pack(item) for item in value]}
        if isinstance(value, np.ndarray | np.generic):
            offset = self._write(np.ascontiguousarray(value))
            return {"array" if isinstance(value, np.ndarray) else "scalar": (value.dtype.str, value.shape, offset)}
        if isinstance(value, bytes | bytearray):
            return {"bytes": value.hex()}
        return self._pack_torch(value)

    def _pack_torch(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
                raise Damaged(f"a {value.layout} tensor on {value.device}; save dense tensors of plain numbers")
            key = (value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in self._tensors:
                self._tensors[key] = self._write(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
            return {"tensor": (str(value.dtype).removeprefix("torch."), tuple(value.shape), self._tensors[key])}
        if torch is not None and isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if torch is not None and isinstance(value, torch.device):
            return str(value)
        raise Damaged(f"a {type(value).__name__} where data should be")

    def _write(self, array: AnyArray) -> int:
        """Append the bytes of an array; returns their offset."""
        offset = -(-self.used // 64) * 64
        self.used = offset + array.nbytes
        if self.used > len(self._block):
            raise Damaged("its arrays take many times its size")
        if array.nbytes:
            self._block[offset : self.used] = array.reshape(-1).view(np.uint8).data
        return offset


def _copy(connection: socket.socket, request: dict[str, Any]) -> None:
    """Write a copy of a data set with labels; reports each file before it is written."""
    labels = unpack_labels(request["labels"], iter(receive_arrays(connection, request["arrays"], sys.maxsize)))
    limits = _Limits()  # in addition to what the labels take
    os.chdir(request["cwd"])
    current = request["path"]

    def report_files(files: Sequence[Path]) -> Iterator[Path]:
        nonlocal current
        send(connection, {"files": len(files)})
        for file in files:
            current = str(file)
            send(connection, {"file": current})
            limits.renew(0)
            yield file

    def reserve(nbytes: int) -> None:
        limits.renew(COPIES * nbytes)

    def work() -> Answer:
        limits.renew(0)
        root, folder = Root(Path(request["path"]), request["follow_links"]), Path(request["folder"])
        how = {name: request[name] for name in ("reward_frame", "hard_links", "codecs")}
        try:
            report = copy_with_labels(root, folder, labels, **how, reserve=reserve, progress=report_files)
        except MemoryError as error:
            raise BadFile(current, "this takes more memory than its size promised; copy it again") from error
        except OSError as error:  # of the disk that is written to; files that cannot be read are a BadFile
            return {"error": error.strerror or str(error), "kind": "OSError", "errno": error.errno or 0}, (), None
        return {"report": asdict(report)}, (), None

    send(connection, _catch_errors(work, request["path"])[0])


Answer = tuple[dict[str, Any], Sequence[AnyArray], Dataset | None]


def _catch_errors(work: Callable[[], Answer], where: str) -> Answer:
    """Any error of a decoder becomes an answer with one sentence."""
    try:
        return work()
    except PlauditError as error:
        problem = error
    except MemoryError:
        problem = BadFile(where, "it takes more memory than a recording of its size does")
    except Exception as error:  # noqa: BLE001 - damage leads decoders anywhere
        reason = f"{type(error).__name__}: {error}".strip()[:200]
        problem = BadFile(where, f"this is damaged ({reason}); copy it again from its source")
    path = {"path": str(problem.path)} if isinstance(problem, BadFile) else {}
    return {"error": str(problem), "kind": type(problem).__name__, **path}, (), None


def pack_episode(episode: Episode, labels: Labels | None) -> tuple[dict[str, Any], list[AnyArray]]:
    """An episode and its labels as JSON values and arrays, for `decoder`."""
    if episode.origin is None:
        raise DataError("an episode of a data set knows where it comes from")
    arrays = [*episode.frames.values(), episode.state, episode.actions, episode.control_mode]
    arrays += [*episode.privileged.values(), *(() if labels is None else (labels.targets,))]
    metadata = {name: getattr(episode, name) for name in ("task", "fps", "robot", "terminated", "padded")}
    answer = {
        "cameras": list(episode.frames),
        "privileged": list(episode.privileged),
        "metadata": {**metadata, "meta": dict(episode.meta)},
        "origin": vars(episode.origin),
        "labels": None if labels is None else {"source": labels.judge.source},
    }
    return answer, arrays
