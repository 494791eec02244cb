"""The log of a twin: one JSON line per tick, written before any of its messages is sent.

    {"stamp": 1700000000050000000, "position": [...], "velocity": [...], "target": [...], "holding": false,
     "commands": 12, "skipped": 0, "violations": 0, "violated": [], "cameras": {"head": 3735928559, ...},
     "fault": "none"}

`commands` counts those so far, `skipped` the ticks between two of them that had none, `violations` those that were
outside the robot's limits (limits.py); `violated` says what was wrong with those since the last line.
`cameras` has the CRC-32 of each image as a receiver decodes it, after compression if there is any.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.robots.twin.frames import read_stamp
from plaudit.types import ByteArray, Episode

MAX_LINE = 16_384  # bytes, with room to spare


def checksum(pixels: ByteArray) -> int:
    """The CRC-32 of an image."""
    return zlib.crc32(pixels.tobytes())


@dataclass(frozen=True)
class LogComparison:
    """How a recorded episode compares with the twin's log."""

    num_frames: int  # compared
    num_states: int  # compared
    mismatches: tuple[str, ...]  # one message for each frame or state that was never sent


def read_log(path: Path) -> list[dict[str, Any]]:
    """All complete lines."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def last_entry(path: Path) -> dict[str, Any]:
    """The last complete line; {} before there is any."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * MAX_LINE))
        line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return json.loads(line) if line else {}


def compare_episode(episode: Episode, log: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> LogComparison:
    """Look up every frame by the stamp in its pixels, and every state by its values.

    fields: of a JointState, which form the state
    """
    by_stamp = {entry["stamp"]: entry for entry in log}
    states = {np.array([x for field in fields for x in entry[field]], np.float32).tobytes() for entry in log}
    mismatches, num_frames = [], 0
    for camera, frames in episode.frames.items():
        previous = 0
        for t, pixels in enumerate(frames):
            stamp = read_stamp(pixels)
            num_frames += 1
            entry = by_stamp.get(stamp)
            if entry is None or entry["cameras"][camera] != checksum(pixels):
                mismatches.append(f"frame {t} of camera '{camera}' was never sent like this")
            if stamp < previous:
                mismatches.append(f"frame {t} of camera '{camera}' is older than the one before")
            previous = stamp
    for t, state in enumerate(episode.state):
        if state.tobytes() not in states:
            mismatches.append(f"state {t} was never sent")
    return LogComparison(num_frames, len(episode.state), tuple(mismatches))
