"""Which columns of a LeRobot data set are the state and the action, and the shape of its images.

LeRobot calls them `observation.state` and `action`. Others write `state`, `actions`, or one column a part of the robot
(`observation.joint_position`, `observation.gripper`), which are joined in the order in which they are named.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plaudit.data.formats.lerobot.features import BOOKKEEPING, INTERVENTION, LABELS, PRIVILEGED
from plaudit.errors import BadFile, did_you_mean
from plaudit.types import AnyArray

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
            raise BadFile(info, f"'{name}' is no column of numbers here; {did_you_mean(name, numbers)}")
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
    parts = [_matrix(table, name, where) for name in names]
    return np.concatenate([np.zeros((table.num_rows, 0), np.float32), *parts], axis=1)


def _matrix(table: pa.Table, name: str, where: Path) -> AnyArray:
    if name not in table.column_names:
        raise BadFile(
            where, f"column '{name}' is named in meta/info.json and missing here; name others with --state and --action"
        )
    return numbers(table, name, where, np.float32).reshape(table.num_rows, -1)


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
        if not _is_list(values.type):
            raise BadFile(where, f"'{name}' holds {str(values.type)[:60]} and no numbers; write it again")
        lengths = pc.call_function("min_max", [pc.call_function("list_value_length", [values])]).as_py()
        if values.null_count or lengths["min"] != lengths["max"]:
            raise BadFile(where, f"'{name}' has rows of different length; write it again")
        values, vector = values.flatten(), True
    kind = values.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise BadFile(where, f"'{name}' holds {str(kind)[:60]} and no numbers; write it again")
    dtype = np.dtype(dtype)
    if values.null_count and dtype.kind != "f":
        raise BadFile(where, f"'{name}' has {values.null_count} rows without a value; write it again")
    if values.null_count:
        values = values.cast(pa.float64())
    found = values.to_numpy(zero_copy_only=False)
    if dtype.kind in "iub" and found.dtype.kind == "f" and not np.isfinite(found).all():
        raise BadFile(where, f"'{name}' holds NaN or infinity where whole numbers stand; write it again")
    with np.errstate(over="ignore", invalid="ignore"):  # too large a float becomes infinite, which an episode refuses
        found = found.astype(dtype, copy=False)
    return found.reshape(table.num_rows, -1) if vector else found.reshape(table.num_rows)


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


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def column_names(features: Features, columns: Sequence[str]) -> list[str] | None:
    """A name for each number of the joined columns; None where the data set has none."""
    named = {column: _flat(features[column].get("names")) for column in columns}
    if not any(named.values()):
        return None
    if len(columns) == 1:
        return named[columns[0]]
    return [
        name
        for column in columns
        for name in named[column] or [f"{column}.{i}" for i in range(_width(features[column]))]
    ]


def image_size(feature: Mapping[str, Any]) -> tuple[int, int] | None:
    """Height and width of a color image, whose channels come first or last; None for what is no color image."""
    shape, names = list(feature["shape"]), _flat(feature.get("names"))
    if len(shape) != 3 or 3 not in (shape[0], shape[2]):
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
