"""What a benchmark claims, a line each when all is measured: `BAR name figure goal pass|miss`.

    bars = Bars()
    bars.at_least("replay_speedup", 21.3, 10)     # how fast, how good: a figure of this machine
    bars.exactly("faults_lost", 0, 0)             # whether it is right
    bars.report()

A figure that misses its goal is news and not an error: the machine may be small or busy, and the script exits with 0. A
claim of `exactly` that is missed means that something is broken, and the script exits with 1, as it does on any
exception. The quick form of a benchmark runs the same code and has bars only for what it can show; what it cannot, it
says with `left_out`.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any


class Bars:
    """The claims of one benchmark."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._broken: list[str] = []

    def at_least(self, name: str, figure: float, goal: float) -> None:
        """A figure that should be as high as its goal."""
        self._add(name, figure, f">={goal:g}", figure >= goal)

    def at_most(self, name: str, figure: float, goal: float) -> None:
        """A figure that should be as low as its goal."""
        self._add(name, figure, f"<={goal:g}", figure <= goal)

    def exactly(self, name: str, figure: float, goal: float) -> None:
        """A count that has no other right value."""
        self._add(name, figure, f"{goal:g}", figure == goal)
        if figure != goal:
            self._broken.append(name)

    def left_out(self, what: str) -> None:
        """Say what only the full form measures."""
        print(f"the full form also measures {what}", flush=True)

    def report(self) -> None:
        """Print all of them; ends the script where something is broken."""
        for line in self._lines:
            print(line, flush=True)
        if self._broken:
            sys.exit(f"broken: {', '.join(self._broken)}")

    def _add(self, name: str, figure: float, goal: str, passed: bool) -> None:
        self._lines.append(f"BAR {name} {figure:.4g} {goal} {'pass' if passed else 'miss'}")


def line_charts(panels: Sequence[Mapping[str, Any]], *, columns: int = 2, size: tuple[int, int]) -> str:
    """Several line charts of one size in one drawing; a panel has the arguments of `line_chart`."""
    from plaudit.report.plots import LIGHT, line_chart  # matplotlib takes a second to import

    columns = min(columns, len(panels))
    width, height = columns * size[0], -(-len(panels) // columns) * size[1]
    colors = "".join(f"--{name}:{color};" for name, color in LIGHT.items())  # which a page would define
    drawing = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{colors}">']
    for number, panel in enumerate(panels):
        x, y = number % columns * size[0], number // columns * size[1]
        drawing.append(str(line_chart(**panel, size=size)).replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))
    return "\n".join([*drawing, "</svg>"])
