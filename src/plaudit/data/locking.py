"""The single-writer lock of a store: on `writer.lock`, which names the process, and on the folder itself.

A file can be deleted while it is locked, and the next process would lock a new file of the same name. An open directory
cannot be replaced like that, even if the store is moved. Some network file systems cannot lock directories; there the
file is the only lock.
"""

import fcntl
import os
import time
from contextlib import suppress
from dataclasses import dataclass

from plaudit.data.disk import Folder
from plaudit.errors import StoreLocked

FILE = "writer.lock"


@dataclass
class Lock:
    """Held until closed, or until the process ends."""

    file: int
    directory: int

    def close(self) -> None:
        for descriptor in (self.file, self.directory):
            if descriptor >= 0:
                os.close(descriptor)
        self.file = self.directory = -1

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock(root: Folder) -> Lock:
    held = Lock(-1, -1)
    try:
        held.directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root.descriptor)
        held.file = root.open(FILE, os.O_RDWR | os.O_CREAT, allow_hard_links=True)
        if not (_taken(held.file) and _taken(held.directory, may_be_impossible=True)):
            who = os.pread(held.file, 200, 0).decode(errors="replace").strip() or "another process"
            raise StoreLocked(
                f"{root.path} is being written by {who}; a store has one writer and any number of readers"
            )
        if os.fstat(held.file).st_nlink == 1:  # else its text would show in another file too
            with suppress(OSError):  # a full disk: who it is, nobody can read then
                os.ftruncate(held.file, 0)
                os.pwrite(held.file, f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
    except BaseException:
        held.close()
        raise
    return held


def _taken(descriptor: int, may_be_impossible: bool = False) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if not may_be_impossible:
            raise
    return True
