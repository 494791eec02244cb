"""The schema of a segment's rows: cameras and their sizes, state, action, privileged values.

A schema is read from a file, so every value is validated first: with a wrong size, the bytes of one episode would be
served as another's.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from plaudit.files import brief
from plaudit.types import Episode

STEPS = "steps"

MAX_SIDE = 1 << 16  # of a side
MAX_NUMBERS = 1 << 24  # of a state, an action or a privileged value
MAX_COLUMNS = 1024
MAX_DIMENSIONS = 16
MAX_ROW_BYTES = 1 << 30  # bytes of one row of a column
MAX_NAME_BYTES = 200  # bytes of a file's name that stand for a camera
_NUMBER_TYPE = re.compile(r"[<>|][biuf]\d{1,2}")


@dataclass(frozen=True)
class Schema:
    """What one row holds. Episodes of one schema share segments."""

    cameras: tuple[tuple[str, int, int], ...]  # (name, H, W)
    state_dim: int
    action_dim: int
    privileged: tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, dtype, shape of one step)

    @classmethod
    def of(cls, episode: Episode) -> Self:
        """What an episode needs; the same object for episodes that are alike."""
        cameras = tuple(sorted((c, f.shape[1], f.shape[2]) for c, f in episode.frames.items()))
        privileged = tuple(sorted((n, _little(v.dtype), v.shape[1:]) for n, v in episode.privileged.items()))
        return cls._of(cameras, episode.state.shape[1], episode.actions.shape[1], privileged)

    @classmethod
    @lru_cache(64)
    def _of(cls, cameras: Any, state_dim: int, action_dim: int, privileged: Any) -> Self:
        return cls(cameras, state_dim, action_dim, privileged)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """A ValueError, KeyError or TypeError where it is none."""
        return cls(
            cameras=tuple((_text(c), _side(h), _side(w)) for c, h, w in _few(tree["cameras"])),
            state_dim=_check_int(tree["state_dim"], 0, MAX_NUMBERS),
            action_dim=_check_int(tree["action_dim"], 0, MAX_NUMBERS),
            privileged=tuple((_text(n), _number_type(d), _shape(s)) for n, d, s in _few(tree["privileged"])),
        )

    def __post_init__(self) -> None:
        """A ValueError where no segment can be made of it."""
        for names in ([c for c, _, _ in self.cameras], [n for n, _, _ in self.privileged]):
            if len(set(names)) < len(names):
                raise ValueError("a name of a camera or of a privileged value stands there twice")
            if len(names) > MAX_COLUMNS:
                raise ValueError(f"{len(names):,} cameras or privileged values, where at most {MAX_COLUMNS} are stored")
        for camera, height, width in self.cameras:
            if len(quote(camera_column(camera), safe="")) > MAX_NAME_BYTES:  # UnicodeError: half a character
                raise ValueError(f"the camera's name {brief(camera)} is too long for a file")
            if 3 * height * width > MAX_ROW_BYTES:
                raise ValueError(f"a frame of {height} x {width} pixels is too large")
        wide = 4 * (self.state_dim + self.action_dim)
        if wide + sum(np.dtype(d).itemsize * math.prod(s) + 8 for _, d, s in self.privileged) > MAX_ROW_BYTES:
            raise ValueError(f"one step has more than {MAX_ROW_BYTES:,} bytes")

    def to_json(self) -> dict[str, Any]:
        return {
            "cameras": self.cameras,
            "state_dim": self.state_dim,
            "action_dim": self.action_dim,
            "privileged": self.privileged,
        }

    @cached_property
    def step_dtype(self) -> np.dtype[Any]:
        floats = [("state", "<f4", (self.state_dim,)), ("action", "<f4", (self.action_dim,))]
        others = [(f"privileged.{name}", dtype, shape) for name, dtype, shape in self.privileged]
        return np.dtype([*floats, *others, ("control_mode", "u1")], align=True)

    @cached_property
    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Column name -> (dtype, shape of one row)."""
        frames = {camera_column(c): (np.dtype(np.uint8), (h, w, 3)) for c, h, w in self.cameras}
        return {STEPS: (self.step_dtype, ()), **frames}

    @cached_property
    def row_bytes(self) -> int:
        return sum(map(self.bytes_of, self.columns))

    def bytes_of(self, column: str) -> int:
        """Of one row of a column."""
        dtype, shape = self.columns[column]
        return dtype.itemsize * math.prod(shape)


def camera_column(camera: str) -> str:
    return f"camera.{camera}"


def _little(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("<").str


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{brief(value)} is no name")
    return value


def _check_int(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{brief(value)} is not within {least} to {most}")
    return value


def _side(value: Any) -> int:
    return _check_int(value, 1, MAX_SIDE)


def _few(values: Any) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)) or len(values) > MAX_COLUMNS:
        raise ValueError("a list of cameras or of privileged values is none")
    return values


def _number_type(value: Any) -> str:
    if not _NUMBER_TYPE.fullmatch(_text(value)) or np.dtype(value).str != value:
        raise ValueError(f"{brief(value)} is no type of number")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    sizes = tuple(_check_int(size, 0, MAX_NUMBERS) for size in _few(value))
    if len(sizes) > MAX_DIMENSIONS or math.prod(sizes) > MAX_NUMBERS:
        raise ValueError(f"a shape of {brief(sizes)} sizes is too large")
    return sizes
