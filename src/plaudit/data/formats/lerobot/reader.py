"""LeRobot data sets, v2.0, v2.1 and v3.0, read straight from their parquet, JSON and video files.

Not through the lerobot package: given a name, its loader may download over a local folder, and it installs on few
machines. A row holds an observation, the action taken on it and what the action led to (`next.reward`); what the
last action led to is not recorded, so T rows become T steps with `repeated="last"`. Which frame `next.reward`
judges is a matter of dispute in the wild: by its name the next one (the default), while data sets labelled by hand
often mean the row's own (`reward_frame = "same"`). A data set that we wrote says which, and keeps in
`meta/plaudit.parquet` what the format has no place for.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from plaudit.data.formats import Dataset, ReadOptions, RewardFrame, Source
from plaudit.data.formats.lerobot.layout import (
    ACTION,
    BOOKKEEPING,
    DONE,
    IMAGES,
    INTERVENTION,
    LABELS,
    PRIVILEGED,
    REWARD,
    SIDECAR,
    STATE,
    SUCCESS,
)
from plaudit.data.formats.video import read_frames
from plaudit.errors import BadFile, InvalidEpisode
from plaudit.types import AnyArray, ByteArray, Episode, Labels, Origin


@dataclass(frozen=True)
class Video:
    """Where a camera's frames of one episode lie."""

    path: Path
    start: float  # seconds into the file


@dataclass(frozen=True)
class Row:
    """What the metadata says of one episode."""

    index: int
    length: int
    tasks: list[str]
    data: Path  # the table it stands in, perhaps with others
    videos: dict[str, Video] = field(default_factory=dict)  # feature -> where


def detect(path: Path) -> bool:
    return (path / "meta/info.json").is_file()


def read(path: Path, options: ReadOptions) -> Dataset:
    folder = _Folder(path, options)
    rows = list(folder.rows_v3() if folder.version.startswith("v3") else folder.rows_v2())
    sources = [Source(r.index, str(r.data), partial(folder.digest, r), partial(folder.load, r)) for r in rows]
    facts = {
        "version": folder.version,
        "robot": folder.info.get("robot_type"),
        "fps": folder.fps,
        "episodes": len(rows),
        "frames": sum(r.length for r in rows),
        "tasks": sorted({task for r in rows for task in r.tasks}),
        "cameras": {c: "x".join(map(str, folder.size(key))) for c, key in folder.cameras.items()},
        "labels": [name for name in LABELS if name in folder.features],
    }
    return Dataset("lerobot", path, sources, facts, folder.ignored)


class _Folder:
    """One data set on disk."""

    def __init__(self, path: Path, options: ReadOptions):
        self.path, self.options = path, options
        self.info = _json(path / "meta/info.json")
        try:
            self.version = str(self.info["codebase_version"])
            self.fps = float(self.info["fps"])
            self.features: dict[str, dict[str, Any]] = self.info["features"]
            images = {k: f for k, f in self.features.items() if f["dtype"] in ("video", "image")}
        except (KeyError, TypeError, ValueError) as error:
            raise BadFile(
                path / "meta/info.json", f"this does not describe a LeRobot data set: it lacks {error}"
            ) from error
        if not self.version.startswith(("v2", "v3")):
            raise BadFile(path / "meta/info.json", f"LeRobot {self.version} is not read; v2.0, v2.1 and v3.0 are")
        self.cameras = {key.removeprefix(IMAGES): key for key, f in images.items() if f["shape"][-1] == 3}
        kept = {STATE, ACTION, INTERVENTION, *LABELS, *BOOKKEEPING, *self.cameras.values()}
        self.ignored = [k for k in self.features if k not in kept and not k.startswith(PRIVILEGED)]
        self._table: tuple[Path, pa.Table] | None = None

    def size(self, key: str) -> tuple[int, int]:
        height, width, _ = self.features[key]["shape"]
        return height, width

    def rows_v2(self) -> Iterator[Row]:
        tasks = {row["task_index"]: row["task"] for row in _json_lines(self.path / "meta/tasks.jsonl")}
        for entry in _json_lines(self.path / "meta/episodes.jsonl"):
            index = entry["episode_index"]
            place = {"episode_index": index, "episode_chunk": index // self.info["chunks_size"]}
            videos = {
                key: Video(self.path / self.info["video_path"].format(video_key=key, **place), 0.0)
                for key in self._video_keys
            }
            names = [tasks.get(task, str(task)) for task in entry["tasks"]]
            yield Row(index, entry["length"], names, self.path / self.info["data_path"].format(**place), videos)

    def rows_v3(self) -> Iterator[Row]:
        files = sorted((self.path / "meta/episodes").glob("chunk-*/file-*.parquet"))
        if not files:
            raise BadFile(self.path / "meta/episodes", "this LeRobot v3.0 data set lists no episodes; copy it again")
        for file in files:
            for entry in _parquet(file).to_pylist():
                place = {"chunk_index": entry["data/chunk_index"], "file_index": entry["data/file_index"]}
                videos = {}
                for key in self._video_keys:
                    at = {name: entry[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
                    video = self.path / self.info["video_path"].format(video_key=key, **at)
                    videos[key] = Video(video, entry[f"videos/{key}/from_timestamp"])
                data = self.path / self.info["data_path"].format(**place)
                yield Row(entry["episode_index"], entry["length"], list(entry["tasks"]), data, videos)

    @cached_property
    def _video_keys(self) -> list[str]:
        return [key for key in self.cameras.values() if self.features[key]["dtype"] == "video"]

    @cached_property
    def _sidecar(self) -> dict[int, dict[str, Any]]:
        """What we wrote beside the format, by episode; {} for a data set of others."""
        path = self.path / SIDECAR
        return {entry["episode_index"]: entry for entry in _parquet(path).to_pylist()} if path.is_file() else {}

    def _rows_of(self, row: Row) -> pa.Table:
        """The rows of one episode. Tables are kept while the next episode comes from the same file."""
        if self._table is None or self._table[0] != row.data:
            self._table = (row.data, _parquet(row.data))
        table = self._table[1]
        table = table.filter(pc.field("episode_index") == row.index)
        if table.num_rows != row.length:
            raise BadFile(
                row.data, f"episode {row.index} has {table.num_rows} rows where meta/ says {row.length}; copy it again"
            )
        return table

    def digest(self, row: Row) -> str:
        """Of what was recorded, not of its labels: a relabelled data set is the same data."""
        found = hashlib.blake2b(digest_size=16)
        table = self._rows_of(row)
        for values in (
            _matrix(table, STATE, row.data),
            _matrix(table, ACTION, row.data),
            _column(table, "timestamp", "f4"),
        ):
            found.update(b"" if values is None else values.tobytes())
        for key in sorted(set(self.cameras.values()) & set(table.column_names)):
            for entry in table[key].to_pylist():
                found.update(entry["bytes"] or entry["path"].encode())
        for key, video in sorted(row.videos.items()):
            size = video.path.stat().st_size if video.path.is_file() else 0
            found.update(f"{key} {video.path.name} {size} {video.start:.6f}".encode())
        return found.hexdigest()

    def load(self, row: Row) -> tuple[Episode, Labels | None]:
        table = self._rows_of(row)
        extra = self._sidecar.get(row.index, {})
        try:
            episode = Episode.of(
                frames={c: self._frames(row, table, c, key, extra) for c, key in self.cameras.items()},
                state=_with_last(_matrix(table, STATE, row.data), extra.get("final_state")),
                actions=_matrix(table, ACTION, row.data),
                control_mode=_column(table, INTERVENTION, np.uint8),
                privileged=self._privileged(table),
                task=row.tasks[0] if row.tasks else self.options.task,
                fps=self.fps,
                robot=self.info.get("robot_type") or "",
                terminated=extra.get("terminated", _terminated(table)),
                repeated=extra.get("repeated", "last"),
                origin=Origin("lerobot", str(self.path), row.index, self.digest(row)),
                meta=self._names(),
            )
        except InvalidEpisode as error:
            raise BadFile(row.data, f"episode {row.index}: {error}") from error
        return episode, self._labels(table, row, extra)

    def _frames(self, row: Row, table: pa.Table, camera: str, key: str, extra: dict[str, Any]) -> ByteArray:
        height, width = self.size(key)
        if key in row.videos:
            video = row.videos[key]
            times = video.start + table["timestamp"].to_numpy().astype(np.float64)
            frames = read_frames(video.path, times, self.fps, height, width)
        elif key in table.column_names:
            where = f"{row.data}, episode {row.index}"
            read_image = partial(_image, self.path, where, camera, height, width)
            frames = np.stack([read_image(entry) for entry in table[key].to_pylist()])
        else:
            raise BadFile(row.data, f"camera '{camera}' is named in meta/info.json and missing here; correct either")
        last = extra.get(f"final/{camera}")
        last = frames[-1] if last is None else _image(self.path, SIDECAR, camera, height, width, {"bytes": last})
        return np.concatenate([frames, last[None]])

    def _privileged(self, table: pa.Table) -> dict[str, AnyArray]:
        names = [name for name in table.column_names if name.startswith(PRIVILEGED)]
        dtypes = {name: self.features[name]["dtype"] for name in names}
        return {n.removeprefix(PRIVILEGED): np.asarray(table[n].to_pylist(), dtypes[n]) for n in names}

    def _names(self) -> dict[str, Any]:
        """Joint names, where the data set has them, flat."""
        found = {}
        for label, key in (("state_names", STATE), ("action_names", ACTION)):
            names = self.features.get(key, {}).get("names")
            names = names[0] if isinstance(names, list) and names and isinstance(names[0], list) else names
            if isinstance(names, list):
                found[label] = names
        return found

    def _labels(self, table: pa.Table, row: Row, extra: dict[str, Any]) -> Labels | None:
        reward = _column(table, REWARD, np.float32)
        if reward is None or np.isnan(reward).all():
            return None
        source = extra.get("source", "dataset")
        if self._reward_frame == "same":
            last = extra.get("final_verdict")
            verdict = np.append(reward, reward[-1] if last is None else last)
            return Labels.from_frames(verdict, source=source)
        success = _success(table, reward)
        start = extra.get("start")
        return Labels(reward=reward, success=success, start=np.nan if start is None else start, source=source)

    @cached_property
    def _reward_frame(self) -> RewardFrame:
        if self.options.reward_frame is not None:
            return self.options.reward_frame
        said = {entry["reward_frame"] for entry in self._sidecar.values()}
        return "same" if said == {"same"} else "next"


def _success(table: pa.Table, reward: AnyArray) -> AnyArray:
    """`next.success`, or a sparse reward of 0 and 1, which says the same; a dense reward says nothing of it."""
    said = _column(table, SUCCESS, np.bool_)
    if said is not None:
        return said
    sparse = np.isin(reward[~np.isnan(reward)], (0, 1)).all()
    return (reward == 1) & sparse


def _terminated(table: pa.Table) -> bool:
    """`next.done` also marks a time limit; only an end in success is taken as the task's own."""
    done, reward = _column(table, DONE, np.bool_), _column(table, REWARD, np.float32)
    return bool(done is not None and reward is not None and done[-1] and _success(table, reward)[-1])


def _with_last(rows: AnyArray, last: list[float] | None) -> AnyArray:
    return np.concatenate([rows, rows[-1:] if last is None else np.asarray([last], rows.dtype)])


def _column(table: pa.Table, name: str, dtype: Any) -> AnyArray | None:
    if name not in table.column_names:
        return None
    return np.asarray(table[name].to_pylist(), dtype=dtype).reshape(table.num_rows)


def _matrix(table: pa.Table, name: str, where: Path) -> AnyArray:
    """[T, D] from a column of lists; D = 0 where there is no such column."""
    if name not in table.column_names:
        return np.zeros((table.num_rows, 0), np.float32)
    values = table[name].to_pylist()
    if not isinstance(values[0], list):
        return np.asarray(values, np.float32)[:, None]
    if len({len(value) for value in values}) != 1:
        raise BadFile(where, f"'{name}' has rows of different length; write it again")
    return np.asarray(values, np.float32)


def _image(root: Path, where: str | Path, camera: str, height: int, width: int, entry: dict[str, Any]) -> ByteArray:
    try:
        data = entry["bytes"] or (root / entry["path"]).read_bytes()
        image = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    except (OSError, UnidentifiedImageError, KeyError, TypeError) as error:
        raise BadFile(where, f"an image of camera '{camera}' cannot be read ({error})") from error
    if image.shape != (height, width, 3):
        raise BadFile(
            where,
            f"camera '{camera}' has {image.shape[0]}x{image.shape[1]} frames, not {height}x{width}; correct either",
        )
    return image


def _json(path: Path) -> dict[str, Any]:
    return _parse(path, json.loads)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return _parse(path, lambda text: [json.loads(line) for line in text.splitlines() if line.strip()])


def _parse(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        raise BadFile(path, "this file of the LeRobot data set is missing; copy it from its source") from None
    except ValueError as error:
        raise BadFile(path, f"this is not valid JSON ({error}); copy it again from its source") from error


def _parquet(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError:
        raise BadFile(path, "this table is missing; copy it from the data set's source") from None
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise BadFile(path, f"this is not a whole parquet file ({first}); copy it again from its source") from error
