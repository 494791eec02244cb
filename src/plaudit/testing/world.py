"""What the simulated parts share during one run: the clock, the event log, and hooks that the runner sets.

The env, the learner and the judge are built by the code under test, deep inside a run, so they cannot be handed a
world; they ask for the current one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Hook = Callable[..., object]


@dataclass(frozen=True)
class Violation:
    """An invariant that did not hold."""

    invariant: str
    message: str


class InvariantViolated(BaseException):
    """Carries a `Violation`. Not an `Exception`: the code under test must not handle it."""


@dataclass
class World:
    """The state that the parts of one simulated run share."""

    seed: int
    now: float = 1_000_000_000.0  # s since 1970
    log: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # steps, kills, answers, ...
    candidate: str = ""  # how all candidates compare with the current judge: "equal", ...; "": drawn
    candidates: dict[int, str] = field(default_factory=dict)  # number of a retraining -> what its candidate was
    judge_down_until: float = 0.0  # the judge cannot be reached before this time
    on_env_step: Hook = lambda *_: None  # env, step of the first episode
    on_batch: Hook = lambda *_: None  # learner, batch
    on_rollout: Hook = lambda *_: None  # learner, rollout

    def note(self, event: str) -> None:
        """Add a line to the event log."""
        self.log.append(f"{self.now - 1_000_000_000:10.1f} s  {event}")

    def fail(self, invariant: str, message: str) -> None:
        """Report a violation; ends the run."""
        self.note(f"VIOLATED {invariant}: {message}")
        raise InvariantViolated(Violation(invariant, message))

    def check(self, holds: object, invariant: str, message: str) -> None:
        """Report a violation unless something holds."""
        if not holds:
            self.fail(invariant, message)


_current = World(0)


def world() -> World:
    """The current one."""
    return _current


@contextmanager
def entered(new: World) -> Iterator[World]:
    """Make a world the current one, for as long as the block lasts."""
    global _current
    before, _current = _current, new
    try:
        yield new
    finally:
        _current = before


def uniform(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone, so that leaving out one event changes no other."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def pick(options: Any, *key: object) -> Any:
    """One of a sequence."""
    return options[int(uniform(*key) * len(options))]
