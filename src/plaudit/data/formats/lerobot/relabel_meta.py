"""What meta/ of a LeRobot data set says of the three columns of labels, written anew for a copy with other labels.

Versions keep statistics in three places: meta/stats.json (v2.0, v3.0), a line an episode in meta/episodes_stats.jsonl
(v2.1), columns `stats/...` of the tables in meta/episodes (v3.0). A copy has those files that its source has, with the
statistics that its source has of other columns.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.base import RewardFrame
from plaudit.data.formats.lerobot.episodes import entries_of
from plaudit.data.formats.lerobot.features import DONE, PLAUDIT_META, REWARD, SUCCESS
from plaudit.data.formats.lerobot.info import count
from plaudit.data.formats.lerobot.io_utils import read_json_lines, read_table, row_group_sizes, row_groups
from plaudit.data.formats.lerobot.stats import describe
from plaudit.errors import BadFile
from plaudit.files import Root, brief, parse_json, read_json
from plaudit.types import AnyArray, FloatArray, Labels

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


def pack_labels(labels: Mapping[int, EpisodeLabels]) -> tuple[list[dict[str, Any]], list[AnyArray]]:
    """As JSON values and arrays, for `unpack_labels` in another process."""
    described, arrays = [], []
    for index, one in labels.items():
        source = None if one.labels is None else one.labels.judge.source
        described.append({"index": index, "id": one.id, "terminated": one.terminated, "source": source})
        described[-1]["actions"] = one.actions is not None
        arrays += [] if one.labels is None else [one.labels.targets]
        arrays += [] if one.actions is None else [one.actions]
    return described, arrays


def unpack_labels(described: Iterable[Mapping[str, Any]], arrays: Iterator[AnyArray]) -> dict[int, EpisodeLabels]:
    """What `pack_labels` made of labels."""
    found: dict[int, EpisodeLabels] = {}
    for one in described:
        labels = None if one["source"] is None else Labels.from_targets(next(arrays), one["source"])
        actions = next(arrays) if one["actions"] else None
        found[one["index"]] = EpisodeLabels(labels, one["id"], one["terminated"], actions)
    return found


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
