"""The operator at the terminal of `plaudit run` and `plaudit online`: which keys do what, what is asked, and cues."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.text import Text

from plaudit.cli.common import out
from plaudit.rollout.operator import Cue, Operator, OperatorConfig, OperatorStatus, hotkeys, listen_at_terminal

QUESTION = "scene ready?"  # at the gate
WORDS = {"gate": (QUESTION, "bold yellow"), "episode": ("running", "green"), "held": ("EMERGENCY STOP", "bold red")}


class OperatedRun:
    """The operator of an online run, at the terminal of the head, wherever its robot is.

    operated = OperatedRun(config, workers)
    with operated.listen():                              # keys go to the robot's worker
        stopped = operated.update(progress.operator)     # again and again
    """

    def __init__(self, config: OperatorConfig, workers: Any):
        self._config, self._workers = config, workers
        self._cue = Cue(config.cue if config.attended else "none")
        self._phase = "idle"

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Read keys, if anybody attends."""
        if not self._config.attended:
            yield
            return
        with listen_at_terminal(self._config, self._workers.operate):
            yield

    def update(self, status: OperatorStatus | None) -> bool:
        """Give a cue when it is the operator's turn; returns whether they have stopped the run."""
        if status is None:
            return False
        if status.phase == "gate" and self._phase != "gate":
            self._cue.give(QUESTION)
        self._phase = status.phase
        return status.stopped


class OperatorConsole:
    """Prints a line when the operator has something to do, or has done something.

    operator = Operator(listener=OperatorConsole(config).show)
    """

    def __init__(self, config: OperatorConfig):
        self._config, self._cue = config, Cue(config.cue)
        self._shown = OperatorStatus()

    def show(self, status: OperatorStatus) -> None:
        """What is new in it."""
        before, self._shown = self._shown, status
        if status.messages != before.messages and status.message:
            out.print(Text(f"  {status.message}"))
        if status.phase == before.phase or status.phase == "idle":
            return
        words, style = WORDS[status.phase]
        keys = [Text.assemble((key, "bold"), f" {word}") for key, word in hotkeys(self._config, status.phase)]
        out.print(Text("  ").join([Text(words, style), *keys]))
        if status.phase == "gate":
            self._cue.give(QUESTION)


def make_operator(config: OperatorConfig) -> Operator:
    """An operator whose console is this terminal."""
    return Operator(config.gate, OperatorConsole(config).show)
