"""Which episodes a LeRobot data set lists, and in which files each of them lies.

v2 keeps a table and a video a camera for each episode, v3 many episodes in a file. Both say where by path templates in
`meta/info.json`, and data sets in the wild mix their fields (a v3.0 folder with a file an episode, a template without
chunks), so a template is filled with whatever fields it asks for. Where a file holds several episodes, they lie in it
one after the other in the order of the list.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plaudit.data.formats.lerobot.info import FIELDS, DatasetInfo, count, fill, number
from plaudit.data.formats.lerobot.io_utils import count_rows, read_json_lines, read_table
from plaudit.data.formats.limits import MAX_TEXT
from plaudit.errors import BadFile
from plaudit.files import Root, brief
from plaudit.types import AnyArray

# What LeRobot takes where info.json names no template.
_V2_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_V2_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_V3_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_V3_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


@dataclass(frozen=True)
class Video:
    """Where a camera's frames of one episode lie."""

    path: Path
    start: float  # seconds into the file
    first: int  # frames of other episodes before it in the file
    end: float | None = None  # seconds into the file where the next episode begins; None: nobody says


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
            raise BadFile(
                row.data,
                f"row {at} belongs to episode {owner[at]} by its 'episode_index' and to episode {row.index} by meta/; "
                "copy the data set again from its source, or correct either",
            )
        if (found := int((owner == row.index).sum())) != row.length:
            raise BadFile(
                row.data, f"episode {row.index} has {found} rows where meta/ says {row.length}; copy it again"
            )
    return place


def list_episodes(root: Root, info: DatasetInfo, video_keys: Sequence[str]) -> Listing:
    """Every episode that `meta/` lists; a camera that it has no video of is not in the row's `videos`."""
    lines = root.path / "meta/episodes.jsonl"
    folder = root.path / "meta/episodes"
    tables = folder.is_dir() or (info.version.startswith("v3") and not root.is_file(lines))
    entries = _table_entries(root, folder) if tables else read_json_lines(root, lines)
    reader = _Entries(root, info, video_keys, tables)
    rows = [reader.row(position, entry) for position, entry in enumerate(entries)]
    if rows and all(row.problem for row in rows):
        raise BadFile(rows[0].data, rows[0].problem)
    return Listing(rows, reader.counts)


class _Entries:
    """Entries of the list, one after the other, into rows."""

    def __init__(self, root: Root, info: DatasetInfo, video_keys: Sequence[str], tables: bool):
        """
        tables: the list is v3's, in tables
        """
        default_data, default_video = (_V3_DATA, _V3_VIDEO) if tables else (_V2_DATA, _V2_VIDEO)
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
        tasks = [self._text(task) for task in _tasks(entry)]
        videos = {}
        for key in self._video_keys:
            declared = self._template_fields(entry, f"videos/{key}/")
            if self._tables and not declared and "{episode_index" not in self._video_path:
                continue
            start = number(entry.get(f"videos/{key}/from_timestamp", 0.0))
            if start is None or not 0 <= start < 1e9:
                raise BadFile(self._root.path / "meta", f"episode {index} begins at no time within its video '{key}'")
            video = self._place(self._video_path, index, {**declared, "video_key": key})
            videos[key] = Video(video, start, self.counts[video], number(entry.get(f"videos/{key}/to_timestamp")))
        row = Row(index, length, tasks, data, self.counts[data], videos)
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
        found = count(value)
        if found is None:
            raise BadFile(self._root.path / "meta", f"the list of episodes says '{key}' is {brief(value)}; correct it")
        return found

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


def _table_entries(root: Root, folder: Path) -> Iterator[dict[str, Any]]:
    files = root.files(folder, ".parquet")
    if not files:
        raise BadFile(folder, "this LeRobot v3.0 data set lists no episodes; copy it again")
    for file in files:
        # Statistics are most of the table and nothing here needs them.
        table = read_table(root, file, lambda name: not name.startswith(("stats/", "meta/")))
        yield from entries_of(table, file)


def entries_of(table: pa.Table, where: Path) -> list[dict[str, Any]]:
    """A table's rows as Python's own values."""
    try:
        return table.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError) as error:  # dates beyond the calendar, text that is none
        raise BadFile(where, f"a value of this table cannot be read ({str(error)[:100]}); copy it again") from error


def _tasks(entry: Mapping[str, Any]) -> list[Any]:
    """Texts or numbers of tasks; a list, or a single one."""
    tasks = entry.get("tasks", entry.get("task"))
    if tasks is None:
        return []
    return list(tasks) if isinstance(tasks, list | tuple) else [tasks]


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
