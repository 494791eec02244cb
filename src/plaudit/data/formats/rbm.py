"""RBM-EVAL and other sets of Robometer's RBM-1M: videos of robots and people with a task and a quality label.

They are published in three forms:

    processed    SET/processed_dataset/ with state.json and data-*.arrow, and SET/frames/trajectory_ID.npz; or several
    source       SET/train-*.parquet, which names videos by paths that begin at the folder of SET
    collection   train/metadata.parquet, and videos next to it

A row is an episode. The quality label is about its end, so the last frame is labeled: 1 if successful and 0 if it is a
failure. A suboptimal episode gets no label, since some sets call a clumsy success so and others an unfinished task. The
quality label itself and the other values of the row are in `meta`, where `plaudit.judges.ranking` reads them.
"""

import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from plaudit.data.formats.base import MAX_EDGE, MAX_ROWS, UNREADABLE, ReadOptions
from plaudit.data.formats.columns import Column, ColumnLayout, Content, Recording
from plaudit.errors import BadFile
from plaudit.files import Root, brief, read_json_object, readable, understood
from plaudit.types import AnyArray

QUALITY = {
    **dict.fromkeys(("successful", "success", "optimal"), "successful"),
    "suboptimal": "suboptimal",
    **dict.fromkeys(("failure", "failed", "fail"), "failure"),
}
SUCCESS = {"successful": 1.0, "suboptimal": math.nan, "failure": 0.0}
MAX_ITEMS = 200_000
MAX_TABLE = 1 << 30  # bytes of one Arrow file
MAX_TEXT = 10_000  # characters
_PROCESSED, _COLLECTION, _SOURCE = "processed_dataset/state.json", "train/metadata.parquet", "*/train-*.parquet"
_FOOTER = 1 << 16  # bytes at the end of a parquet file, with the names of its columns
_VIDEO, _SUCCESS = "video", "success"
_REQUIRED = ("id", "task", "quality_label")
_OPTIONAL = ("frames", "file_name", "data_source", "is_robot", "partial_success", "preference_group_id")
_NUMBERS = ("preference_rank", "frames_shape")
_NAMES = (*_REQUIRED, *_OPTIONAL, *_NUMBERS)
_ABSENT = ("", "None", "nan", "null")  # in columns of texts
_NPZ_MEMBERS = 16
_FRAMES = "frames.npy"


def find(path: Path) -> list[Path]:
    """The files with the rows of a folder."""
    if not path.is_dir():
        return []
    files = [path / _PROCESSED] if (path / _PROCESSED).is_file() else sorted(path.glob(f"*/{_PROCESSED}"))
    if files or (path / _COLLECTION).is_file():
        return files or [path / _COLLECTION]
    return [file for file in sorted(path.glob(_SOURCE)) if _has_quality(path, file)]


def _has_quality(path: Path, file: Path) -> bool:
    footer = b""
    with suppress(BadFile, OSError), Root(path).open(file) as opened:  # any other folder may have such a file
        opened.seek(max(0, opened.seek(0, io.SEEK_END) - _FOOTER))
        footer = opened.read()
    return b"quality_label" in footer and b"frames" in footer


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """One for each row; no video and no array is opened."""
    listed: list[Recording] = []
    for file in files:
        rows = _processed_rows(root, file) if file.name == "state.json" else _parquet_rows(root, file)
        for number, row in enumerate(rows):
            where = f"{file.parent if file.name == 'state.json' else file}, row {number}"
            listed.append(Recording(where, partial(_content, root, file, where, row)))
            if len(listed) > MAX_ITEMS:
                raise BadFile(file, f"it lists more than {MAX_ITEMS:,} episodes; open its sets one by one")
    return listed


# The rows


def _parquet_rows(root: Root, file: Path) -> list[dict[str, Any]]:
    from plaudit.data.formats.lerobot.tables import read_table

    table = read_table(root, file, _NAMES.__contains__)
    _check_columns(table.column_names, file)
    return table.to_pylist()


def _processed_rows(root: Root, file: Path) -> Iterator[dict[str, Any]]:
    """The rows of `Dataset.save_to_disk`: Arrow streams, which state.json lists."""
    state = read_json_object(file, root)
    with understood(file):
        names = [entry["filename"] for entry in state["_data_files"]]
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+\.arrow", name):
            raise BadFile(file, f"{brief(name)} is not the name of an .arrow file next to it")
        yield from _arrow_rows(root, file.parent / name)


def _arrow_rows(root: Root, path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    message = "this is not a whole Arrow file ({}); copy it again from its source"
    try:
        with (
            readable(path, message, "this table is missing; copy it from the data set's source"),
            root.open(path, MAX_TABLE) as file,
            pa.ipc.open_stream(file) as stream,
        ):
            _check_columns(stream.schema.names, path)
            for batch in stream:
                chosen = batch.select([name for name in stream.schema.names if name in _NAMES])
                chosen.validate(full=True)
                if chosen.num_rows > MAX_ITEMS:
                    raise BadFile(path, f"it claims {chosen.num_rows:,} rows; the limit is {MAX_ITEMS:,}")
                yield from chosen.to_pylist()
    except MemoryError as error:
        raise BadFile(path, "this table takes more memory than its size promised; copy it again") from error


def _check_columns(names: Sequence[str], path: Path) -> None:
    chosen = [name for name in names if name in _NAMES]
    twice = next((name for name in chosen if chosen.count(name) > 1), None)
    if twice is not None:
        raise BadFile(path, f"this table has column {brief(twice)} twice; write it again")
    missing = [name for name in _REQUIRED if name not in chosen]
    if missing or not {"frames", "file_name"} & set(chosen):
        lacking = ", ".join(missing) or "frames"
        raise BadFile(path, f"this table has no column {lacking}; it has: {', '.join(names)[:300]}")


# One episode


def _content(root: Root, file: Path, where: str, row: Mapping[str, Any]) -> Content:
    task, meta = _text(row, "task", where), _meta(row, where)
    if file.name == "state.json":
        frames = _stored_frames(root, file.parent.parent, where, row)
    else:
        base = file.parent if "file_name" in row else file.parent.parent
        name = row["file_name"] if "file_name" in row else row["frames"]
        inside = Root(base, root.follow_links).inside(name)
        frames = _Video.open(root, inside)
    success = np.full((frames.rows, 1), np.nan, np.float32)
    success[-1] = SUCCESS[meta["quality_label"]]

    def read(name: str, start: int, stop: int) -> Any:
        return success[start:stop] if name == _SUCCESS else frames.read(start, stop)

    columns = {
        _VIDEO: Column(frames.rows, (*frames.size, 3), "uint8", frames.stored),
        _SUCCESS: Column(frames.rows, (1,), "float32", success.nbytes),
    }
    return Content(columns, read, task=task, fps=frames.fps, terminated=True, meta=meta, labeled=True)


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_TEXT:
        raise BadFile(where, f"'{name}' is {brief(value)}, and must be a text")
    return value


def _meta(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    label = _text(row, "quality_label", where)
    if label not in QUALITY:
        raise BadFile(where, f"'quality_label' is {brief(label)}, and must be successful, suboptimal or failure")
    meta: dict[str, Any] = {"id": _text(row, "id", where), "quality_label": QUALITY[label]}
    given = {name: row[name] for name in _NAMES if row.get(name) is not None and row[name] not in _ABSENT}
    for name in ("data_source", "preference_group_id"):
        if name in given:
            meta[name] = _text(row, name, where)
    if "is_robot" in given:
        flags = {True: True, False: False, "True": True, "true": True, "False": False, "false": False}
        if not isinstance(given["is_robot"], bool | str) or given["is_robot"] not in flags:
            raise BadFile(where, f"'is_robot' is {brief(given['is_robot'])}, and must be true or false")
        meta["is_robot"] = flags[given["is_robot"]]
    if "partial_success" in given:
        meta["partial_success"] = _fraction(given["partial_success"], where)
    if "preference_rank" in given:
        if type(given["preference_rank"]) is not int:
            raise BadFile(where, f"'preference_rank' is {brief(given['preference_rank'])}, and must be a whole number")
        meta["preference_rank"] = given["preference_rank"]
    return meta


def _fraction(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= 1:
        raise BadFile(where, f"'partial_success' is {brief(value)}, and must be a number from 0 to 1")
    return number


# Its frames


@dataclass(frozen=True)
class _Video:
    """Frames of an MP4 file."""

    root: Root
    path: Path
    times: AnyArray  # [rows] s
    size: tuple[int, int]
    stored: int

    @classmethod
    def open(cls, root: Root, path: Path) -> "_Video":
        from plaudit.data.formats.video import coded_frames, frame_size

        times, stored = coded_frames(root, path)
        if len(times) < 2:
            raise BadFile(path, f"this video has {len(times)} frames, and an episode at least 2")
        return cls(root, path, times, frame_size(root, path), stored)

    @property
    def rows(self) -> int:
        return len(self.times)

    @property
    def _seconds(self) -> float:
        return float(self.times[-1] - self.times[0])

    @property
    def fps(self) -> float:
        return round((self.rows - 1) / self._seconds, 3) if self._seconds > 0 else 0.0

    def read(self, start: int, stop: int) -> AnyArray:
        from plaudit.data.formats.video import read_frames

        return read_frames(self.root, self.path, self.times[start:stop], self._seconds / self.rows / 2, *self.size)


@dataclass(frozen=True)
class _Npz:
    """The array `frames` of an NPZ file: uint8 [rows, H, W, 3]. They were thinned out, so their rate is not known."""

    root: Root
    path: Path
    rows: int
    size: tuple[int, int]
    stored: int
    header: int  # bytes before the first frame
    fps: float = 0.0

    @classmethod
    def open(cls, root: Root, path: Path) -> "_Npz":
        with _member(root, path) as (info, file):
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
            shape, by_columns, dtype = read(file)
            header = file.tell()
            if dtype != np.uint8 or by_columns or len(shape) != 4 or shape[3] != 3:
                raise BadFile(path, f"its frames are {dtype} {list(shape)[:6]}, and must be uint8 [frames, H, W, 3]")
            rows, height, width = shape[:3]
            if not (2 <= rows <= MAX_ROWS and 1 <= height <= MAX_EDGE and 1 <= width <= MAX_EDGE):
                raise BadFile(path, f"its frames are {list(shape)}; an episode has at least 2, of at most {MAX_EDGE:,}")
            if info.file_size != header + rows * height * width * 3:
                raise BadFile(path, f"its frames claim to be {list(shape)} in {info.file_size:,} bytes; copy it again")
            return cls(root, path, rows, (height, width), min(info.compress_size, root.size(path)), header)

    def read(self, start: int, stop: int) -> AnyArray:
        frame = self.size[0] * self.size[1] * 3
        with _member(self.root, self.path) as (_, file):
            file.seek(self.header + start * frame)
            data = file.read((stop - start) * frame)
            if len(data) != (stop - start) * frame:
                raise BadFile(self.path, "it ends within its frames; copy it again from its source")
        return np.frombuffer(data, np.uint8).reshape(stop - start, *self.size, 3)


@contextmanager
def _member(root: Root, path: Path) -> Iterator[tuple[zipfile.ZipInfo, IO[bytes]]]:
    """The array `frames` of an NPZ file, and its entry in the list of files. Nothing is unpickled."""
    missing = "this file of frames is missing; copy it from the data set's source"
    with readable(path, UNREADABLE, missing), root.open(path) as file, zipfile.ZipFile(file) as archive:
        members = [info for info in archive.infolist() if info.filename == _FRAMES]
        if len(members) != 1 or len(archive.infolist()) > _NPZ_MEMBERS:
            raise BadFile(path, "this file has no array 'frames'; copy it again from its source")
        with archive.open(members[0]) as member:
            yield members[0], member


def _stored_frames(root: Root, folder: Path, where: str, row: Mapping[str, Any]) -> "_Npz":
    """The file that a row names. Its folders are those of the machine that wrote it, so that only the name counts."""
    name = re.split(r"[/\\]", _text(row, "frames", where))[-1]
    if not name.endswith(".npz"):
        raise BadFile(where, f"'frames' is {brief(row['frames'])}, and must name an .npz file")
    frames = _Npz.open(root, Root(folder, root.follow_links).inside(f"frames/{name}"))
    shape, given = [frames.rows, *frames.size, 3], row.get("frames_shape")
    if given is not None and given != shape:
        raise BadFile(frames.path, f"its frames are {shape}, and the list says {brief(str(given))}; copy both again")
    return frames


LAYOUT = ColumnLayout("rbm", "av", "", find, recordings)
