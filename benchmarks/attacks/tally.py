"""What came of one class of attacks."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

Breach = Literal[
    "unnamed_losses",  # episodes or labels that were acknowledged, are gone or unreadable, and nothing names them
    "wrong_arrays",  # served as if they were right
    "good_bytes_deleted",  # files or parts of them that could have been read, neither kept nor set aside
    "code_run",
    "paths_read",  # outside of the folder that was named
    "requests_sent",
    "tracebacks",  # any end but success and one sentence; a hang and a killed process count too
]
BREACHES: tuple[Breach, ...] = get_args(Breach)


def sample(every: list[Any], rng: np.random.Generator, most: int) -> list[Any]:
    """All of them, or `most` chosen at random, in their order."""
    return every if len(every) <= most else [every[i] for i in np.sort(rng.choice(len(every), most, replace=False))]


@dataclass
class Tally:
    """How often a class of attack was tried, and each time it came through."""

    name: str  # "store: bit flips in schema.json"
    tried: int = 0
    named: int = 0  # of these, how often something was lost or refused, and said so
    extra_bytes: int = 0  # most memory above that of a normal import
    breaches: dict[Breach, list[str]] = field(default_factory=lambda: defaultdict(list))  # how to see each again

    def breach(self, kind: Breach, how: str) -> None:
        self.breaches[kind].append(how)
