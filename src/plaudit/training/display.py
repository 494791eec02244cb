"""How an online run looks on a terminal: one screen that is drawn again and again, and a line a while for a log.

It is 80 columns wide and keeps its height while all is well, so that nothing jumps; what does not fit is cut, except
troubles and alarms, which come last and are told in full.
"""

from collections import deque
from collections.abc import Mapping

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plaudit.training.online_config import OnlineConfig
from plaudit.training.progress import Now

WIDTH = 80
STOPPING = "stopping: everybody comes to the end of what they do; Ctrl-C again interrupts"
RECENT = 120.0  # s over which the rate is taken that tells how long it will be


class Display:
    """Of one run.

    view = Display(config)
    live.update(view.screen(now, workers.restarts))
    """

    def __init__(self, config: OnlineConfig):
        self._config = config
        self._pace = Pace()

    def screen(self, now: Now, restarts: Mapping[str, int] | None = None, stopping: bool = False) -> Group:
        """The newest numbers and, below them, what a person should know."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis", width=WIDTH - 11)
        for label, value in rows(self._config, now):
            table.add_row(label, value)
        return Group(self._top(now), self._bar(now), table, _told(now, restarts or {}, stopping))

    def line(self, now: Now) -> str:
        """The same in one line, for a log."""
        facts = [("time", clock(now.seconds)), ("played", self._played(now)), *rows(self._config, now)]
        return "; ".join(f"{label} {value}" for label, value in facts)

    def _top(self, now: Now) -> Table:
        grid = Table.grid()
        grid.add_column(width=WIDTH - 10, no_wrap=True, overflow="ellipsis")
        grid.add_column(width=10, justify="right")
        grid.add_row(Text(title(self._config), "bold"), clock(now.seconds))
        return grid

    def _bar(self, now: Now) -> Table:
        said = self._played(now)
        bar = ProgressBar(self._config.episodes, now.counts.episodes, width=WIDTH - 2 - len(said))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(bar, said)
        return grid

    def _played(self, now: Now) -> str:
        left = self._left(now)
        return f"{now.counts.episodes:,} of {self._config.episodes:,} episodes" + (f", {left}" if left else "")

    def _left(self, now: Now) -> str:
        """How long it will be; nothing where the robot has not moved for a while."""
        self._pace.note(now.seconds, now.counts.episodes)
        left = self._pace.left(self._config.episodes)
        if left is None or now.counts.episodes >= self._config.episodes:
            return ""
        return f"{'at most ' if self._config.evaluation.stop_at is not None else ''}{clock(left)} to go"


class Pace:
    """Episodes to go at the rate of the last minutes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, seconds: float, episodes: int) -> None:
        if self._seen and seconds - self._seen[-1][0] < 1:
            return
        self._seen.append((seconds, episodes))
        while seconds - self._seen[0][0] > RECENT:
            self._seen.popleft()

    def left(self, episodes: int) -> float | None:
        """Seconds until there are so many; None while nobody can say."""
        if not self._seen:
            return None
        (began, first), (ends, last) = self._seen[0], self._seen[-1]
        if last >= episodes or last - first < 2:
            return None
        return (episodes - last) * (ends - began) / (last - first)


def title(config: OnlineConfig) -> str:
    """lift with sac, judged by a classifier"""
    tree = config.model_dump(include={"robot", "judge", "learner"})
    what = tree["robot"]["env"]["type"] if config.simulated else config.executor.name
    who = "a person" if config.by_hand else _with_article(tree["judge"]["type"])
    return f"{what} with {tree['learner']['type']}, judged by {who}"


def rows(config: OnlineConfig, now: Now) -> list[tuple[str, Text]]:
    """Label and value; as many of them at the end of a run as at its beginning."""
    shown = [
        ("success", _success(config, now)),
        ("robot", _robot(now)),
        ("judge", _judge(config, now)),
        ("trainer", _trainer(now)),
    ]
    if config.audited:
        shown.append(("audit", _audit(config, now)))
    return [*shown, ("waits", Text(now.holding or "the robot does not", "yellow" if now.holding else "dim"))]


def _success(config: OnlineConfig, now: Now) -> Text:
    said = Text.assemble("judged ", (_share(now.judged_success), "bold"))
    if config.simulated:
        said.append_text(Text.assemble(", true ", (_share(now.true_success), "bold")))
        said.append_text(Text.assemble("; on seeds held back ", (_share(now.evaluated), "bold")))
    return said


def _robot(now: Now) -> Text:
    behind = f", {_ago(now.age)} behind" if now.age >= 1 else ""
    weights = f"weights {now.on_robot:,} of {now.state.version:,}{behind}"
    return Text(f"{now.counts.steps:,} steps, {now.steps_per_second:.0f} frames/s, {weights}")


def _judge(config: OnlineConfig, now: Now) -> Text:
    counts = now.counts
    said = Text(f"{counts.unjudged} of {config.backlog} episodes wait")
    if now.judge_latency:
        said.append(f", {_brief(now.judge_latency)} each")
    if "judge/version" in now.honesty:
        said.append(f", version {now.honesty['judge/version']:.0f}")
        refused = now.honesty["judge/refused"]
        said.append(f" ({refused:.0f} refused)" if refused else "")
    if counts.outdated:
        said.append(f", {counts.outdated:,} to judge again")
    if counts.failed:
        said.append(f", failed on {counts.failed}", "yellow")
    if counts.unlabelable:
        said.append(f" ({counts.unlabelable} given up)", "yellow")
    return said


def _trainer(now: Now) -> Text:
    owed = f", {now.owed:,} owed" if now.owed else ""
    waiting = f", {now.sampling:.0%} waiting for batches" if now.updates_per_second else ""
    return Text(f"{now.updates:,} updates{owed}, {now.updates_per_second:.0f} updates/s{waiting}")


def _audit(config: OnlineConfig, now: Now) -> Text:
    """How far judged and true success of the audited episodes are apart, of how far they may be."""
    told, bound = now.honesty, config.audit.bound
    if "audit/gap" not in told:
        said = Text("no episode yet")
    else:
        gap = told["audit/gap"]
        look = "red" if told["audit/alarm"] or abs(gap) > bound else "yellow" if abs(gap) > bound / 2 else "green"
        said = Text.assemble("gap ", (f"{100 * gap:+.0f}", look), f" of {100 * bound:.0f} points: ")
        said.append(f"judged {told['audit/judged']:.0%}, true {told['audit/true']:.0%} of {told['audit/episodes']:.0f}")
    if told.get("audit/waiting"):
        said.append(f"; {told['audit/waiting']:.0f} wait for a person", "yellow")
    return said


def _told(now: Now, restarts: Mapping[str, int], stopping: bool) -> Table:
    """What comes below the numbers, in full."""
    said: list[tuple[str, str]] = []
    if now.window:
        said.append((now.window, "dim"))
    if now.news:
        said.append((now.news, "dim"))
    if restarts:
        said.append(("brought back: " + ", ".join(f"{part} {n}x" for part, n in sorted(restarts.items())), "yellow"))
    said += [(f"{part}: {sentence}", "yellow") for part, sentence in now.troubles.items()]
    if now.alarm is not None:
        said.append((f"alarm: {now.alarm}", "bold red"))
    if stopping:
        said.append((STOPPING, "bold"))
    grid = Table.grid()
    grid.add_column(width=WIDTH, overflow="fold")
    for sentence, look in said:
        grid.add_row(Text(sentence, look))
    return grid


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _brief(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else clock(seconds)


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def clock(seconds: float) -> str:
    """0:02:05"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
