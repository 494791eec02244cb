"""How an online run looks on a terminal: one screen that is drawn again and again, and a line a while for a log.

It fits 80 columns. A text that is longer continues on the next line; nothing is cut. Errors and alarms come last.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from plaudit.errors import format_count
from plaudit.judges.stats import Interval
from plaudit.rollout.operator import AVAILABLE, hotkeys
from plaudit.rollout.recording import held_warning
from plaudit.training.audit import CORRECTED, FALSE, MISSED, SHARE
from plaudit.training.config import TrainingConfig
from plaudit.training.live import REMOTE
from plaudit.training.monitor import SPENT, next_tasks
from plaudit.training.online import OnlineState

if TYPE_CHECKING:  # with torch
    from plaudit.training.trainer import Trainer

WIDTH = 78  # of 80: an echoed ^C must not wrap to a new line, which would leave a stale line above the screen
WAITING_FOR_OPERATOR = {"gate": "the operator", "held": "release"}  # by phase
RATE_WINDOW_S = 120.0  # over which the rate is measured for the remaining time


class Display:
    """The screen of one run.

    view = Display(config)
    live.update(view.screen(state, workers.restarts))
    """

    def __init__(self, config: TrainingConfig):
        self._config = config
        self._pace = EtaEstimate()

    def screen(self, state: OnlineState, restarts: Mapping[str, int] | None = None, stopping: bool = False) -> Group:
        """The newest numbers and, below them, what a person should know."""
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold", width=WIDTH - 11)
        for label, value in rows(self._config, state):
            if not (stopping and label == "to do"):
                table.add_row(label, value)
        top, bar = Table.grid(), Table.grid(padding=(0, 2, 0, 0))
        top.add_column(width=WIDTH - 10, overflow="fold")
        top.add_column(width=10, justify="right")
        top.add_row(Text(title(self._config), "bold"), clock(state.elapsed_s))
        done, total, text = self._extent(state)
        bar.add_row(ProgressBar(total, done, width=WIDTH - 2 - len(text)), text)
        keys: list[Text] = []
        if state.operator is not None:  # what they can press now; while the run stops, the emergency stop alone
            pairs = hotkeys(self._config.operator, state.operator.phase)
            pairs = [(key, word) for key, word in pairs if not stopping or word in ("estop", "release")]
            keys = [Text("  ").join(Text.assemble((key, "bold"), (f" {word}", "dim")) for key, word in pairs)]
        return Group(top, bar, table, *keys, _messages(state, restarts or {}, stopping))

    def live(self, state: OnlineState, busy: Sequence[str]) -> dict[str, Any]:
        """The screen's content for a browser."""
        return live_state(self._config, state, busy, self._extent(state)[2])

    def line(self, state: OnlineState) -> str:
        """The state in one line, for a log."""
        items = [("time", clock(state.elapsed_s)), ("run", self._extent(state)[2]), *rows(self._config, state)]
        return "; ".join(f"{label}: {value}" for label, value in items if label)

    def _extent(self, state: OnlineState) -> tuple[int, int, str]:
        """What is done of how much, episodes or env steps where only these are limited; and both in words."""
        config, unit = self._config, "episodes"
        done, total = state.episodes, config.max_episodes or 0
        if config.max_episodes is None and config.max_steps is not None:
            done, total, unit = state.step, config.max_steps, "steps"
        self._pace.add(state.elapsed_s, done)
        left = self._pace.remaining_s(total)  # None where the robot has not moved for a while
        text = f"{done:,} of {total:,} {unit}"
        if left is not None and done < total:
            text += f", {'at most ' if config.evaluation.stop_success_rate is not None else ''}{clock(left)} to go"
        return done, total, text


def live_state(config: TrainingConfig, state: OnlineState, busy: Sequence[str], extent: str) -> dict[str, Any]:
    """The screen's content for a browser (live.py): its texts, what each worker waits for, and the operator's state."""
    alarm = [f"audit alarm: {state.alarm}"] if state.alarm is not None else []
    errors = [f"{worker}: {message}" for worker, message in state.errors.items()]
    operator = None
    if state.operator is not None:
        phase, by_web = state.operator.phase, "web" in config.operator.sources
        commands = [str(command) for command in REMOTE if by_web and command in AVAILABLE[phase]]
        asked = _to_do(config, state).plain
        operator = {"phase": phase, "message": asked, "commands": commands, "by_web": by_web}
    return {
        "extent": extent,
        "rows": [[label, text.plain] for label, text in rows(config, state)],
        "workers": _workers(config, state, busy),
        "problems": [*alarm, *errors, *state.warnings.values()],
        "messages": [text for text in (state.window_status, state.last_event) if text],
        "operator": operator,
    }


def describe_trainer(trainer: "Trainer") -> dict[str, Any]:
    """The state of `plaudit train` in the form of `live_state`. One process does everything in turn."""
    config, state, phase, due = trainer.config, trainer.state, trainer.phase, trainer.updates.due
    if config.max_steps is None:
        extent = f"{state.episodes:,} of {config.max_episodes or 0:,} episodes"
    else:
        extent = f"{state.step:,} of {config.max_steps:,} steps"
    blocked = "a judge that passes its audit" if trainer.audit.blocks_learning else "labels" if due else "episodes"
    done, freq = state.step, config.evaluation.freq
    others = {"evaluating": "the evaluation", "saving": "the checkpoint"}
    before = others.get(phase, "the learner")
    workers = [
        ["simulation", f"{config.run.num_envs:,} episodes at once", "" if phase == "collecting" else before],
        ["judge", "", "" if phase == "collecting" else "episodes"],
        ["learner", format_count(due, "update") if config.off_policy else "", "" if phase == "updating" else blocked],
        ["evaluation", "", "" if phase == "evaluating" else f"step {(done // freq + 1) * freq:,}"],
    ]
    rates = {"judge, last episodes": state.judge_success, "last evaluation": state.eval_success}
    rows = [[label, f"{rate:.0%} success"] for label, rate in rates.items() if rate is not None]
    problems = [f"audit alarm: {state.alarm}"] if state.alarm is not None else []
    speed = f"{state.metrics()['time/env_steps_per_s']:,.0f} steps/s"
    rows = [["now", phase], ["episodes", f"{state.episodes:,}"], ["speed", speed], *rows]
    return {"extent": extent, "rows": rows, "workers": workers, "problems": problems, "messages": [], "operator": None}


def _workers(config: TrainingConfig, state: OnlineState, busy: Sequence[str]) -> list[list[str]]:
    """Each worker, its queue, and what it does or waits for."""
    replay, metrics = state.replay, state.judge_metrics
    asked = int(metrics.get("audit/pending_episodes", 0)) if config.human_audits else replay.unlabeled
    waits = {
        "env": ("", state.env_waiting_for or "the operator"),
        "judge": (f"{replay.unlabeled + replay.outdated:,} to label", "episodes"),
        "labeler": (f"{asked:,} to answer", "episodes to label"),
        "learner": (
            format_count(state.pending_updates, "update"),
            "a judge that passes its audit" if state.alarm else "labels",
        ),
    }
    shown = [name for name in waits if (name != "labeler" or config.asks_human)]
    shown = [name for name in shown if name != "judge" or not config.judge.is_human]
    at_gate = state.operator is not None and state.operator.phase in WAITING_FOR_OPERATOR

    def works(name: str) -> bool:
        if name == "labeler":  # asks in a moment, and the person answers when they like
            return asked > 0
        return name in busy and not (name == "env" and at_gate)

    names = {"env": "robot", "labeler": "person"}
    return [[names.get(name, name), waits[name][0], "" if works(name) else waits[name][1]] for name in shown]


class EtaEstimate:
    """Estimates the remaining time from the rate of the last minutes."""

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
        """Seconds until all is done; None while that is not known."""
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


def rows(config: TrainingConfig, state: OnlineState) -> list[tuple[str, Text]]:
    """Label and value; as many of them at the end of a run as at its beginning."""
    shown = [
        ("success", _success(config, state)),
        ("policy", _policy(state)),
        ("judge", _judge(config, state)),
        ("learner", _learner(state)),
    ]
    if config.judge.cascade is not None:
        shown.insert(3, ("cascade", _cascade(config.judge.cascade.names(), state.judge_metrics)))
    if config.teleop is not None:
        shown.append(("person", _person(state.judge_metrics)))
    if config.audits:
        shown += [("audit", _audit(config, state)), ("", Text(_guarantee(config), "dim"))]
    if state.inference_summary:
        shown.append(("inference", Text(state.inference_summary)))
    shown.append(("robot", _robot(state)))
    if state.operator is not None or config.asks_human:
        shown.append(("to do", _to_do(config, state)))
    return shown


def _success(config: TrainingConfig, state: OnlineState) -> Text:
    text = Text.assemble((_percent(state.judge_success), "bold"), " (judge)")
    if corrected := Interval.from_metrics(state.judge_metrics, CORRECTED):
        text.append_text(Text.assemble(", ", (str(corrected), "bold"), " (audit)"))
    if config.simulated:
        text.append_text(Text.assemble(", ", (_percent(state.env_success), "bold"), " (simulator)"))
        text.append_text(Text.assemble("; eval seeds ", (_percent(state.eval_success), "bold")))
    return text


def _policy(state: OnlineState) -> Text:
    age = f"{state.staleness_s:.0f} s" if state.staleness_s < 100 else clock(state.staleness_s)
    stale = f", {age} stale" if state.staleness_s >= 1 else ""
    version = f"v{state.robot_version:,} (latest v{state.policy.version:,}){stale}"
    return Text(f"{version}, {state.step:,} steps, {state.env_steps_per_s:.0f} steps/s")


def _judge(config: TrainingConfig, state: OnlineState) -> Text:
    replay, metrics = state.replay, state.judge_metrics
    text = Text(f"{format_count(replay.unlabeled, 'unlabeled episode')} (max {config.run.max_unlabeled_episodes})")
    if latency := state.judge_latency_s:
        text.append(f", {1000 * latency:.0f} ms each" if latency < 1 else f", {latency:.1f} s each")
    if "judge/version" in metrics:
        text.append(f", v{metrics['judge/version']:.0f}")
        rejected = metrics["judge/num_rejected"]
        text.append(f" ({rejected:.0f} rejected)" if rejected else "")
    if state.episode_progress:
        text.append(f", last episode at {state.episode_progress}")
    if ood := metrics.get("judge/ood_share"):
        text.append(f", {ood:.0%} OOD", "yellow")
    if replay.outdated:
        text.append(f", {replay.outdated:,} to relabel")
    if replay.failed:
        text.append(f", failed on {replay.failed}", "yellow")
    if replay.skipped:
        text.append(f" ({replay.skipped} skipped)", "yellow")
    return text


def _person(metrics: Mapping[str, float]) -> Text:
    """How much they help, and whether the robot succeeds without."""
    rate = metrics.get("person/intervention_rate")
    if rate is None:
        return Text("no episode yet")
    text = Text(f"controls {rate:.0%} of the steps")
    if (seconds := metrics.get("person/intervention_s")) is not None:
        text.append(f", {seconds:.1f} s each, {clock(metrics['person/seconds_since'])} ago")
    text.append(f"; {metrics['judge/success_unaided']:.0%} of all episodes succeed without help")
    if (success := metrics.get("judge/success_with_help")) is not None:
        text.append(f", {success:.0%} of those with help")
    return text


def _cascade(stages: Sequence[str], metrics: Mapping[str, float]) -> Text:
    """Who decided, and what a human had to do for it."""
    shares = [f"{name} {metrics.get(f'{SHARE}{name}', 0):.0%}" for name in stages]
    text = Text(f"{', '.join(shares)}; {metrics.get('judge/human_s', 0) / 60:.1f} min of a human")
    if undecided := metrics.get("judge/undecided_episodes"):
        text.append(f"; {undecided:.0f} undecided", "yellow")
    return text


def _learner(state: OnlineState) -> Text:
    pending = f", {state.pending_updates:,} pending" if state.pending_updates else ""
    waiting = f", {state.sample_wait_fraction:.0%} waiting for batches" if state.updates_per_s else ""
    rate = f"{state.updates_per_s:.0f}" if state.updates_per_s >= 10 else f"{state.updates_per_s:.2g}"
    return Text(f"{format_count(state.updates, 'update')}{pending}, {rate} updates/s{waiting}")


def _audit(config: TrainingConfig, state: OnlineState) -> Text:
    """How often the judge is wrong, between which bounds that is known, and how often it may be."""
    metrics, limits = state.judge_metrics, {FALSE: config.audit.max_false, MISSED: config.audit.max_missed}
    text = Text("no episode yet" if not metrics.get("audit/episodes") else "")
    for (name, most), label in zip(limits.items(), ("false ", "missed "), strict=True):
        if estimate := Interval.from_metrics(metrics, name):
            style = "red" if estimate.low > most else "yellow" if estimate.value > most else "green"
            text.append_text(Text.assemble(label, (str(estimate), style), f" (max {100 * most:.0f}), "))
    if metrics.get("audit/episodes"):
        text.append(f"{metrics['audit/episodes']:.0f} audited")
    return text


def _guarantee(config: TrainingConfig) -> str:
    """What the intervals on the screen guarantee, for which episodes, and how these were sampled."""
    audit, who = config.audit, "a person" if config.human_audits else "the simulator"
    share = f"{'up to ' if audit.minutes_per_hour is not None else ''}{audit.fraction:.0%}"
    return (
        f"[ ]: 95% confidence for all episodes of this judge (success: the last {audit.window}); {who} checks its "
        f"first {audit.first_episodes}, suspicious ones, and {share} of the others, drawn at random"
    )


def _robot(state: OnlineState) -> Text:
    phase = "idle" if state.operator is None else state.operator.phase
    waiting = state.env_waiting_for or WAITING_FOR_OPERATOR.get(phase, "")
    text = Text.assemble((f"waits for {waiting}", "yellow") if waiting else ("running", "dim"))
    if state.guided_fraction is not None:
        style = "yellow" if held_warning(state.held_fraction) else "dim"
        text.append(f"; held {state.held_fraction:.1%}, {state.starved_chunks:,} starved chunks", style)
        text.append(f", {state.guided_fraction:.0%} guided", "dim")
    return text


def _to_do(config: TrainingConfig, state: OnlineState) -> Text:
    """What people are asked to do, the most urgent first, the result of the last command, and the time so far."""
    status, metrics = state.operator, state.metrics()
    tasks = next_tasks(status, metrics, state.replay.unlabeled if config.judge.is_human else None)
    running = status is not None and status.phase == "episode"
    text = Text("episode running", "green") if running else Text("nothing", "dim")
    if tasks:
        styles = {"release": "bold red", "help": "bold yellow", "start": "bold yellow"}
        text = Text(", ").join(Text(task.text, styles.get(task.kind, "yellow")) for task in tasks)
    if status is not None:
        text.append("".join(f"  {part}" for part in (status.forecast, status.message) if part))
    if spent := [f"{metrics[name] / 60:.1f} {what}" for name, what in SPENT.items() if name in metrics]:
        text.append(f"; minutes so far: {', '.join(spent)}", "dim")
    return text


def _messages(state: OnlineState, restarts: Mapping[str, int], stopping: bool) -> Table:
    """What comes below the numbers, in full."""
    lines = [(text, "dim") for text in (state.window_status, state.last_event) if text]
    if restarts:
        lines.append(("restarts: " + ", ".join(f"{worker} {n}" for worker, n in sorted(restarts.items())), "yellow"))
    lines += [(f"{worker}: {message}", "yellow") for worker, message in state.errors.items()]
    lines += [(text, "yellow") for text in state.warnings.values()]
    if state.alarm is not None:
        lines.append((f"audit alarm: {state.alarm}", "bold red"))
    if stopping:
        lines.append((stopping_message(state), "bold"))
    elif state.awaited:
        lines.append((f"ending: {_awaited(state)}", "dim"))
    grid = Table.grid()
    grid.add_column(width=WIDTH, overflow="fold")
    for message, style in lines:
        grid.add_row(Text(message, style))
    return grid


def stopping_message(state: OnlineState) -> str:
    """What a run that somebody has stopped waits for."""
    return f"stopping: {_awaited(state)}; Ctrl-C again aborts"


def _awaited(state: OnlineState) -> str:
    if not state.awaited:
        return "workers finish their current call"
    return f"waiting for the current call of {' and '.join(state.awaited)}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def clock(seconds: float) -> str:
    """0:02:05"""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
