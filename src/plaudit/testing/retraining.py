"""Retraining without a network and without a process: candidates are drawn, and everything else is real.

The copying of labeled episodes, the comparison on held-out ones, the decision and its folder are those of
training/retrain.py. A candidate errs as often as the current judge, less often, or more often, elsewhere in each case.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from plaudit.data.store import Store
from plaudit.testing.judge import HONEST, SimulatedModel, write_model
from plaudit.testing.world import pick, world
from plaudit.training import retrain

FACTORS = {"equal": 1.0, "better": 0.2, "worse": 3.0}


def draw_candidate(errors: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
    """What a candidate is compared with the current judge, and its errors."""
    drawn = pick(("equal", "equal", "better", "better", "worse"), world().seed, "candidate", number)
    kind = world().candidate or drawn
    rates = {name: min(1.0, FACTORS[kind] * errors[name]) for name in HONEST}
    return kind, {**errors, **rates, "name": f"candidate {number}", "drift": 0}


class InlineChild:
    """A process that has ended before it is looked at."""

    alive = False

    def __init__(self, name: str, target: str, *arguments: Any):
        connection: Any = self
        self.connection, self._sent = self, list[int]()
        world().counts["retrainings"] += 1
        retrain.retrain_main(connection, *arguments)

    def poll(self) -> bool:
        return bool(self._sent)

    def send(self, number: int) -> None:
        self._sent.append(number)

    def recv(self) -> int:
        if not self._sent:
            raise EOFError
        return self._sent.pop()

    def exit_reason(self) -> str:
        return "it ended"

    def end(self, *_: Any, **__: Any) -> bool:
        return True


def _train(data: Store, output: Path, settings: Any, *_: Any) -> Any:
    """Draw a candidate in place of training one."""
    current: SimulatedModel = settings
    number = len(retrain.decisions(output.parents[1])) + 1
    kind, errors = draw_candidate(current.errors, number)
    world().note(f"retraining {number}: the candidate is {kind}")
    world().counts[f"candidates {kind}"] += 1
    world().candidates[number] = kind
    write_model(output, errors)
    return SimpleNamespace(model=SimulatedModel(output))


@contextmanager
def simulated_retraining() -> Iterator[None]:
    """For as long as the block lasts."""
    with ExitStack() as stack:
        for name, simulated in (
            ("ChildProcess", InlineChild),
            ("exit_with_parent", lambda *_: None),
            ("send", lambda connection, number: connection.send(number)),
            ("load_reward_model", lambda path, *_, **__: SimulatedModel(path)),
            ("training_config", lambda model, *_: model),
            ("train_and_save", _train),
        ):
            stack.enter_context(patch.object(retrain, name, simulated))
        stack.enter_context(patch.object(os, "nice", lambda _: None))
        yield
