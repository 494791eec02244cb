"""Files of a store or a run folder, opened relative to a directory handle.

A writer that opens files by their full path writes into whatever is at that path by then. So every file of a store is
opened, created, renamed and removed through a `Folder`, which holds the directory open; if the folder is moved, its
files are still the same, and another folder at the old path is never touched. `check_same` detects it before a write.

All calls that change the disk go through `os`, so that a test can record them and replay a power cut.
"""

import errno
import fcntl
import os
import shutil
import stat
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from plaudit.errors import ForeignFile, StoreError, StoreFull
from plaudit.files import kind_of, open_file, open_folder

MAX_SMALL_FILE = 1 << 20  # of a small file: a description, a note
CHUNK = 1 << 20  # bytes that are read at once: small enough to stay in the cache of a core


class Folder:
    """An open directory; closed when nothing refers to it any more.

    Only what lies in it is opened: no link is followed below it, and a file must be a regular file. A store or a run
    folder may come from somebody else: its links could lead a writer to other files, and a pipe never ends.
    """

    def __init__(self, path: Path):
        self.path = path
        self._absolute = path.absolute()  # a process may change its working directory
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {_reason(error)}") from error
        weakref.finalize(self, os.close, self.descriptor)
        self._identity = identity(os.fstat(self.descriptor))

    def check_same(self) -> None:
        """Raise where the path leads to something else than what was opened."""
        try:
            there = self._absolute.stat()
        except OSError as error:
            raise StoreError(
                f"{self.path} is not there any more ({_reason(error)}): it was moved or removed while it was open; "
                "nothing was written, open it where it is now"
            ) from error
        if identity(there) != self._identity:
            raise StoreError(
                f"the folder at {self.path} is not the one that was opened: it was moved and another put in its place; "
                "nothing was written, open the one that is meant"
            )

    def open(self, name: str, flags: int, *, allow_hard_links: bool = False) -> int:
        """A regular file's descriptor, for the caller to close; new files can be read by everybody.

        allow_hard_links: whether a file that has a second name (a hard link) may be opened for writing
        """
        exclusive = bool(flags & (os.O_WRONLY | os.O_RDWR)) and not allow_hard_links
        with self._no_links(name):
            return open_file(self.descriptor, name, flags, lambda status: self.check_file(name, status, exclusive))

    @contextmanager
    def opened(self, name: str, flags: int, *, allow_hard_links: bool = False) -> Iterator[int]:
        """A regular file, closed when the block is left."""
        descriptor = self.open(name, flags, allow_hard_links=allow_hard_links)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> os.stat_result:
        """Of the name itself, be it a link."""
        with self._above(name) as (above, last):
            return os.stat(last, dir_fd=above, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether something has this name, be it a link that leads nowhere."""
        return self._mode(name) != 0

    def is_file(self, name: str) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self._mode(name))

    def is_folder(self, name: str) -> bool:
        return stat.S_ISDIR(self._mode(name))

    def _mode(self, name: str) -> int:
        """0 where nothing has this name."""
        try:
            return self.stat(name).st_mode
        except FileNotFoundError:
            return 0

    def names(self, name: str = ".") -> list[str]:
        """What lies in a folder below, sorted."""
        with self._folder(name) as descriptor, os.scandir(descriptor) as found:
            return sorted(entry.name for entry in found)

    def read(self, name: str, most: int = MAX_SMALL_FILE) -> bytes:
        """All of a small file.

        most: bytes that it may have; a file can claim any size and take no room on the disk
        """
        with self.opened(name, os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise ForeignFile(f"{self.path / name} has {size:,} bytes where at most {most:,} are read")
            return read_at(descriptor, 0, size)

    def write(self, name: str, data: bytes) -> None:
        """Replace a file so that a crash leaves the old one or the new one, never a mixture."""
        with self._above(name) as (above, last):
            _replace(above, last, data)

    def append(self, name: str, data: bytes) -> None:
        """Add to the end of a file, which is created if it is missing. A failed write leaves the file as it was."""
        with self.opened(name, os.O_WRONLY | os.O_CREAT) as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                write_at(descriptor, memoryview(data), size)
            except OSError:
                os.ftruncate(descriptor, size)
                raise

    def check_no_links(self) -> None:
        """Raise if anything below is a link, a pipe or a device."""
        for where, folders, files in os.walk(self.path):
            for path in (Path(where, name) for name in (*folders, *files)):
                with suppress(FileNotFoundError):  # removed just now
                    mode = path.lstat().st_mode
                    if not stat.S_ISDIR(mode):
                        self._check_regular(path, mode)

    def mkdir(self, name: str) -> None:
        with self._above(name) as (above, last):
            os.mkdir(last, dir_fd=above)

    def rename(self, old: str, new: str) -> None:
        with self._above(old) as (source, old_name), self._above(new) as (target, new_name):
            os.replace(old_name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def link(self, old: str, new: str) -> None:
        with self._above(old) as (source, old_name), self._above(new) as (target, new_name):
            os.link(old_name, new_name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """A file or a link."""
        with self._above(name) as (above, last):
            os.unlink(last, dir_fd=above)

    def remove_empty_folder(self, name: str) -> bool:
        """Whether it was a folder and empty, and is gone."""
        with self._above(name) as (above, last):
            try:
                os.rmdir(last, dir_fd=above)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                return False
        return True

    def remove_folder(self, name: str) -> None:
        """With all that is in it; where the name is a link, the link alone."""
        with self._above(name) as (above, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=above, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=above)
            else:
                os.unlink(last, dir_fd=above)

    def sync(self, name: str = "") -> None:
        """Make new and removed names of a folder below survive a power cut."""
        with self._folder(name or ".") as descriptor:
            os.fsync(descriptor)

    @contextmanager
    def _above(self, name: str) -> Iterator[tuple[int, str]]:
        """The open folder that a name lies in, and the last part of the name."""
        above, _, last = name.rpartition("/")
        if not above:
            yield self.descriptor, last
            return
        with self._folder(above) as descriptor:
            yield descriptor, last

    @contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        """A folder below, reached through no link."""
        with self._no_links(name):
            descriptor = open_folder(self.descriptor, name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _no_links(self, name: str) -> Iterator[None]:
        """A link on the way to a name as ForeignFile."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            raise ForeignFile(
                f"{self.path / name} is reached through something that is no folder ('{error.filename}'), a link say, "
                "and was not opened; copy everything into one folder"
            ) from error

    def check_file(self, name: str, found: os.stat_result, exclusive: bool) -> None:
        """Raise where it is no regular file, or has a second name and must be `exclusive`."""
        self._check_regular(self.path / name, found.st_mode)
        if exclusive and found.st_nlink > 1:
            raise ForeignFile(
                f"{self.path / name} has a second name somewhere (a hard link), where all that is written here would "
                f"show too; nothing was written: copy the folder, or, if it is a store, run 'plaudit data check "
                f"{self.path} --repair', which puts a copy in its place"
            )

    def _check_regular(self, path: Path, mode: int) -> None:
        if not stat.S_ISREG(mode):
            raise ForeignFile(f"{path} is {kind_of(mode)} and not a file; it was not opened: put the file itself there")


class WritableFile:
    """A file that a writer comes back to: kept open, and looked up by its name before each use.

    Opening a file takes ten system calls (its folders, none of them through a link); to see that its name still leads
    to the file that is open takes one.
    """

    def __init__(self, folder: Folder, name: str, flags: int, *, allow_hard_links: bool = False):
        """flags, allow_hard_links: as for `Folder.open`"""
        self.name = name
        self.descriptor = -1
        self._folder, self._flags, self._allow_hard_links = folder, flags, allow_hard_links
        self._identity, self._process = (0, 0), 0
        self._close = lambda: None

    def open(self) -> os.stat_result:
        """Open the file that has the name now, unless it is open already; returns its status."""
        if self.descriptor >= 0 and self._process == os.getpid():  # a fork would share the locks on it
            try:
                there = os.stat(self.name, dir_fd=self._folder.descriptor, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            if there is not None and identity(there) == self._identity:
                self._folder.check_file(self.name, there, exclusive=not self._allow_hard_links)
                return there
        self.close()
        self.descriptor = self._folder.open(self.name, self._flags, allow_hard_links=self._allow_hard_links)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        there = os.fstat(self.descriptor)
        self._identity, self._process = identity(there), os.getpid()
        return there

    def close(self) -> None:
        self._close()
        self.descriptor = -1


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other while it is open."""
    return status.st_dev, status.st_ino


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
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _replace(directory, path.name, data)
    finally:
        os.close(directory)


def _replace(directory: int, name: str, data: bytes) -> None:
    temporary = f"{name}.tmp"  # of a crash, if it is there; or a link, which is not written through
    with suppress(FileNotFoundError):
        found = os.stat(temporary, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(temporary, flags, 0o666, dir_fd=directory)
    try:
        write_at(descriptor, memoryview(data), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def copy_from(source: int, offset: int, target: int) -> None:
    """What a file holds from `offset` on, into an empty one; holes stay holes, and take neither time nor room."""
    size, at = os.fstat(source).st_size, offset
    while at < size and (at := _next_data(source, at, size)) < size:
        part = os.pread(source, CHUNK, at)
        write_at(target, memoryview(part), at - offset)
        at += len(part)
    os.ftruncate(target, max(0, size - offset))


def _next_data(file: int, at: int, size: int) -> int:
    """The first byte from `at` on that lies on the disk; the file's size where there is none."""
    try:
        return os.lseek(file, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        return at  # a file system that knows no holes


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
def disk_errors(folder: Path, what: str) -> Iterator[None]:
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
