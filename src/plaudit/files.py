"""Reading files that came from somebody else.

A data set, a label file or a config from others may name any path, claim any size and nest to any depth. Paths are
confined to the folder that the user named, only regular files are opened, and text is measured before it is parsed. A
bad file raises `BadFile`, a bad text `ValueError`. Files that need a decoder (pickles, images, videos, tables) are read
in a child process: `plaudit.data.formats.decoder`.
"""

import errno
import io
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.errors import BadFile, MissingPackage, PlauditError

MAX_JSON = 64 << 20  # bytes; a list of 100,000 episodes has 20 MB
MAX_VALUES = 1_000_000  # of a JSON text; small values take 50 times their characters in memory
MAX_LINES_BYTES = 256 << 20  # of a file with one JSON object per line, like the metrics of a run
MAX_LINES_VALUES = 4_000_000  # of all its lines
MAX_FILES = 100_000  # of a folder
MAX_STEP = 1e15  # of a run
MAX_DEPTH = 64  # lists and mappings within each other
MAX_HEAD = 4 << 20  # bytes of a safetensors header; about 100 for each tensor

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_OUTSIDE = re.compile(r"^[/\\~]|\0|://")
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def kind_of(mode: int) -> str:
    """The kind of a file, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")


class TooMuch(ValueError):
    """A text has more values or more levels than the limit."""


class DuplicateKey(ValueError):
    """A key occurs twice in one object."""

    def __init__(self, key: Any):
        super().__init__(f"key {brief(key)} occurs twice in one object; remove one of them")


def brief(value: Any, most: int = 60) -> str:
    """A value from a file, short enough for an error message."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length():,} bits"
    if isinstance(value, str):
        return repr(value if len(value) <= most else f"{value[:most]}...")
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    size = f" of {len(value):,}" if isinstance(value, list | tuple | dict | set | bytes) else ""
    return f"a {type(value).__name__}{size}"


def file_name(text: Any, most: int = 100) -> str:
    """A name from others as part of a file name: it contains no path and is not too long."""
    plain = re.sub(r"[^\w.@+-]", "_", text if isinstance(text, str) else brief(text))[:most]
    return plain if plain.strip(".") else "_"


def open_folder(folder: int, name: str) -> int:
    """The descriptor of a folder below an open one. OSError with the name of a part that is a link or no folder."""
    above, descriptor = -1, folder
    for part in name.split("/"):
        try:
            descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            if above >= 0:
                os.close(above)
        above = descriptor
    return descriptor


def open_file(folder: int, name: str, flags: int, check: Callable[[os.stat_result], None]) -> int:
    """The descriptor of a file below an open folder, reached through no link.

    `check` gets the status of what has the name, before and after it is opened, and raises unless it is a regular file.
    """
    above_name, _, last = name.rpartition("/")
    above = open_folder(folder, above_name) if above_name else folder
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # the file may be replaced after the first check
    try:
        try:
            check(os.stat(last, dir_fd=above, follow_symlinks=False))
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
        descriptor = os.open(last, flags, 0o666, dir_fd=above)
    finally:
        if above_name:
            os.close(above)
    try:
        check(os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@dataclass(frozen=True)
class Root:
    """A folder that the user named and that may come from somebody else. Its files are opened through no link.

    root = Root(Path("data_set"))
    with root.open(root.inside("meta/info.json")) as file: ...

    In the Hugging Face cache the files of a model are links to its `blobs`; these links alone are followed.
    """

    path: Path
    follow_links: bool = False  # links may lead to regular files anywhere

    @classmethod
    def of_named_file(cls, path: Path) -> "Root":
        """For a file that the user named, which may be a link."""
        return cls(path.parent, follow_links=True)

    def inside(self, relative: Any) -> Path:
        """The path of a file that a file of this folder names; nothing is opened."""
        if not isinstance(relative, str) or not relative or len(relative) > 1000:
            raise BadFile(self.path, f"{brief(relative)} is not a path inside this data set")
        if _OUTSIDE.search(relative) or ".." in re.split(r"[/\\]", relative):
            problem = f"its files name {brief(relative)}, which lies outside of this folder"
            raise BadFile(self.path, f"{problem}; it was not opened")
        return self.path / relative

    def open(self, path: Path, most: int | None = None) -> io.BufferedReader:
        """A regular file under the root, for reading. FileNotFoundError where there is none.

        most: bytes that it may have
        """

        def check(status: os.stat_result) -> None:
            if stat.S_ISLNK(status.st_mode):
                raise _is_link(path)
            if not stat.S_ISREG(status.st_mode):
                raise BadFile(path, f"this is {kind_of(status.st_mode)} and not a file")
            if most is not None and status.st_size > most:
                raise _too_large(path, status.st_size, most)

        with self._refusals(path):
            start, name = self._locate(path)
            folder = os.open(start, os.O_RDONLY | os.O_DIRECTORY)
            try:
                return os.fdopen(open_file(folder, name, os.O_RDONLY, check), "rb")
            finally:
                os.close(folder)

    def read(self, path: Path, most: int) -> bytes:
        """The content of a file of at most `most` bytes."""
        with self.open(path, most) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise _too_large(path, len(data), most)
        return data

    def is_file(self, path: Path) -> bool:
        """Whether the path exists and is not a folder; `open` decides whether it may be read."""
        try:
            return path.exists() and not path.is_dir()
        except (OSError, ValueError):
            return False

    def files(self, folder: Path, suffix: str | tuple[str, ...]) -> list[Path]:
        """The files below a folder whose names have this suffix, sorted. No link to a folder is followed."""
        if not self.follow_links:
            with self._refusals(folder):
                top = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.close(open_folder(top, self._name(folder)))
                except FileNotFoundError:
                    return []
                finally:
                    os.close(top)
        paths: list[Path] = []
        for count, (where, _, names) in enumerate(os.walk(folder)):
            paths += [Path(where, name) for name in names if name.endswith(suffix)]
            if count > MAX_FILES or len(paths) > MAX_FILES:
                raise BadFile(folder, f"it has more than {MAX_FILES:,} files or folders; no data set has so many")
        return sorted(paths)

    def check_files(self) -> None:
        """Raise if `open` would refuse a file or a folder below, for libraries that open files themselves."""
        for where, folders, names in os.walk(self.path):
            for path in (Path(where, name) for name in (*folders, *names)):
                if path.is_symlink() or not path.is_dir():
                    self.open(path).close()

    def size(self, path: Path) -> int:
        """The size of a file in bytes, 0 if it does not exist."""
        try:
            with self.open(path) as file:
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0

    def _locate(self, path: Path) -> tuple[Path, str]:
        """The folder to open first, and the name of the file below it."""
        home = Path(os.path.realpath(self.path, strict=True))
        caches = [above.parent / "blobs" for above in home.parents if above.name == "snapshots"]
        blobs = next((blobs for blobs in caches if blobs.parent.name.startswith("models--")), None)
        if self.follow_links or blobs is not None:
            real = Path(os.path.realpath(path, strict=True))
            if self.follow_links or real.parent == blobs:
                return real.parent, real.name
        return self.path, self._name(path)

    def _name(self, path: Path) -> str:
        if not path.is_relative_to(self.path) or ".." in path.relative_to(self.path).parts:
            raise BadFile(path, f"this lies outside of {self.path}; it was not opened")
        return path.relative_to(self.path).as_posix()

    @contextmanager
    def _refusals(self, path: Path) -> Iterator[None]:
        """Raise errors of the system as BadFile, except FileNotFoundError."""
        try:
            yield
        except (FileNotFoundError, BadFile):
            raise
        except (OSError, ValueError) as error:  # ValueError: half a character in the name
            if isinstance(error, OSError) and error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _is_link(path, error.filename) from error
            reason = error.strerror if isinstance(error, OSError) else "its name is no text"
            raise BadFile(path, f"this cannot be opened ({reason}); copy it again from its source") from error


def _is_link(path: Path, part: Any = None) -> BadFile:
    what = "is a link" if part is None else f"is reached through {brief(part)}, which is a link or no folder,"
    return BadFile(
        path,
        f"this {what} and was not opened; copy everything into one folder, or say --follow-links if this is a data set "
        "whose links you trust",
    )


def _too_large(path: Path, size: int, most: int) -> BadFile:
    return BadFile(path, f"this file has {size:,} bytes; the limit for this kind of file is {most:,}")


@contextmanager
def open_safetensors(path: Path, root: Root | None = None) -> Iterator[str]:
    """A name under which the safetensors library opens exactly this file. FileNotFoundError where there is none.

    The library checks tensors against the file's size, but opens pipes and links, and accepts 100 MB of header: a
    million empty tensors, which take gigabytes as objects.

    root: the folder that the file is in; None: its parent
    """
    with (root or Root(path.parent)).open(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEAD:
            raise BadFile(path, f"this is not a safetensors file: its header claims {length:,} bytes")
        yield f"/dev/fd/{file.fileno()}"


def safetensors_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a safetensors file."""
    from safetensors import safe_open

    message, missing = "this is not a safetensors file ({}); copy it again from its source", "there is no such file"
    with readable(path, message, missing), open_safetensors(path) as name, safe_open(name, "numpy") as file:
        return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118 - no mapping


def read_own(path: Path, most: int) -> bytes:
    """The content of a file that the user named; links are followed. FileNotFoundError if it does not exist."""
    return Root.of_named_file(path).read(path, most)


def parse_json(data: bytes, values: int = MAX_VALUES) -> Any:
    """Parse JSON; ValueError if it is too large, too deep, not JSON, or has a key twice in one object.

    values: the most numbers, texts, lists and objects that it may have
    """
    if len(data) > MAX_JSON:
        raise ValueError(f"{len(data):,} bytes of JSON; the limit is {MAX_JSON:,}")
    check_json(data, values)
    tree = json.loads(data.decode(), object_pairs_hook=_unique)
    if b"\\u" in data and re.search(rb"\\u[dD][89a-fA-F]", data):
        json.dumps(tree, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    return tree


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of these pairs; Python's parser would silently keep the last of two values."""
    tree = dict(pairs)
    if len(tree) < len(pairs):
        names = [name for name, _ in pairs]
        raise DuplicateKey(next(name for name in tree if names.count(name) > 1))
    return tree


def check_json(data: bytes, values: int) -> int:
    """An upper bound of the number of values; ValueError for too many values or levels. Nothing is built."""
    brackets = data.count(b"[") + data.count(b"{")
    if brackets <= MAX_DEPTH and brackets + data.count(b",") < values:
        return 1 + brackets + data.count(b",")  # the fast path, for a line of a journal
    too_many = TooMuch(f"it has more than {values:,} values, the limit")
    if data.count(b'"') > 8 * values:  # removing a text below costs as much as forty characters
        raise too_many
    bare = _STRINGS.sub(b"", data)
    count = 1 + sum(bare.count(sign) for sign in (b",", b"[", b"{"))
    if count > values:
        raise too_many
    signs = np.frombuffer(bare, np.uint8)
    nesting = signs[np.isin(signs, np.frombuffer(b"[]{}", np.uint8))]
    opening = np.isin(nesting, np.frombuffer(b"[{", np.uint8))
    depth = int(np.cumsum(np.where(opening, 1, -1), dtype=np.int32).max(initial=0))
    if depth > MAX_DEPTH:
        raise TooMuch(f"it nests {depth:,} levels deep; the limit is {MAX_DEPTH}")
    return count


def read_json(path: Path, root: Root | None = None, missing: str = "there is no such file") -> Any:
    """Read a JSON file; BadFile if it is not one. root: the folder that it is in; None: its parent"""
    with readable(path, "this is not valid JSON ({}); copy it again from its source", missing):
        return parse_json((root or Root(path.parent)).read(path, MAX_JSON))


def read_json_object(path: Path, root: Root | None = None) -> dict[str, Any]:
    """Read a JSON file that contains an object; `root` as for `read_json`."""
    tree = read_json(path, root)
    if not isinstance(tree, dict):
        raise BadFile(path, f"this is {brief(tree)} but should map names to values; copy it again from its source")
    return tree


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line; [] if it does not exist. Incomplete lines are skipped."""
    entries: list[Any] = []
    left = MAX_LINES_VALUES
    try:
        with Root(path.parent).open(path, MAX_LINES_BYTES) as file:
            for number, line in enumerate(file, start=1):
                left -= check_json(line, left)
                try:
                    entries.append(json.loads(line, object_pairs_hook=_unique))
                except DuplicateKey as error:
                    raise BadFile(path, f"line {number}: {error}") from error
                except ValueError:
                    continue
    except FileNotFoundError:
        return []
    except TooMuch as error:
        raise BadFile(path, f"{error} of such a file; no run writes that") from error
    return [entry for entry in entries if isinstance(entry, dict)]


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Read lines of named numbers, each with a step; BadFile for other contents."""
    lines = read_json_lines(path)
    for line in lines:
        wrong = next((name for name, value in line.items() if not isinstance(value, int | float)), None)
        if wrong is not None or not 0 <= line.get("step", math.nan) <= MAX_STEP:
            what = f"{brief(wrong)}, which is {brief(line[wrong])}" if wrong else "a line without the number of a step"
            raise BadFile(path, f"metrics are named numbers, but this file has {what}; copy it again from its source")
    return lines


@contextmanager
def readable(path: Path, message: str, missing: str = "there is no such file") -> Iterator[None]:
    """Raise any error of this block, in which a file is read, as BadFile.

    message: the error message, with {} for the reason
    missing: the error message if the file does not exist
    """
    try:
        yield
    except (BadFile, MissingPackage):
        raise
    except FileNotFoundError:
        raise BadFile(path, missing) from None
    except DuplicateKey as error:
        raise BadFile(path, str(error)) from error
    except Exception as error:  # readers raise whatever a damaged file leads them to
        raise unreadable(path, message.format(_reason(error))) from error


@contextmanager
def understood(path: Path) -> Iterator[None]:
    """Raise a missing or wrong value in this block, which uses the content of a file, as BadFile."""
    try:
        yield
    except PlauditError:
        raise
    except (LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise BadFile(path, f"its content is not valid ({_reason(error)}); copy it again") from error


def unreadable(path: Path, what: str) -> BadFile:
    """The error for a file that could not be read: `what`, or that it is a Git LFS pointer."""
    with suppress(OSError, BadFile), Root.of_named_file(path).open(path) as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            what = "this is a Git LFS pointer and not the file itself; run 'git lfs pull' in its repository"
    return BadFile(path, what)


def _reason(error: Exception) -> str:
    text = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
    return text[:200] or type(error).__name__
