"""Columns on disk: a segment is a folder of raw arrays that grow together, one row an observation.

`steps.bin` holds one packed record a row (state, action, who acted, privileged values) and each camera has a file
of its own, `camera.front.bin`, uint8 [rows, H, W, 3] without a header. An episode of T actions is T+1 rows in every
file, so a row number is all it takes to find anything, and the next observation is the next row. The action fields
of an episode's last row are zeros that nobody reads.

Files are written with `pwrite` and read through `mmap`. Writing through a map would turn a full disk into a SIGBUS that
kills the process; a failed `pwrite` is an exception, after which the file is cut back to the rows that count.
"""

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from plaudit.data.journal import sync, sync_file, write_atomic
from plaudit.errors import EpisodeGone, StoreDamaged
from plaudit.types import AnyArray, Episode

STEPS = "steps"


@dataclass(frozen=True)
class Schema:
    """What one row holds. Episodes of one schema share segments."""

    cameras: tuple[tuple[str, int, int], ...]  # (name, H, W)
    state_dim: int
    action_dim: int
    privileged: tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, dtype, shape of one step)

    @classmethod
    def of(cls, episode: Episode) -> Self:
        return cls(
            cameras=tuple(sorted((c, f.shape[1], f.shape[2]) for c, f in episode.frames.items())),
            state_dim=episode.state.shape[1],
            action_dim=episode.actions.shape[1],
            privileged=tuple(sorted((n, _little(v.dtype), v.shape[1:]) for n, v in episode.privileged.items())),
        )

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        return cls(
            cameras=tuple((c, h, w) for c, h, w in tree["cameras"]),
            state_dim=tree["state_dim"],
            action_dim=tree["action_dim"],
            privileged=tuple((n, d, tuple(s)) for n, d, s in tree["privileged"]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "cameras": self.cameras,
            "state_dim": self.state_dim,
            "action_dim": self.action_dim,
            "privileged": self.privileged,
        }

    @cached_property
    def step_dtype(self) -> np.dtype[Any]:
        floats = [("state", "<f4", (self.state_dim,)), ("action", "<f4", (self.action_dim,))]
        others = [(f"privileged.{name}", dtype, shape) for name, dtype, shape in self.privileged]
        return np.dtype([*floats, *others, ("control_mode", "u1")], align=True)

    @cached_property
    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Column name -> (dtype, shape of one row)."""
        frames = {camera_column(c): (np.dtype(np.uint8), (h, w, 3)) for c, h, w in self.cameras}
        return {STEPS: (self.step_dtype, ()), **frames}

    @cached_property
    def row_bytes(self) -> int:
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.columns.values())


class Segment:
    """One folder. `rows` counts the rows that count; anything beyond is a leftover of a crash."""

    def __init__(self, folder: Path, schema: Schema):
        self.folder = folder
        self.schema = schema
        self.rows = 0
        self._mapped: tuple[int, dict[str, AnyArray]] = (-1, {})  # rows, column -> map of that many

    @classmethod
    def create(cls, folder: Path, schema: Schema) -> Self:
        shutil.rmtree(folder, ignore_errors=True)  # of an append that was interrupted: no line speaks of it
        folder.mkdir()
        segment = cls(folder, schema)
        try:
            for column in schema.columns:
                segment.file(column).touch(exist_ok=False)
            write_atomic(folder / "schema.json", json.dumps(schema.to_json(), indent=1).encode())
            sync(folder.parent)
        except OSError:
            shutil.rmtree(folder)
            raise
        return segment

    @classmethod
    def open(cls, folder: Path) -> Self:
        path = folder / "schema.json"
        try:
            return cls(folder, Schema.from_json(json.loads(path.read_text())))
        except FileNotFoundError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise StoreDamaged(f"{path} does not describe a segment ({error}); restore it from a backup") from error

    def file(self, column: str) -> Path:
        return self.folder / f"{quote(column, safe='.')}.bin"

    def write(self, episode: Episode) -> dict[str, int]:
        """Put an episode after the last row, unsynced; returns the checksum of each column's part."""
        checksums: dict[str, int] = {}
        for column, array in self._rows_of(episode).items():
            data = array.reshape(-1).view(np.uint8).data
            descriptor = os.open(self.file(column), os.O_WRONLY)
            try:
                _pwrite_all(descriptor, data, self.rows * (data.nbytes // len(array)))
            finally:
                os.close(descriptor)
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
        for column in self.schema.columns:
            descriptor = os.open(self.file(column), os.O_RDONLY)
            try:
                sync_file(descriptor)
            finally:
                os.close(descriptor)

    def truncate(self, rows: int) -> int:
        """Cut every file back to `rows`; returns how many bytes went."""
        removed = 0
        for column, (dtype, shape) in self.schema.columns.items():
            size = rows * dtype.itemsize * int(np.prod(shape))
            extra = self.file(column).stat().st_size - size
            if extra > 0:
                os.truncate(self.file(column), size)
                removed += extra
        self.rows = rows
        return removed

    def column(self, name: str) -> AnyArray:
        """[rows, ...] a read-only map that covers every row that counts."""
        rows = self.rows  # another thread may append, or map, meanwhile: look at each field once
        mapped = self._mapped
        if mapped[0] < rows:
            try:
                mapped = self._mapped = (rows, {column: self._map(column, rows) for column in self.schema.columns})
            except FileNotFoundError:
                raise EpisodeGone(f"{self.folder} was evicted by the writer just now; refresh the store") from None
        return mapped[1][name]

    def _map(self, column: str, rows: int) -> AnyArray:
        dtype, shape = self.schema.columns[column]
        path = self.file(column)
        size, needed = path.stat().st_size, rows * dtype.itemsize * int(np.prod(shape))
        if size < needed:
            raise StoreDamaged(
                f"{path} has {size:,} bytes where the journal promises {needed:,}; "
                f"run 'plaudit data check {self.folder.parent.parent} --repair' to set the lost episodes aside"
            )
        # A plain ndarray over the map: indexing a np.memmap costs more than the copy of a small frame.
        return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(rows, *shape)))

    def checksums(self, row: int, rows: int) -> dict[str, int]:
        """The checksum of each column's part, -1 where the file is too short."""
        found: dict[str, int] = {}
        for column, (dtype, shape) in self.schema.columns.items():
            row_bytes = dtype.itemsize * int(np.prod(shape))
            with self.file(column).open("rb") as file:
                file.seek(row * row_bytes)
                data = file.read(rows * row_bytes)
            found[column] = zlib.crc32(data) if len(data) == rows * row_bytes else -1
        return found

    def remove(self) -> None:
        """Give the disk space back. Maps that readers hold stay valid until they let go."""
        shutil.rmtree(self.folder)
        sync(self.folder.parent)


def camera_column(camera: str) -> str:
    return f"camera.{camera}"


def _little(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str


def _pwrite_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
