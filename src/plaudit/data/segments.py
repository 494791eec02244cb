"""Segments: folders of raw column files that grow together, one row an observation.

`steps.bin` holds one packed record a row (state, action, control mode, privileged values), and each camera has a file
of its own, `camera.front.bin`, uint8 [rows, H, W, 3] without a header. An episode of T actions takes T+1 rows in every
file, so one row number locates everything, and the next observation is the next row. The action fields of an episode's
last row are zeros and are not read.

Files are written with `pwrite` and read through `mmap`. Writing through a map would turn a full disk into a SIGBUS that
kills the process; a failed `pwrite` is an exception, after which the file is truncated to its last complete row.

The schema of a row is stored in the journal; `schema.json` is a copy with a checksum, for people and other programs.
Stores of version 1 have only that file, without a checksum.
"""

import json
import mmap
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

import numpy as np

from plaudit.data.checked_json import decode_checked, encode_checked, parse
from plaudit.data.disk import CHUNK, Folder, WritableFile, sync_file, write_at
from plaudit.data.quarantine import Entry
from plaudit.data.schema import STEPS, Schema, camera_column
from plaudit.errors import EpisodeNotFound, ForeignFile, StoreDamaged, StoreError
from plaudit.types import AnyArray, Episode

SCHEMA = "schema.json"
EVICTED_SUFFIX = ".gone"  # a segment that was evicted and is being removed
_OURS = re.compile(r"schema\.json(\.tmp)?|steps\.bin|camera\..*\.bin")


class Segment:
    """One folder. `rows` counts the rows that count; anything beyond is a leftover of a crash."""

    def __init__(self, root: Folder, number: int, schema: Schema):
        """root: of the store"""
        self.name = segment_name(number)
        self.folder = root.path / self.name
        self.schema = schema
        self.rows = 0
        self._root = root
        self._names = {column: f"{self.name}/{quote(column, safe='.')}.bin" for column in schema.columns}
        self._files = {column: WritableFile(root, name, os.O_WRONLY) for column, name in self._names.items()}
        self._touched: set[str] = set()  # columns written since `commit`
        self._mapped: tuple[int, dict[str, MappedColumn]] = (-1, {})  # rows, column -> map of that many

    @classmethod
    def create(cls, root: Folder, number: int, schema: Schema) -> Self:
        segment = cls(root, number, schema)
        root.mkdir(segment.name)
        try:
            for column in schema.columns:
                with root.opened(segment._names[column], os.O_WRONLY | os.O_CREAT | os.O_EXCL):
                    pass
            segment.write_schema()
            root.sync("segments")
        except OSError:
            remove_files(root, segment.name)
            raise
        return segment

    @classmethod
    def open(cls, root: Folder, number: int) -> Self:
        """Open a segment by its `schema.json`: for stores of version 1."""
        name = f"{segment_name(number)}/{SCHEMA}"
        try:
            data = root.read(name)
            tree = parse(data)
            return cls(root, number, Schema.from_json(decode_checked(data) if "crc" in tree else tree))
        except FileNotFoundError:
            if root.exists(segment_name(number)):
                raise StoreDamaged(f"{root.path / name} is missing; restore it from a backup") from None
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(
                f"{root.path / name} does not describe a segment ({error}); restore it from a backup"
            ) from error

    def write_schema(self) -> None:
        self._root.write(f"{self.name}/{SCHEMA}", encode_checked(json.loads(json.dumps(self.schema.to_json()))))

    def schema_problem(self) -> str:
        """What is wrong with the copy of the schema, which nothing is read by; "" if nothing."""
        path = self.folder / SCHEMA
        try:
            data = self._root.read(f"{self.name}/{SCHEMA}")
        except FileNotFoundError:  # with its folder where it was evicted just now
            return f"{path} is missing" if self._root.exists(self.name) else ""
        except ForeignFile as error:
            return str(error)
        try:
            same = Schema.from_json(decode_checked(data)) == self.schema
        except (ValueError, KeyError, TypeError):
            return f"{path} is damaged"
        return "" if same else f"{path} says something else than the journal"

    @property
    def nbytes(self) -> int:
        """Of the rows that count."""
        return self.rows * self.schema.row_bytes

    def file(self, column: str) -> Path:
        return self._root.path / self._names[column]

    def write(self, episode: Episode) -> dict[str, int]:
        """Put an episode after the last row, unsynced; returns the checksum of each column's part."""
        for column, file in self._files.items():
            size = file.open().st_size
            if size != self._size(column):  # another writer's, a restored backup's, or a file that was cut
                raise StoreError(
                    f"{self.file(column)} has {size:,} bytes where this writer left {self._size(column):,}; nothing "
                    "was written, open the store again"
                )
        checksums: dict[str, int] = {}
        for column, array in self._rows_of(episode).items():
            data = array.reshape(-1).view(np.uint8).data
            self._touched.add(column)
            write_at(self._files[column].descriptor, data, self._size(column))
            checksums[column] = zlib.crc32(data)
        self.rows += episode.steps + 1
        return checksums

    def _rows_of(self, episode: Episode) -> dict[str, AnyArray]:
        steps = np.zeros(episode.steps + 1, self.schema.step_dtype)
        steps["state"] = episode.state
        steps["action"][:-1] = episode.actions
        steps["control_mode"][:-1] = episode.control_mode
        for name, values in episode.privileged.items():
            steps[f"privileged.{name}"][:-1] = values
        return {STEPS: steps} | {camera_column(c): np.ascontiguousarray(f) for c, f in episode.frames.items()}

    def sync(self) -> None:
        """Wait until what was written since `commit` would survive a power cut."""
        for column in self._touched:
            sync_file(self._files[column].descriptor)

    def close(self) -> None:
        """Close the files; the next `write` opens them again."""
        for file in self._files.values():
            file.close()

    def commit(self) -> int:
        """Keep what was written so far; returns the number of rows."""
        self._touched.clear()
        return self.rows

    def truncate(self, rows: int) -> None:
        """Undo what was written since `commit` beyond `rows`; it was never acknowledged."""
        self.rows = rows
        for column in self._touched:
            self._cut(column)

    @property
    def leftovers(self) -> int:
        """Bytes beyond the rows that count: of an append that was interrupted, or of lines that are lost."""
        return sum(max(0, extra) for extra in self._extra_bytes().values())

    @property
    def may_grow(self) -> bool:
        """Whether nothing is missing or cut, and no file has a second name (a hard link) where changes would show."""
        return all(extra >= 0 for extra in self._extra_bytes().values()) and not self.is_shared

    @property
    def is_shared(self) -> bool:
        """Whether a file has a second name somewhere: nothing is added to it, and nothing cut."""
        return any(self._root.exists(file) and self._root.stat(file).st_nlink > 1 for file in self._names.values())

    def set_aside(self, entry: Entry) -> None:
        """Put the leftovers there. The files are cut once all of it is safe: see `cut`."""
        for column in (column for column, extra in self._extra_bytes().items() if extra > 0):
            with self._root.opened(self._names[column], os.O_RDONLY) as file:
                entry.tail(self._names[column], file, self._size(column))

    def cut(self) -> None:
        """Remove leftovers that were set aside."""
        for column in (column for column, extra in self._extra_bytes().items() if extra > 0):
            self._cut(column)

    def _extra_bytes(self) -> dict[str, int]:
        """Of each column's file beyond the rows that count; below 0 where it is cut or missing."""
        sizes = {c: self._root.stat(n).st_size if self._root.exists(n) else -1 for c, n in self._names.items()}
        return {column: size - self._size(column) for column, size in sizes.items()}

    def _size(self, column: str) -> int:
        """Bytes of the rows that count."""
        return self.rows * self.schema.bytes_of(column)

    def _cut(self, column: str) -> None:
        with self._root.opened(self._names[column], os.O_RDWR) as file:
            if os.fstat(file).st_size > self._size(column):
                os.ftruncate(file, self._size(column))

    def column(self, name: str, end: int) -> AnyArray:
        """[end, ...] a read-only map of the first `end` rows; StoreDamaged if the file does not have them."""
        return self.mapped_column(name).checked(end)

    def mapped_column(self, name: str) -> "MappedColumn":
        """The whole column, mapped as far as its file goes. Call `checked` before each use."""
        rows = self.rows  # another thread may append, or map, meanwhile: look at each field once
        mapped = self._mapped
        if mapped[0] < rows:
            mapped = self._mapped = (rows, {column: self._map(column, rows) for column in self.schema.columns})
        return mapped[1][name]

    def _map(self, column: str, rows: int) -> "MappedColumn":
        """Map the complete rows that the file has: in a truncated file, the episodes before the cut stay readable."""
        dtype, shape = self.schema.columns[column]
        row_bytes = self.schema.bytes_of(column)
        with self._reading(column) as file:
            if row_bytes:
                rows = min(rows, os.fstat(file).st_size // row_bytes)
            if rows * row_bytes == 0:
                return MappedColumn(self.file(column), np.zeros((rows, *shape), dtype), None)
            try:
                mapped = mmap.mmap(file, rows * row_bytes, prot=mmap.PROT_READ)
            except (OSError, OverflowError) as error:
                raise StoreError(f"{self.file(column)} cannot be mapped into memory: {error}") from error
            # A plain ndarray over the map: indexing a np.memmap costs more than the copy of a small frame.
            return MappedColumn(self.file(column), np.frombuffer(mapped, dtype).reshape(rows, *shape), mapped)

    @contextmanager
    def _reading(self, column: str) -> Iterator[int]:
        try:
            file = self._root.open(self._names[column], os.O_RDONLY)
        except FileNotFoundError:
            if self._root.exists(self.name):  # whole folders are evicted, under another name first
                raise StoreDamaged(
                    f"{self.file(column)} is missing; restore it from a backup, or run "
                    f"'plaudit data check {self._root.path} --repair' to write its episodes off"
                ) from None
            raise EpisodeNotFound(f"{self.folder} was evicted by the writer just now; refresh the store") from None
        except OSError as error:  # no permission, say: that is no damage, and nothing to write off
            raise StoreError(f"{self.file(column)} cannot be read: {(error.strerror or str(error)).lower()}") from error
        try:
            yield file
        finally:
            os.close(file)

    def checksums(self, row: int, rows: int, columns: Collection[str] | None = None) -> dict[str, int]:
        """The checksum of each column's part, -1 where the file is too short or missing.

        Read, not mapped: a disk that fails is an exception then, and no SIGBUS.
        """
        found: dict[str, int] = {}
        for column in columns or self.schema.columns:
            row_bytes = self.schema.bytes_of(column)
            try:
                with self._reading(column) as file:
                    found[column] = _checksum(file, row * row_bytes, rows * row_bytes)
            except StoreDamaged:
                found[column] = -1
            except OSError as error:
                raise StoreDamaged(f"{self.file(column)} cannot be read: {error.strerror}") from error
        return found

    def damage(self, row: int, rows: int, promised: Mapping[str, int], columns: Collection[str] | None = None) -> str:
        """The first file whose part fails its checksum, and how; "" if none does."""
        unread = promised.keys() - set(self.schema.columns)
        if unread:  # a schema of version 1 has no checksum of its own
            return f"{self.name}/schema.json does not name {', '.join(sorted(unread))}"
        for column, checksum in self.checksums(row, rows, columns).items():
            if checksum != promised.get(column):
                what = "is missing or cut short" if checksum == -1 else "fails its checksum"
                return f"{self.file(column)} {what}"
        return ""

    def remove(self) -> None:
        """Free the disk space. Maps that readers hold stay valid until they are released."""
        self.close()
        gone = self.name + EVICTED_SUFFIX
        if self._root.exists(self.name):  # else an earlier try got this far
            in_the_way = self._root.exists(gone) and not self._root.remove_empty_folder(gone)
            if in_the_way:  # somebody's own: the files are removed where they are
                remove_files(self._root, self.name)
            else:
                self._root.rename(self.name, gone)
        if self._root.is_folder(gone):
            remove_files(self._root, gone)
        self._root.sync("segments")


@dataclass(frozen=True)
class MappedColumn:
    """A column of a segment, mapped into memory. Reading beyond the end of a truncated file kills the process."""

    path: Path
    array: AnyArray
    file: mmap.mmap | None  # None: no bytes

    def checked(self, end: int) -> AnyArray:
        """[end, ...] the first rows, after one system call that checks that the file still has them."""
        rows = len(self.array)
        if self.file is not None:
            rows = min(rows, self.file.size() // (len(self.file) // rows))
        if rows < end:
            raise StoreDamaged(
                f"{self.path} has {rows:,} complete rows, row {end:,} is missing; run 'plaudit data check "
                f"{self.path.parents[2]} --repair' to write off the lost episodes"
            )
        return self.array[:end]


def segment_name(number: int) -> str:
    return f"segments/{number:06d}"


def is_ours(root: Folder, name: str) -> bool:
    """Whether a folder holds nothing but what a segment does: then a writer made it."""
    return all(_is_file_of_ours(root, name, file) for file in root.names(name))


def remove_files(root: Folder, name: str) -> bool:
    """Remove a segment's own files, and its folder unless it contains other files.

    Whether nothing is left.
    """
    for file in root.names(name):
        if _is_file_of_ours(root, name, file):
            root.remove(f"{name}/{file}")
    return root.remove_empty_folder(name)


def _is_file_of_ours(root: Folder, name: str, file: str) -> bool:
    return _OURS.fullmatch(file) is not None and root.is_file(f"{name}/{file}")


def _checksum(file: int, offset: int, size: int) -> int:
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
