"""A copy of a LeRobot data set with other labels: `next.reward`, `next.done` and `next.success`, and nothing else new.

Videos and other files are the same bytes. Tables are written again, a row group at a time, because parquet has no place
for another column; all other columns keep their values. What meta/ says of the three columns (features, statistics) is
written with them. `meta/plaudit.parquet` says which frame `next.reward` is about and who labeled.
"""

import errno
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.base import MAX_ROWS, RewardFrame
from plaudit.data.formats.lerobot import meta, tables
from plaudit.data.formats.lerobot.features import (
    ACTION,
    DONE,
    PLAUDIT_META,
    REWARD,
    SUCCESS,
    done_column,
    label_entry,
    reward_columns,
)
from plaudit.data.formats.lerobot.writer import describe
from plaudit.errors import BadFile
from plaudit.files import Root, brief, parse_json, read_json_object
from plaudit.types import AnyArray, FloatArray, Labels, ProgressFn

_INFO, _STATS, _LINES, _EPISODES = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl", "meta/episodes/"
_WRITTEN = (_INFO, _STATS, _LINES, PLAUDIT_META)  # again, and so are the tables of meta/episodes
_OTHER_RECORDING = "it is another recording than the one that was labeled, import it again"
_DTYPES = {REWARD: "float32", DONE: "bool", SUCCESS: "bool"}

Reserve = Callable[[int], None]  # called with the bytes of the next table before it is read
Columns = Mapping[int, Mapping[str, AnyArray]]  # episode -> column of labels -> [T]


@dataclass(frozen=True)
class EpisodeLabels:
    """The labels that a copy has for one episode."""

    labels: Labels | None
    id: int | None = None  # in its store
    terminated: bool | None = None  # whether the task ended there; None: not known
    actions: FloatArray | None = None  # [T, A] by which the episode is recognized; None: it is taken as the right one

    def pack(self) -> tuple[Any, ...]:
        """Plain values and arrays, for `unpack` in another process."""
        labels = None if self.labels is None else (self.labels.targets, self.labels.judge.source)
        return labels, self.id, self.terminated, self.actions

    @classmethod
    def unpack(cls, labels: tuple[Any, str] | None, *others: Any) -> "EpisodeLabels":
        """The labels that `pack` packed."""
        return cls(None if labels is None else Labels.from_targets(*labels), *others)


SKIPPED = (".git", ".cache")  # folders next to the data: history, and what a hub's client keeps


@dataclass
class CopyReport:
    """Rows of a copy by their label."""

    episodes: int = 0  # that have labels
    success: int = 0
    failure: int = 0
    unlabeled: int = 0
    notes: list[str] = field(default_factory=list)  # what was corrected in meta/


def copy_with_labels(
    root: Root,
    folder: Path,
    labels: Mapping[int, EpisodeLabels],
    *,
    reward_frame: RewardFrame,
    codecs: Mapping[str, str],
    hard_links: bool = False,
    reserve: Reserve = lambda nbytes: None,
    progress: ProgressFn = iter,
) -> CopyReport:
    """Fill an empty folder with a copy of the data set at `root`.

    labels: by episode number; rows of the others have NaN for a reward
    codecs: of the videos, by feature, in place of those that info.json names
    hard_links: files that stay the same become second names of those at `root` and take no room
    """
    info, report = meta.read_info(root), CopyReport()
    listing = meta.list_episodes(root, info, [], {})
    rows = [row for row in listing.rows if not row.problem]
    columns = {row.index: _label_columns(row, labels.get(row.index), reward_frame, report) for row in rows}
    rows_of: defaultdict[Path, list[meta.Row]] = defaultdict(list)  # table -> its episodes
    for row in rows:
        rows_of[row.data].append(row)
    if (root.path / "data").is_dir():  # a table that no episode is listed in gets the same columns
        for file in root.files(root.path / "data", ".parquet"):
            rows_of[file] += []
    writer = _TableWriter(root, listing, labels, columns, tables.widths_of(info.features))
    for file in progress(sorted({*rows_of, *_files(root)})):
        name = file.relative_to(root.path)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file in rows_of:
            reserve(max(tables.row_group_sizes(root, file), default=0))
            writer.write(file, rows_of[file], target)
        elif name.as_posix() not in _WRITTEN and not (
            name.as_posix().startswith(_EPISODES) and name.suffix == ".parquet"
        ):
            _same_bytes(root, file, target, hard_links)
    report.notes = _write_metadata(root, folder, columns, labels, reward_frame, codecs, reserve)
    return report


def _label_columns(
    row: meta.Row, labeled: EpisodeLabels | None, reward_frame: RewardFrame, report: CopyReport
) -> dict[str, AnyArray]:
    """The three columns of an episode; its rows are counted in the report."""
    if row.length > MAX_ROWS:
        raise BadFile(
            row.data, f"episode {row.index} has {row.length:,} rows according to meta/, which is wrong; correct it"
        )
    labels = None if labeled is None else labeled.labels
    if labels is not None and labels.steps != row.length:
        problem = f"episode {row.index} has {row.length} rows here and labels of {labels.steps}"
        raise BadFile(row.data, f"{problem}; {_OTHER_RECORDING}")
    columns = reward_columns(labels, row.length, reward_frame)
    reward = columns[REWARD]
    report.episodes += labels is not None
    report.success += int((reward == 1).sum())
    report.failure += int((reward == 0).sum())
    report.unlabeled += int(np.isnan(reward).sum())
    return {REWARD: reward, DONE: done_column(row.length), SUCCESS: columns[SUCCESS]}


@dataclass(frozen=True)
class _TableWriter:
    """Copies tables, a row group at a time, with the columns of labels."""

    root: Root
    listing: meta.Listing
    labels: Mapping[int, EpisodeLabels]
    columns: Columns
    widths: Mapping[str, int]  # numbers in a row of each column that has numbers

    def write(self, path: Path, rows: list[meta.Row], target: Path) -> None:
        """The table of these episodes, with its labels."""
        whole, start = self._label_columns(path, rows), 0
        writer: pq.ParquetWriter | None = None
        with ExitStack() as stack:
            for table in tables.row_groups(self.root, path):
                labeled = _with_labels(table, whole, start)
                writer = writer or stack.enter_context(pq.ParquetWriter(target, labeled.schema))
                writer.write_table(labeled, row_group_size=max(1, table.num_rows))
                start += table.num_rows

    def _label_columns(self, path: Path, rows: list[meta.Row]) -> dict[str, AnyArray]:
        """Of all rows of a table; rows that belong to no listed episode are not labeled."""
        recorded = [self.labels[row.index].actions for row in rows if row.index in self.labels]
        widths = {actions.shape[1] for actions in recorded if actions is not None and actions.shape[1]}
        wanted = {"episode_index", *(name for name, width in self.widths.items() if width in widths)}
        table = tables.read_table(self.root, path, lambda name: name in wanted)
        total = tables.count_rows(self.root, path)
        reward = np.full(total, np.nan, np.float32)
        columns = {REWARD: reward, DONE: np.zeros(total, bool), SUCCESS: np.zeros(total, bool)}
        owner = tables.column(table, "episode_index", path, np.int64)
        for row in rows:
            place = meta.rows_in_table(row, owner, total, self.listing.counts[path])
            self._check_recording(table, place, row)
            for name, values in self.columns[row.index].items():
                columns[name][place] = values
        return columns

    def _check_recording(self, table: pa.Table, place: slice, row: meta.Row) -> None:
        """Refuse labels of another recording that goes by the same number."""
        actions = self.labels[row.index].actions if row.index in self.labels else None
        if actions is None or not actions.shape[1] or self.widths.get(ACTION) != actions.shape[1]:
            return  # the store took its actions from somewhere else, or none at all
        for name, width in self.widths.items():
            if width == actions.shape[1] and name in table.column_names:
                values = tables.numbers(table, name, row.data, np.float32).reshape(table.num_rows, -1)
                if np.array_equal(values[place], actions):
                    return
        problem = f"episode {row.index} has other actions here than in the store"
        raise BadFile(row.data, f"{problem}; {_OTHER_RECORDING}")


def _with_labels(table: pa.Table, columns: Mapping[str, AnyArray], start: int) -> pa.Table:
    """A table whose first row is row `start` of these columns, with the part of them that belongs to it."""
    for name, values in columns.items():
        table = _set_column(table, name, pa.array(values[start : start + table.num_rows]))
    return table.replace_schema_metadata(hub_metadata(table.schema.metadata))


def _set_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    return table.append_column(name, values) if at < 0 else table.set_column(at, name, values)


def hub_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """A table's own, in which the `datasets` package finds the types of the columns of labels."""
    result = dict(metadata or {})
    try:
        described = parse_json(result.get(b"huggingface", b"null"))
        described["info"]["features"] |= {name: {"dtype": kind, "_type": "Value"} for name, kind in _DTYPES.items()}
        result[b"huggingface"] = json.dumps(described).encode()
    except (ValueError, TypeError, KeyError):  # it describes nothing: the columns have types of their own
        result.pop(b"huggingface", None)
    return result


def _files(root: Root) -> Iterator[Path]:
    """Every file of the data set."""
    for where, folders, names in os.walk(root.path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for folder in (Path(where, name) for name in folders):
            if folder.is_symlink():
                raise BadFile(folder, "this is a link to a folder, which a copy does not follow; copy the folder there")
        yield from (Path(where, name) for name in names)


def _same_bytes(root: Root, file: Path, target: Path, hard_links: bool) -> None:
    try:
        with root.open(file) as source:
            if hard_links:
                os.link(os.path.realpath(file), target)
            else:
                with target.open("xb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
    except FileNotFoundError:
        raise BadFile(file, "this is a link to a file that is not there; remove it or copy the file there") from None
    except OSError as error:
        if not hard_links or error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        reason = (error.strerror or str(error)).lower()
        raise BadFile(file, f"the copy cannot have a hard link to this ({reason}); leave out --hard-links") from error


def _write_metadata(
    root: Root,
    folder: Path,
    columns: Columns,
    labels: Mapping[int, EpisodeLabels],
    reward_frame: RewardFrame,
    codecs: Mapping[str, str],
    reserve: Reserve,
) -> list[str]:
    """Write the files of meta/ that describe labels; returns what was corrected in them.

    codecs: of the videos, by feature
    """
    (folder / "meta").mkdir(exist_ok=True)
    info, notes = read_json_object(root.path / _INFO, root), []
    for key, codec in codecs.items():
        for block in ("info", "video_info"):  # since v2.1, and before
            described = info["features"][key].get(block)
            stated = described.get("video.codec") if isinstance(described, dict) else None
            if stated not in (None, codec):
                described["video.codec"] = codec
                notes.append(
                    f"{_INFO} says that videos of {key} are {brief(stated)}; they are {codec}, as the copy says"
                )
    info["features"] |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _DTYPES.items()}
    (folder / _INFO).write_text(json.dumps(info, indent=4, ensure_ascii=False))
    if root.is_file(root.path / _STATS):
        stats = read_json_object(root.path / _STATS, root)
        joined = {name: np.concatenate([values[name] for values in columns.values()]) for name in _DTYPES}
        stats |= _describe_columns(joined, _kinds_of(stats))
        (folder / _STATS).write_text(json.dumps(stats, indent=4, ensure_ascii=False))
    if root.is_file(root.path / _LINES):
        lines = (json.dumps(line, ensure_ascii=False) for line in _stats_lines(root, columns))
        (folder / _LINES).write_text("".join(f"{line}\n" for line in lines))
    lists = root.path / _EPISODES
    for file in root.files(lists, ".parquet") if lists.is_dir() else ():
        target = folder / file.relative_to(root.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        reserve(sum(tables.row_group_sizes(root, file)))
        pq.write_table(_episode_table(root, file, columns), target)
    pq.write_table(_sidecar(root, columns, labels, reward_frame), folder / PLAUDIT_META)
    return notes


def _kinds_of(stats: Mapping[str, Any]) -> set[str]:
    """Which statistics are kept: all ten, or four of them in old data sets."""
    return {kind for values in stats.values() if isinstance(values, dict) for kind in values}


def _describe_columns(columns: Mapping[str, AnyArray], kinds: Collection[str]) -> dict[str, dict[str, Any]]:
    return {name: {k: v for k, v in describe(values).items() if k in kinds} for name, values in columns.items()}


def _stats_lines(root: Root, columns: Columns) -> Iterable[dict[str, Any]]:
    path = root.path / _LINES
    for line in tables.read_json_lines(root, path):
        if isinstance(line, BadFile):
            raise line
        stats, index = line.get("stats"), meta.count(line.get("episode_index"))
        if not isinstance(stats, dict) or index is None:
            raise BadFile(path, "a line has not the statistics of an episode; copy it again from its source")
        new = _describe_columns(columns[index], _kinds_of(stats)) if index in columns else {}
        yield {**line, "stats": stats | new}


def _episode_table(root: Root, file: Path, columns: Columns) -> pa.Table:
    """A table of the list of episodes, with the statistics of the labels where it has any."""
    table = pa.concat_tables(tables.row_groups(root, file))
    kinds = {name.rpartition("/")[2] for name in table.column_names if name.startswith("stats/")}
    if not kinds or "episode_index" not in table.column_names:
        return table
    indices = [meta.count(value.as_py()) for value in table["episode_index"]]
    described = [_describe_columns(columns[i], kinds) if i is not None and i in columns else {} for i in indices]
    for name in _DTYPES:
        for kind in sorted(kinds & set(describe(np.zeros(1)))):
            values = [stats[name][kind] if name in stats else None for stats in described]
            column_name = f"stats/{name}/{kind}"
            at = table.schema.get_field_index(column_name)
            kept = table.schema.field(at).type if at >= 0 else None
            if kept is not None and pa.types.is_list(kept) and pa.types.is_floating(kept.value_type):
                floats = [None if value is None else [float(number) for number in value] for value in values]
                table = _set_column(table, column_name, pa.array(floats, kept))
            else:
                table = _set_column(table, column_name, pa.array(values))
    return table


def _sidecar(root: Root, columns: Columns, labels: Mapping[int, EpisodeLabels], reward_frame: RewardFrame) -> pa.Table:
    """What our reader needs in addition to the format; what our own export said about the recording stays."""
    path = root.path / PLAUDIT_META
    entries = meta.entries_of(tables.read_table(root, path), path) if root.is_file(path) else []
    before = {meta.count(entry.get("episode_index")): entry for entry in entries}
    rows: list[dict[str, Any]] = []
    for index in columns:
        labeled = labels.get(index, EpisodeLabels(None))
        recorded = before.get(index, {"repeated": "last", "final_state": None})
        terminated = recorded.get("terminated") if labeled.terminated is None else labeled.terminated
        entry = {**recorded, "episode_index": index, "store_id": labeled.id, "terminated": terminated}
        rows.append(entry | label_entry(labeled.labels, reward_frame))
    return pa.Table.from_pylist(rows)
