"""Writing LeRobot v3.0: tables and videos that hold many episodes each, and the metadata that finds them again.

What the format has no place for (the observation after the last action, who labeled, whether the task ended) goes into
`meta/plaudit.parquet`, one row an episode, which LeRobot ignores and our reader uses. Image statistics come from exact
histograms: lerobot 0.4.4 writes a standard deviation of 0, from squares that overflow a byte.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from plaudit.data.formats.base import LabeledEpisode, WriteOptions
from plaudit.data.formats.lerobot.features import (
    DATA_PATH,
    IMAGES,
    PLAUDIT_META,
    VIDEO_PATH,
    Layout,
    label_entry,
    whole,
)
from plaudit.data.formats.video import VideoWriter
from plaudit.types import AnyArray, ByteArray, ProgressFn

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
SAMPLED_FRAMES = 100  # of an episode, evenly spaced: neighbors say the same


def describe(values: AnyArray) -> dict[str, Any]:
    """Of a column `[N]` or `[N, D]`: each statistic is a list of D numbers. NaN (not judged) does not count."""
    values = np.asarray(values).reshape(len(values), -1)
    numbers = values.astype(np.float64)
    numbers = numbers[~np.isnan(numbers).any(axis=1)]
    if not len(numbers):
        numbers = np.zeros((1, values.shape[1]))
    low, high = (edge.astype(values.dtype).tolist() for edge in (numbers.min(axis=0), numbers.max(axis=0)))
    stats = {"min": low, "max": high, "mean": numbers.mean(axis=0).tolist(), "std": numbers.std(axis=0).tolist()}
    quantiles = np.quantile(numbers, list(QUANTILES.values()), axis=0)
    return stats | {"count": [len(values)]} | {name: q.tolist() for name, q in zip(QUANTILES, quantiles)}


@dataclass
class ImageHistogram:
    """Counts of each byte value in each channel: exact statistics that add up over episodes."""

    counts: AnyArray = field(default_factory=lambda: np.zeros((3, 256), np.int64))
    frames: int = 0

    @classmethod
    def of(cls, frames: ByteArray) -> Self:
        chosen = frames[np.unique(np.linspace(0, len(frames) - 1, SAMPLED_FRAMES).astype(int))]
        return cls(np.stack([np.bincount(chosen[..., c].reshape(-1), minlength=256) for c in range(3)]), len(chosen))

    def __add__(self, other: Self) -> "ImageHistogram":
        return ImageHistogram(self.counts + other.counts, self.frames + other.frames)

    def describe(self) -> dict[str, Any]:
        """Each statistic `[3, 1, 1]` in [0, 1]; `count` is of frames."""
        level = np.arange(256) / 255
        share = self.counts / self.counts.sum(axis=1, keepdims=True)
        mean = share @ level
        std = np.sqrt(np.maximum(share @ level**2 - mean**2, 0))
        below = share.cumsum(axis=1)
        seen = self.counts > 0
        stats = {"min": level[seen.argmax(axis=1)], "max": level[255 - seen[:, ::-1].argmax(axis=1)]}
        stats |= {"mean": mean, "std": std}
        stats |= {name: level[(below >= q - 1e-12).argmax(axis=1)] for name, q in QUANTILES.items()}
        shaped = {name: values.reshape(3, 1, 1).tolist() for name, values in stats.items()}
        return shaped | {"count": [self.frames]}


FILES_PER_CHUNK, DATA_MB, VIDEO_MB = 1000, 100, 200


def write(folder: Path, items: Sequence[LabeledEpisode], options: WriteOptions, progress: ProgressFn) -> list[str]:
    layout = Layout.of(items, options)
    tables = _Tables(folder, layout)
    videos = {c: _Videos(folder, f"{IMAGES}{c}", layout, options) for c in layout.cameras if options.video}
    book = _Book(layout)
    try:
        for index, item in enumerate(progress(items)):
            layout.check(item)
            episode, rows = item.episode, slice(0, item.episode.steps)
            task_index = book.tasks.setdefault(episode.task, len(book.tasks))
            columns = layout.columns(item, index, book.frames, task_index)
            images = {} if options.video else {c: episode.frames[c][rows] for c in layout.cameras}
            place = tables.append(columns, images)
            for camera, video in videos.items():
                place |= video.append(episode.frames[camera][rows])
            book.add(item, index, columns, place, {c: episode.frames[c][rows] for c in layout.cameras})
    finally:
        tables.close()
        for video in videos.values():
            video.close()
    book.save(folder, videos=options.video, codec=options.codec)
    lost = sorted({name for item in items for name in item.episode.privileged if name not in layout.privileged})
    return [f"privileged '{name}' was left out: the first episode has none, or it is no vector" for name in lost]


class _Files:
    """The files of one kind, one after the other: `chunk-000/file-000` and on."""

    def __init__(self, folder: Path, layout: Layout):
        self._folder, self._layout = folder, layout
        self._number, self._writer = -1, None

    @property
    def place(self) -> dict[str, int]:
        """Chunk and number of the current file."""
        return {"chunk_index": self._number // FILES_PER_CHUNK, "file_index": self._number % FILES_PER_CHUNK}

    def next_path(self, template: str, **fields: str) -> Path:
        """Close the current file and name the next one."""
        self.close()
        self._number += 1
        path = self._folder / template.format(**fields, **self.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _Tables(_Files):
    """The data tables: one row group an episode, a new file beyond 100 MB."""

    _writer: pq.ParquetWriter | None

    def append(self, columns: dict[str, AnyArray], images: dict[str, ByteArray]) -> dict[str, Any]:
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        arrays: dict[str, pa.Array] = {}
        for camera, frames in images.items():
            entries = [{"bytes": _png(image), "path": f"frame-{i:06d}.png"} for i, image in enumerate(frames)]
            arrays[f"{IMAGES}{camera}"] = pa.array(entries, type=kind)
        arrays |= {name: _arrow(values) for name, values in columns.items()}
        table = pa.table(arrays).replace_schema_metadata({"huggingface": json.dumps(_hub_features(arrays))})
        if self._writer is None or self._path.stat().st_size > DATA_MB << 20:
            self._path = self.next_path(DATA_PATH)
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)
        return {f"data/{name}": value for name, value in self.place.items()}


class _Videos(_Files):
    """The videos of one camera: episodes one after the other, a new file beyond 200 MB."""

    _writer: VideoWriter | None

    def __init__(self, folder: Path, key: str, layout: Layout, options: WriteOptions):
        super().__init__(folder, layout)
        self._key, self._options = key, options

    def append(self, frames: ByteArray) -> dict[str, Any]:
        fps, options = self._layout.fps, self._options
        if self._writer is None or self._writer.nbytes > VIDEO_MB << 20:
            path = self.next_path(VIDEO_PATH, video_key=self._key)
            size = self._layout.cameras[self._key.removeprefix(IMAGES)]
            self._writer = VideoWriter(path, fps, *size, options.codec, options.quality)
        start = self._writer.count / fps
        self._writer.append(frames)
        place = {**self.place, "from_timestamp": start, "to_timestamp": self._writer.count / fps}
        return {f"videos/{self._key}/{name}": value for name, value in place.items()}


@dataclass
class _Book:
    """What meta/ will say."""

    layout: Layout
    frames: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    sidecar: list[dict[str, Any]] = field(default_factory=list)
    columns: list[dict[str, AnyArray]] = field(default_factory=list)
    histograms: dict[str, ImageHistogram] = field(default_factory=dict)

    def add(
        self,
        item: LabeledEpisode,
        index: int,
        columns: dict[str, AnyArray],
        place: dict[str, Any],
        images: dict[str, ByteArray],
    ) -> None:
        stats: dict[str, dict[str, Any]] = {}
        for camera, frames in images.items():
            histogram = ImageHistogram.of(frames)
            stats[f"{IMAGES}{camera}"] = histogram.describe()
            self.histograms[camera] = self.histograms.get(camera, ImageHistogram()) + histogram
        stats |= {name: describe(values) for name, values in columns.items()}
        data = {name: place.pop(name) for name in list(place) if name.startswith("data/")}
        self.episodes.append(
            {
                "episode_index": index,
                "tasks": [item.episode.task],
                "length": item.episode.steps,
                **data,
                "dataset_from_index": self.frames,
                "dataset_to_index": self.frames + item.episode.steps,
                **place,
                **{f"stats/{name}/{stat}": value for name, values in stats.items() for stat, value in values.items()},
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        episode = item.episode
        entry: dict[str, Any] = {"episode_index": index, "store_id": item.id, "repeated": episode.padded}
        entry |= {"terminated": episode.terminated, **label_entry(item.labels, self.layout.reward_frame)}
        entry["final_state"] = None if episode.padded == "last" else episode.state[-1].tolist()
        if episode.padded != "last":
            entry |= {f"final/{camera}": _png(episode.frames[camera][-1]) for camera in self.layout.cameras}
        self.sidecar.append(entry)
        self.columns.append(columns)
        self.frames += item.episode.steps

    def save(self, folder: Path, *, videos: bool, codec: str) -> None:
        meta = folder / "meta"
        (meta / "episodes/chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(self.episodes), meta / "episodes/chunk-000/file-000.parquet")
        pq.write_table(pa.Table.from_pylist(self.sidecar), folder / PLAUDIT_META)
        pq.write_table(_task_table(list(self.tasks)), meta / "tasks.parquet")
        stats = {f"{IMAGES}{camera}": histogram.describe() for camera, histogram in self.histograms.items()}
        stats |= {name: describe(np.concatenate([c[name] for c in self.columns])) for name in self.columns[0]}
        (meta / "stats.json").write_text(json.dumps(stats, indent=4))
        info = {
            "codebase_version": "v3.0",
            "robot_type": self.layout.robot or None,
            "total_episodes": len(self.episodes),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": DATA_MB,
            "video_files_size_in_mb": VIDEO_MB,
            "fps": whole(self.layout.fps),
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if videos and self.layout.cameras else None,
            "features": self.layout.features(self.columns[0], videos, codec),
        }
        (meta / "info.json").write_text(json.dumps(info, indent=4))


def _png(image: ByteArray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, format="PNG", compress_level=3)
    return out.getvalue()


def _arrow(values: AnyArray) -> pa.Array:
    """A plain column for one value a row, fixed-size lists for vectors: what LeRobot's loader expects."""
    values = np.ascontiguousarray(values)
    if values.ndim == 1 or values.shape[1] == 1:
        return pa.array(values.reshape(len(values)))
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _hub_features(arrays: dict[str, pa.Array]) -> dict[str, Any]:
    """The column types in the words of the `datasets` package, so that it shows images as images."""

    def feature(kind: pa.DataType) -> dict[str, Any]:
        if pa.types.is_struct(kind):
            return {"_type": "Image"}
        if pa.types.is_fixed_size_list(kind):
            return {"feature": feature(kind.value_type), "length": kind.list_size, "_type": "List"}
        return {"dtype": {"float": "float32", "double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}

    return {"info": {"features": {name: feature(array.type) for name, array in arrays.items()}}}


def _task_table(tasks: list[str]) -> pa.Table:
    """As pandas would write a frame indexed by task text, because LeRobot looks tasks up by that index."""
    table = pa.table(
        {"task_index": pa.array(range(len(tasks)), pa.int64()), "__index_level_0__": pa.array(tasks, pa.string())}
    )
    column = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    index = {"name": None, "field_name": "__index_level_0__", "pandas_type": "unicode", "numpy_type": "object"}
    names = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": ["__index_level_0__"],
        "column_indexes": [{**names, "metadata": {"encoding": "UTF-8"}}],
        "columns": [{**column, "metadata": None}, {**index, "metadata": None}],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})
