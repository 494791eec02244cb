"""The journal's record of one episode: its location, checksums, task and metadata.

A line whose checksum is right may still have been written by hand. So every value is validated once, when a line is
read and before one is written; the rest of the code relies on it.
"""

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plaudit.data.lines import Record
from plaudit.data.schema import Schema
from plaudit.errors import InvalidEpisode
from plaudit.files import brief
from plaudit.types import Episode

MAX_ID = 1 << 53  # every program that reads JSON can count this far
MAX_SEGMENTS = (1 << 31) - 1
MAX_ROWS = 1 << 48
MAX_NUMBERS = 1 << 28  # in the states and actions of one episode, which are looked at all at once
MAX_TIME = 253_402_300_800  # the year 10000

_encode = json.JSONEncoder(separators=(",", ":")).encode  # made once: each opening of a store encodes every line


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """The location of an episode, and its journal line.

    The line is kept as the text that it is in the journal, of some hundred bytes, and read anew each time: parsed it
    takes 4 KB, in every process and part of a run that has the store open.
    """

    id: int
    segment: int
    row: int
    steps: int
    text: str = field(repr=False)  # JSON

    @property
    def rows(self) -> int:
        return self.steps + 1

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.row + self.rows

    @property
    def line(self) -> Record:
        """A few microseconds: who asks for several of its values asks once."""
        return json.loads(self.text)


def parse_entry(line: Record) -> EpisodeEntry:
    """A KeyError or ValueError where the line is none of an episode."""
    segment, row, steps, episode_id = line["segment"], line["row"], line["steps"], line["id"]
    _check_int("id", episode_id, 0, MAX_ID - 1)
    _check_int("segment", segment, 0, MAX_SEGMENTS - 1)
    _check_int("row", row, 0, MAX_ROWS)
    _check_int("steps", steps, 1, MAX_ROWS)
    _check_metadata(line)
    return EpisodeEntry(episode_id, segment, row, steps, _encode(line))


def check_fits(entry: EpisodeEntry, schema: Schema) -> None:
    """A ValueError for an episode that takes more memory than any recording does."""
    if entry.rows * (schema.state_dim + schema.action_dim) > MAX_NUMBERS:
        raise ValueError(f"{entry.steps:,} steps of {schema.state_dim} and {schema.action_dim} numbers are too many")


def new_entry(line: Record, schema: Schema) -> EpisodeEntry:
    """Of a line that is about to be written; an InvalidEpisode where it could not be read back."""
    try:
        entry = parse_entry(line)
        check_fits(entry, schema)
    except (KeyError, ValueError) as error:
        raise InvalidEpisode(f"this episode cannot be stored: {error}") from error
    return entry


def schema_of(episode: Episode) -> Schema:
    """An InvalidEpisode where no segment could hold it."""
    try:
        return Schema.of(episode)
    except ValueError as error:
        raise InvalidEpisode(f"this episode cannot be stored: {error}") from error


def segment_line(number: int, schema: Schema) -> Record:
    return {"op": "segment", "segment": number, "schema": schema.to_json()}


def summary_line(next_id: int, next_segment: int) -> Record:
    """From where on ids and segments are counted, whatever the episodes alive say."""
    return {"op": "summary", "next_id": next_id, "next_segment": next_segment}


def next_numbers(summary: Record) -> tuple[int, int]:
    """The next id and the next segment; a KeyError or ValueError where they are none."""
    return (
        _check_int("next_id", summary["next_id"], 0, MAX_ID),
        _check_int("next_segment", summary["next_segment"], 0, MAX_SEGMENTS),
    )


def segment_number(line: Record) -> int:
    return _check_int("segment", line["segment"], 0, MAX_SEGMENTS - 1)


def episode_line(episode_id: int, episode: Episode, segment: int, row: int, checksums: dict[str, int]) -> Record:
    """What makes an episode exist, once it is in the journal."""
    return {
        "op": "episode",
        "id": episode_id,
        "segment": segment,
        "row": row,
        "steps": episode.steps,
        "crc": checksums,
        "time": time.time(),
        "task": episode.task,
        "fps": episode.fps,
        "robot": episode.robot,
        "terminated": episode.terminated,
        "repeated": episode.padded,
        "origin": vars(episode.origin) if episode.origin else None,
        "meta": dict(episode.meta),
    }


def is_time(value: Any) -> bool:
    """Seconds since 1970 that a calendar has."""
    return is_number(value) and 0 <= value < MAX_TIME


def is_int_in(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _check_metadata(line: Record) -> None:
    for name in ("task", "robot"):
        if not isinstance(line[name], str):
            raise ValueError(f"its {name} is {brief(line[name])}")
    if not is_time(line["time"]):
        raise ValueError(f"its time is {brief(line['time'])}")
    if not is_number(line["fps"]) or line["fps"] < 0:
        raise ValueError(f"its fps is {brief(line['fps'])}")
    if type(line["terminated"]) is not bool or line["repeated"] not in ("none", "first", "last"):
        raise ValueError(f"its end is {brief(line['terminated'])} and {brief(line['repeated'])}")
    if not isinstance(line["crc"], dict) or not isinstance(line["meta"], dict):
        raise ValueError("its checksums or its meta are no mapping")
    if line["origin"] is not None:
        _check_origin(line["origin"])


def _check_origin(origin: Any) -> None:
    if not isinstance(origin, Mapping) or set(origin) != {"format", "path", "index", "digest"}:
        raise ValueError(f"its origin is {brief(origin)}")
    texts = (origin["format"], origin["path"], origin["digest"])
    if not all(isinstance(text, str) for text in texts) or not is_int_in(origin["index"], 0, MAX_ID):
        raise ValueError("its origin is none")


def is_number(value: Any) -> bool:
    """One that is finite."""
    return isinstance(value, float | int) and type(value) is not bool and -math.inf < value < math.inf


def _check_int(name: str, value: Any, least: int, most: int) -> int:
    if not is_int_in(value, least, most):
        raise ValueError(f"{name} {brief(value)}, which is not within {least} to {most}")
    return value
