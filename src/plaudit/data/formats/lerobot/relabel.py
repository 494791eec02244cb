"""A copy of a LeRobot data set with other labels: `next.reward`, `next.done` and `next.success`, and nothing else new.

Its videos, and whatever else lies in the folder, are the same bytes. Its tables are written again, a row group at a
time, because parquet has no place for another column; the values of all other columns are those that were there. What
meta/ says of the three columns (features, statistics) is written with them, in the terms of the version that it has.
`meta/plaudit.parquet` says which frame `next.reward` is about and who labeled, so that our own reader need not be told.
"""

import errno
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.base import MAX_ROWS, RewardFrame
from plaudit.data.formats.lerobot.features import (
    ACTION,
    DONE,
    PLAUDIT_META,
    REWARD,
    SUCCESS,
    done_column,
    reward_columns,
)
from plaudit.data.formats.lerobot.meta import (
    Listing,
    Row,
    count,
    entries_of,
    found_elsewhere,
    list_episodes,
    parse_info,
    rows_in_table,
)
from plaudit.data.formats.lerobot.tables import (
    MISSING,
    column,
    count_rows,
    numbers,
    read_json_lines,
    read_table,
    row_group_sizes,
    row_groups,
    widths_of,
)
from plaudit.data.formats.lerobot.writer import describe
from plaudit.errors import BadFile
from plaudit.files import Root, brief, parse_json, read_json
from plaudit.types import AnyArray, FloatArray, Labels, ProgressFn

_INFO, _STATS, _LINES, _EPISODES = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl", "meta/episodes/"
_DTYPES = {REWARD: "float32", DONE: "bool", SUCCESS: "bool"}

Reserve = Callable[[int], None]  # is told how many bytes the next table takes, before it is read
Columns = Mapping[int, Mapping[str, AnyArray]]  # episode -> column of labels -> [T]


@dataclass(frozen=True)
class EpisodeLabels:
    """What a copy says of one episode."""

    labels: Labels | None
    id: int | None = None  # in its store
    terminated: bool | None = None  # whether the task ended there; None: nobody said
    actions: FloatArray | None = None  # [T, A] by which the episode is recognized; None: it is taken as the right one

    def pack(self) -> tuple[Any, ...]:
        """Plain values and arrays, for `unpack` in another process."""
        labels = None if self.labels is None else (self.labels.targets, self.labels.judge.source)
        return labels, self.id, self.terminated, self.actions

    @classmethod
    def unpack(cls, labels: tuple[Any, str] | None, *others: Any) -> "EpisodeLabels":
        """The labels that `pack` packed."""
        return cls(None if labels is None else Labels.from_targets(*labels), *others)


def is_metadata(name: str) -> bool:
    """Whether `write_metadata` writes this file of a data set, by its path within it."""
    return name in (_INFO, _STATS, _LINES, PLAUDIT_META) or (name.startswith(_EPISODES) and name.endswith(".parquet"))


def write_metadata(
    root: Root,
    folder: Path,
    columns: Columns,
    labels: Mapping[int, EpisodeLabels],
    reward_frame: RewardFrame,
    codecs: Mapping[str, str],
    reserve: Reserve,
) -> list[str]:
    """The files of `is_metadata`, into a copy of the data set at `root`; returns what was put right in them.

    codecs: of the videos, by feature
    """
    (folder / "meta").mkdir(exist_ok=True)
    info = _object(root, _INFO)
    notes = _correct_codecs(info["features"], codecs)
    info["features"] |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _DTYPES.items()}
    _write_json(folder / _INFO, info)
    if root.is_file(root.path / _STATS):
        stats = _object(root, _STATS)
        joined = {name: np.concatenate([found[name] for found in columns.values()]) for name in _DTYPES}
        _write_json(folder / _STATS, stats | _describe_columns(joined, _kinds_of(stats)))
    if root.is_file(root.path / _LINES):
        lines = (json.dumps(line, ensure_ascii=False) for line in _stats_lines(root, columns))
        (folder / _LINES).write_text("".join(f"{line}\n" for line in lines))
    tables = root.path / _EPISODES
    for file in root.files(tables, ".parquet") if tables.is_dir() else ():
        target = folder / file.relative_to(root.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        reserve(sum(row_group_sizes(root, file)))
        pq.write_table(_episode_table(root, file, columns), target)
    pq.write_table(_sidecar(root, columns, labels, reward_frame), folder / PLAUDIT_META)
    return notes


def _correct_codecs(features: dict[str, Any], codecs: Mapping[str, str]) -> list[str]:
    """Have each feature name the codec that its videos have, where it names another; says so in sentences."""
    notes = []
    for key, codec in codecs.items():
        for block in ("info", "video_info"):  # since v2.1, and before
            described = features[key].get(block)
            stated = described.get("video.codec") if isinstance(described, dict) else None
            if stated not in (None, codec):
                described["video.codec"] = codec
                notes.append(
                    f"{_INFO} says that videos of {key} are {brief(stated)}; they are {codec}, as the copy says"
                )
    return notes


def hub_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes]:
    """A table's own, in which the `datasets` package finds the types of the columns of labels."""
    found = dict(metadata or {})
    try:
        described = parse_json(found.get(b"huggingface", b"null"))
        described["info"]["features"] |= {name: {"dtype": kind, "_type": "Value"} for name, kind in _DTYPES.items()}
        found[b"huggingface"] = json.dumps(described).encode()
    except (ValueError, TypeError, KeyError):
        found.pop(
            b"huggingface", None
        )  # it has none, or one that describes nothing: the columns have types of their own
    return found


def _object(root: Root, name: str) -> dict[str, Any]:
    tree = read_json(root.path / name, root)
    if not isinstance(tree, dict):
        raise BadFile(root.path / name, f"this is {brief(tree)} where names and values stand; copy it again")
    return tree


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=4, ensure_ascii=False))


def _kinds_of(stats: Mapping[str, Any]) -> set[str]:
    """Which statistics are kept: all ten, or four of them in old data sets."""
    return {kind for found in stats.values() if isinstance(found, dict) for kind in found}


def _describe_columns(columns: Mapping[str, AnyArray], kinds: Collection[str]) -> dict[str, dict[str, Any]]:
    return {name: {k: v for k, v in describe(values).items() if k in kinds} for name, values in columns.items()}


def _stats_lines(root: Root, columns: Columns) -> Iterable[dict[str, Any]]:
    for line in read_json_lines(root, root.path / _LINES):
        if isinstance(line, BadFile):
            raise line
        stats, index = line.get("stats"), count(line.get("episode_index"))
        if not isinstance(stats, dict) or index is None:
            raise BadFile(
                root.path / _LINES, "a line has not the statistics of an episode; copy it again from its source"
            )
        new = _describe_columns(columns[index], _kinds_of(stats)) if index in columns else {}
        yield {**line, "stats": stats | new}


def _episode_table(root: Root, file: Path, columns: Columns) -> pa.Table:
    """A table of the list of episodes, with the statistics of the labels where it has any."""
    table = pa.concat_tables(row_groups(root, file))
    kinds = {name.rpartition("/")[2] for name in table.column_names if name.startswith("stats/")}
    if not kinds or "episode_index" not in table.column_names:
        return table
    indices = [count(value.as_py()) for value in table["episode_index"]]
    found = [_describe_columns(columns[i], kinds) if i is not None and i in columns else {} for i in indices]
    for name in _DTYPES:
        for kind in sorted(kinds & set(describe(np.zeros(1)))):
            values = [stats[name][kind] if name in stats else None for stats in found]
            table = _set_column(table, f"stats/{name}/{kind}", values)
    return table


def _set_column(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    """With this column; of the type that it had, where it had one that takes such values."""
    at = table.schema.get_field_index(name)
    if at < 0:
        return table.append_column(name, pa.array(values))
    kind = table.schema.field(at).type
    if pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
        values = [None if value is None else [float(number) for number in value] for value in values]
        return table.set_column(at, name, pa.array(values, kind))
    return table.set_column(at, name, pa.array(values))


def _sidecar(root: Root, columns: Columns, labels: Mapping[int, EpisodeLabels], reward_frame: RewardFrame) -> pa.Table:
    """What our reader is told beside the format; what our own export said of the recording stays."""
    path = root.path / PLAUDIT_META
    entries = entries_of(read_table(root, path), path) if root.is_file(path) else []
    known = {count(entry.get("episode_index")): entry for entry in entries}
    rows: list[dict[str, Any]] = []
    for index in columns:
        labeled = labels.get(index, EpisodeLabels(None))
        given = labeled.labels
        recorded = known.get(index, {"repeated": "last", "final_state": None})
        terminated = recorded.get("terminated") if labeled.terminated is None else labeled.terminated
        rows.append(
            {
                **recorded,
                "episode_index": index,
                "store_id": labeled.id,
                "terminated": terminated,
                "reward_frame": reward_frame,
                "source": given.judge.source if given else None,
                "start": float(given.success[0]) if given and given.labeled[0] else None,
                "final_success": float(given.targets[-1]) if given else None,
            }
        )
    return pa.Table.from_pylist(rows)


SKIPPED = (".git", ".cache")  # folders beside the data: history, and what a hub's client keeps


@dataclass
class CopyReport:
    """Rows of a copy by their label."""

    episodes: int = 0  # that have labels
    success: int = 0
    failure: int = 0
    unlabeled: int = 0
    notes: list[str] = field(default_factory=list)  # what was put right in meta/


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
    path = root.path / "meta/info.json"
    info = parse_info(read_json(path, root, MISSING), path)
    listing = found_elsewhere(root, list_episodes(root, info, []), {})
    copy = _Copy(root, listing, labels, reward_frame, widths_of(info.features), reserve)
    tables = copy.tables()
    for file in progress(sorted({*tables, *_files(root)})):
        name = file.relative_to(root.path)
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if file in tables:
            copy.write_table(file, tables[file], target)
        elif not is_metadata(name.as_posix()):
            _same_bytes(root, file, target, hard_links)
    copy.report.notes = write_metadata(root, folder, copy.columns, labels, reward_frame, codecs, reserve)
    return copy.report


class _Copy:
    def __init__(
        self,
        root: Root,
        listing: Listing,
        labels: Mapping[int, EpisodeLabels],
        reward_frame: RewardFrame,
        widths: Mapping[str, int],
        reserve: Reserve,
    ):
        """
        widths: numbers in a row of each column that has numbers
        """
        self._root, self._listing, self._labels, self._widths = root, listing, labels, widths
        self._reserve = reserve
        self.report = CopyReport()
        self.columns = {row.index: self._columns_of(row, reward_frame) for row in listing.rows if not row.problem}

    def tables(self) -> dict[Path, list[Row]]:
        """Every table of the data set, those too that no episode is listed in: all have the same columns."""
        found: defaultdict[Path, list[Row]] = defaultdict(list)
        for row in self._listing.rows:
            if not row.problem:
                found[row.data].append(row)
        folder = self._root.path / "data"
        for file in self._root.files(folder, ".parquet") if folder.is_dir() else ():
            found[file] += []
        return dict(found)

    def write_table(self, path: Path, rows: list[Row], target: Path) -> None:
        """The table of these episodes, with its labels."""
        self._reserve(max(row_group_sizes(self._root, path), default=0))
        whole = self._columns_of_table(path, rows)
        writer: pq.ParquetWriter | None = None
        start = 0
        try:
            for table in row_groups(self._root, path):
                part = slice(start, start + table.num_rows)
                table = _with_columns(table, {name: values[part] for name, values in whole.items()})
                writer = writer or pq.ParquetWriter(target, table.schema)
                writer.write_table(table, row_group_size=max(1, table.num_rows))
                start += table.num_rows
        finally:
            if writer is not None:
                writer.close()

    def _columns_of(self, row: Row, reward_frame: RewardFrame) -> dict[str, AnyArray]:
        if row.length > MAX_ROWS:
            raise BadFile(row.data, f"episode {row.index} has {row.length:,} rows here, says meta/; correct that")
        found = self._labels.get(row.index)
        labels = None if found is None else found.labels
        if labels is not None and labels.steps != row.length:
            raise BadFile(
                row.data,
                f"episode {row.index} has {row.length} rows here and labels of {labels.steps}; it is another recording "
                "than the one that was labeled, import it again",
            )
        columns = reward_columns(labels, row.length, reward_frame)
        reward = columns[REWARD]
        self.report.episodes += labels is not None
        self.report.success += int((reward == 1).sum())
        self.report.failure += int((reward == 0).sum())
        self.report.unlabeled += int(np.isnan(reward).sum())
        return {REWARD: reward, DONE: done_column(row.length), SUCCESS: columns[SUCCESS]}

    def _columns_of_table(self, path: Path, rows: list[Row]) -> dict[str, AnyArray]:
        """Of all rows of a table; rows that belong to no listed episode are not labeled."""
        wanted = {"episode_index", *self._names_of_actions(rows)}
        table = read_table(self._root, path, lambda name: name in wanted)
        total = count_rows(self._root, path)
        kinds = {
            REWARD: np.full(total, np.nan, np.float32),
            DONE: np.zeros(total, bool),
            SUCCESS: np.zeros(total, bool),
        }
        owner = column(table, "episode_index", path, np.int64)
        for row in rows:
            place = rows_in_table(row, owner, total, self._listing.counts[path])
            self._check_recording(table, place, row)
            for name, values in self.columns[row.index].items():
                kinds[name][place] = values
        return kinds

    def _names_of_actions(self, rows: list[Row]) -> set[str]:
        """Columns that may be the actions of these episodes, by their width."""
        known = [self._labels[row.index].actions for row in rows if row.index in self._labels]
        widths = {actions.shape[1] for actions in known if actions is not None and actions.shape[1]}
        return {name for name, width in self._widths.items() if width in widths}

    def _check_recording(self, table: pa.Table, place: slice, row: Row) -> None:
        """Refuse labels of another recording that goes by the same number."""
        found = self._labels.get(row.index)
        actions = None if found is None else found.actions
        if actions is None or not actions.shape[1] or self._widths.get(ACTION) != actions.shape[1]:
            return  # the store took its actions from somewhere else, or none at all
        for name, width in self._widths.items():
            if width == actions.shape[1] and name in table.column_names:
                values = numbers(table, name, row.data, np.float32).reshape(table.num_rows, -1)
                if np.array_equal(values[place], actions):
                    return
        raise BadFile(
            row.data,
            f"episode {row.index} has other actions here than in the store; it is another recording than the one that "
            "was labeled, import it again",
        )


def _with_columns(table: pa.Table, columns: Mapping[str, AnyArray]) -> pa.Table:
    for name, values in columns.items():
        at = table.schema.get_field_index(name)
        array = pa.array(values)
        table = table.append_column(name, array) if at < 0 else table.set_column(at, name, array)
    return table.replace_schema_metadata(hub_metadata(table.schema.metadata))


def _files(root: Root) -> Iterator[Path]:
    """Every file of the data set."""
    for where, folders, names in os.walk(root.path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        for name in folders:
            _check_folder(root, Path(where, name))
        yield from (Path(where, name) for name in names)


def _check_folder(root: Root, folder: Path) -> None:
    if folder.is_symlink():
        raise BadFile(folder, "this is a link to a folder, which a copy does not follow; copy the folder itself there")


def _same_bytes(root: Root, file: Path, target: Path, hard_links: bool) -> None:
    with _opened(root, file) as source:
        if hard_links:
            _hard_link(file, target)
            return
        with target.open("xb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)


def _opened(root: Root, file: Path) -> BinaryIO:
    try:
        return root.open(file)
    except FileNotFoundError:
        raise BadFile(file, "this is a link to a file that is not there; remove it or copy the file there") from None


def _hard_link(file: Path, target: Path) -> None:
    try:
        os.link(os.path.realpath(file), target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        reason = (error.strerror or str(error)).lower()
        raise BadFile(file, f"the copy cannot have a hard link to this ({reason}); leave out --hard-links") from error
