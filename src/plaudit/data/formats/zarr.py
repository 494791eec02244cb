"""Zarr replay buffers of diffusion policy and UMI, as a folder or a `.zarr.zip`.

`data/*` holds the steps of all episodes, one after the other, and `meta/episode_ends` where each ends. Versions 2 and 3
of the format are a JSON header and a file for each chunk, which are read here; numcodecs decompresses them. (Rejected:
the zarr package, whose event loop opens sockets, which the process that decodes files may not.) Chunks of pickles or of
Python objects are refused.
"""

import math
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.formats.base import ReadOptions
from plaudit.data.formats.columns import MAX_COLUMNS, Column, ColumnLayout, Content, Recording
from plaudit.errors import BadFile, MissingPackage
from plaudit.files import Root, brief, parse_json, readable
from plaudit.types import AnyArray

MAX_CHUNK = 256 << 20  # bytes, stored and decoded
MAX_EPISODES = 1_000_000
CODECS = ("blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma", "shuffle", "delta")
IMAGE_CODECS = ("jpegxl", "jpeg", "jpeg2k", "png", "webp")  # of imagecodecs, as UMI stores its cameras
_DTYPE = re.compile(r"[<>|](b1|[iu][1248]|f[248])")
_DATA_TYPE = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")  # of version 3
HEADERS = (".zarray", "zarr.json")  # of an array, in versions 2 and 3
_ENDS = "meta/episode_ends"

ReadFile = Callable[[str], bytes]  # FileNotFoundError where there is none


def find(path: Path) -> list[Path]:
    """The path itself if it is a replay buffer."""
    if path.is_file():
        return [path] if path.name.endswith(".zarr.zip") else []
    return [path] if any((path / _ENDS / name).is_file() for name in HEADERS) else []


def recordings(root: Root, files: Sequence[Path], options: ReadOptions) -> list[Recording]:
    """The episodes of a replay buffer."""
    path = files[0]
    names, read = _archive(root, path) if path.is_file() else _folder(root, path)
    ends_array = _Array.open(path, _ENDS, read)
    if ends_array.dtype.kind not in "iu" or len(ends_array.shape) != 1 or ends_array.shape[0] > MAX_EPISODES:
        raise BadFile(path, f"{_ENDS} is no list of episode ends; copy it again from its source")
    ends = [int(end) for end in ends_array.rows(0, ends_array.shape[0])]
    starts = [0, *ends[:-1]]
    if any(start >= end for start, end in zip(starts, ends)):
        raise BadFile(path, f"{_ENDS} must increase, from one step on; copy it again from its source")
    arrays: dict[str, _Array] = {}

    def content(start: int, end: int) -> Content:
        if not arrays:
            arrays.update({name: _Array.open(path, f"data/{name}", read) for name in names})
        columns = {name: array.column(start, end) for name, array in arrays.items() if array.shape}
        return Content(columns, lambda name, first, last: arrays[name].rows(start + first, start + last))

    bounds = list(zip(starts, ends))
    return [
        Recording(f"{path}, episode {number}", partial(content, start, end), end - start)
        for number, (start, end) in enumerate(bounds)
    ]


def _folder(root: Root, path: Path) -> tuple[list[str], ReadFile]:
    """The names of the arrays in `data`, and what reads a file."""
    names = sorted({header.parent.name for kind in HEADERS for header in path.glob(f"data/*/{kind}")})
    return names, lambda name: root.read(root.inside(name), MAX_CHUNK)


def _archive(root: Root, path: Path) -> tuple[list[str], ReadFile]:
    with readable(path, "this is not a whole zip file ({}); copy it again from its source"):
        archive = zipfile.ZipFile(root.open(path))
    members = {info.filename: info for info in archive.infolist()}
    matches = [re.fullmatch(r"data/([^/]+)/(\.zarray|zarr\.json)", name) for name in members]
    names = sorted({match[1] for match in matches if match})

    def read(name: str) -> bytes:
        if name not in members:
            raise FileNotFoundError(name)
        if members[name].file_size > MAX_CHUNK:
            raise BadFile(path, f"'{name}' claims {members[name].file_size:,} bytes; the limit is {MAX_CHUNK:,}")
        with archive.open(name) as file:
            return file.read(MAX_CHUNK)

    return names, read


@dataclass
class _Array:
    """An array, its header in the form of version 2."""

    path: Path  # of the replay buffer
    name: str
    read: ReadFile
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Any
    fill: Any
    keys: str  # what the names of chunks begin with
    separator: str
    codecs: Sequence[Any]  # in the order of decoding
    _last: tuple[str, AnyArray | None] = field(default=("", None))

    @classmethod
    def open(cls, path: Path, name: str, read: ReadFile) -> "_Array":
        """Read and check the header."""
        message = f"the header of '{name}' is damaged ({{}}); copy it again from its source"
        with readable(path, message, f"there is no array '{name}'; copy it again from its source"):
            header = _header(path, name, read)
            shape, chunks = (tuple(int(edge) for edge in header[key]) for key in ("shape", "chunks"))
            if header["zarr_format"] != 2 or header["order"] not in ("C", "F") or len(shape) != len(chunks):
                raise ValueError("it is not of Zarr version 2 or 3")
            if not isinstance(header["dtype"], str) or not _DTYPE.fullmatch(header["dtype"]):
                raise BadFile(path, f"'{name}' holds {brief(header['dtype'])}, not numbers; write it again as numbers")
            dtype = np.dtype(header["dtype"])
            if any(edge < 0 for edge in shape) or any(edge < 1 for edge in chunks) or math.prod(shape) > 1 << 48:
                raise ValueError(f"its shape is {brief(str(shape))} in chunks of {brief(str(chunks))}")
            if math.prod(chunks) * dtype.itemsize > MAX_CHUNK:
                raise BadFile(path, f"'{name}' has chunks of more than {MAX_CHUNK:,} bytes; write it with smaller ones")
            separator = header.get("dimension_separator", ".")
            if separator not in (".", "/"):
                raise ValueError("its chunks have unknown names")
            fill = header.get("fill_value") or 0
            fill = float(fill) if isinstance(fill, str) else fill
            configs = [*(header.get("filters") or ()), *([header["compressor"]] if header.get("compressor") else ())]
        codecs = [_codec(path, name, config) for config in reversed(configs)]
        keys = f"{name}/{header.get('keys', '')}"
        return cls(path, name, read, shape, chunks, dtype, header["order"], fill, keys, separator, codecs)

    def column(self, start: int, end: int) -> Column:
        rows = max(0, min(self.shape[0], end) - start)
        if rows > MAX_EPISODES * MAX_COLUMNS:
            raise BadFile(self.path, f"'{self.name}' has an episode of {rows:,} steps; no recording has so many")
        sizes = (self._stored(name) for first in self._chunk_rows(start, start + rows) for name, _ in self._grid(first))
        return Column(rows, self.shape[1:], self.dtype.name, sum(sizes))

    def rows(self, start: int, stop: int) -> AnyArray:
        """The rows from one number up to another."""
        with readable(self.path, f"'{self.name}' is damaged ({{}}); copy it again from its source"):
            stop = min(stop, self.shape[0])
            out = np.full((max(stop - start, 0), *self.shape[1:]), self.fill, self.dtype)
            for first in self._chunk_rows(start, stop):
                low, high = first * self.chunks[0], (first + 1) * self.chunks[0]
                for name, place in self._grid(first):
                    chunk = self._decode(name)
                    if chunk is not None:
                        target = out[(slice(max(low - start, 0), high - start), *place)]
                        inner = chunk[max(start - low, 0) :][: len(target)]
                        target[...] = inner[(slice(None), *(slice(edge) for edge in target.shape[1:]))]
            return out

    def _chunk_rows(self, start: int, stop: int) -> range:
        return range(start // self.chunks[0], -(-stop // self.chunks[0])) if stop > start else range(0)

    def _grid(self, first: int) -> list[tuple[str, tuple[slice, ...]]]:
        """The names of the chunks of some rows, and the place of each in a row."""
        counts = [-(-edge // chunk) for edge, chunk in zip(self.shape[1:], self.chunks[1:])]
        if math.prod(counts) > MAX_COLUMNS:
            raise BadFile(
                self.path, f"'{self.name}' has more than {MAX_COLUMNS:,} chunks a row; write it with larger ones"
            )
        return [
            (
                self.keys + self.separator.join(map(str, (first, *index))),
                tuple(slice(i * chunk, (i + 1) * chunk) for i, chunk in zip(index, self.chunks[1:])),
            )
            for index in product(*map(range, counts))
        ]

    def _stored(self, name: str) -> int:
        try:
            return len(self.read(name))
        except FileNotFoundError:
            return 0

    def _decode(self, name: str) -> AnyArray | None:
        """A chunk; None where it was never written. The last one is kept: episodes may share it."""
        if self._last[0] != name:
            self._last = ("", None)
            try:
                data: Any = self.read(name)
            except FileNotFoundError:
                return None
            for codec in self.codecs:
                data = codec(data)
            values = np.frombuffer(data, self.dtype)
            if values.size != math.prod(self.chunks):
                raise ValueError(f"chunk {name} has {values.size:,} values, not {math.prod(self.chunks):,}")
            self._last = (name, values.reshape(self.chunks, order=self.order))
        return self._last[1]


def _header(path: Path, name: str, read: ReadFile) -> Any:
    """The header of an array; one of version 3 in the form of version 2."""
    try:
        header = parse_json(read(f"{name}/zarr.json"))
    except FileNotFoundError:
        return parse_json(read(f"{name}/.zarray"))
    kinds = {key: header[key]["name"] for key in ("chunk_grid", "chunk_key_encoding")}
    encoding, (first, *others) = header["chunk_key_encoding"], header["codecs"]
    if header["zarr_format"] != 3 or kinds["chunk_grid"] != "regular" or first["name"] != "bytes":
        what = brief(first["name"] if kinds["chunk_grid"] == "regular" else kinds["chunk_grid"])
        raise BadFile(path, f"'{name}' is stored as {what}, which is not read; write regular chunks without shards")
    if not isinstance(header["data_type"], str) or not _DATA_TYPE.fullmatch(header["data_type"]):
        raise BadFile(path, f"'{name}' holds {brief(header['data_type'])}, not numbers; write it again as numbers")
    big = first.get("configuration", {}).get("endian") == "big"
    default = kinds["chunk_key_encoding"] == "default"
    return {
        "zarr_format": 2,
        "shape": header["shape"],
        "chunks": header["chunk_grid"]["configuration"]["chunk_shape"],
        "dtype": np.dtype(header["data_type"]).newbyteorder(">" if big else "<").str,
        "order": "C",
        "fill_value": header["fill_value"],
        "keys": "c" + encoding.get("configuration", {}).get("separator", "/") if default else "",
        "dimension_separator": encoding.get("configuration", {}).get("separator", "/" if default else "."),
        "filters": [{"id": codec["name"]} for codec in others],
    }


def _codec(path: Path, name: str, config: Any) -> Callable[[Any], Any]:
    """What decodes the chunks of an array, by the configuration in its header."""
    import numcodecs

    codec = str(config.get("id") if isinstance(config, dict) else config)
    kind = codec.removeprefix("imagecodecs_")
    if codec in CODECS:
        decode = numcodecs.get_codec(config).decode
        return partial(_decode_blosc, decode) if codec == "blosc" else decode
    if kind != codec and kind in IMAGE_CODECS:
        try:
            import imagecodecs  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingPackage(f"'{name}' is stored as {codec}, and imagecodecs", "imagecodecs") from error
        return getattr(imagecodecs, f"{kind}_decode")
    allowed = ", ".join(CODECS)
    raise BadFile(path, f"'{name}' is stored as {brief(codec)}, which is not read; write it as one of: {allowed}")


def _decode_blosc(decode: Callable[[Any], Any], data: Any) -> Any:
    """numcodecs reads as many bytes as the header of a chunk claims, whether they are there or not."""
    if len(data) < 16 or int.from_bytes(data[12:16], "little") != len(data):
        raise ValueError("a chunk is not whole")
    return decode(data)


LAYOUT = ColumnLayout("zarr", "numcodecs", "zarr", find, recordings)
