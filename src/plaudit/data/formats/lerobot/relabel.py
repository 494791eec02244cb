"""A copy of a LeRobot data set with other labels: `next.reward`, `next.done` and `next.success`, and nothing else new.

Its videos, and whatever else lies in the folder, are the same bytes. Its tables are written again, a row group at a
time, because parquet has no place for another column; the values of all other columns are those that were there. What
meta/ says of the three columns (features, statistics) is written with them, in the terms of the version that it has.
`meta/plaudit.parquet` says which frame `next.reward` is about and who labeled, so that our own reader need not be told.
"""

import errno
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.base import RewardFrame
from plaudit.data.formats.lerobot.columns import column, numbers, widths_of
from plaudit.data.formats.lerobot.episodes import Listing, Row, list_episodes, rows_in_table
from plaudit.data.formats.lerobot.features import ACTION, DONE, REWARD, SUCCESS, done_column, reward_columns
from plaudit.data.formats.lerobot.info import parse_info
from plaudit.data.formats.lerobot.io_utils import (
    MISSING,
    count_rows,
    read_table,
    row_group_sizes,
    row_groups,
)
from plaudit.data.formats.lerobot.locate import found_elsewhere
from plaudit.data.formats.lerobot.relabel_meta import (
    EpisodeLabels,
    Reserve,
    hub_metadata,
    is_metadata,
    write_metadata,
)
from plaudit.data.formats.limits import MAX_ROWS
from plaudit.errors import BadFile
from plaudit.files import Root, read_json
from plaudit.types import AnyArray, ProgressFn

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
