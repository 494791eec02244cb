"""How punctual an inference engine was: the table of `plaudit run` and of the benchmark."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np

from plaudit.robots.limits import LIMIT_NAMES
from plaudit.rollout.memory import NO_ACTION, EpisodeBuffer
from plaudit.types import AnyArray, FloatArray

MAX_EPISODES = 1000  # whose statistics an engine keeps, the newest; a robot may work for weeks
MAX_HELD = 0.01  # of the ticks, the fraction without a command from which on a warning is due
BIN_EDGES_MS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of the histogram of lateness


@dataclass(frozen=True, eq=False)
class LatencyStats:
    """Times in seconds, one value per tick or per inference."""

    late: FloatArray  # from when a tick should have begun to when it did
    missed: AnyArray  # ticks before this one that did not happen
    held: AnyArray  # whether there was no command to send
    starved: AnyArray  # whether a chunk had just run out, and the next was not there yet
    limited: AnyArray  # which limits changed the command, bits of robots/limiter.py
    overhead: FloatArray  # of a tick, in our own code
    start_late: FloatArray  # from when an inference could have begun to when it did
    took: FloatArray  # of an inference
    delay: AnyArray  # steps, from an observation to the first command of its chunk
    guided: AnyArray  # whether a chunk continued the one before, of those that were to

    @classmethod
    def of(cls, buffer: EpisodeBuffer) -> "LatencyStats":
        """Of one episode."""
        ticks, count = buffer.num_commands, buffer.num_inferences
        source = buffer.source[:ticks]
        first_use = {int(row): step for step, row in reversed(list(enumerate(source.tolist()))) if row >= 0}
        rows = buffer.inferred_from[:count].tolist()
        held, guided = source == NO_ACTION, buffer.guided[:count]
        return cls(
            late=buffer.late[:ticks].copy(),
            missed=buffer.missed[:ticks].copy(),
            held=held,
            starved=held & ~np.concatenate([[False], held])[:-1],
            limited=buffer.limited[:ticks].copy(),
            overhead=buffer.overhead[:ticks].copy(),
            start_late=buffer.start_late[:count].copy(),
            took=buffer.took[:count].copy(),
            delay=np.array([first_use[row] - row for row in rows if row in first_use]),
            guided=guided[guided >= 0] == 1,
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

    @property
    def guided_fraction(self) -> float | None:
        """Of the chunks that were to continue the one before; None where there are none."""
        return float(self.guided.mean()) if len(self.guided) else None

    @property
    def held_fraction(self) -> float:
        """Of the ticks."""
        return float(self.held.sum()) / max(1, self.ticks)

    def meta(self) -> dict[str, Any]:
        """For an episode's meta."""
        counts = {"missed_ticks": self.missed, "held_ticks": self.held, "starved_chunks": self.starved}
        guided = {} if self.guided_fraction is None else {"guided_fraction": round(self.guided_fraction, 4)}
        return {name: int(ticks.sum()) for name, ticks in counts.items()} | guided

    def table(self) -> list[tuple[str, str]]:
        """(quantity, its values as text)"""
        return [
            ("ticks", f"{self.ticks:,}"),
            ("missed", f"{int(self.missed.sum()):,}"),
            ("held", f"{int(self.held.sum()):,} ({self.held_fraction:.1%})"),
            ("starved chunks", f"{int(self.starved.sum()):,}"),
            ("guided chunks", "-" if self.guided_fraction is None else f"{self.guided_fraction:.0%}"),
            ("limited", _limits(self.limited)),
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


def held_warning(held_fraction: float) -> str:
    """What to do where too many ticks had no command; "" where they are few."""
    if held_fraction <= MAX_HELD:
        return ""
    return (
        f"{held_fraction:.1%} of control steps had no command: a chunk had run out before the next was there; lower "
        "policy.inference.execution_horizon, use longer chunks, or make inference faster (policy.device)"
    )


def _limits(limited: AnyArray) -> str:
    bits = limited.astype(np.uint8)
    by_name = [(name, int((bits & bit > 0).sum())) for bit, name in LIMIT_NAMES.items()]
    parts = ", ".join(f"{name} {count:,}" for name, count in by_name if count)
    return f"{int((bits > 0).sum()):,}" + (f" ({parts})" if parts else "")


def _percentiles(values: AnyArray, *percents: float) -> str:
    if not len(values):
        return "-"
    parts = [f"p{percent:g} {np.percentile(values, percent):.2f}" for percent in percents]
    return ", ".join([*parts, f"max {values.max():.2f}"])
