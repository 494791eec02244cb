"""Tables of robots for the terminal."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rich.table import Column, Table

from plaudit.robots.ros.check import CheckResult


def robots_table(classes: Mapping[str, type[Any]]) -> Table:
    """Each with the first line of its module's docstring."""
    table = Table("robot", "what it is", box=None, pad_edge=False)
    for name, cls in classes.items():
        table.add_row(name, (import_module(cls.__module__).__doc__ or "").strip().split("\n")[0])
    return table


def check_table(name: str, results: Sequence[CheckResult]) -> Table:
    """A row for each topic, red where there is a problem."""
    topic = Column("topic", overflow="fold")
    table = Table(name, topic, "expected", "received", "rate", "age", "result", box=None, pad_edge=False)
    for r in results:
        style = "red" if r.problem else ""
        table.add_row(r.name, r.topic, r.expected, r.received, r.rate, r.age, r.problem or "ok", style=style)
    return table
