"""The process that reads foreign data sets: what a decoder does to memory, time and itself, it does here.

Decoders of images, videos and tables are large, written in C, and were not all written for hostile files. So one of our
processes opens the data set and hands episodes over as plain arrays; it has limits on memory and computing, writes no
file, starts no program and opens no connection. Another writes a copy of a data set with labels, under the same limits.
`plaudit.data.formats.decoder` starts them and outlives them.

Importing the decoders takes a second, so a first process imports them, touches no data, and forks one that reads for
each data set, and another where one died. Messages are JSON with the bytes of arrays behind it: nothing is unpickled.
"""

import math
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from plaudit.data.formats import lerobot, npy, open_dataset, pkl
from plaudit.data.formats.base import Dataset, ReadOptions
from plaudit.data.formats.lerobot.relabel import copy_with_labels
from plaudit.data.formats.lerobot.relabel_meta import unpack_labels
from plaudit.data.formats.wire import CONTROL, FORK, KILL, LENGTH, receive, receive_arrays, send
from plaudit.errors import BadFile, DataError, PlauditError
from plaudit.types import AnyArray, Episode, Labels
from plaudit.untrusted import Root

MEMORY = 768 << 20  # bytes above what the process has when it starts, beside what an episode's frames take
COPIES = 5  # of a table that is copied, in memory: compressed pages, itself (which grows by doubling), written pages
SECONDS = 90  # of computing for any one request, and one more for each
BYTES_A_SECOND = 20 << 20  # bytes of frames

# What no reader of files does, by the names of Python's audit events.
_REFUSED = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system"),
    *("subprocess.", "pty.", "socket.", "ctypes."),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def nursery(descriptor: int) -> None:
    """Fork a reader for each connection that comes in, until whoever asks for them is gone."""
    assert lerobot and npy and pkl  # their decoders are what a fork should find imported
    sys.meta_path.insert(0, _NoPandas())
    control = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, CONTROL.size, 1)
        if len(message) < CONTROL.size:
            return
        what, pid = CONTROL.unpack(message)
        if what == FORK:
            pid = os.fork()
            if pid == 0:
                control.close()
                _become_reader(descriptors[0])
            os.close(descriptors[0])
            control.sendall(LENGTH.pack(pid))
            continue
        if what == KILL:
            os.kill(pid, signal.SIGKILL)  # nobody else waits for it, so the number is still its own
        _, status = os.waitpid(pid, 0)
        control.sendall(LENGTH.pack(os.waitstatus_to_exitcode(status)))


class _NoPandas:
    """Arrow imports pandas where it is installed, a second in each fork, and does without where it is not."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


def _become_reader(descriptor: int) -> None:
    """In the fork: serve until the connection ends; never returns."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nothing, standard)
        connection = socket.socket(fileno=descriptor)
        sys.addaudithook(_refuse)
        sys.dont_write_bytecode = True
        request = receive(connection)
        if request["op"] == "copy":
            _copy(connection, request)
        else:
            _write_nothing()
            _serve(connection, request)
        code = 0
    finally:
        os._exit(code)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event.startswith(_REFUSED):
        raise PermissionError(f"{event} while a data set is read")


def _write_nothing() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write fails instead
    sys.addaudithook(_refuse_writing)


def _refuse_writing(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
        raise PermissionError("a file opened for writing while a data set is read")


class _Limits:
    """Of this process, renewed for each request."""

    def __init__(self) -> None:
        self._base = _private_memory()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def renew(self, nbytes: int) -> None:
        """
        nbytes: that what is asked for takes
        """
        seconds = math.ceil(time.process_time() + SECONDS + nbytes / BYTES_A_SECOND)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        if self._base:
            most = self._base + MEMORY + nbytes
            resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _private_memory() -> int:
    """Bytes of this process that RLIMIT_DATA counts; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) << 10


def _serve(connection: socket.socket, request: dict[str, Any]) -> None:
    """Answer this request and those that follow."""
    limits = _Limits()
    dataset: Dataset | None = None
    while True:
        limits.renew(0)
        if request["op"] == "open":
            options = ReadOptions(**request["options"])
            os.chdir(request["cwd"])  # so that paths are told as they were given
            work = partial(_open, request["path"], options)
            answer, arrays, dataset = _catch_errors(work, request["path"])
        else:
            assert dataset is not None
            source, known = dataset.sources[request["number"]], dataset
            steps = {"load": _load, "digest": _digest, "has_labels": _has_labels, "codecs": _codecs}
            step = steps[request["op"]]
            answer, arrays, _ = _catch_errors(partial(step, known, source, limits), source.where)
        send(connection, answer, arrays)
        try:
            request = receive(connection)
        except EOFError:
            return


def _copy(connection: socket.socket, request: dict[str, Any]) -> None:
    """Write a copy of a data set with labels; each file is told before it is begun."""
    labels = unpack_labels(request["labels"], iter(receive_arrays(connection, request["arrays"], sys.maxsize)))
    limits = _Limits()  # beside what the labels take
    os.chdir(request["cwd"])
    current = request["path"]

    def told(files: Sequence[Path]) -> Iterator[Path]:
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
            report = copy_with_labels(root, folder, labels, **how, reserve=reserve, progress=told)
        except MemoryError as error:
            raise BadFile(current, "this takes more memory than its size promised; copy it again") from error
        except OSError as error:  # of the disk that is written to; files that cannot be read are a BadFile
            return {"error": error.strerror or str(error), "kind": "OSError", "errno": error.errno or 0}, (), None
        return {"report": asdict(report)}, (), None

    send(connection, _catch_errors(work, request["path"])[0])


Answer = tuple[dict[str, Any], Sequence[AnyArray], Dataset | None]


def _catch_errors(work: Callable[[], Answer], where: str) -> Answer:
    """What a foreign file leads its decoder to is an answer in a sentence, whatever it is."""
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


def _open(path: str, options: ReadOptions) -> Answer:
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


def _digest(dataset: Dataset, source: Any, limits: _Limits) -> Answer:
    limits.renew(source.nbytes())
    return {"digest": source.digest()}, (), None


def _has_labels(dataset: Dataset, source: Any, limits: _Limits) -> Answer:
    limits.renew(source.nbytes())
    return {"has_labels": source.has_labels()}, (), None


def _codecs(dataset: Dataset, source: Any, limits: _Limits) -> Answer:
    return {"codecs": dict(source.codecs())}, (), None


def _load(dataset: Dataset, source: Any, limits: _Limits) -> Answer:
    limits.renew(source.nbytes())
    episode, labels = source.load()
    answer, arrays = pack_episode(episode, labels)
    return {**answer, "notes": list(dataset.notes)}, arrays, None


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
