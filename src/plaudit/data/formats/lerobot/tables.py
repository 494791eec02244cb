"""The files of a LeRobot data set, read or refused with a sentence: JSON lines, parquet tables, columns of numbers.

LeRobot calls the state and the action `observation.state` and `action`. Others write `state`, `actions`, or one column
for each part of the robot (`observation.joint_position`, `observation.gripper`), which are joined in the given order.
"""

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plaudit.data.formats.base import GB, MAX_ROWS, TABLE_RATIO, check_decoded_size
from plaudit.data.formats.lerobot.features import BOOKKEEPING, INTERVENTION, LABELS, PRIVILEGED
from plaudit.errors import BadFile, did_you_mean
from plaudit.files import MAX_JSON, Root, brief, parse_json, readable
from plaudit.types import AnyArray

MISSING = "this file of the LeRobot data set is missing; copy it from its source"
MAX_TABLE = 16 * GB  # bytes of a whole table of images, in memory
MAX_EXPANSION = 4  # times its bytes on disk that a table is given as room in memory, beside what every table is given
_NOT_WHOLE = "this is not a whole parquet file ({}); copy it again from its source"
_NO_TABLE = "this table is missing; copy it from the data set's source"
_THRIFT = 1 << 26  # bytes of a text in a footer
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # others: text and bytes


def read_json_lines(root: Root, path: Path) -> list[dict[str, Any] | BadFile]:
    """A file of one JSON object a line; an invalid or empty line is returned as its error."""
    entries: list[dict[str, Any] | BadFile] = []
    with readable(path, "this file cannot be read ({}); copy it again from its source", MISSING):
        lines = root.read(path, MAX_JSON).rstrip().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            with readable(path, f"this is not valid JSON in line {number} ({{}}); copy it again from its source"):
                entry = parse_json(line)
                if not isinstance(entry, dict):
                    raise ValueError(f"{brief(entry)} is not an object")
            entries.append(entry)
        except BadFile as error:
            entries.append(error)
    return entries


def read_table(root: Root, path: Path, wanted: Callable[[str], bool] = lambda name: True) -> pa.Table:
    """Those columns of a parquet file that are wanted, once their size is known."""
    with _open_parquet(root, path) as (file, nbytes):
        names = [name for name in file.schema_arrow.names if wanted(name)]
        _check_table(file, names, nbytes, path)
        return file.read(columns=names).select(names)


def read_numbers(file: BufferedReader, path: Path) -> pa.Table:
    """The columns of an open parquet file that hold one number or flag per row."""
    table = pq.ParquetFile(file, thrift_string_size_limit=_THRIFT)
    kinds = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    names = [field.name for field in table.schema_arrow if any(is_kind(field.type) for is_kind in kinds)]
    _check_table(table, names, os.fstat(file.fileno()).st_size, path)
    return table.read(columns=names).select(names)


def row_groups(root: Root, path: Path) -> Iterator[pa.Table]:
    """All columns of a parquet file, as many rows at a time as it was written in; at least one table, if empty."""
    with _open_parquet(root, path) as (file, nbytes):
        _check_table(file, file.schema_arrow.names, nbytes, path)
        if not file.num_row_groups:
            yield file.schema_arrow.empty_table()
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def row_group_sizes(root: Root, path: Path) -> list[int]:
    """Bytes in memory of each table of `row_groups`, by the footer, as far as the file is large enough for it."""
    with _open_parquet(root, path) as (file, nbytes):
        names = file.schema_arrow.names
        _check_table(file, names, nbytes, path)
        sizes = (_decoded_bytes(file, names, [group]) for group in range(file.num_row_groups))
        return [min(size, MAX_EXPANSION * nbytes) for size in sizes]


def _check_table(file: pq.ParquetFile, names: list[str], nbytes: int, path: Path) -> None:
    """Refuse a table that is none, or too large for the bytes it comes from."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadFile(path, f"this table has column {brief(twice)} twice; write it again")
    rows = file.metadata.num_rows
    if not 0 <= rows <= MAX_ROWS:
        raise BadFile(path, f"this table claims {rows:,} rows; the limit is {MAX_ROWS:,}; copy it again")
    unfolded = _decoded_bytes(file, names, range(file.num_row_groups))
    check_decoded_size(unfolded, nbytes, path, "this table", MAX_TABLE, TABLE_RATIO)


def count_rows(root: Root, path: Path) -> int:
    """Number of rows of a parquet file, read from its footer."""
    with _open_parquet(root, path) as (file, _):
        return file.metadata.num_rows


def _decoded_bytes(file: pq.ParquetFile, names: list[str], groups: Iterable[int]) -> int:
    """Bytes that these columns take in memory, at least: runs of equal values are written out."""
    total = 0
    wanted = tuple(f"{name}." for name in names)
    metadata = file.metadata
    for group in groups:
        for index in range(metadata.num_columns):
            column = metadata.row_group(group).column(index)
            if f"{column.path_in_schema}.".startswith(wanted):
                plain = max(column.total_uncompressed_size, 0)
                total += max(plain, column.num_values * _WIDTHS.get(column.physical_type, 4))
    return total


@contextmanager
def _open_parquet(root: Root, path: Path) -> Iterator[tuple[pq.ParquetFile, int]]:
    """A parquet file, and its size in bytes."""
    with readable(path, _NOT_WHOLE, _NO_TABLE), root.open(path) as file:
        try:
            yield pq.ParquetFile(file, thrift_string_size_limit=_THRIFT), os.fstat(file.fileno()).st_size
        except MemoryError as error:
            raise BadFile(path, "this table takes more memory than its size promised; copy it again") from error


NUMBERS = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)
NONE = "none"  # given in place of a column: leave the state or the action out

Features = Mapping[str, Mapping[str, Any]]


def chosen_columns(features: Features, usual: str, asked: Sequence[str], info: Path) -> list[str]:
    """The columns asked for; the usual one where none were and there is one."""
    if list(asked) == [NONE]:
        return []
    numbers = [name for name in features if _is_numbers(features[name])]
    for name in asked:
        if name not in numbers:
            raise BadFile(info, f"'{name}' is not a numeric column here; {did_you_mean(name, numbers)}")
    return list(asked) or [name for name in (usual,) if name in features]


def candidates(features: Features, taken: Collection[str]) -> list[str]:
    """Columns that may be a state or an action, with their widths: `actions [7]`."""
    others = {*taken, *BOOKKEEPING, *LABELS, INTERVENTION}
    names = [n for n, f in features.items() if n not in others and _is_numbers(f)]
    return [f"{n} [{_width(features[n])}]" for n in names if not n.startswith((PRIVILEGED, "next."))]


def widths_of(features: Features) -> dict[str, int]:
    """How many numbers a row has in each column of recorded numbers."""
    others = {*BOOKKEEPING, *LABELS}
    return {name: _width(feature) for name, feature in features.items() if name not in others and _is_numbers(feature)}


def concat_columns(table: pa.Table, names: Sequence[str], where: Path) -> AnyArray:
    """[T, D] of these columns side by side; D = 0 for none."""
    parts: list[AnyArray] = [np.zeros((table.num_rows, 0), np.float32)]
    for name in names:
        if name not in table.column_names:
            problem = f"column '{name}' is named in meta/info.json and missing here"
            raise BadFile(where, f"{problem}; name others with --state and --action")
        parts.append(numbers(table, name, where, np.float32).reshape(table.num_rows, -1))
    return np.concatenate(parts, axis=1)


def numbers(table: pa.Table, name: str, where: Path, dtype: Any) -> AnyArray:
    """[T] or [T, D] of a column; NaN for what is not there, where the type has it.

    Straight from the table's own buffers: as Python's objects they would take thirty times the memory.
    """
    values: Any = table[name].combine_chunks()
    vector = False
    while pa.types.is_nested(values.type) or isinstance(values.type, pa.BaseExtensionType):
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
            continue
        if not isinstance(values.type, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
            raise BadFile(where, f"'{name}' holds {str(values.type)[:60]}, not numbers; write it again")
        lengths = pc.call_function("min_max", [pc.call_function("list_value_length", [values])]).as_py()
        if values.null_count or lengths["min"] != lengths["max"]:
            raise BadFile(where, f"'{name}' has rows of different length; write it again")
        values, vector = values.flatten(), True
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise BadFile(where, f"'{name}' holds {str(kind)[:60]}, not numbers; write it again")
    dtype = np.dtype(dtype)
    if values.null_count and dtype.kind != "f":
        raise BadFile(where, f"'{name}' has {values.null_count} rows without a value; write it again")
    if values.null_count:
        values = values.cast(pa.float64())
    array = values.to_numpy(zero_copy_only=False)
    if dtype.kind in "iub" and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadFile(where, f"'{name}' contains NaN or infinity where whole numbers are expected; write it again")
    with np.errstate(over="ignore", invalid="ignore"):  # too large a float becomes infinite, which an episode refuses
        array = array.astype(dtype, copy=False)
    return array.reshape(table.num_rows, -1) if vector else array.reshape(table.num_rows)


def column(table: pa.Table, name: str, where: Path, dtype: Any) -> AnyArray | None:
    """[T] of a column with one value a row; None where there is no such column."""
    if name not in table.column_names:
        return None
    values = numbers(table, name, where, dtype)
    if values.ndim > 1 and values.shape[1] != 1:
        raise BadFile(where, f"'{name}' has {values.shape[1]} values a row where it should have one; write it again")
    return values.reshape(table.num_rows)


def stored_images(table: pa.Table, name: str, where: Path) -> Iterator[bytes | str]:
    """Of each row the bytes of an image, or the path of its file."""
    kind = table[name].type
    if pa.types.is_struct(kind) and kind.get_field_index("bytes") < 0 <= kind.get_field_index("timestamp"):
        return  # v2.0 names the video and the time here, which others say too
    for row, scalar in enumerate(table[name]):
        entry = scalar.as_py()
        entry = (entry.get("bytes") or entry.get("path")) if isinstance(entry, dict) else entry
        if not isinstance(entry, bytes | str):
            raise BadFile(where, f"'{name}' has no image in row {row}; copy it again from its source")
        yield entry


def column_names(features: Features, columns: Sequence[str]) -> list[str] | None:
    """A name for each number of the joined columns; None where the data set has none."""
    named = {column: _flat(features[column].get("names")) for column in columns}
    if not any(named.values()):
        return None
    if len(columns) == 1:
        return named[columns[0]]
    widths = {column: range(_width(features[column])) for column in columns}
    return [name for column in columns for name in named[column] or [f"{column}.{i}" for i in widths[column]]]


def is_depth(feature: Mapping[str, Any]) -> bool:
    """Whether images have one channel, or three that encode a depth."""
    shape = list(feature["shape"])
    infos = [info for name in ("info", "video_info") if isinstance(info := feature.get(name), Mapping)]
    marked = any(info.get(key) is True for info in infos for key in ("video.is_depth_map", "is_depth_map"))
    return marked or (len(shape) == 3 and 1 in (shape[0], shape[2]) and 3 not in (shape[0], shape[2]))


def image_size(feature: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width of a color image, whose channels come first or last; None for what is no color image."""
    shape, names = list(feature["shape"]), _flat(feature.get("names"))
    if is_depth(feature) or len(shape) != 3 or 3 not in (shape[0], shape[2]):
        return None
    height, width = shape[:2] if shape[2] == 3 else shape[1:]
    if "width" in names and "height" in names and names.index("width") < names.index("height"):
        height, width = width, height
    return height, width


def _is_numbers(feature: Mapping[str, Any]) -> bool:
    return str(feature["dtype"]).startswith(("float", "int", "uint", "bool"))


def _width(feature: Mapping[str, Any]) -> int:
    return math.prod(feature.get("shape") or ())


def _flat(names: Any) -> list[str]:
    """LeRobot has written names as a list, as a list in a list, and by groups: {"motors": [...]}."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, Mapping):
        names = list(names.values())
    return [name for part in names for name in _flat(part)] if isinstance(names, list) else []
