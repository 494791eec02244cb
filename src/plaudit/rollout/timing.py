"""How punctual an inference engine was: the table of `plaudit run` and of the benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from plaudit.rollout.memory import NO_ACTION, EpisodeBuffer
from plaudit.types import AnyArray, FloatArray

MAX_EPISODES = 1000  # whose statistics an engine keeps, the newest; a robot may work for weeks
BIN_EDGES_MS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of the histogram of lateness


@dataclass(frozen=True, eq=False)
class LatencyStats:
    """Times in seconds, one value per tick or per inference."""

    late: FloatArray  # from when a tick should have begun to when it did
    missed: AnyArray  # ticks before this one that did not happen
    held: AnyArray  # whether there was no command to send
    overhead: FloatArray  # of a tick, in our own code
    start_late: FloatArray  # from when an inference could have begun to when it did
    took: FloatArray  # of an inference
    delay: AnyArray  # steps, from an observation to the first command of its chunk

    @classmethod
    def of(cls, buffer: EpisodeBuffer) -> "LatencyStats":
        """Of one episode."""
        ticks, count = buffer.num_commands, buffer.num_inferences
        source = buffer.source[:ticks]
        first_use = {int(row): step for step, row in reversed(list(enumerate(source.tolist()))) if row >= 0}
        rows = buffer.inferred_from[:count].tolist()
        return cls(
            late=buffer.late[:ticks].copy(),
            missed=buffer.missed[:ticks].copy(),
            held=source == NO_ACTION,
            overhead=buffer.overhead[:ticks].copy(),
            start_late=buffer.start_late[:count].copy(),
            took=buffer.took[:count].copy(),
            delay=np.array([first_use[row] - row for row in rows if row in first_use]),
        )

    @classmethod
    def concatenate(cls, parts: Iterable["LatencyStats"]) -> "LatencyStats":
        """Of several episodes."""
        names, empty = [item.name for item in fields(cls)], np.zeros(0, np.float32)
        return cls(**{name: np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names})

    @property
    def ticks(self) -> int:
        """How many there were."""
        return len(self.late)

    def table(self) -> list[tuple[str, str]]:
        """(quantity, its values as text)"""
        return [
            ("ticks", f"{self.ticks:,}"),
            ("missed", f"{int(self.missed.sum()):,}"),
            ("held", f"{int(self.held.sum()):,}"),
            ("late, ms", _percentiles(1e3 * self.late, 50, 99, 99.9)),
            ("our code a tick, ms", _percentiles(1e3 * self.overhead, 50, 99)),
            ("inferences", f"{len(self.took):,}"),
            ("inference, ms", _percentiles(1e3 * self.took, 50, 99)),
            ("inference begun late, ms", _percentiles(1e3 * self.start_late, 50, 99)),
            ("delay, steps", _percentiles(self.delay, 50, 99)),
        ]

    def histogram(self) -> list[tuple[str, int]]:
        """(range of lateness, number of ticks)"""
        edges = (0.0, *BIN_EDGES_MS, np.inf)
        counts, _ = np.histogram(1e3 * self.late, edges)
        names = [f"{low:g} to {high:g} ms" for low, high in pairwise(edges[:-1])] + [f"over {BIN_EDGES_MS[-1]:g} ms"]
        return list(zip(names, map(int, counts)))


def _percentiles(values: AnyArray, *percents: float) -> str:
    if not len(values):
        return "-"
    parts = [f"p{percent:g} {np.percentile(values, percent):.2f}" for percent in percents]
    return ", ".join([*parts, f"max {values.max():.2f}"])
