"""The JSON and parquet files of a LeRobot data set, read or refused with a sentence."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.limits import GB, MAX_ROWS, TABLE_RATIO, check_decoded_size
from plaudit.errors import BadFile
from plaudit.files import MAX_JSON, Root, brief, parse_json, readable

MISSING = "this file of the LeRobot data set is missing; copy it from its source"
MAX_TABLE = 16 * GB  # bytes of a whole table of images, in memory
MAX_EXPANSION = 4  # times its bytes on disk that a table is given as room in memory, beside what every table is given
_NOT_WHOLE = "this is not a whole parquet file ({}); copy it again from its source"
_NO_TABLE = "this table is missing; copy it from the data set's source"
_THRIFT = 1 << 26  # bytes of a text in a footer
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # others: text and bytes


def read_json_lines(root: Root, path: Path) -> list[dict[str, Any] | BadFile]:
    """A file of one JSON object a line; an invalid or empty line is returned as its error."""
    found: list[dict[str, Any] | BadFile] = []
    with readable(path, "this file cannot be read ({}); copy it again from its source", MISSING):
        lines = root.read(path, MAX_JSON).rstrip().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            with readable(path, f"this is not valid JSON in line {number} ({{}}); copy it again from its source"):
                entry = parse_json(line)
                if not isinstance(entry, dict):
                    raise ValueError(f"{brief(entry)} and no object")
            found.append(entry)
        except BadFile as error:
            found.append(error)
    return found


def read_table(root: Root, path: Path, wanted: Callable[[str], bool] = lambda name: True) -> pa.Table:
    """Those columns of a parquet file that are wanted, once their size is known."""

    def read(file: pq.ParquetFile, nbytes: int) -> pa.Table:
        names = [name for name in file.schema_arrow.names if wanted(name)]
        _check_table(file, names, nbytes, path)
        return file.read(columns=names).select(names)

    return _parquet(root, path, read)


def row_groups(root: Root, path: Path) -> Iterator[pa.Table]:
    """All columns of a parquet file, as many rows at a time as it was written in; at least one table, if empty."""
    with _readable(path), root.open(path) as opened:
        file = pq.ParquetFile(opened, thrift_string_size_limit=_THRIFT)
        _check_table(file, file.schema_arrow.names, os.fstat(opened.fileno()).st_size, path)
        if not file.num_row_groups:
            yield file.schema_arrow.empty_table()
        for group in range(file.num_row_groups):
            yield file.read_row_group(group)


def row_group_sizes(root: Root, path: Path) -> list[int]:
    """Bytes in memory of each table of `row_groups`, by the footer, as far as the file is large enough for it."""

    def read(file: pq.ParquetFile, nbytes: int) -> list[int]:
        names = file.schema_arrow.names
        _check_table(file, names, nbytes, path)
        sizes = (_decoded_bytes(file, names, [group]) for group in range(file.num_row_groups))
        return [min(size, MAX_EXPANSION * nbytes) for size in sizes]

    return _parquet(root, path, read)


def _check_table(file: pq.ParquetFile, names: list[str], nbytes: int, path: Path) -> None:
    """Refuse a table that is none, or too large for the bytes it comes from."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadFile(path, f"this table has column {brief(twice)} twice; write it again")
    rows = file.metadata.num_rows
    if not 0 <= rows <= MAX_ROWS:
        raise BadFile(path, f"this table says it has {rows:,} rows, and {MAX_ROWS:,} are read; copy it again")
    unfolded = _decoded_bytes(file, names, range(file.num_row_groups))
    check_decoded_size(unfolded, nbytes, path, "this table", MAX_TABLE, TABLE_RATIO)


def count_rows(root: Root, path: Path) -> int:
    """How many rows a parquet file has, by its footer."""
    return _parquet(root, path, lambda file, nbytes: file.metadata.num_rows)


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


def _parquet(root: Root, path: Path, read: Callable[[pq.ParquetFile, int], Any]) -> Any:
    with _readable(path), root.open(path) as file:
        nbytes = os.fstat(file.fileno()).st_size
        return read(pq.ParquetFile(file, thrift_string_size_limit=_THRIFT), nbytes)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    with readable(path, _NOT_WHOLE, _NO_TABLE):
        try:
            yield
        except MemoryError as error:
            raise BadFile(path, "this table takes more memory than its size promised; copy it again") from error
