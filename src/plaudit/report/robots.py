"""Tables of robots for the terminal."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from rich.table import Column, Table

from plaudit.robots.ros.check import Row


def robots_table(classes: Mapping[str, type[Any]]) -> Table:
    """Each with the first sentence of its folder."""
    table = Table("robot", "what it is", box=None, pad_edge=False)
    for name, cls in classes.items():
        table.add_row(name, (import_module(cls.__module__).__doc__ or "").strip().split("\n")[0])
    return table


def check_table(name: str, rows: Sequence[Row]) -> Table:
    topic = Column("topic", overflow="fold")
    table = Table(name, topic, "expected", "seen", "rate", "age", "verdict", box=None, pad_edge=False)
    for row in rows:
        verdict = row.problem or "ok"
        table.add_row(row.what, row.topic, row.expected, row.seen, row.rate, row.age, verdict, style=_style(row))
    return table


def _style(row: Row) -> str:
    return "red" if row.problem else ""
