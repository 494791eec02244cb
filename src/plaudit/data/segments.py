"""Segments: folders of raw column files that grow together, one row an observation.

`steps.bin` holds one packed record a row (state, action, control mode, privileged values), and each camera has a file
of its own, `camera.front.bin`, uint8 [rows, H, W, 3] without a header. An episode of T actions takes T+1 rows in every
file, so one row number locates everything, and the next observation is the next row. The action fields of an episode's
last row are zeros and are not read.

Files are written with `pwrite` and read through `mmap`. Writing through a map would turn a full disk into a SIGBUS that
kills the process; a failed `pwrite` is an exception, after which the file is truncated to its last complete row.

The schema of a row is stored in the journal; `schema.json` is a copy with a checksum, for people, other programs and
journals that have lost the line.
"""

import math
import mmap
import os
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import quote

import numpy as np
from pydantic import AfterValidator, Field, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass

from plaudit.data.disk import Folder, checksum_at, decode_checked, encode_checked, set_aside, sync_file, write_at
from plaudit.data.frame_codecs import RAW_IMAGES, Codec, StoreImages, encode_block
from plaudit.errors import EpisodeNotFound, ForeignFile, StoreDamaged, StoreError, without_prefix
from plaudit.files import brief
from plaudit.types import AnyArray, Episode

STEPS = "steps"
SCHEMA = "schema.json"
EVICTED_SUFFIX = ".gone"  # a segment that was evicted and is being removed
MAX_SIDE = 1 << 16  # pixels
MAX_NUMBERS = 1 << 24  # of a state, an action or a privileged value
MAX_COLUMNS = 1024
MAX_DIMENSIONS = 16
MAX_ROW_BYTES = 1 << 30  # bytes of one row of a column
MAX_NAME_BYTES = 200  # of the file of a camera
_NUMBER_TYPE = re.compile(r"[<>|][biuf]\d{1,2}")
_OURS = re.compile(r"schema\.json(\.tmp)?|steps\.bin|camera\..*\.bin")


def _check_number_type(name: str) -> str:
    if not _NUMBER_TYPE.fullmatch(name) or np.dtype(name).str != name:
        raise ValueError(f"{brief(name)} is not a numeric type")
    return name


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > MAX_NUMBERS:
        raise ValueError(f"a shape of {brief(shape)} sizes is too large")
    return shape


_Name = Annotated[str, Field(strict=True)]
_Side = Annotated[int, Field(strict=True, ge=1, le=MAX_SIDE)]
_Size = Annotated[int, Field(strict=True, ge=0, le=MAX_NUMBERS)]
_NumberType = Annotated[_Name, AfterValidator(_check_number_type)]
_Shape = Annotated[tuple[_Size, ...], Field(max_length=MAX_DIMENSIONS), AfterValidator(_check_shape)]


@pydantic_dataclass(frozen=True)
class Schema:
    """What one row holds. Episodes of one schema share segments.

    It is validated: with a wrong size, the bytes of one episode would be served as another's.
    """

    cameras: Annotated[tuple[tuple[_Name, _Side, _Side], ...], Field(max_length=MAX_COLUMNS)]  # (name, H, W)
    state_dim: _Size
    action_dim: _Size
    # (name, dtype, shape of one step)
    privileged: Annotated[tuple[tuple[_Name, _NumberType, _Shape], ...], Field(max_length=MAX_COLUMNS)]
    # (camera, codec) of those that are not raw
    images: Annotated[tuple[tuple[_Name, _Name], ...], Field(max_length=MAX_COLUMNS)] = ()

    @classmethod
    def of(cls, episode: Episode, images: StoreImages = RAW_IMAGES) -> Self:
        """The schema of an episode. images: how its frames are stored"""
        cameras = tuple(sorted((c, f.shape[1], f.shape[2]) for c, f in episode.frames.items()))
        values = episode.privileged.items()
        privileged = tuple(sorted((n, v.dtype.newbyteorder("<").str, v.shape[1:]) for n, v in values))
        dims = {"state_dim": episode.state.shape[1], "action_dim": episode.actions.shape[1]}
        codecs = images.of([camera for camera, _, _ in cameras])
        return cls.from_json({"cameras": cameras, **dims, "privileged": privileged, "images": codecs})

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Raises ValueError or TypeError for anything else than a schema."""
        try:
            return cls(**tree)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {without_prefix(first['msg'])}") from error

    def __post_init__(self) -> None:
        """Raise ValueError if no segment can have it."""
        for names in ([c for c, _, _ in self.cameras], [n for n, _, _ in self.privileged]):
            if len(set(names)) < len(names):
                raise ValueError("a name of a camera or of a privileged value appears twice")
        for camera, height, width in self.cameras:
            if len(quote(camera_column(camera), safe="")) > MAX_NAME_BYTES:  # UnicodeError: half a character
                raise ValueError(f"the camera's name {brief(camera)} is too long for a file")
            if 3 * height * width > MAX_ROW_BYTES:
                raise ValueError(f"a frame of {height} x {width} pixels is too large")
        codecs = {camera: Codec.parse(codec) for camera, codec in self.images}
        if len(codecs) < len(self.images) or not codecs.keys() <= {c for c, _, _ in self.cameras}:
            raise ValueError("a codec is for no camera, or a camera has two")
        if any(codec.is_raw or str(codec) != text for codec, (_, text) in zip(codecs.values(), self.images)):
            raise ValueError("a codec is written in an unusual way")
        wide = 4 * (self.state_dim + self.action_dim)
        if wide + sum(np.dtype(d).itemsize * math.prod(s) + 8 for _, d, s in self.privileged) > MAX_ROW_BYTES:
            raise ValueError(f"one step has more than {MAX_ROW_BYTES:,} bytes")

    def to_json(self) -> dict[str, Any]:
        """The tree that `from_json` reads."""
        tree = asdict(self)
        if not self.images:
            del tree["images"]
        return tree

    @cached_property
    def step_dtype(self) -> np.dtype[Any]:
        """The record of a row of `steps.bin`."""
        floats = [("state", "<f4", (self.state_dim,)), ("action", "<f4", (self.action_dim,))]
        others = [(f"privileged.{name}", dtype, shape) for name, dtype, shape in self.privileged]
        return np.dtype([*floats, *others, ("control_mode", "u1")], align=True)

    @cached_property
    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Column name -> (dtype, shape of one row). A column of encoded frames has bytes instead of rows."""
        byte = np.dtype(np.uint8)
        frames = {camera_column(c): (byte, (h, w, 3)) for c, h, w in self.cameras}
        return {STEPS: (self.step_dtype, ()), **frames, **dict.fromkeys(self.codecs, (byte, ()))}

    @cached_property
    def codecs(self) -> dict[str, Codec]:
        """Column -> codec of its frames, of the columns that are encoded."""
        return {camera_column(camera): Codec.parse(codec) for camera, codec in self.images}

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row of all columns that are not encoded."""
        return sum(self.bytes_of(column) for column in self.columns if column not in self.codecs)

    @cached_property
    def raw_row_bytes(self) -> int:
        """Bytes of one row of all columns if no frame was encoded."""
        return self.bytes_of(STEPS) + sum(3 * height * width for _, height, width in self.cameras)

    def bytes_of(self, column: str) -> int:
        """Bytes of one row of a column."""
        dtype, shape = self.columns[column]
        return dtype.itemsize * math.prod(shape)


def camera_column(camera: str) -> str:
    """The column of a camera's frames."""
    return f"camera.{camera}"


class Segment:
    """One folder. `rows` counts the rows of episodes; anything beyond is a leftover of a crash."""

    def __init__(self, root: Folder, number: int, schema: Schema):
        """root: of the store"""
        self.name = segment_name(number)
        self.folder = root.path / self.name
        self.schema = schema
        self.rows = 0
        # Encoded column -> first row of an episode -> place and size of its frames in the file.
        self.blocks: dict[str, dict[int, tuple[int, int]]] = {column: {} for column in schema.codecs}
        self._ends = dict.fromkeys(schema.codecs, 0)  # bytes of each encoded column
        self._root = root
        self._names = {column: f"{self.name}/{quote(column, safe='.')}.bin" for column in schema.columns}
        self._written: dict[str, int] = {}  # column -> descriptor, of the columns written since `commit`
        self._mapped: tuple[int, dict[str, MappedColumn]] = (-1, {})  # rows, column -> map of that many

    @classmethod
    def create(cls, root: Folder, number: int, schema: Schema) -> Self:
        """Make the folder, with empty files."""
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

    def write_schema(self) -> None:
        """Write the copy of the schema, which nothing is read by."""
        self._root.write(f"{self.name}/{SCHEMA}", encode_checked(self.schema.to_json()))

    def schema_problem(self) -> str:
        """What is wrong with the copy of the schema; "" if nothing."""
        path = self.folder / SCHEMA
        try:
            data = self._root.read(f"{self.name}/{SCHEMA}")
        except FileNotFoundError:  # with its folder if it was evicted just now
            return f"{path} is missing" if self._root.exists(self.name) else ""
        except ForeignFile as error:
            return str(error)
        return "" if data == encode_checked(self.schema.to_json()) else f"{path} is not what the journal says"

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self.rows * self.schema.row_bytes + sum(self._ends.values())

    def size(self, row: int, rows: int) -> int:
        """Bytes of the episode that begins at a row."""
        return rows * self.schema.row_bytes + sum(size for _, size in self.blocks_of(row))

    def span(self, column: str, row: int, rows: int) -> tuple[int, int]:
        """Place and size of an episode's part of a column's file."""
        if column in self.blocks:
            return self.blocks[column][row]
        row_bytes = self.schema.bytes_of(column)
        return row * row_bytes, rows * row_bytes

    def add(self, row: int, rows: int, blocks: Mapping[str, tuple[int, int]]) -> None:
        """Take in an episode that the files have. blocks: of its encoded frames"""
        self.rows = max(self.rows, row + rows)
        for column, block in blocks.items():
            self.blocks[column][row] = block
            self._ends[column] = max(self._ends[column], sum(block))

    def blocks_of(self, row: int) -> list[tuple[int, int]]:
        """Place and size of the encoded frames of the episode that begins at a row."""
        return [blocks[row] for blocks in self.blocks.values()]

    @property
    def extent(self) -> list[int]:
        """The rows, and the bytes of each encoded column, also of episodes that were evicted."""
        return [self.rows, *self._ends.values()]

    def extend(self, rows: int, *ends: int) -> None:
        """Take in an extent."""
        self.rows = max(self.rows, rows)
        self._ends = {column: max(old, end) for (column, old), end in zip(self._ends.items(), ends, strict=True)}

    def file(self, column: str) -> Path:
        """The path of a column's file."""
        return self._root.path / self._names[column]

    def write(self, episode: Episode) -> "Written":
        """Write an episode after the last row, unsynced."""
        steps = np.zeros(episode.steps + 1, self.schema.step_dtype)
        steps["state"] = episode.state
        steps["action"][:-1] = episode.actions
        steps["control_mode"][:-1] = episode.control_mode
        for name, values in episode.privileged.items():
            steps[f"privileged.{name}"][:-1] = values
        columns = {STEPS: steps} | {camera_column(c): np.ascontiguousarray(f) for c, f in episode.frames.items()}
        sources: dict[str, int] = {}
        for column, codec in self.schema.codecs.items():
            sources[column] = zlib.crc32(columns[column].reshape(-1).data)
            columns[column] = np.frombuffer(encode_block(codec, columns[column]), np.uint8)
        for column in columns.keys() - self._written.keys():
            file = self._root.open(self._names[column], os.O_WRONLY)
            size = os.fstat(file).st_size
            if size == self._size(column):
                self._written[column] = file
            else:  # another writer's, a restored backup's, or a file that was cut
                os.close(file)
                sizes = f"{size:,} bytes where this writer left {self._size(column):,}"
                raise StoreError(f"{self.file(column)} has {sizes}; nothing was written, open the store again")
        checksums: dict[str, int] = {}
        for column, array in columns.items():
            data = array.reshape(-1).view(np.uint8).data
            write_at(self._written[column], data, self._size(column))
            checksums[column] = zlib.crc32(data)
        blocks = {column: (self._ends[column], columns[column].size) for column in self.blocks}
        self.add(self.rows, episode.steps + 1, blocks)
        return Written(checksums, blocks, sources)

    def sync(self) -> None:
        """Wait until what was written since `commit` would survive a power cut."""
        for descriptor in self._written.values():
            sync_file(descriptor)

    def commit(self) -> None:
        """Keep what was written, and close the files."""
        while self._written:
            os.close(self._written.popitem()[1])

    def truncate(self, rows: int) -> None:
        """Undo what was written since `commit` beyond `rows`; it was never acknowledged."""
        self.rows = rows
        for column, blocks in self.blocks.items():
            for row in [row for row in blocks if row >= rows]:
                del blocks[row]
            self._ends[column] = max(map(sum, blocks.values()), default=0)
        try:
            for column, descriptor in self._written.items():
                if os.fstat(descriptor).st_size > self._size(column):
                    os.ftruncate(descriptor, self._size(column))
        finally:
            self.commit()

    @property
    def leftovers(self) -> int:
        """Bytes beyond the rows: of an append that was interrupted, or of lines that are lost."""
        return sum(max(0, extra) for extra in self._extra_bytes().values())

    @property
    def is_whole(self) -> bool:
        """Whether every file has all rows."""
        return all(extra >= 0 for extra in self._extra_bytes().values())

    def quarantine_leftovers(self) -> str:
        """Move the bytes beyond the rows to the quarantine; returns a message."""
        columns = [column for column, extra in self._extra_bytes().items() if extra > 0]
        what = (
            f"{self.folder}: {self.leftovers:,} bytes that no line speaks of, of an unfinished episode or of lost lines"
        )
        with set_aside(self._root, f"segment-{self.folder.name}-tail", what) as aside:
            for column in columns:
                aside.copy(self._names[column], self._size(column))
        for column in columns:  # once all of it is safe
            with self._root.opened(self._names[column], os.O_RDWR) as file:
                os.ftruncate(file, self._size(column))
        return f"{what}, were set aside in {aside.path}"

    def _extra_bytes(self) -> dict[str, int]:
        """Bytes of each column's file beyond the rows; below 0 where it is cut or missing."""
        sizes = {c: self._root.stat(n).st_size if self._root.exists(n) else -1 for c, n in self._names.items()}
        return {column: size - self._size(column) for column, size in sizes.items()}

    def _size(self, column: str) -> int:
        """Bytes of the rows."""
        return self._ends[column] if column in self._ends else self.rows * self.schema.bytes_of(column)

    def column(self, name: str, end: int) -> AnyArray:
        """[end, ...] a read-only map of the first `end` rows; StoreDamaged if the file does not have them."""
        return self.mapped_column(name).checked(end)

    def mapped_column(self, name: str) -> "MappedColumn":
        """The whole column, mapped as far as its file goes. Call `checked` before each use."""
        rows = self.rows  # another thread may append, or map, meanwhile: look at each field once
        mapped = self._mapped
        if mapped[0] < rows:
            maps = {column: self._map(column, self._ends.get(column, rows)) for column in self.schema.columns}
            mapped = self._mapped = (rows, maps)
        return mapped[1][name]

    def _map(self, column: str, rows: int) -> "MappedColumn":
        """Map the complete rows that the file has: in a truncated file, the episodes before the cut stay readable.

        rows: of an encoded column, its bytes
        """
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

    def damage(self, row: int, rows: int, promised: Mapping[str, int], columns: Collection[str] | None = None) -> str:
        """The first file whose part of an episode fails its checksum, and how; "" if none does.

        The files are read and not mapped, so that a failing disk is an exception and no SIGBUS.
        """
        for column in columns or self.schema.columns:
            checksum = -1
            try:
                with self._reading(column) as file:
                    checksum = checksum_at(file, *self.span(column, row, rows))
            except StoreDamaged:
                pass
            except OSError as error:
                raise StoreDamaged(f"{self.file(column)} cannot be read: {error.strerror}") from error
            if checksum != promised.get(column):
                return f"{self.file(column)} {'is missing or cut short' if checksum == -1 else 'fails its checksum'}"
        return ""

    def remove(self) -> None:
        """Free the disk space. Maps that readers hold stay valid until they are released."""
        self.commit()
        gone = self.name + EVICTED_SUFFIX
        with suppress(OSError):  # an earlier try has done it, or a folder of a user has that name
            self._root.rename(self.name, gone)
        for name in (self.name, gone):
            if self._root.is_folder(name):
                remove_files(self._root, name)
        self._root.sync("segments")


@dataclass(frozen=True)
class Written:
    """What the journal has to record about an episode that was written."""

    checksums: dict[str, int]  # of each column's part
    blocks: dict[str, tuple[int, int]]  # encoded column -> place and size of its part
    sources: dict[str, int]  # encoded column -> checksum of its frames before they were encoded


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
    """The folder of a segment, below that of its store."""
    return f"segments/{number:06d}"


def read_schema(root: Folder, number: int) -> Schema:
    """The copy of a segment's schema, for a journal that has lost its line. ValueError if it is damaged."""
    try:
        return Schema.from_json(decode_checked(root.read(f"{segment_name(number)}/{SCHEMA}")))
    except OSError as error:
        raise ValueError(f"segment {number} has no schema: {error}") from error


def own_files(root: Folder, name: str) -> list[str]:
    """The files of a folder that a segment has."""
    return [file for file in root.names(name) if _OURS.fullmatch(file) and root.is_file(f"{name}/{file}")]


def remove_files(root: Folder, name: str) -> bool:
    """Remove a segment's own files, and its folder unless it contains other files; returns whether nothing is left."""
    for file in own_files(root, name):
        root.remove(f"{name}/{file}")
    return root.remove_empty_folder(name)
