"""RLDS data sets (`features.json` and `.tfrecord` files, as TensorFlow Datasets writes Open X-Embodiment).

Read without TensorFlow: a record is framed by its length and two checksums, and holds one episode as a
`tf.train.Example`, a protocol buffer of named lists. `features.json` has the shape and type of each name.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats.base import TEXT, UNREADABLE, ReadOptions
from plaudit.data.formats.columns import MAX_COLUMNS, Column, ColumnLayout, Content, Recording, image_column
from plaudit.errors import BadFile
from plaudit.files import MAX_DEPTH, Root, brief, read_json_object, readable, understood

MAX_RECORD = 4 << 30  # bytes of an episode
_FEATURES, _STEPS = "features.json", "steps/"
_HEAD = struct.Struct("<QI")


def find(path: Path) -> list[Path]:
    """The record files of a folder with `features.json`, in the order of their names."""
    return sorted(path.glob("*.tfrecord*")) if (path / _FEATURES).is_file() else []


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """The episodes of all files, by their frames; nothing is parsed."""
    path = root.path / _FEATURES
    tree = read_json_object(path, root)
    features: dict[str, tuple[tuple[int, ...], str]] = {}
    with understood(path):
        _collect(tree, "", features, 0)
    features = {name.removeprefix(_STEPS): feature for name, feature in features.items() if name.startswith(_STEPS)}
    listed: list[Recording] = []
    for file in files:
        try:
            listed += [
                Recording(f"{file}, record {number}", partial(_content, root, file, at, size, features))
                for number, (at, size) in enumerate(_records(root, file))
            ]
        except BadFile as error:
            listed.append(Recording(str(file), partial(_fail, error)))
    return listed


def _fail(error: BadFile) -> Content:
    raise error


def _records(root: Root, file: Path) -> Iterator[tuple[int, int]]:
    """Where each record begins, and its size."""
    total = root.size(file)
    with readable(file, UNREADABLE), root.open(file) as opened:
        at = 0
        while at < total:
            opened.seek(at)
            head = opened.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise ValueError("it ends within a record")
            size, checksum = _HEAD.unpack(head)
            if _masked_crc(head[:8]) != checksum:
                raise ValueError(f"the length at byte {at:,} does not match its checksum")
            if size > MAX_RECORD or at + _HEAD.size + size + 4 > total:
                raise ValueError(f"it ends within the record at byte {at:,}")
            yield at + _HEAD.size, size
            at += _HEAD.size + size + 4


def _masked_crc(data: Any) -> int:
    """The checksum of TFRecord files: CRC32C, rotated and shifted."""
    import google_crc32c

    crc = google_crc32c.value(bytes(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _collect(tree: Any, name: str, features: dict[str, tuple[tuple[int, ...], str]], depth: int) -> None:
    """The shape of a row and the type of every feature below one, by its path."""
    if depth > MAX_DEPTH or len(features) > MAX_COLUMNS:
        raise ValueError("it nests too deep")
    if "featuresDict" in tree:
        for key, child in tree["featuresDict"]["features"].items():
            _collect(child, f"{name}/{key}" if name else key, features, depth + 1)
    elif "sequence" in tree:
        _collect(tree["sequence"]["feature"], name, features, depth + 1)
    elif kind := next((kind for kind in ("tensor", "image", "text") if kind in tree), ""):
        content = tree[kind]
        shape = tuple(int(edge) for edge in content.get("shape", {}).get("dimensions", ()))
        dtype = str(content.get("dtype", "uint8" if kind == "image" else "string"))
        if str(content.get("encoding", "none")).lower() in ("none", "") and all(edge >= 0 for edge in shape):
            features[name] = (shape, TEXT if dtype in ("string", "object") else dtype)


def _content(root: Root, file: Path, at: int, size: int, features: dict[str, tuple[tuple[int, ...], str]]) -> Content:
    """One episode: the lists of its record, in the shapes that `features.json` gives."""
    with root.open(file) as opened:
        opened.seek(at)
        data, checksum = opened.read(size), opened.read(4)
    if _masked_crc(data) != int.from_bytes(checksum, "little"):
        raise BadFile(file, f"the record at byte {at - _HEAD.size:,} does not match its checksum; copy it again")
    lists = dict(_example(memoryview(data)))
    columns: dict[str, Column] = {}
    values: dict[str, Any] = {}
    ignored: list[str] = []
    for key, (kind, content) in lists.items():
        name = key.removeprefix(_STEPS)
        if name not in features or not key.startswith(_STEPS):
            ignored.append(key)
            continue
        shape, dtype = features[name]
        if kind == 1:
            files = [bytes(value) for value in content]
            if dtype == TEXT and not shape:
                columns[name] = Column(len(files), (), TEXT, sum(map(len, files)))
                values[name] = [text.decode("utf-8", "replace") for text in files]
            elif files and (images := image_column(len(files), files[0], sum(map(len, files)))) is not None:
                columns[name], values[name] = images, files
            else:
                ignored.append(key)
            continue
        numbers = np.frombuffer(content, "<f4") if kind == 2 else _varints(content)
        rows, rest = divmod(numbers.size, max(1, math.prod(shape)))
        if rest:
            raise BadFile(
                file, f"'{name}' has {numbers.size:,} numbers, not rows of {brief(str(shape))}; write it again"
            )
        values[name] = numbers.reshape(rows, *shape).astype(dtype)
        columns[name] = Column(rows, shape, values[name].dtype.name, len(content))
    return Content(columns, lambda name, start, stop: values[name][start:stop], ignored=ignored)


# Protocol buffers: a message is a sequence of fields, each with a number and a length. Names as in example.proto.


def _example(data: memoryview) -> Iterator[tuple[str, tuple[int, Any]]]:
    """Each name of a `tf.train.Example`; its kind: 1 bytes_list, 2 float_list, 3 int64_list; and its content."""
    for _, features in _fields(data):
        for _, entry in _fields(features):
            parts = dict(_fields(entry))
            kind, content = next(_fields(parts.get(2, memoryview(b""))), (0, memoryview(b"")))
            if kind == 1:
                yield bytes(parts[1]).decode(), (1, [value for _, value in _fields(content)])
            elif kind in (2, 3):
                yield bytes(parts[1]).decode(), (kind, next(_fields(content), (1, memoryview(b"")))[1])


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message, all of which have a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        size, at = _varint(data, at)
        if key & 7 != 2 or at + size > len(data):
            raise ValueError("its record is no tf.train.Example")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("its record is no tf.train.Example")
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def _varints(data: memoryview) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All numbers of an int64_list."""
    signs = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(signs < 128)
    if not len(signs):
        return np.zeros(0, np.int64)
    if not len(ends) or ends[-1] != len(signs) - 1:
        raise ValueError("its record is no tf.train.Example")
    starts = np.append(0, ends[:-1] + 1)
    shifts = np.arange(len(signs)) - np.repeat(starts, ends - starts + 1)
    parts = (signs & 127).astype(np.uint64) << (7 * shifts).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64)


LAYOUT = ColumnLayout("rlds", "google_crc32c", "rlds", find, recordings)
