"""The JSON and parquet files of a LeRobot data set, read or refused with a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.lfs import unreadable
from plaudit.errors import BadFile


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file."""
    return _parse(path, json.loads)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """A file of one JSON object a line."""
    return _parse(path, lambda text: [json.loads(line) for line in text.splitlines() if line.strip()])


def _parse(path: Path, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        raise BadFile(path, "this file of the LeRobot data set is missing; copy it from its source") from None
    except ValueError as error:
        raise unreadable(path, f"this is not valid JSON ({error}); copy it again from its source") from error


def read_table(path: Path) -> pa.Table:
    """A parquet file."""
    return _parquet(path, pq.read_table)


def count_rows(path: Path) -> int:
    """How many rows a parquet file has, by its footer."""
    return _parquet(path, lambda file: pq.read_metadata(file).num_rows)


def _parquet(path: Path, read: Callable[[Path], Any]) -> Any:
    try:
        return read(path)
    except FileNotFoundError:
        raise BadFile(path, "this table is missing; copy it from the data set's source") from None
    except (pa.ArrowException, OSError) as error:
        first = str(error).splitlines()[0]
        raise unreadable(path, f"this is not a whole parquet file ({first}); copy it again from its source") from error
