"""An append-only file of JSON records that a crash cannot confuse: one line a record, `crc32 json\\n`.

`append` returns when the lines are on the platter, so whatever a record speaks of must be synced before it.
Three things can be wrong with such a file, and they are told apart:

- a torn tail: the last line is incomplete or fails its checksum. The append never returned, so nobody was promised
  anything; readers stop before it and the next writer cuts it off.
- a line in the middle that fails its checksum. That record was promised: opening refuses, and `mend` finds the
  single bit that makes the checksum fit again (a line of 600 bytes has 4,800 candidates; the odds of a wrong fit
  are one in a million).
- another file under the same name, while a reader has it open: a repair replaced it, and the reader is asked to reopen.

Text rather than a binary framing or SQLite: a person can read it with `less` on the worst day of the project,
appends are one write and one sync, and readers in other processes need no locks at all.
"""

import errno
import fcntl
import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from plaudit.errors import StoreDamaged, StoreError, StoreFull

Record = dict[str, Any]

MENDABLE_BYTES = 1 << 15  # trying every bit takes time with the square of the length: 3 s for this one


class Journal:
    """One process's view of the file; `read` and `append` both leave it at the end of what is known."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0  # bytes read so far, always at the start of a line
        self._lines = 0
        self._inode = path.stat().st_ino

    @staticmethod
    def create(path: Path) -> None:
        with path.open("xb") as file:
            os.fsync(file.fileno())
        sync(path.parent)

    def read(self) -> list[Record]:
        """The records that came since the last call."""
        with self.path.open("rb") as file:
            self._check_same(file)
            file.seek(self._offset)
            return self._take(file.read())

    def append(self, records: Iterable[Record]) -> list[Record]:
        """Write records and sync. Returns what other processes had appended since the last `read`."""
        lines = b"".join(map(encode, records))
        with self.path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._check_same(file)
            file.seek(self._offset)
            others = self._take(file.read())
            self._cut_tail(file)
            try:
                _write_all(file, lines)
                sync_file(file.fileno())
            except OSError:  # as if it had never been tried
                file.truncate(self._offset)
                raise
            self._offset += len(lines)
            self._lines += lines.count(b"\n")
            return others

    def cut_tail(self) -> int:
        """Remove a torn last line; returns its length in bytes. Only for who may write, after `read`."""
        with self.path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return self._cut_tail(file)

    def _cut_tail(self, file: Any) -> int:
        torn = file.seek(0, os.SEEK_END) - self._offset
        if torn > 0:
            file.seek(self._offset)
            if mend_bytes(file.read()) is not None:
                raise self._damaged(self._lines + 1)  # a whole record with one flipped bit: it was promised, keep it
            file.truncate(self._offset)
            sync_file(file.fileno())
        file.seek(self._offset)
        return torn

    def _take(self, data: bytes) -> list[Record]:
        records: list[Record] = []
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            record = decode(data[position:end])
            if record is None:
                if data.find(b"\n", end + 1) >= 0:  # more lines follow, so this one was complete once
                    raise self._damaged(self._lines + 1)
                break
            records.append(record)
            self._offset += end + 1 - position
            self._lines += 1
            position = end + 1
        return records

    def _check_same(self, file: Any) -> None:
        if os.fstat(file.fileno()).st_ino != self._inode:
            raise StoreError(f"{self.path} was replaced by a repair while it was open; open the store again")

    def _damaged(self, line: int) -> StoreDamaged:
        store = self.path.parent
        return StoreDamaged(
            f"{self.path}: line {line} fails its checksum; "
            f"run 'plaudit data check {store} --repair', which mends it or sets it aside and keeps a copy of the file"
        )


def encode(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def decode(line: bytes | bytearray) -> Record | None:
    """The record of a line, or None when its checksum does not fit."""
    if line[8:9] != b" " or line[:8] != b"%08x" % zlib.crc32(line[9:]):
        return None
    return json.loads(line[9:].decode())


def mend_bytes(damaged: bytes) -> bytes | None:
    """The bytes with the one bit put right that makes every line fit its checksum, or None."""
    if len(damaged) > MENDABLE_BYTES:
        return None
    candidate = bytearray(damaged)
    for position in range(len(candidate)):
        for bit in range(8):
            candidate[position] ^= 1 << bit
            if candidate.endswith(b"\n") and all(decode(line) is not None for line in candidate[:-1].split(b"\n")):
                return bytes(candidate)
            candidate[position] ^= 1 << bit
    return None


def mend(path: Path) -> list[str]:
    """Repair a journal's damaged lines; returns a sentence for each, [] when there was nothing to do.

    The file as it was is kept beside it. A flipped bit can join two lines or split one, so neighbouring bad lines
    are taken together.
    """
    good: list[bytes] = []
    sentences: list[str] = []
    run: list[bytes] = []
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate([*lines, b""], start=1):
        if line and (not line.endswith(b"\n") or decode(line[:-1]) is None):
            run.append(line)
            continue
        if run:
            last = number > len(lines)
            fixed = mend_bytes(b"".join(run))
            where = f"{path}: line {number - len(run)}"
            if fixed is not None:
                good.append(fixed)
                sentences.append(f"{where}: one flipped bit was put right")
            elif last:
                sentences.append(f"{where}: an unfinished last line was cut off; nothing in it had been acknowledged")
            else:
                sentences.append(f"{where}: {len(run)} damaged line(s) could not be mended and were set aside")
            run = []
        good.append(line)
    if sentences:
        count = len(list(path.parent.glob(f"{path.name}.before-repair-*")))
        backup = path.with_name(f"{path.name}.before-repair-{count + 1}")
        os.link(path, backup)
        write_atomic(path, b"".join(good))
        sentences.append(f"the file as it was is kept as {backup}")
    return sentences


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that a crash leaves the old one or the new one, never a mixture."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


_RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and its like wait until the block is done, so that memory and disk agree when their handler raises.

    The handlers are put aside for that long. (Masking the signals is not enough: another thread takes them, a BLAS one
    say, and Python still runs the handler here.)
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main one
        yield
        return
    waiting: list[Callable[[], object]] = []
    with ExitStack() as after:
        after.callback(lambda: [deliver() for deliver in waiting])  # last: when all handlers are back
        for number in _RAISING:
            handler = signal.getsignal(number)
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda n, frame, handler=handler: waiting.append(partial(handler, n, frame)))
        yield


def sync_file(descriptor: int) -> None:
    """Wait until a file's bytes are on the platter. On a Mac, fsync only hands them to the drive."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's new and removed names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(error: OSError, folder: Path, what: str) -> StoreError:
    """The sentence for a disk that is full or broken, in the middle of a write that was undone."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        disk = os.statvfs(folder)
        return StoreFull(
            f"the disk of {folder} is full ({disk.f_bavail * disk.f_frsize:,} bytes free): {what}, "
            "all earlier ones are intact; free some space and do it again"
        )
    return StoreError(f"{folder}: {what}: {error}")


def _write_all(file: Any, data: bytes) -> None:
    """An unbuffered write may stop short; a short one on a full disk raises at the next try."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
