"""What `meta/` of a LeRobot data set says: the features, the episodes, and the files of each episode.

v2 keeps a table and a video per camera for each episode, v3 many episodes in a file. Both say where by path templates
in `meta/info.json`. Data sets mix their fields, so a template is filled with whatever fields it asks for. Where a file
holds several episodes, they lie in it one after the other in the order of the list.

Folders are renamed, converted and unpacked a level deeper, and info.json stays as it was. If none of the files of a
camera (or none of the tables) is in its place, they are searched by name: each must exist exactly once. A single
missing file is not searched: a backup next to it would be taken instead.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from plaudit.data.formats.base import MAX_EDGE, MAX_PIXELS, MAX_TEXT, MAX_WIDTH
from plaudit.data.formats.lerobot.features import DATA_PATH, IMAGES, PLAUDIT_META, VIDEO_PATH
from plaudit.data.formats.lerobot.tables import MISSING, Features, count_rows, image_size, read_json_lines, read_table
from plaudit.errors import BadFile
from plaudit.files import Root, brief, read_json
from plaudit.types import AnyArray, Padding

MAX_FEATURES = 10_000
MIN_FPS, MAX_FPS = 1e-3, 1e5
MAX_INDEX = 1 << 40  # of an episode, a file, a frame
MAX_NUMBER = 1e300
MAX_NAME = 100  # characters of a camera, which becomes the name of a file

FIELDS = ("episode_chunk", "episode_index", "chunk_index", "file_index", "video_key")
_SPEC = re.compile(r"0?(\d|1[0-2])?d?")  # 06d, 3d, d: never wider than 12


@dataclass(frozen=True)
class DatasetInfo:
    """The validated content of `meta/info.json`."""

    version: str
    fps: float
    robot: str
    features: Features
    sizes: Mapping[str, tuple[int, int]]  # feature of color images -> height, width
    data_path: str | None
    video_path: str | None
    chunks_size: int


def read_info(root: Root) -> DatasetInfo:
    """Read `meta/info.json`; BadFile for a description that no data set has."""
    path = root.path / "meta/info.json"
    info = read_json(path, root, MISSING)
    if not isinstance(info, dict):
        raise BadFile(path, f"this does not describe a LeRobot data set: it is {brief(info)}, not a mapping")
    for key in ("codebase_version", "fps", "features"):
        if key not in info:
            raise BadFile(path, f"this does not describe a LeRobot data set: it lacks '{key}'")
    version, fps, robot = info["codebase_version"], number(info["fps"]), info.get("robot_type")
    if not isinstance(version, str) or not version.startswith(("v2", "v3")) or len(version) > 20:
        raise BadFile(path, f"LeRobot {brief(version).strip(chr(39))} is not read; v2.0, v2.1 and v3.0 are")
    if fps is None or not MIN_FPS <= fps <= MAX_FPS:
        raise BadFile(path, f"'fps' is {brief(info['fps'])}, which is not a frame rate; correct it")
    templates = {key: info.get(key) or None for key in ("data_path", "video_path")}
    for key, template in templates.items():
        if template is not None and (not isinstance(template, str) or len(template) > 1000):
            raise BadFile(path, f"'{key}' is {brief(template)}, not a path; correct it")
    chunks_size = info.get("chunks_size") or 1000
    if type(chunks_size) is not int or not 0 < chunks_size <= MAX_INDEX:
        raise BadFile(
            path, f"'chunks_size' is {brief(chunks_size)}; it must be the number of episodes in a folder; correct it"
        )
    features, sizes = _check_features(info["features"], path)
    robot = robot[:MAX_NAME] if isinstance(robot, str) else ""
    return DatasetInfo(version, fps, robot, features, sizes, **templates, chunks_size=chunks_size)


def _check_features(features: Any, path: Path) -> tuple[Features, dict[str, tuple[int, int]]]:
    """The features, and the height and width of those that are color images."""
    if not isinstance(features, dict) or len(features) > MAX_FEATURES:
        raise BadFile(path, f"'features' is {brief(features)} but must map column names to their descriptions")
    sizes: dict[str, tuple[int, int]] = {}
    for name, feature in features.items():
        if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
            raise BadFile(path, f"feature {brief(name)} has no 'dtype'; correct it")
        shape = feature["shape"] = [] if feature.get("shape") is None else feature["shape"]
        sound = isinstance(shape, list) and len(shape) <= 8 and all(type(n) is int and n >= 0 for n in shape)
        is_image = feature["dtype"] in ("video", "image")
        if not sound or not (is_image or math.prod(shape) <= MAX_WIDTH):
            text = f"[{', '.join(brief(n) for n in shape[:8])}]" if isinstance(shape, list) else brief(shape)
            raise BadFile(path, f"feature {brief(name)} has an invalid 'shape': {text}; correct it")
        size = image_size(feature) if is_image else None
        if size is None:
            continue
        height, width = sizes[name] = size
        if not (0 < height <= MAX_EDGE and 0 < width <= MAX_EDGE and height * width <= MAX_PIXELS):
            frames = f"{brief(height)}x{brief(width)}"
            raise BadFile(path, f"camera {brief(name)} has frames of {frames}; at most {MAX_PIXELS:,} pixels are read")
        camera = name.removeprefix(IMAGES)
        if not camera or len(camera.encode()) > MAX_NAME or "\0" in camera:
            raise BadFile(path, f"camera {brief(name)} has a name that is not a valid file name; rename it")
    return features, sizes


def fill(root: Root, template: str, fields: Mapping[str, Any]) -> Path:
    """The path that a template stands for, within the data set. Only plain fields are filled in.

    `str.format` on a stranger's template reads attributes and pads to any width; each part is looked at first.
    """
    info = root.path / "meta/info.json"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise BadFile(info, f"{brief(template)} is not a valid path template ({error}); correct it") from error
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if name not in fields:
            problem = f"the path '{template[:200]}' asks for {brief(name)}, which meta/ does not say"
            raise BadFile(info, f"{problem}; correct the path")
        plain = name in FIELDS and not conversion
        if not plain or (spec and (name == "video_key" or not _SPEC.fullmatch(spec))):
            raise BadFile(info, f"the path {brief(template)} may contain only its field names; correct the path")
    return root.inside(template.format(**{name: fields[name] for name in FIELDS if name in fields}))


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
        return None
    return float(value)


def count(value: Any) -> int | None:
    """A whole number from 0 on, also where a table keeps it as a float; None for anything else."""
    size = number(value)
    return int(size) if size is not None and 0 <= size <= MAX_INDEX and size == int(size) else None


# What LeRobot takes in v2 where info.json names no template.
_V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


@dataclass(frozen=True)
class Video:
    """Location of one episode's frames of a camera."""

    path: Path
    start: float  # seconds into the file
    first: int  # frames of other episodes before it in the file
    end: float | None = None  # seconds into the file where the next episode begins; None: not known


@dataclass(frozen=True)
class Row:
    """The metadata of one episode."""

    index: int
    length: int
    tasks: list[str]
    data: Path  # the table it stands in, perhaps with others
    first: int  # rows of other episodes before it in the table
    videos: dict[str, Video] = field(default_factory=dict)  # feature -> where
    problem: str = ""  # why it cannot be read, where that shows already


@dataclass(frozen=True)
class Listing:
    """The episodes, and how many rows or frames of theirs each file holds by the list."""

    rows: list[Row]
    counts: Mapping[Path, int]


def rows_in_table(row: Row, owner: AnyArray | None, total: int, listed: int) -> slice:
    """Where an episode lies in its table. BadFile where the table contradicts `meta/`.

    owner: `episode_index` of each row of the table; None where it has no such column, then its rows must add up
    total: rows of the table
    listed: rows of the table by `meta/`
    """
    first = row.first
    if owner is None:
        if total != listed:
            raise BadFile(row.data, f"this table has {total} rows where meta/ says {listed}; copy it again")
    elif total != listed and row.index in owner:  # rows of episodes that are not listed may lie between
        first = int(np.argmax(owner == row.index))
    place = slice(first, first + row.length)
    if owner is not None:
        wrong = np.flatnonzero(owner[place] != row.index)
        if len(wrong):
            at = first + int(wrong[0])
            by_meta = f"and to episode {row.index} by meta/; copy it again from its source, or correct one of them"
            raise BadFile(row.data, f"row {at} belongs to episode {owner[at]} by its 'episode_index' {by_meta}")
        if (rows := int((owner == row.index).sum())) != row.length:
            problem = f"episode {row.index} has {rows} rows where meta/ says {row.length}"
            raise BadFile(row.data, f"{problem}; copy it again")
    return place


def list_episodes(root: Root, info: DatasetInfo, video_keys: Sequence[str], notes: dict[str, str]) -> Listing:
    """Every episode that `meta/` lists; a camera that it has no video of is not in the row's `videos`.

    notes: filled in with where files were found that are not in their place
    """
    lines, folder = root.path / "meta/episodes.jsonl", root.path / "meta/episodes"
    tables = folder.is_dir() or (info.version.startswith("v3") and not root.is_file(lines))
    entries: list[dict[str, Any] | BadFile] = []
    if tables:
        files = root.files(folder, ".parquet")
        if not files:
            raise BadFile(folder, "this LeRobot v3.0 data set lists no episodes; copy it again")
        for file in files:  # statistics are most of a table, and not needed
            table = read_table(root, file, lambda name: not name.startswith(("stats/", "meta/")))
            entries += entries_of(table, file)
    else:
        entries = read_json_lines(root, lines)
    reader = _Entries(root, info, video_keys, tables)
    rows = [reader.row(position, entry) for position, entry in enumerate(entries)]
    if rows and all(row.problem for row in rows):
        raise BadFile(rows[0].data, rows[0].problem)
    return _find_elsewhere(root, Listing(rows, reader.counts), notes)


class _Entries:
    """Entries of the list, one after the other, into rows."""

    def __init__(self, root: Root, info: DatasetInfo, video_keys: Sequence[str], tables: bool):
        """tables: the list is v3's, in tables"""
        default_data, default_video = (DATA_PATH, VIDEO_PATH) if tables else (_V2_DATA, _V2_VIDEO)
        self._root, self._video_keys, self._tables = root, video_keys, tables
        self._data_path, self._video_path = info.data_path or default_data, info.video_path or default_video
        self._per_chunk = info.chunks_size
        self._names = cache(lambda: task_names(root))  # most lists have the texts, and nothing is read then
        self.counts: Counter[Path] = Counter()

    def row(self, position: int, entry: Mapping[str, Any] | BadFile) -> Row:
        """One that cannot be understood is listed with its problem: the others can be read without it."""
        index = position
        try:
            if isinstance(entry, BadFile):
                raise entry
            index = self._check_int(entry, "episode_index", position)
            return self._row(index, entry)
        except BadFile as error:
            return Row(index, 0, [], error.path, 0, problem=str(error).removeprefix(f"{error.path}: "))

    def _row(self, index: int, entry: Mapping[str, Any]) -> Row:
        data = self._place(self._data_path, index, self._template_fields(entry, "data/"))
        length = self._length(entry, data)
        tasks = entry.get("tasks", entry.get("task"))
        tasks = [] if tasks is None else tasks if isinstance(tasks, list | tuple) else [tasks]
        videos = {}
        for key in self._video_keys:
            declared = self._template_fields(entry, f"videos/{key}/")
            if self._tables and not declared and "{episode_index" not in self._video_path:
                continue
            start = number(entry.get(f"videos/{key}/from_timestamp", 0.0))
            if start is None or not 0 <= start < 1e9:
                raise BadFile(
                    self._root.path / "meta", f"episode {index} starts outside the duration of its video '{key}'"
                )
            video = self._place(self._video_path, index, {**declared, "video_key": key})
            videos[key] = Video(video, start, self.counts[video], number(entry.get(f"videos/{key}/to_timestamp")))
        row = Row(index, length, [self._text(task) for task in tasks], data, self.counts[data], videos)
        for path in (data, *(video.path for video in videos.values())):
            self.counts[path] += length
        return row

    def _place(self, template: str, index: int, declared: Mapping[str, Any]) -> Path:
        chunks = {
            "episode_chunk": index // self._per_chunk,
            "chunk_index": declared.get("file_index", index) // self._per_chunk,
        }
        return fill(self._root, template, {"episode_index": index, **chunks, **declared})

    def _template_fields(self, entry: Mapping[str, Any], prefix: str) -> dict[str, int]:
        """What an entry says under a prefix of the fields of a template: chunk_index, file_index."""
        keys = {name: f"{prefix}{name}" for name in FIELDS}
        return {name: self._check_int(entry, key) for name, key in keys.items() if entry.get(key) is not None}

    def _check_int(self, entry: Mapping[str, Any], key: str, default: int = 0) -> int:
        value = entry.get(key, default)
        index = count(value)
        if index is None:
            raise BadFile(self._root.path / "meta", f"the list of episodes says '{key}' is {brief(value)}; correct it")
        return index

    def _length(self, entry: Mapping[str, Any], data: Path) -> int:
        if entry.get("length") is not None:
            return self._check_int(entry, "length")
        if entry.get("dataset_from_index") is not None and entry.get("dataset_to_index") is not None:
            first, end = self._check_int(entry, "dataset_from_index"), self._check_int(entry, "dataset_to_index")
            if end < first:
                raise BadFile(self._root.path / "meta", f"an episode goes from row {first} to row {end}; correct it")
            return end - first
        return count_rows(self._root, data)  # a table of its own: nothing else would say where it ends

    def _text(self, task: Any) -> str:
        text = task if isinstance(task, str) else self._names().get(count(task), brief(task))
        if len(text) > MAX_TEXT:
            raise BadFile(self._root.path / "meta", f"a task of {len(text):,} characters, {brief(text)}; shorten it")
        return text


def entries_of(table: pa.Table, where: Path) -> list[dict[str, Any]]:
    """A table's rows as Python's own values."""
    try:
        return table.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:  # dates beyond the calendar, text that is none
        raise BadFile(where, f"a value of this table cannot be read ({str(error)[:100]}); copy it again") from error


def task_names(root: Root) -> dict[int | None, str]:
    """Task number -> text, which v3.0 keeps as the index of a pandas table."""
    table, lines = root.path / "meta/tasks.parquet", root.path / "meta/tasks.jsonl"
    rows: Sequence[Any] = []
    if root.is_file(table):
        rows = entries_of(read_table(root, table), table)
    elif root.is_file(lines):
        rows = read_json_lines(root, lines)
    entries = [row for row in rows if isinstance(row, dict)]
    texts = ((row.get("task_index"), row.get("task", row.get("__index_level_0__"))) for row in entries)
    return {count(index): text for index, text in texts if count(index) is not None and isinstance(text, str)}


_FINAL = "final/"


@dataclass(frozen=True)
class PlauditMeta:
    """What Plaudit stores about one episode; missing values have the defaults of other data sets."""

    padded: Padding = "last"
    terminated: bool | None = None
    reward_frame: str = "next"
    source: str = "dataset"
    start: float | None = None
    final_success: float | None = None
    final_state: list[float] | None = None
    images: Mapping[str, bytes] = field(default_factory=dict)  # camera -> what the last action led to


NO_META = PlauditMeta()


def read_plaudit_meta(root: Root) -> dict[int, PlauditMeta]:
    """Plaudit's entries by episode; {} if Plaudit did not write the data set."""
    path = root.path / PLAUDIT_META
    if not root.is_file(path):
        return {}
    metas: dict[int, PlauditMeta] = {}
    for entry in entries_of(read_table(root, path), path):
        index = count(entry.get("episode_index"))
        if index is None:
            raise BadFile(path, "a row of this table does not say which episode it is of; export the data set again")
        source, state, terminated = entry.get("source"), entry.get("final_state"), entry.get("terminated")
        is_state = isinstance(state, list) and all(number(value) is not None for value in state)
        images = {name: value for name, value in entry.items() if name.startswith(_FINAL) and isinstance(value, bytes)}
        metas[index] = PlauditMeta(
            padded=next((padding for padding in get_args(Padding) if padding == entry.get("repeated")), "last"),
            terminated=terminated if isinstance(terminated, bool) else None,
            reward_frame=str(entry.get("reward_frame")),
            source=source[:100] if isinstance(source, str) else "dataset",
            start=number(entry.get("start")),
            final_success=number(entry.get("final_success")),
            final_state=state if is_state else None,
            images={name.removeprefix(_FINAL): value for name, value in images.items()},
        )
    return metas


_TABLES = (".parquet",)
_VIDEOS = (".mp4", ".mkv", ".webm", ".mov", ".m4v")
_CHUNK = re.compile(r"chunk-\d+")


def _find_elsewhere(root: Root, listing: Listing, notes: dict[str, str]) -> Listing:
    """The same episodes with the files that are there. notes: as for `list_episodes`"""
    rows = [row for row in listing.rows if not row.problem]
    keys = sorted({key for row in rows for key in row.videos})
    expected = {"": {row.data for row in rows}} | {k: {r.videos[k].path for r in rows if k in r.videos} for k in keys}
    lost = [key for key, paths in expected.items() if paths and not any(root.is_file(path) for path in paths)]
    if not lost:
        return listing
    in_place = {path for key, paths in expected.items() if key not in lost for path in paths}
    by_stem: defaultdict[str, list[Path]] = defaultdict(list)
    for path in root.files(root.path, (*_TABLES, *_VIDEOS)):
        parts = path.relative_to(root.path).parts
        if path not in in_place and parts[0] != "meta" and not any(part.startswith(".") for part in parts):
            by_stem[path.stem].append(path)
    moved: dict[Path, Path] = {}
    for key in lost:
        places = {path: _choose_file(by_stem[path.stem], path, key, only=len(keys) == 1) for path in expected[key]}
        chosen = {path: place for path, place in places.items() if place is not None}
        taken = [*moved.values(), *chosen.values()]
        if chosen and len(set(taken)) == len(taken):
            moved |= chosen
            first = min(chosen)
            notes.setdefault(
                f"elsewhere {key}",
                f"meta/info.json names {first.relative_to(root.path)}, which is not there; "
                f"{chosen[first].relative_to(root.path)} is read in its place, and so are the others",
            )

    def relocate(row: Row) -> Row:
        videos = {key: replace(video, path=moved.get(video.path, video.path)) for key, video in row.videos.items()}
        return replace(row, data=moved.get(row.data, row.data), videos=videos)

    return Listing([relocate(row) for row in listing.rows], {moved.get(p, p): n for p, n in listing.counts.items()})


def _choose_file(paths: Sequence[Path], expected: Path, key: str, *, only: bool) -> Path | None:
    """The one file that can be meant; None where there is none, or a choice.

    paths: files of the same name, with any ending
    key: the camera's feature, "" for a table
    only: there is no other camera
    """
    chosen = [path for path in paths if path.suffix in (_VIDEOS if key else _TABLES)]
    if key and (not only or len(chosen) > 1):
        camera = key.rpartition(".")[2]
        chosen = [path for path in chosen if any(part.rpartition(".")[2] == camera for part in path.parts[:-1])]
    if len(chosen) > 1:
        chunks = {part for part in expected.parts if _CHUNK.fullmatch(part)}
        chosen = [path for path in chosen if chunks <= set(path.parts)]
    return chosen[0] if len(chosen) == 1 else None
