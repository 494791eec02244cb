"""Files of a store, named relative to an open folder: where the folder is moved, they are still the same files.

A writer that names its files by their whole path writes into whatever lies at that path by now. So every file of a
store is opened, made, renamed and removed through a `Folder`, which holds the directory itself; what comes to lie at
its old path is never touched, and `check_same` says so before anything is written.

All calls that change the disk go through `os`, so that a test can record them and lay out what a power cut leaves.
"""

import errno
import fcntl
import os
import shutil
import signal
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from plaudit.errors import StoreError, StoreFull

CHUNK = 1 << 20  # bytes that are read at once: small enough to stay in the cache of a core


class Folder:
    """An open directory; closed when nothing refers to it any more."""

    def __init__(self, path: Path):
        self.path = path
        self._absolute = path.absolute()  # a process may change its working directory
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {_reason(error)}") from error
        weakref.finalize(self, os.close, self.descriptor)

    def check_same(self) -> None:
        """Raise where the path leads to something else than what was opened."""
        try:
            there = self._absolute.stat()
        except OSError as error:
            raise StoreError(
                f"{self.path} is not there any more ({_reason(error)}): it was moved or removed while it was open; "
                "nothing was written, open it where it is now"
            ) from error
        if not os.path.samestat(there, os.fstat(self.descriptor)):
            raise StoreError(
                f"the folder at {self.path} is not the one that was opened: it was moved and another put in its place; "
                "nothing was written, open the one that is meant"
            )

    @contextmanager
    def opened(self, name: str, flags: int) -> Iterator[int]:
        """A file's descriptor; new files can be read by everybody, as those of `open` can."""
        descriptor = os.open(name, flags, 0o666, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> os.stat_result:
        return os.stat(name, dir_fd=self.descriptor)

    def exists(self, name: str) -> bool:
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def names(self, name: str = ".") -> list[str]:
        """What lies in a folder below, sorted."""
        with self.opened(name, os.O_RDONLY | os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as found:
            return sorted(entry.name for entry in found)

    def read(self, name: str) -> bytes:
        with self.opened(name, os.O_RDONLY) as descriptor:
            return read_at(descriptor, 0, os.fstat(descriptor).st_size)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file so that a crash leaves the old one or the new one, never a mixture."""
        with self.opened(f"{name}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            write_at(descriptor, memoryview(data), 0)
            os.fsync(descriptor)
        self.rename(f"{name}.tmp", name)
        self.sync(str(Path(name).parent))

    def mkdir(self, name: str) -> None:
        os.mkdir(name, dir_fd=self.descriptor)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def link(self, old: str, new: str) -> None:
        os.link(old, new, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove_folder(self, name: str) -> None:
        """With all that is in it; where the name is a link, the link alone."""
        if stat.S_ISDIR(os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=self.descriptor)
        else:
            os.unlink(name, dir_fd=self.descriptor)

    def sync(self, name: str = "") -> None:
        """Make new and removed names of a folder below survive a power cut."""
        with self.opened(name or ".", os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Up to `size` bytes, fewer where the file ends."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """A write may stop short; a short one on a full disk raises at the next try."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


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
        return StoreFull(
            f"the disk of {folder} is full ({_free(folder)} bytes free): {what}, "
            "all earlier ones are intact; free some space and do it again"
        )
    return StoreError(f"{folder}: {what}: {_reason(error)}")


@contextmanager
def told(folder: Path, what: str) -> Iterator[None]:
    """An error of the disk as a sentence."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, folder, what) from error


def _free(folder: Path) -> str:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return "?"
    return f"{disk.f_bavail * disk.f_frsize:,}"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
