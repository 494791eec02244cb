"""What one row of a segment holds: cameras and their sizes, state, action, privileged values.

A schema comes out of a file, so every value is checked before anything is read by it: a size that is wrong would serve
one episode's bytes as another's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from plaudit.types import Episode

STEPS = "steps"

MOST_PIXELS = 1 << 16  # of a side
MOST_NUMBERS = 1 << 24  # of a state, an action or a privileged value
MOST_COLUMNS = 1024


@dataclass(frozen=True)
class Schema:
    """What one row holds. Episodes of one schema share segments."""

    cameras: tuple[tuple[str, int, int], ...]  # (name, H, W)
    state_dim: int
    action_dim: int
    privileged: tuple[tuple[str, str, tuple[int, ...]], ...]  # (name, dtype, shape of one step)

    @classmethod
    def of(cls, episode: Episode) -> Self:
        return cls(
            cameras=tuple(sorted((c, f.shape[1], f.shape[2]) for c, f in episode.frames.items())),
            state_dim=episode.state.shape[1],
            action_dim=episode.actions.shape[1],
            privileged=tuple(sorted((n, _little(v.dtype), v.shape[1:]) for n, v in episode.privileged.items())),
        )

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """A ValueError, KeyError or TypeError where it is none."""
        return cls(
            cameras=tuple((_text(c), _side(h), _side(w)) for c, h, w in _few(tree["cameras"])),
            state_dim=_whole(tree["state_dim"], 0, MOST_NUMBERS),
            action_dim=_whole(tree["action_dim"], 0, MOST_NUMBERS),
            privileged=tuple((_text(n), _number_type(d), _shape(s)) for n, d, s in _few(tree["privileged"])),
        )

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
        raise ValueError(f"{value!r} is no name")
    return value


def _whole(value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{value!r} is not within {least} to {most}")
    return value


def _side(value: Any) -> int:
    return _whole(value, 1, MOST_PIXELS)


def _few(values: Any) -> Sequence[Any]:
    if not isinstance(values, (list, tuple)) or len(values) > MOST_COLUMNS:
        raise ValueError("a list of cameras or of privileged values is none")
    return values


def _number_type(value: Any) -> str:
    if np.dtype(_text(value)).kind not in "biuf" or np.dtype(value).str != value:
        raise ValueError(f"{value!r} is no type of number")
    return value


def _shape(value: Any) -> tuple[int, ...]:
    sizes = tuple(_whole(size, 0, MOST_NUMBERS) for size in _few(value))
    if math.prod(sizes) > MOST_NUMBERS:
        raise ValueError(f"a shape of {sizes} is too large")
    return sizes
