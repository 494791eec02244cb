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
from string import Formatter
from typing import Any

from plaudit.data.formats.lerobot.files import count_rows, read_json_lines, read_table
from plaudit.errors import BadFile

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


@dataclass(frozen=True)
class Row:
    """What the metadata says of one episode."""

    index: int
    length: int
    tasks: list[str]
    data: Path  # the table it stands in, perhaps with others
    first: int  # rows of other episodes before it in the table
    videos: dict[str, Video] = field(default_factory=dict)  # feature -> where


@dataclass(frozen=True)
class Listing:
    """The episodes, and how many rows or frames of theirs each file holds by the list."""

    rows: list[Row]
    counts: Mapping[Path, int]


def list_episodes(path: Path, info: Mapping[str, Any], version: str, video_keys: Sequence[str]) -> Listing:
    """Every episode that `meta/` lists; a camera that it has no video of is not in the row's `videos`."""
    lines = path / "meta/episodes.jsonl"
    tables = (path / "meta/episodes").is_dir() or (version.startswith("v3") and not lines.is_file())
    default_data, default_video = (_V3_DATA, _V3_VIDEO) if tables else (_V2_DATA, _V2_VIDEO)
    data_path = info.get("data_path") or default_data
    video_path = info.get("video_path") or default_video
    per_chunk = info.get("chunks_size") or 1000
    names = cache(lambda: task_names(path))  # most lists have the texts, and nothing is read then

    counts: Counter[Path] = Counter()
    rows: list[Row] = []
    for number, entry in enumerate(_table_entries(path) if tables else read_json_lines(lines)):
        index = entry.get("episode_index", number)

        def place(template: str, said: dict[str, Any], index: int = index) -> Path:
            chunks = {
                "episode_chunk": index // per_chunk,
                "chunk_index": said.get("file_index", index) // per_chunk,
            }
            return _fill(path, template, {"episode_index": index, **chunks, **said})

        data = place(data_path, _said(entry, "data/"))
        length = _length(entry, data)
        videos = {}
        for key in video_keys:
            said = _said(entry, f"videos/{key}/")
            if tables and not said and "{episode_index" not in video_path:
                continue
            video = place(video_path, {**said, "video_key": key})
            videos[key] = Video(video, float(said.get("from_timestamp", 0.0)), counts[video])
            counts[video] += length
        tasks = [task if isinstance(task, str) else names().get(task, str(task)) for task in _tasks(entry)]
        rows.append(Row(index, length, tasks, data, counts[data], videos))
        counts[data] += length
    return Listing(rows, counts)


def _table_entries(path: Path) -> Iterator[dict[str, Any]]:
    files = sorted((path / "meta/episodes").rglob("*.parquet"))
    if not files:
        raise BadFile(path / "meta/episodes", "this LeRobot v3.0 data set lists no episodes; copy it again")
    for file in files:
        table = read_table(file)
        # Statistics are most of the table and nothing here needs them.
        yield from table.select([name for name in table.column_names if not name.startswith("stats/")]).to_pylist()


def _said(entry: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What an entry says under a prefix: chunk_index, file_index, from_timestamp."""
    return {k.removeprefix(prefix): v for k, v in entry.items() if k.startswith(prefix) and v is not None}


def _tasks(entry: Mapping[str, Any]) -> list[Any]:
    """Texts or numbers of tasks; a list, or a single one."""
    tasks = entry.get("tasks", entry.get("task"))
    if tasks is None:
        return []
    return list(tasks) if isinstance(tasks, list | tuple) else [tasks]


def _fill(root: Path, template: str, fields: Mapping[str, Any]) -> Path:
    missing = [name for _, name, _, _ in Formatter().parse(template) if name and name not in fields]
    if missing:
        raise BadFile(
            root / "meta/info.json",
            f"the path '{template}' asks for '{missing[0]}', which meta/ does not say; correct the path",
        )
    return root / template.format(**fields)


def _length(entry: Mapping[str, Any], data: Path) -> int:
    if entry.get("length") is not None:
        return int(entry["length"])
    if {"dataset_from_index", "dataset_to_index"} <= set(entry):
        return int(entry["dataset_to_index"]) - int(entry["dataset_from_index"])
    return count_rows(data)  # a table of its own: nothing else would say where it ends


def task_names(path: Path) -> dict[int, str]:
    """Task number -> text, which v3.0 keeps as the index of a pandas table."""
    table, lines = path / "meta/tasks.parquet", path / "meta/tasks.jsonl"
    if table.is_file():
        rows = read_table(table).to_pylist()
        return {row["task_index"]: row.get("task", row.get("__index_level_0__")) for row in rows}
    return {row["task_index"]: row["task"] for row in read_json_lines(lines)} if lines.is_file() else {}
