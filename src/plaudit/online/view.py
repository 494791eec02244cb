"""How an online run looks on a terminal: one table that is drawn again and again."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from plaudit.online.conductor import Now
from plaudit.online.config import OnlineConfig


def screen(config: OnlineConfig, now: Now, restarts: dict[str, int] | None = None) -> Group:
    """The newest numbers and, below them, what a person should know."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for label, value in rows(config, now):
        table.add_row(Text(label, "dim"), value)
    lines: list[Any] = [table]
    if now.holding:
        lines.append(Text(f"the robot waits: {now.holding}", "yellow"))
    lines += [Text(f"{part}: {sentence}", "yellow") for part, sentence in now.troubles.items()]
    if restarts:
        lines.append(
            Text("brought back: " + ", ".join(f"{part} {n}x" for part, n in sorted(restarts.items())), "yellow")
        )
    if now.news:
        lines.append(Text(now.news, "dim"))
    if now.alarm is not None:
        lines.append(Text(f"alarm: {now.alarm}", "bold red"))
    return Group(*lines)


def rows(config: OnlineConfig, now: Now) -> list[tuple[str, str]]:
    counts = now.counts
    success = f"judged {_share(now.judged_success)}"
    if config.simulated:
        success += f", true {_share(now.true_success)}, on seeds held back {_share(now.evaluated)}"
    waiting = f"{counts.unjudged} of {config.backlog} wait for the judge"
    failed = f", it failed on {counts.failed}" if counts.failed else ""
    behind = f", {now.age:.0f} s behind" if now.age >= 1 else ""
    owed = f", {now.owed:,} owed" if now.owed else ""
    return [
        ("time", _clock(now.seconds)),
        ("episodes", f"{counts.episodes:,} of {config.episodes:,}, {counts.steps:,} steps"),
        ("success", success),
        ("queue", waiting + failed),
        ("robot", f"{now.steps_per_second:.0f} frames/s, weights {now.on_robot} of {now.state.version}{behind}"),
        ("judge", f"{1000 * now.judge_latency:.0f} ms an episode"),
        (
            "trainer",
            f"{now.updates_per_second:.0f} updates/s, {now.updates:,} made{owed}, {now.sampling:.0%} of it waiting for "
            "batches",
        ),
    ]


def line(config: OnlineConfig, now: Now) -> str:
    """The same in one line, for a log."""
    return "; ".join(f"{label} {value}" for label, value in rows(config, now)) + (
        f"; the robot waits: {now.holding}" if now.holding else ""
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
