"""The operator at the terminal of `plaudit run`: what is asked, which keys do what, what came of them."""

from typing import Annotated

import typer
from rich.text import Text

from plaudit.cli.common import out
from plaudit.rollout.operator import Operator, OperatorStatus
from plaudit.rollout.operator_input import Cue, OperatorConfig, hotkeys

Auto = Annotated[
    bool | None,
    typer.Option(
        "--auto/--no-auto",
        help="Episodes follow each other, and no operator says when the scene is ready or marks them.",
        show_default="in a simulation, and where there is no terminal",
    ),
]


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
        words = "scene ready?" if status.phase == "gate" else "running"
        out.print(Text.assemble((words, "bold"), "  ", (hotkeys(self._config, status.phase), "dim")))
        if status.phase == "gate":
            self._cue.give("scene ready?")


def make_operator(config: OperatorConfig) -> Operator:
    """An operator whose console is this terminal."""
    return Operator(config.gate, OperatorConsole(config).show)
