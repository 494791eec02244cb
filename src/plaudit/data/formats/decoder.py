"""Foreign data sets, read by a process that may be lost.

    with open_in_worker("somebody's data", ReadOptions()) as dataset:
        episode, labels = dataset.sources[0].load()          # in the other process; here arrive checked arrays

Looks like what `open_dataset` gives. A file that crashes its decoder, takes too long or too much memory ends that
process (`plaudit.data.formats.worker` has the limits) and costs the episode it was of; the next one is read by another.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from plaudit.data.formats.base import Dataset, ReadOptions, Source
from plaudit.data.formats.limits import GB
from plaudit.data.formats.wire import (
    CONTROL,
    FORK,
    KILL,
    LENGTH,
    MAX_MESSAGE,
    WAIT,
    receive,
    receive_arrays,
    receive_exactly,
    send,
)
from plaudit.errors import BadFile, DataError, UnknownFormat, UnsafeFile
from plaudit.types import AnyArray, Episode, Labels, Origin

WAITING = 1800.0  # s without a word: a disk that does not answer, since computing has a limit of its own

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from plaudit.data.formats.worker import nursery; nursery(int(sys.argv[1]))"
)
# A thread's stack is as large as the limit on stacks was when its process started, and counts as memory of the decoder.
_SMALL_STACKS = ("/bin/sh", "-c", 'ulimit -S -s 8192; exec "$0" "$@"')
# The decoders' own threads would be lost in a fork; Arrow's usual allocator reserves more than it uses.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
_ERRORS = {"BadFile": BadFile, "FramesMissing": BadFile, "UnsafeFile": UnsafeFile}


@contextmanager
def open_in_worker(path: str | Path, options: ReadOptions | None = None) -> Iterator[Dataset]:
    """A data set whose files are opened by another process."""
    reader = _Reader(Path(path), options or ReadOptions())
    try:
        yield reader.dataset()
    finally:
        reader.close()


class _Nursery:
    """The process that forks readers; one for all of ours, because it takes a second to start."""

    _lock = threading.Lock()
    _here: "_Nursery | None" = None

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair()
        paths = [path or str(Path.cwd()) for path in sys.path]
        with theirs:
            self._process = subprocess.Popen(
                [*_SMALL_STACKS, sys.executable, "-P", "-c", BOOT, str(theirs.fileno()), json.dumps(paths)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is for us to hear
            )
        atexit.register(self.close)

    @classmethod
    def ask(cls, what: bytes, pid: int = 0, descriptor: int | None = None) -> int:
        with cls._lock:
            if cls._here is None or cls._here._owner != os.getpid() or cls._here._process.poll() is not None:
                cls._here = cls()
            return cls._here._ask(what, pid, descriptor)

    def _ask(self, what: bytes, pid: int, descriptor: int | None) -> int:
        answer = bytearray(LENGTH.size)
        try:
            socket.send_fds(self._control, [CONTROL.pack(what, pid)], [] if descriptor is None else [descriptor])
            receive_exactly(self._control, memoryview(answer))
        except (EOFError, OSError) as error:
            raise DataError("the process that reads data sets could not be started; try again") from error
        return LENGTH.unpack(answer)[0]

    def close(self) -> None:
        if self._owner == os.getpid():
            self._control.close()
            self._process.wait()


class WorkerProcess:
    """A process that may be lost, and what is said between us and it.

    Its answers are validated like a foreign file: it may have been taken over by one.
    """

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

    def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._pid = _Nursery.ask(FORK, descriptor=theirs.fileno())
        ours.settimeout(WAITING)
        self._connection = ours

    def close(self) -> None:
        """End it, whatever it does; it has ended when this returns."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            _Nursery.ask(KILL, self._pid)

    def ask(
        self, request: Mapping[str, Any], where: str, arrays: Sequence[AnyArray] = ()
    ) -> tuple[dict[str, Any], list[AnyArray]]:
        """Say something, and wait for the answer."""
        with self._losses(where):
            assert self._connection is not None
            send(self._connection, request, arrays)
        return self.hear(where)

    def hear(self, where: str) -> tuple[dict[str, Any], list[AnyArray]]:
        """Wait for an answer.

        where: what is read meanwhile
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
            raise _lost(where, f"nothing was heard of it for {WAITING:.0f} s") from None
        except (EOFError, OSError):
            raise _lost(where, self._how_it_ended()) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            self.close()
            raise _lost(where, "its answer makes no sense") from None

    def _how_it_ended(self) -> str:
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        code = _Nursery.ask(WAIT, self._pid)
        if code == -signal.SIGXCPU:
            return "it took too long"
        if code == -signal.SIGKILL:
            return "it was killed, perhaps by the system for want of memory"
        return f"its decoder crashed, {signal.Signals(-code).name}" if code < 0 else "its decoder gave up"


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
                partial(self._digest, n, where),
                partial(self._load, n, where),
                lambda: 0,
                steps,
                partial(self._codecs, n, where),
                partial(self._has_labels, n, where),
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

    def _digest(self, number: int, where: str) -> str:
        return self._ask({"op": "digest", "number": number}, where)[0]["digest"]

    def _has_labels(self, number: int, where: str) -> bool:
        return bool(self._ask({"op": "has_labels", "number": number}, where)[0]["has_labels"])

    def _codecs(self, number: int, where: str) -> dict[str, str]:
        found = self._ask({"op": "codecs", "number": number}, where)[0]["codecs"]
        return {str(key): str(codec) for key, codec in found.items()}

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
    """What `worker.pack_episode` made of an episode; checked once more where it is made."""
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
