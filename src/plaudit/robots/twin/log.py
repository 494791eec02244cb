"""What a twin sends: its camera images, and the log of one JSON line per tick, written before any message is sent.

    {"stamp": 1700000000050000000, "position": [...], "velocity": [...], "target": [...], "holding": false,
     "commands": 12, "skipped": 0, "violations": 0, "violated": [], "cameras": {"head": 3735928559, ...},
     "fault": "none"}

`skipped` counts the ticks between two commands that had none, `violations` the commands outside the robot's limits
(twin.py). `cameras` has the CRC-32 of each image as a receiver decodes it.

An image shows bars for the joints. Its top rows encode the stamp, 64 bits in black and white blocks of 4x4 pixels,
which survive JPEG. The rest is a function of stamp and joints alone, so an image can be rendered again and compared.
With a task (task.py), images show its scene without a stamp, and a line also has the scene's `seed` and `success`.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.types import AnyArray, ByteArray, Episode, FloatArray

BLOCK = 4  # pixels
BITS = 64
BAR_COLOR = np.array([235, 200, 90], np.uint8)


def render_frame(camera: int, stamp: int, fractions: FloatArray, size: tuple[int, int]) -> ByteArray:
    """The image [H, W, 3] of a camera.

    camera: its index
    stamp: ns
    fractions: [J] where each joint is between its limits, 0 to 1
    size: H, W; at least 64 blocks
    """
    height, width = size
    bar_top = height * (1.0 - fractions.astype(np.float32))
    joint_of_column = np.arange(width) * len(fractions) // width
    in_bar = np.arange(height)[:, None] >= bar_top[joint_of_column]
    pixels = np.where(in_bar[..., None], BAR_COLOR, _background(camera, size))
    columns = width // BLOCK
    rows = -(-BITS // columns)
    bits = (np.uint64(stamp) >> np.arange(BITS, dtype=np.uint64)) & np.uint64(1)
    padded = np.zeros(rows * columns, np.uint8)
    padded[:BITS] = 255 * bits.astype(np.uint8)
    blocks = np.kron(padded.reshape(rows, columns), np.ones((BLOCK, BLOCK), np.uint8))
    pixels[: rows * BLOCK, : columns * BLOCK] = blocks[..., None]
    return pixels


def read_stamp(pixels: ByteArray) -> int:
    """The stamp that `render_frame` encoded in an image."""
    columns = pixels.shape[1] // BLOCK
    rows = -(-BITS // columns)
    blocks = pixels[: rows * BLOCK, : columns * BLOCK, 0].astype(np.float32)
    means: AnyArray = blocks.reshape(rows, BLOCK, columns, BLOCK).mean(axis=(1, 3)).reshape(-1)[:BITS]
    return sum(1 << n for n in np.flatnonzero(means > 127).tolist())


@cache
def _background(camera: int, size: tuple[int, int]) -> ByteArray:
    down = np.linspace(20, 90, size[0], dtype=np.float32)[:, None]
    across = np.linspace(0, 60, size[1], dtype=np.float32)[None]
    tint = np.array([[1.0, 0.4, 0.4], [0.4, 1.0, 0.4], [0.4, 0.4, 1.0]], np.float32)[camera % 3]
    return ((down + across)[..., None] * tint).astype(np.uint8)


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
