"""How punctual an executor was: what the table of `plaudit run` and the benchmark are made of."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np

from plaudit.rollout.memory import NO_ACTION, EpisodeBuffer
from plaudit.types import AnyArray, FloatArray

KEPT = 1000  # newest episodes that are told of; a robot may work for weeks
EDGES = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # ms, of the histogram of lateness


def _none() -> AnyArray:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class LatencyStats:
    """Times in seconds, one value a tick or an inference."""

    late: FloatArray = field(default_factory=_none)  # from when a tick should have begun to when it did
    missed: AnyArray = field(default_factory=_none)  # ticks before this one that did not happen
    held: AnyArray = field(default_factory=_none)  # whether there was no command to send
    spent: FloatArray = field(default_factory=_none)  # in our own code, a tick
    start_late: FloatArray = field(default_factory=_none)  # from when an inference could have begun to when it did
    took: FloatArray = field(default_factory=_none)  # by an inference
    delay: AnyArray = field(default_factory=_none)  # steps, from the observation to the first command out of its chunk

    @classmethod
    def of(cls, memory: EpisodeBuffer) -> "LatencyStats":
        ticks, count = memory.sent, memory.inferences
        source = memory.source[:ticks]
        first_use = {int(row): step for step, row in reversed(list(enumerate(source.tolist()))) if row >= 0}
        return cls(
            late=memory.late[:ticks].copy(),
            missed=memory.missed[:ticks].copy(),
            held=source == NO_ACTION,
            spent=memory.spent[:ticks].copy(),
            start_late=memory.start_late[:count].copy(),
            took=memory.took[:count].copy(),
            delay=np.array([first_use[row] - row for row in memory.asked[:count].tolist() if row in first_use]),
        )

    @classmethod
    def joined(cls, parts: Iterable["LatencyStats"]) -> "LatencyStats":
        names = [item.name for item in fields(cls)]
        return cls(**{name: np.concatenate([_none(), *(getattr(part, name) for part in parts)]) for name in names})

    @property
    def ticks(self) -> int:
        return len(self.late)

    def table(self) -> list[tuple[str, str]]:
        """What was measured, and its values in words."""
        return [
            ("ticks", f"{self.ticks:,}"),
            ("missed", f"{int(self.missed.sum()):,}"),
            ("held", f"{int(self.held.sum()):,}"),
            ("late, ms", _spread(1e3 * self.late, 50, 99, 99.9)),
            ("our code a tick, ms", _spread(1e3 * self.spent, 50, 99)),
            ("inferences", f"{len(self.took):,}"),
            ("inference, ms", _spread(1e3 * self.took, 50, 99)),
            ("inference begun late, ms", _spread(1e3 * self.start_late, 50, 99)),
            ("delay, steps", _spread(self.delay, 50, 99)),
        ]

    def histogram(self) -> list[tuple[str, int]]:
        """Ticks by how late they began."""
        edges = (0.0, *EDGES, np.inf)
        counts, _ = np.histogram(1e3 * self.late, edges)
        names = [f"{low:g} to {high:g} ms" for low, high in pairwise(edges[:-1])] + [f"over {EDGES[-1]:g} ms"]
        return list(zip(names, map(int, counts)))


def _spread(values: AnyArray, *percents: float) -> str:
    if not len(values):
        return "-"
    parts = [f"p{percent:g} {np.percentile(values, percent):.2f}" for percent in percents]
    return ", ".join([*parts, f"most {values.max():.2f}"])
