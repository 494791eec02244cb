"""How an online run looks on a terminal: one screen that is drawn again and again, and a line a while for a log.

It is 80 columns wide. A text that is longer continues on the next line; nothing is cut. Errors and alarms come last.
"""

from collections import deque
from collections.abc import Mapping, Sequence

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plaudit.judges.stats import Interval
from plaudit.rollout.operator import OperatorStatus, hotkeys
from plaudit.rollout.recording import held_warning
from plaudit.training.audit import CORRECTED, FALSE, MISSED
from plaudit.training.cascade_ledger import SHARE
from plaudit.training.config import TrainingConfig
from plaudit.training.progress import OnlineProgress

WIDTH = 80
WAITING_FOR_OPERATOR = {"gate": "the operator", "held": "release"}  # by phase
RATE_WINDOW_S = 120.0  # over which the rate is taken that tells how long it will be


class Display:
    """Of one run.

    view = Display(config)
    live.update(view.screen(progress, workers.restarts))
    """

    def __init__(self, config: TrainingConfig):
        self._config = config
        self._pace = EtaEstimate()

    def screen(
        self, progress: OnlineProgress, restarts: Mapping[str, int] | None = None, stopping: bool = False
    ) -> Group:
        """The newest numbers and, below them, what a person should know."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold", width=WIDTH - 11)
        for label, value in rows(self._config, progress):
            table.add_row(label, value)
        below = _messages(progress, restarts or {}, stopping)
        return Group(self._top(progress), self._bar(progress), table, *self._keys(progress), below)

    def _keys(self, progress: OnlineProgress) -> list[Text]:
        """What an operator can press now."""
        if progress.operator is None:
            return []
        keys = hotkeys(self._config.operator, progress.operator.phase)
        return [Text("  ").join(Text.assemble((key, "bold"), (f" {word}", "dim")) for key, word in keys)]

    def line(self, progress: OnlineProgress) -> str:
        """The same in one line, for a log."""
        items = [("time", clock(progress.elapsed_s)), ("run", self._done(progress)), *rows(self._config, progress)]
        return "; ".join(f"{label}: {value}" for label, value in items if label)

    def _top(self, progress: OnlineProgress) -> Table:
        grid = Table.grid()
        grid.add_column(width=WIDTH - 10, overflow="fold")
        grid.add_column(width=10, justify="right")
        grid.add_row(Text(title(self._config), "bold"), clock(progress.elapsed_s))
        return grid

    def _bar(self, progress: OnlineProgress) -> Table:
        text = self._done(progress)
        done, total, _ = self._extent(progress)
        bar = ProgressBar(total, done, width=WIDTH - 2 - len(text))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(bar, text)
        return grid

    def _extent(self, progress: OnlineProgress) -> tuple[int, int, str]:
        """What is done of how much: episodes, or env steps where only these are limited."""
        if self._config.max_episodes is None and self._config.max_steps is not None:
            return progress.step, self._config.max_steps, "steps"
        return progress.episodes, self._config.max_episodes or 0, "episodes"

    def _done(self, progress: OnlineProgress) -> str:
        done, total, unit = self._extent(progress)
        left = self._remaining(progress)
        return f"{done:,} of {total:,} {unit}" + (f", {left}" if left else "")

    def _remaining(self, progress: OnlineProgress) -> str:
        """How long it will be; nothing where the robot has not moved for a while."""
        done, total, _ = self._extent(progress)
        self._pace.add(progress.elapsed_s, done)
        left = self._pace.remaining_s(total)
        if left is None or done >= total:
            return ""
        return f"{'at most ' if self._config.evaluation.stop_success_rate is not None else ''}{clock(left)} to go"


class EtaEstimate:
    """How long the rest takes at the rate of the last minutes."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, elapsed_s: float, done: int) -> None:
        """Note how much is done by now."""
        if self._seen and elapsed_s - self._seen[-1][0] < 1:
            return
        self._seen.append((elapsed_s, done))
        while elapsed_s - self._seen[0][0] > RATE_WINDOW_S:
            self._seen.popleft()

    def remaining_s(self, total: int) -> float | None:
        """Seconds until all is done; None while that cannot be told."""
        if not self._seen:
            return None
        (start, first), (end, last) = self._seen[0], self._seen[-1]
        if last >= total or last - first < 2:
            return None
        return (total - last) * (end - start) / (last - first)


def title(config: TrainingConfig) -> str:
    """lift with sac, labels by a classifier"""
    judges = {"human": "a human", "simulator": "the simulator", "vlm": "a vision-language model"}
    judge = judges.get(config.judge.name, f"a {config.judge.name}")
    return f"{config.target_name} with {config.learner_name}, labels by {judge}"


def rows(config: TrainingConfig, progress: OnlineProgress) -> list[tuple[str, Text]]:
    """Label and value; as many of them at the end of a run as at its beginning."""
    shown = [
        ("success", _success(config, progress)),
        ("policy", _policy(progress)),
        ("judge", _judge(config, progress)),
        ("learner", _learner(progress)),
    ]
    if config.judge.cascade is not None:
        shown.insert(3, ("cascade", _cascade(config.judge.cascade.names(), progress.judge_metrics)))
    if config.audits:
        shown += [("audit", _audit(config, progress)), ("", Text(_guarantee(config), "dim"))]
    if progress.inference_summary:
        shown.append(("inference", Text(progress.inference_summary)))
    shown.append(("robot", _robot(progress)))
    if progress.operator is not None:
        shown.append(("operator", _operator(progress.operator)))
    return shown


def _success(config: TrainingConfig, progress: OnlineProgress) -> Text:
    text = Text.assemble((_percent(progress.judge_success), "bold"), " (judge)")
    if corrected := Interval.from_metrics(progress.judge_metrics, CORRECTED):
        text.append_text(Text.assemble(", ", (str(corrected), "bold"), " (audit)"))
    if config.simulated:
        text.append_text(Text.assemble(", ", (_percent(progress.env_success), "bold"), " (simulator)"))
        text.append_text(Text.assemble("; eval seeds ", (_percent(progress.eval_success), "bold")))
    return text


def _policy(progress: OnlineProgress) -> Text:
    stale = f", {_age(progress.staleness_s)} stale" if progress.staleness_s >= 1 else ""
    version = f"v{progress.robot_version:,} (latest v{progress.policy.version:,}){stale}"
    return Text(f"{version}, {progress.step:,} steps, {progress.env_steps_per_s:.0f} steps/s")


def _judge(config: TrainingConfig, progress: OnlineProgress) -> Text:
    replay, metrics = progress.replay, progress.judge_metrics
    noun = "episode" if replay.unlabeled == 1 else "episodes"
    text = Text(f"{replay.unlabeled} unlabeled {noun} (max {config.run.max_unlabeled_episodes})")
    if progress.judge_latency_s:
        text.append(f", {_brief(progress.judge_latency_s)} each")
    if "judge/version" in metrics:
        text.append(f", v{metrics['judge/version']:.0f}")
        rejected = metrics["judge/num_rejected"]
        text.append(f" ({rejected:.0f} rejected)" if rejected else "")
    if progress.episode_progress:
        text.append(f", last episode at {progress.episode_progress}")
    if unlike := metrics.get("judge/unlike_share"):
        text.append(f", {unlike:.0%} unlike", "yellow")
    if replay.outdated:
        text.append(f", {replay.outdated:,} to relabel")
    if replay.failed:
        text.append(f", failed on {replay.failed}", "yellow")
    if replay.skipped:
        text.append(f" ({replay.skipped} skipped)", "yellow")
    return text


def _cascade(stages: Sequence[str], metrics: Mapping[str, float]) -> Text:
    """Who decided, and what a human had to do for it."""
    shares = [f"{name} {metrics.get(f'{SHARE}{name}', 0):.0%}" for name in stages]
    text = Text(f"{', '.join(shares)}; {metrics.get('judge/human_s', 0) / 60:.1f} min of a human")
    if undecided := metrics.get("judge/undecided_episodes"):
        text.append(f"; {undecided:.0f} undecided", "yellow")
    return text


def _learner(progress: OnlineProgress) -> Text:
    pending = f", {progress.pending_updates:,} pending" if progress.pending_updates else ""
    waiting = f", {progress.sample_wait_fraction:.0%} waiting for batches" if progress.updates_per_s else ""
    rate = f"{progress.updates_per_s:.0f}" if progress.updates_per_s >= 10 else f"{progress.updates_per_s:.2g}"
    return Text(f"{progress.updates:,} updates{pending}, {rate} updates/s{waiting}")


def _audit(config: TrainingConfig, progress: OnlineProgress) -> Text:
    """How often the judge is wrong, between which bounds that is known, and how often it may be."""
    metrics, limits = progress.judge_metrics, {FALSE: config.audit.max_false, MISSED: config.audit.max_missed}
    text = Text("no episode yet" if not metrics.get("audit/episodes") else "")
    for (name, most), label in zip(limits.items(), ("false ", "missed "), strict=True):
        if estimate := Interval.from_metrics(metrics, name):
            style = "red" if estimate.low > most else "yellow" if estimate.value > most else "green"
            text.append_text(Text.assemble(label, (str(estimate), style), f" (max {100 * most:.0f}), "))
    if metrics.get("audit/episodes"):
        text.append(f"{metrics['audit/episodes']:.0f} audited")
    if metrics.get("audit/pending_episodes"):
        text.append(f"; {metrics['audit/pending_episodes']:.0f} wait for a human", "yellow")
    return text


def _guarantee(config: TrainingConfig) -> str:
    """What the intervals on the screen guarantee, for which episodes, and how these were sampled."""
    audit, who = config.audit, "a person" if config.human_audits else "the simulator"
    share = f"{'up to ' if audit.minutes_per_hour is not None else ''}{audit.fraction:.0%}"
    return (
        f"[ ]: 95% confidence for all episodes of this judge (success: the last {audit.window}); {who} checks its "
        f"first {audit.first_episodes}, suspicious ones, and {share} of the others, drawn at random"
    )


def _robot(progress: OnlineProgress) -> Text:
    phase = "idle" if progress.operator is None else progress.operator.phase
    waiting = progress.env_waiting_for or WAITING_FOR_OPERATOR.get(phase, "")
    text = Text.assemble((f"waits for {waiting}", "yellow") if waiting else ("running", "dim"))
    if progress.guided_fraction is not None:
        style = "yellow" if held_warning(progress.held_fraction) else "dim"
        text.append(f"; held {progress.held_fraction:.1%}, {progress.starved_chunks:,} starved chunks", style)
        text.append(f", {progress.guided_fraction:.0%} guided", "dim")
    return text


def _operator(status: OperatorStatus) -> Text:
    """What is asked of the operator, and what came of the last command."""
    asked = {
        "idle": ("nothing to do", "dim"),
        "gate": ("scene ready?", "bold yellow"),
        "episode": ("episode running", "green"),
        "held": ("EMERGENCY STOP", "bold red"),
    }
    return Text.assemble(asked[status.phase], f"  {status.message}")


def _messages(progress: OnlineProgress, restarts: Mapping[str, int], stopping: bool) -> Table:
    """What comes below the numbers, in full."""
    lines: list[tuple[str, str]] = []
    if progress.window_status:
        lines.append((progress.window_status, "dim"))
    if progress.last_event:
        lines.append((progress.last_event, "dim"))
    if restarts:
        lines.append(("restarts: " + ", ".join(f"{worker} {n}" for worker, n in sorted(restarts.items())), "yellow"))
    lines += [(f"{worker}: {message}", "yellow") for worker, message in progress.errors.items()]
    lines += [(text, "yellow") for text in (progress.learner_warning, held_warning(progress.held_fraction)) if text]
    if progress.alarm is not None:
        lines.append((f"audit alarm: {progress.alarm}", "bold red"))
    if stopping:
        lines.append((stopping_message(progress), "bold"))
    elif progress.awaited:
        lines.append((f"ending: {_awaited(progress)}", "dim"))
    grid = Table.grid()
    grid.add_column(width=WIDTH, overflow="fold")
    for message, style in lines:
        grid.add_row(Text(message, style))
    return grid


def stopping_message(progress: OnlineProgress) -> str:
    """What a run that somebody has stopped waits for."""
    return f"stopping: {_awaited(progress)}; Ctrl-C again aborts"


def _awaited(progress: OnlineProgress) -> str:
    if not progress.awaited:
        return "workers finish their current call"
    return f"waiting for the current call of {' and '.join(progress.awaited)}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _brief(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else clock(seconds)


def clock(seconds: float) -> str:
    """0:02:05"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
