"""ROS 2 bags: `.mcap` and `.db3` files, alone or in a folder with `metadata.yaml`. One bag is one episode.

rosbags reads them without a ROS installation. Each topic is a column. Topics have clocks of their own, so the chosen
ones are resampled to `--fps`: a row holds the newest message of each topic. Rows begin when all topics have sent one
and end with the first topic that ends. Only standard message types are read: rosbags turns definitions in a bag into
Python code.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats.base import ReadOptions
from plaudit.data.formats.columns import Column, ColumnLayout, Content, Recording, image_column
from plaudit.errors import BadFile
from plaudit.files import Root, readable
from plaudit.types import AnyArray

SUFFIXES = (".mcap", ".db3")
METADATA = "metadata.yaml"
MAX_ROWS = 1 << 22
IMAGE, COMPRESSED, JOINTS = (f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "JointState"))
# Encoding -> bytes a pixel, and which of them are red, green and blue.
PIXELS = {
    "rgb8": (3, [0, 1, 2]),
    "bgr8": (3, [2, 1, 0]),
    "rgba8": (4, [0, 1, 2]),
    "bgra8": (4, [2, 1, 0]),
    "mono8": (1, [0, 0, 0]),
}
_NO_VALUES = {"header", "stamp", "layout"}


def find(path: Path) -> list[Path]:
    """The bags that a path stands for: itself, the folders in it, or the files in it."""
    if path.is_file():
        return [path] if path.suffix in SUFFIXES else []
    files = sorted(file for suffix in SUFFIXES for file in path.glob(f"*{suffix}*"))
    if (path / METADATA).is_file() and files:
        return [path]
    folders = sorted(file.parent for file in path.glob(f"*/{METADATA}"))
    return [folder for folder in folders if find(folder)] or [file for file in files if file.suffix in SUFFIXES]


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """One for each bag."""
    return [Recording(str(file), partial(_content, root, file, options.fps)) for file in files]


def _content(root: Root, path: Path, fps: float) -> Content:
    bag = _Bag(root, path)
    columns: dict[str, Column] = {}
    ignored: list[str] = []
    for connection in bag.connections:
        described = bag.describe(connection)
        columns |= described
        if not described:
            ignored.append(f"{connection.topic} ({connection.msgtype})")
    problem = "" if fps else f"{path}: topics of a bag have rates of their own; give the one to resample to with --fps"
    return Content(columns, _not_aligned, ignored=ignored, problem=problem, align=partial(_align, bag, columns, fps))


def _not_aligned(name: str, start: int, stop: int) -> Any:
    raise AssertionError("a bag is read in step")


def _align(bag: "_Bag", columns: Mapping[str, Column], fps: float, names: Sequence[str]) -> Content:
    """The columns with a row for each period of the rate."""
    times = bag.times({bag.topic(name) for name in names})
    start, end = max(stamps[0] for stamps in times.values()), min(stamps[-1] for stamps in times.values())
    rows = int((end - start) * fps / 1e9) + 1 if end >= start else 0
    if not 1 < rows <= MAX_ROWS:
        seconds = f"{(end - start) / 1e9:,.1f} s"
        raise BadFile(bag.path, f"the chosen topics have {seconds} in common, too few for an episode; choose others")
    grid = start + np.rint(np.arange(rows) * 1e9 / fps).astype(np.int64)
    newest = {topic: stamps[np.searchsorted(stamps, grid, side="right") - 1] for topic, stamps in times.items()}

    def read(name: str, first: int, last: int) -> Any:
        return bag.read(name, newest[bag.topic(name)][first:last], columns[name])

    return Content({name: replace(columns[name], rows=rows) for name in names}, read, fps=fps)


@dataclass
class _Bag:
    """An open bag."""

    root: Root
    path: Path

    @cached_property
    def reader(self) -> Any:
        from rosbags.rosbag2 import Reader

        if self.path.is_dir():
            Root(self.path, self.root.follow_links).check_files()
            if any(self.path.glob("*.zstd")):
                raise BadFile(
                    self.path, "its files are compressed as a whole, which is not read; unpack them by zstd -d"
                )
        else:
            self.root.open(self.path).close()
        message = "this is not a whole bag ({}); copy it again from its source, or repair it with 'ros2 bag reindex'"
        with readable(self.path, message):
            reader = Reader(self.path)
            reader.open()
            return reader

    @cached_property
    def connections(self) -> list[Any]:
        return list({connection.topic: connection for connection in self.reader.connections}.values())

    def topic(self, name: str) -> str:
        """The topic of a column, which may be one field of it: `/joint_states.effort`."""
        topics = [connection.topic for connection in self.connections]
        return name if name in topics else name.rpartition(".")[0]

    def messages(
        self, topics: Any, start: int | None = None, stop: int | None = None
    ) -> Iterator[tuple[Any, int, bytes]]:
        """Connection, time in ns and bytes of each message of these topics."""
        chosen = [connection for connection in self.reader.connections if connection.topic in topics]
        with readable(self.path, "this bag is damaged ({}); copy it again from its source"):
            yield from self.reader.messages(chosen, start=start, stop=stop)

    def times(self, topics: set[str]) -> dict[str, AnyArray]:
        """When the messages of each topic came, in order."""
        times: dict[str, list[int]] = {topic: [] for topic in topics}
        for connection, time, _ in self.messages(topics):
            times[connection.topic].append(time)
        silent = next((topic for topic, stamps in times.items() if not stamps), None)
        if silent is not None:
            raise BadFile(self.path, f"topic {silent} has no messages here; choose others")
        return {topic: np.sort(np.array(stamps, np.int64)) for topic, stamps in times.items()}

    def describe(self, connection: Any) -> dict[str, Column]:
        """The columns of a topic, by its first message; none for a type that is not read."""
        first = next(self.messages([connection.topic]), None)
        if first is None or connection.msgtype not in _types().types:
            return {}
        values = _values(connection.topic, connection.msgtype, first[2])
        count = max(connection.msgcount, 1)
        columns: dict[str, Column] = {}
        for name, value in values.items():
            if isinstance(value, bytes):
                if (images := image_column(count, value, count * len(value))) is not None:
                    columns[name] = images
            elif value.size:
                columns[name] = Column(count, value.shape, value.dtype.name, count * len(first[2]))
        return columns

    def read(self, name: str, stamps: AnyArray, column: Column) -> Any:
        """The messages of these times, which may repeat."""
        topic, wanted = self.topic(name), set(stamps.tolist())
        decoded: dict[int, Any] = {}
        if not wanted:
            return []
        for connection, time, data in self.messages([topic], min(wanted), max(wanted) + 1):
            if time in wanted:
                value = _values(topic, connection.msgtype, data).get(name)
                if value is None or (not column.encoded and value.shape != column.shape):
                    shape = "empty" if value is None else list(value.shape)
                    raise BadFile(
                        self.path, f"'{name}' is {shape} in one message and {list(column.shape)} in the first"
                    )
                decoded[time] = value
        rows = [decoded[time] for time in stamps.tolist()]
        return rows if column.encoded else np.stack(rows)


@cache
def _types() -> Any:
    """The standard message types of ROS 2."""
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_JAZZY)


def _values(topic: str, kind: str, data: bytes) -> dict[str, Any]:
    """What a message holds: an image [H, W, 3], the bytes of one, or numbers [D]; of joints by field."""
    message = _types().deserialize_cdr(data, kind)
    if kind == COMPRESSED:
        return {topic: message.data.tobytes()}
    if kind == IMAGE:
        width, order = PIXELS.get(message.encoding, (0, []))
        rows = message.data.reshape(message.height, message.step)[:, : message.width * width] if width else np.zeros(0)
        return {topic: rows.reshape(message.height, message.width, width)[..., order]} if width else {}
    if kind == JOINTS:
        return {
            topic: message.position,
            f"{topic}.velocity": message.velocity,
            f"{topic}.effort": message.effort,
        }
    return {topic: np.array(list(_numbers(message)), np.float64)}


def _numbers(value: Any) -> Iterator[float]:
    """Every number of a message, in the order of its fields, without times and layouts."""
    if is_dataclass(value):
        for field in fields(value):
            if field.name not in _NO_VALUES and not field.name.isupper():
                yield from _numbers(getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        yield from map(float, value.ravel())
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_numbers, value))
    elif isinstance(value, bool | int | float):
        yield float(value)


LAYOUT = ColumnLayout("rosbag", "rosbags.rosbag2 rosbags.typesys.stores.ros2_jazzy", "ros", find, recordings)
