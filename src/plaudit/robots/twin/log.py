"""What a twin says it sent: one JSON line a moment, written before anything of it leaves.

    {"stamp": 1700000000050000000, "position": [...], "velocity": [...], "target": [...], "holding": false,
     "commands": 12, "cameras": {"head": 3735928559, ...}, "fault": "none"}

`cameras` has a CRC-32 of each picture as a receiver sees it, after compression if there is any.
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

LONGEST = 16_384  # bytes of a line, and then some


def checksum(pixels: ByteArray) -> int:
    return zlib.crc32(pixels.tobytes())


@dataclass(frozen=True)
class Match:
    """How a recorded episode compares with what the twin says it sent."""

    frames: int  # compared
    states: int  # compared
    wrong: tuple[str, ...]  # a sentence for each that was never sent like this


def read_log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def last_line(path: Path) -> dict[str, Any]:
    """The last one that is whole; {} before there is any."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * LONGEST))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return json.loads(whole) if whole else {}


def compare(episode: Episode, said: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> Match:
    """Every frame by the stamp in its pixels, every state by its numbers."""
    by_stamp = {line["stamp"]: line for line in said}
    states = {np.array([x for field in fields for x in line[field]], np.float32).tobytes() for line in said}
    wrong, frames = [], 0
    for camera, pictures in episode.frames.items():
        last = 0
        for t, pixels in enumerate(pictures):
            stamp = read_stamp(pixels)
            frames += 1
            line = by_stamp.get(stamp)
            if line is None or line["cameras"][camera] != checksum(pixels):
                wrong.append(f"frame {t} of camera '{camera}' was never sent like this")
            if stamp < last:
                wrong.append(f"frame {t} of camera '{camera}' is older than the one before")
            last = stamp
    wrong += [f"state {t} was never sent" for t, state in enumerate(episode.state) if state.tobytes() not in states]
    return Match(frames, len(episode.state), tuple(wrong))
