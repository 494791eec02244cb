"""Files of a store or a run folder, opened relative to a directory handle; checked JSON; the quarantine.

A writer that opens files by their full path writes into whatever is at that path by then. So every file of a store is
opened, created, renamed and removed through a `Folder`, which holds the directory open: another folder that is put in
its place is never touched. `check_same` detects it before a write.

Small JSON files have a checksum of their other values, encoded without spaces and with sorted keys. An edit by hand is
detected, and indentation does not matter: {"format": "plaudit store", "version": 2, ..., "crc": "1c291ca3"}

What a killed writer left behind and what a damaged journal no longer lists look the same, and the latter may be the
only copy of a recording. So neither is deleted: it is moved or copied to `quarantine/20261116-101502-segment-000003/`
and synced, with a note that says where it came from and how to restore it, before the store is changed. Only `plaudit
data check --empty-quarantine` deletes it.

All calls that change the disk go through `os`, so that a test can record them and replay a power cut.
"""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from plaudit.errors import ForeignFile, StoreError, StoreFull, StoreLocked
from plaudit.files import kind_of, open_file, open_folder, parse_json

WRITER_LOCK = "writer.lock"
MAX_SMALL_FILE = 1 << 20  # bytes of a description or a note
Tree = dict[str, Any]  # of a small JSON file
CHUNK = 1 << 20  # bytes that are read at once: small enough to stay in the cache of a core
_RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2)


class Folder:
    """An open directory; closed when nothing refers to it any more.

    No link is followed below it, and only regular files are opened: a store or a run folder may come from somebody
    else, whose links could lead a writer to other files. A file with a second name (a hard link) is not written to.
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
        """Raise if the path leads to another folder than the one that was opened."""
        with suppress(OSError):
            if identity(self._absolute.stat()) == self._identity:
                return
        raise StoreError(
            f"{self.path} was moved, removed or replaced by another folder while it was open; nothing was written, "
            "open it where it is now"
        )

    def open(self, name: str, flags: int) -> int:
        """The descriptor of a regular file, for the caller to close. New files can be read by everybody."""

        def check(status: os.stat_result) -> None:
            _check_regular(self.path, name, status.st_mode)
            if flags & (os.O_WRONLY | os.O_RDWR) and status.st_nlink > 1:
                raise ForeignFile(
                    f"{self.path / name} has a second name somewhere (a hard link), where changes would show too; "
                    "nothing was written: copy the folder (cp -r) and use the copy"
                )

        with self._no_links(name):
            return open_file(self.descriptor, name, flags, check)

    @contextmanager
    def opened(self, name: str, flags: int) -> Iterator[int]:
        """The descriptor of a regular file, closed when the block is left."""
        descriptor = self.open(name, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> os.stat_result:
        """The status of a name, which may be a link."""
        with self._above(name) as (above, last):
            return os.stat(last, dir_fd=above, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether something has this name, even a link that leads nowhere."""
        return self._mode(name) != 0

    def is_file(self, name: str) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self._mode(name))

    def is_folder(self, name: str) -> bool:
        """Whether it is a folder and no link to one."""
        return stat.S_ISDIR(self._mode(name))

    def _mode(self, name: str) -> int:
        """0 where nothing has this name."""
        try:
            return self.stat(name).st_mode
        except FileNotFoundError:
            return 0

    def names(self, name: str = ".") -> list[str]:
        """The names in a folder below, sorted."""
        with self._folder(name) as descriptor, os.scandir(descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def read(self, name: str, most: int = MAX_SMALL_FILE) -> bytes:
        """The content of a small file.

        most: bytes that it may have; a sparse file can claim any size
        """
        with self.opened(name, os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > most:
                raise ForeignFile(f"{self.path / name} has {size:,} bytes; the limit is {most:,}")
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
                        _check_regular(path.parent, path.name, mode)

    def mkdir(self, name: str) -> None:
        """Create a folder below."""
        with self._above(name) as (above, last):
            os.mkdir(last, dir_fd=above)

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a folder."""
        with self._above(old) as (source, old_name), self._above(new) as (target, new_name):
            os.replace(old_name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a folder with everything in it."""
        with self._above(name) as (above, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=above, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=above)
            else:
                os.unlink(last, dir_fd=above)

    def remove_empty_folder(self, name: str) -> bool:
        """Remove a folder if it is empty; returns whether it is gone."""
        with self._above(name) as (above, last), suppress(OSError):
            os.rmdir(last, dir_fd=above)
            return True
        return False

    def sync(self, name: str = ".") -> None:
        """Make new and removed names of a folder below survive a power cut."""
        with self._folder(name) as descriptor:
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
        """Raise ForeignFile for a link on the way to a name."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            what = f"is reached through something that is not a folder ('{error.filename}'), a link say"
            raise ForeignFile(
                f"{self.path / name} {what}; it was not opened, copy everything into one folder"
            ) from error


def _check_regular(folder: Path, name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = f"is {kind_of(mode)} and not a file; it was not opened: put the file itself there"
        raise ForeignFile(f"{folder / name} {what}")


def lock(root: Folder) -> ExitStack:
    """Become the single writer of a store until the result is closed or the process ends.

    Locked are `writer.lock`, which names the process, and the folder itself: the file can be deleted while it is
    locked, and the next process would lock a new one. Some network file systems cannot lock folders; there the file is
    the only lock.
    """
    with ExitStack() as held:
        file = root.open(WRITER_LOCK, os.O_RDWR | os.O_CREAT)
        held.callback(os.close, file)
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root.descriptor)
        held.callback(os.close, directory)
        for descriptor in (file, directory):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.pread(file, 200, 0).decode(errors="replace").strip() or "another process"
                raise StoreLocked(f"{root.path} is being written by {who}; a store has only one writer") from None
            except OSError:
                if descriptor == file:
                    raise
        with suppress(OSError):  # a full disk: the message of a second writer cannot name this process then
            os.ftruncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode(), 0)
        return held.pop_all()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handle Ctrl-C and similar signals after the block, so that memory and disk agree when their handler raises.

    The handlers are replaced during the block. Masking the signals is not enough: another thread, of BLAS for example,
    would take them, and Python would still run the handler in this one.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers run in the main one
        yield
        return
    waiting: list[Callable[[], object]] = []
    with ExitStack() as after:
        after.callback(lambda: [deliver() for deliver in waiting])  # last, when all handlers are restored
        for number in _RAISING:
            handler = signal.getsignal(number)
            if callable(handler):
                after.callback(signal.signal, number, handler)
                signal.signal(number, lambda n, frame, handler=handler: waiting.append(partial(handler, n, frame)))
        yield


def identity(status: os.stat_result) -> tuple[int, int]:
    """Device and inode, which identify a file while it is open."""
    return status.st_dev, status.st_ino


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Up to `size` bytes, fewer where the file ends."""
    parts: list[bytes] = []
    while size > 0 and (part := os.pread(descriptor, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return b"".join(parts)


def checksum_at(file: int, offset: int, size: int) -> int:
    """The checksum of a part of a file; -1 if the file ends before it does."""
    checksum, end = 0, offset + size
    if end > os.fstat(file).st_size:  # a line may promise any number of rows
        return -1
    while offset < end:
        part = os.pread(file, min(CHUNK, end - offset), offset)
        if not part:
            return -1
        checksum = zlib.crc32(part, checksum)
        offset += len(part)
    return checksum


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
    temporary = f"{name}.tmp"
    with suppress(FileNotFoundError):  # a crash left one; or somebody put a link there, which is not written through
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
    """Copy what a file holds from `offset` on into an empty one. Holes stay holes, and take neither time nor space."""
    size, at = os.fstat(source).st_size, offset
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from here on
                break
        part = os.pread(source, CHUNK, at)
        write_at(target, memoryview(part), at - offset)
        at += len(part)
    os.ftruncate(target, max(0, size - offset))


def sync_file(descriptor: int) -> None:
    """Wait until a file's bytes are on the disk. On a Mac, fsync only hands them to the drive."""
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
    """The error for a disk that is full or broken, after a write that was undone."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = "?"
        with suppress(OSError):
            free = f"{shutil.disk_usage(folder).free:,}"
        return StoreFull(
            f"the disk of {folder} is full ({free} bytes free): {what}, "
            "all earlier ones are intact; free some space and do it again"
        )
    return StoreError(f"{folder}: {what}: {_reason(error)}")


@contextmanager
def disk_errors(folder: Path, what: str) -> Iterator[None]:
    """Raise an OSError in this block as a StoreError that says what was not done."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, folder, what) from error


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def encode_checked(tree: Tree) -> bytes:
    """The content of a file, with its checksum."""
    return json.dumps({**tree, "crc": _checksum(tree)}, indent=1).encode()


def decode_checked(data: bytes) -> Tree:
    """The content without its checksum; ValueError if they do not fit."""
    if len(data) > MAX_SMALL_FILE:
        raise ValueError(f"{len(data):,} bytes are too many")
    tree = parse_json(data)
    if not isinstance(tree, dict):
        raise ValueError("no JSON object")
    checksum = tree.pop("crc", None)
    if checksum is None:
        raise ValueError("its checksum is missing")
    if checksum != _checksum(tree):
        raise ValueError("it fails its checksum")
    return tree


def _checksum(tree: Tree) -> str:
    return f"{zlib.crc32(json.dumps(tree, separators=(',', ':'), sort_keys=True).encode()):08x}"


QUARANTINE = "quarantine"
NOTE = "ABOUT.txt"
MAX_NOTE = 500  # characters of an entry's note


class QuarantineEntry:
    """One entry, while it is filled."""

    def __init__(self, folder: Folder, name: str):
        self.path: Path = folder.path / name
        self.how: list[str] = []  # lines of the note that say how to restore it
        self._folder, self._name = folder, name

    def copy(self, source: str, offset: int = 0) -> None:
        """Copy a file, or what it holds from `offset` on."""
        copy = source.replace("/", "-") + (f".from-{offset}" if offset else "")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            self._folder.opened(source, os.O_RDONLY) as file,
            self._folder.opened(f"{self._name}/{copy}", flags) as target,
        ):
            copy_from(file, offset, target)
            os.fsync(target)
        if offset:
            self.how.append(f"- {copy} are the bytes of {source} from byte {offset} on: append them to it again,")
            self.how.append("  together with the journal's lines that speak of them, from a backup.")
        else:
            self.how.append(f"- {copy} is {source} as it was: copy it back.")

    def move(self, source: str) -> None:
        """Move a folder with everything in it."""
        kept = Path(source).name
        self._folder.rename(source, f"{self._name}/{kept}")
        self._folder.sync(str(Path(source).parent))
        self.how.append(f"- {kept}/ was {source}/: move it back, together with the journal's lines that speak of it.")


@contextmanager
def set_aside(folder: Folder, what: str, why: str) -> Iterator[QuarantineEntry]:
    """A new entry of the folder's quarantine; its note is written and everything synced when the block is left."""
    if not folder.exists(QUARANTINE):
        folder.mkdir(QUARANTINE)
        folder.sync()
    base = f"{QUARANTINE}/{time.strftime('%Y%m%d-%H%M%S')}-{what}"
    name = next(n for i in range(1, 1 << 30) if not folder.exists(n := base if i == 1 else f"{base}-{i}"))
    folder.mkdir(name)
    entry = QuarantineEntry(folder, name)
    yield entry
    text = "\n".join([why, "", "To put it back, while no process writes to the store:", *entry.how, ""])
    folder.write(f"{name}/{NOTE}", text.encode())
    folder.sync(QUARANTINE)


def quarantined(folder: Folder) -> dict[str, str]:
    """Name of each entry -> a sentence about it."""
    sentences: dict[str, str] = {}
    for name in folder.names(QUARANTINE) if folder.exists(QUARANTINE) else []:
        try:
            lines = folder.read(f"{QUARANTINE}/{name}/{NOTE}").decode(errors="replace").splitlines()
        except (OSError, ForeignFile):
            lines = []
        about = lines[0][:MAX_NOTE] if lines else "without a note; a process was killed while it set this aside"
        sentences[f"{QUARANTINE}/{name}"] = f"{folder.path / QUARANTINE / name}: {about}"
    return sentences
