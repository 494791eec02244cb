"""LeRobot's frame signals: a table next to a data set with scores of its frames, and a description of each score.

    index, episode_index, frame_index, then a column for each signal     one row per frame
    metadata of the file                                                 format, version, provenance, descriptors

LeRobot's drafts of the format (huggingface/lerobot#4554) agree on the columns and differ in the names of the metadata
keys. Files get both sets of keys, and either is read. Older files such as `sarm_progress.parquet` have no metadata.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.lerobot import tables
from plaudit.errors import BadFile
from plaudit.files import brief, parse_json
from plaudit.types import AnyArray

FORMAT, VERSION = "lerobot.frame_signals", 1
KEYS = ("lerobot.reward_scoring.", "lerobot.scores.")  # of the metadata, in the older and the newer draft
ROWS = ("index", "episode_index", "frame_index")
_SCOPES = {"any": "global", "task": "task", "episode": "episode"}


@dataclass(frozen=True)
class Meaning:
    """What one column means."""

    description: str
    unit: str | None = None
    direction: str = "none"  # which values are better: higher, lower or none
    bounds: tuple[float, float] | None = None
    scope: str = "any"  # episodes whose values may be compared: any, of one task, the same episode

    def descriptor(self) -> dict[str, Any]:
        """The fields that both drafts have."""
        bounds = self.bounds and [float(bound) for bound in self.bounds]
        return {"description": self.description, "direction": self.direction, "bounds": bounds, "unit": self.unit}


def encode_signals(
    rows: Mapping[str, AnyArray],
    signals: Mapping[str, AnyArray],
    meanings: Mapping[str, Meaning],
    provenance: Mapping[str, Any],
) -> bytes:
    """The bytes of a file.

    rows: int64 [N] of each of ROWS, sorted by index
    signals: [N] of each column; NaN where a frame has no value
    """
    older: dict[str, Any] = {}
    newer: dict[str, Any] = {}
    for name, values in sorted(signals.items()):
        missing, meaning = bool(np.isnan(values).any()), meanings[name]
        policy = {"missing_values": "nan" if missing else "forbidden", "comparison_scope": _SCOPES[meaning.scope]}
        older[name] = meaning.descriptor() | policy
        newer[name] = meaning.descriptor() | {"allow_nan": missing}
    episodes = np.unique(rows["episode_index"]).tolist()
    common = {"format": FORMAT, "schema_version": str(VERSION), "provenance": _json(provenance)}
    metadata = {f"{prefix}{key}": value for prefix in KEYS for key, value in common.items()}
    metadata |= {f"{KEYS[0]}descriptors": _json(older), f"{KEYS[0]}episode_indices": _json(episodes)}
    metadata |= {f"{KEYS[1]}descriptors": _json(newer)}
    columns = {name: pa.array(rows[name], pa.int64()) for name in ROWS}
    columns |= {name: pa.array(values) for name, values in sorted(signals.items())}
    buffer = BytesIO()
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), buffer)
    return buffer.getvalue()


def load_signals(file: BufferedReader, path: Path) -> dict[str, Any]:
    """The content of a file as plain values and arrays; runs in the process that decodes files.

    Its values are not checked: that is done where they are used.
    """
    table = tables.read_numbers(file, path)
    metadata = _read_metadata(table.schema.metadata or {}, path)
    episodes, frames = (tables.column(table, name, path, np.int64) for name in ROWS[1:])
    if episodes is None or frames is None:
        raise BadFile(path, "this is no table of frame signals: it has no columns episode_index and frame_index")
    names = [name for name in table.column_names if name not in ROWS and name not in ("timestamp", "task_index")]
    values = {name: tables.column(table, name, path, np.float32) for name in names}
    return {"episodes": episodes, "frames": frames, "signals": values, **metadata}


def _read_metadata(metadata: Mapping[bytes, bytes], path: Path) -> dict[str, Any]:
    """Descriptors, provenance and listed episodes; empty where the file has no metadata."""
    prefix = next((one for one in KEYS if f"{one}format".encode() in metadata), None)
    if prefix is None:
        return {"descriptors": {}, "provenance": {}, "listed": None}
    texts = {key: metadata.get(f"{prefix}{key}".encode(), b"") for key in ("format", "schema_version")}
    if texts["format"] != FORMAT.encode() or texts["schema_version"] != str(VERSION).encode():
        said = brief(b" ".join(texts.values()).decode(errors="replace"))
        raise BadFile(path, f"this is {said}, and {FORMAT} {VERSION} is read; write it with another LeRobot")
    read: dict[str, Any] = {}
    for key in ("descriptors", "provenance", "episode_indices"):
        try:
            read[key] = parse_json(metadata.get(f"{prefix}{key}".encode(), b"null"))
        except ValueError as error:
            raise BadFile(path, f"its metadata '{key}' is not valid JSON ({error}); write the file again") from error
    for key in ("descriptors", "provenance"):
        if not isinstance(read[key], dict):
            raise BadFile(path, f"its metadata has no {key}; write the file again")
    return {"descriptors": read["descriptors"], "provenance": read["provenance"], "listed": read["episode_indices"]}


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
