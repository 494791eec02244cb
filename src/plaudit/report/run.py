"""The report of a run: one HTML page, the same for `plaudit train`, `plaudit online` and the demo.

    write_run_report(Path("runs/lift"))

Everything on it comes from the run's folder, so it can be written at any time, also for a run in progress or one that
was killed. A section appears if the run has data for it.

Success rates that are compared are of the same episodes. If the judge is audited, these are the newest `audit.window`
episodes of the current judge, since the audit reports on no others.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from plaudit.data.disk import Folder
from plaudit.data.failures import Failures
from plaudit.data.store import Store, is_store
from plaudit.files import understood
from plaudit.report.page import (
    Block,
    Cell,
    Chart,
    Code,
    Row,
    Section,
    Span,
    Table,
    Text,
    Tiles,
    video_block,
    write_page,
)
from plaudit.report.plots import LARGE, SMALL, Series, line_chart
from plaudit.report.run_data import (
    EpisodeOutcome,
    RunData,
    confusion_table,
    judge_source,
    load_outcomes,
    outcome_chart,
    outcome_sheets,
)
from plaudit.report.text import format_count, format_duration, format_ids

CORRECTED = "corrected by the audit"
LIMITS = {"audit/false_successes": "max_false", "audit/missed_successes": "max_missed"}  # metric -> key of the config
_SMOOTHING = 5  # rollouts: one of sixteen episodes is a coarse measure
_ABOUT_INTERVALS = (
    "Shaded areas and brackets are 95% intervals about the episodes that the current judge labeled in this run, "
    "estimated from audited episodes that were drawn at random with known probabilities. They say nothing about other "
    "scenes or later policies. Dashed lines are the limits of the config."
)
_MAX_EVENTS = 60  # latest
_MAX_VIDEO = 64 << 20  # bytes; ours have about one megabyte
_MAX_EVALUATIONS = 30  # latest
_WORKER_METRICS = ("policy/version", "policy/robot_version", "policy/staleness_s")  # shown over time
_ERRORS = {
    "audit/false_successes": "false, of the successes by the judge",
    "audit/missed_successes": "missed successes, of all episodes",
}


@dataclass(frozen=True)
class SuccessRates:
    """Success in training over env steps; all curves are of the same episodes unless a name says otherwise."""

    episodes: str  # that each point is about: "the last 200 episodes"
    curves: Mapping[str, Series]

    @classmethod
    def of(cls, run: RunData, outcomes: Sequence[EpisodeOutcome] = ()) -> Self:
        """outcomes: of all stored episodes of an online run"""
        corrected = run.points("audit/corrected_success_rate")
        if not corrected:
            return cls._without_audit(run)
        window = int(run.option("audit", "window"))
        curves = {
            "judge": run.points("audit/judge_success_rate"),
            **_simulator_curve(run, outcomes, window),
            CORRECTED: corrected,
        }
        return cls(f"the last {window} episodes", curves)

    @classmethod
    def _without_audit(cls, run: RunData) -> Self:
        points = {"judge": run.points("judge/success_once"), "simulator": run.points("env/success_once")}
        if run.option("judge", "type") == "simulator":
            points = {"training": points["simulator"] or points["judge"]}
        if run.is_online:  # the run has averaged them already
            return cls("the last 50 episodes", {name: curve for name, curve in points.items() if curve})
        curves = {name: _smooth(curve) for name, curve in points.items() if curve}
        return cls(f"the last {_SMOOTHING} rollouts", curves)

    def latest(self) -> dict[str, float]:
        """The last point of each curve."""
        return {name: curve[-1][1] for name, curve in self.curves.items()}


def write_run_report(
    folder: Path,
    path: Path | None = None,
    *,
    title: str = "",
    summary: str = "",
    tiles: Mapping[str, str] | None = None,
    lead: Sequence[Block] = (),
    appendix: Sequence[Block] = (),
) -> Path:
    """Write the report of a run; returns its path.

    path: report.html in the run's folder when not given
    title, summary, tiles: in place of the run's own
    lead, appendix: blocks before the first chart and before the config
    """
    with understood(folder):
        run = RunData.load(folder)
        blocks = _blocks(run, tiles, lead, appendix)
        return write_page(path or folder / "report.html", title or _title(run), summary or _summary(run), blocks)


def _blocks(
    run: RunData, tiles: Mapping[str, str] | None, lead: Sequence[Block], appendix: Sequence[Block]
) -> list[Block]:
    episodes = _load_episodes(run)
    rates = SuccessRates.of(run, episodes.outcomes if episodes else ())
    return [
        Tiles(_tiles(run, rates) if tiles is None else tiles),
        *_warnings(run),
        *lead,
        Row([*success_chart(run, rates), *judge_chart(run)]),
        *guarantee_note(run),
        *_videos(run),
        *(_episodes(episodes) if episodes else []),
        *_judge_versions(run),
        *_workers(run),
        *_learning(run),
        *_evaluations(run),
        *_events(run),
        *appendix,
        Section("Config", [Code(json.dumps(run.config, indent=1), "Show all keys")]),
    ]


# Title, numbers, warnings


def _title(run: RunData) -> str:
    learner = run.option("learner", "type")
    if not run.is_online:
        return f"{run.option('env', 'type')} with {learner}, seed {run.option('run', 'seed')}"
    env = run.option("env", "type") or run.option("robot", "env", "type") or run.option("robot", "type")
    names = {"human": "a human", "vlm": "a vision-language model", "simulator": "the simulator", None: "a custom judge"}
    judge = run.option("judge", "type")
    return f"{env} with {learner}, online, labels by {names.get(judge, f'a {judge}')}"


def _summary(run: RunData) -> str:
    if not run.metrics:
        return "Nothing has been logged yet."
    counts = [(run.latest("rollout/episodes"), "episode"), (run.last["step"], "step")]
    counts += [(run.latest("learner/updates"), "update")]
    text = ", ".join(format_count(int(count), noun) for count, noun in counts if count is not None)
    text += f" in {format_duration(run.last['time/elapsed_s'])}."
    if solved := next((line for line in run.metrics if line.get("eval/success_once", 0) >= 0.9), None):
        after = f"{solved['step']:,} steps and {format_duration(solved['time/elapsed_s'])}"
        text += f" Success on eval seeds reached 90% after {after}."
    sessions = [event for event in run.events if event["event"] in ("started", "ended")]
    if sessions and sessions[-1]["event"] == "ended":
        message = sessions[-1]["message"]
        return f"{text} {message[:1].upper()}{message[1:]}."
    if sessions:
        return f"{text} The run is in progress or was killed; resume it with: plaudit online --resume {run.folder}"
    return text


def _tiles(run: RunData, rates: SuccessRates) -> dict[str, str]:
    """The most important numbers, meaning -> number."""
    tiles: dict[str, str] = {}
    evaluations = [value for _, value in run.points("eval/success_once")]
    if len(evaluations) > 1:
        tiles["success on eval seeds, first and last evaluation"] = f"{evaluations[0]:.0%} → {evaluations[-1]:.0%}"
    elif evaluations:
        tiles["success on eval seeds"] = f"{evaluations[0]:.0%}"
    for source, rate in rates.latest().items():
        interval = _interval(run, "audit/corrected_success_rate") if source == CORRECTED else ""
        tiles[f"success rate of {rates.episodes} ({source})"] = f"{rate:.0%}{interval}"
    for name, meaning in _ERRORS.items():
        if interval := _interval(run, name):
            most = run.option("audit", LIMITS[name])
            limit = "" if most is None else f" (max {100 * most:.0f})"
            tiles[f"{meaning}{limit}"] = f"{run.latest(name):.0%}{interval}"
    tiles |= _cascade(run)
    if ood := run.latest("judge/ood_share"):
        recent = "the last 50 episodes" if run.is_online else "the last rollout"
        tiles[f"of {recent}, out of distribution"] = f"{ood:.0%}"
    if version := run.latest("policy/version"):
        tiles["latest policy version"] = f"v{version:,}"
    return tiles


def _interval(run: RunData, name: str) -> str:
    """The latest interval of a metric, in percent; empty where it has none."""
    band = run.band(name)
    return f" [{100 * band[-1][1]:.0f}-{100 * band[-1][2]:.0f}]" if band else ""


def _cascade(run: RunData) -> dict[str, str]:
    """Who decided the episodes, where judges are asked in turn."""
    shares = {name.rpartition("/")[2]: run.latest(name) for name in run.names("judge/cascade_share/")}
    if not shares:
        return {}
    decided = ", ".join(f"{stage} {share:.0%}" for stage, share in shares.items())
    return {
        "of the episodes, decided by": decided,
        "episodes that nobody has decided": f"{run.latest('judge/undecided_episodes'):.0f}",
        "minutes of a human, and of compute": " and ".join(
            f"{run.latest(name) / 60:.3g}" for name in ("judge/human_s", "judge/compute_s")
        ),
    }


def _warnings(run: RunData) -> list[Block]:
    alarms = [event["message"] for event in run.events if event["event"] == "alarm"]
    first = run.first_alarm()
    if first is not None and not alarms:
        alarms = [f"after {first['step']:,} steps {_audit_errors(first)}"]
    advice = "Look at the audited episodes, label them and retrain the judge."
    messages = [f"Audit alarm: {message}. {advice}" for message in dict.fromkeys(alarms)]
    if count := run.last.get("judge/failed_episodes"):
        messages.append(f"The judge could not label {format_count(count, 'episode')}; the reasons are below.")
    return [Text(message, "warning") for message in messages]


def _audit_errors(line: Mapping[str, Any]) -> str:
    if "audit/missed_successes" not in line:
        return "the judge was wrong about too many audited episodes"
    return (
        f"{line.get('audit/false_successes', 0):.0%} of the successes by the judge were false, which train the policy "
        f"to exploit it, and {line['audit/missed_successes']:.0%} of the episodes were successes that it missed"
    )


# Videos, episodes, the judge


def _videos(run: RunData) -> list[Block]:
    captions = {"first.mp4": "The first policy", "last.mp4": "The last policy"}
    folder = Folder(run.folder)
    videos = [
        video_block(folder.read(f"videos/{name}", _MAX_VIDEO), caption)
        for name, caption in captions.items()
        if folder.exists(f"videos/{name}")
    ]
    about = "The same test seeds in both. Under each episode: P(success) of the judge, and what the simulator says."
    return [Section("First and last policy", [Text(about, "muted"), Row(videos)])] if videos else []


@dataclass(frozen=True)
class StoredEpisodes:
    """The episodes of an online run; `train` shows rates, not episodes."""

    store: Store
    judge: str  # the source of its labels
    outcomes: Sequence[EpisodeOutcome]


def _load_episodes(run: RunData) -> StoredEpisodes | None:
    if not run.is_online or not is_store(run.folder / "episodes"):
        return None
    store = Store.open(run.folder / "episodes")
    judge = judge_source(store, run.config)
    return StoredEpisodes(store, judge, load_outcomes(store, judge)) if store.ids else None


def _episodes(episodes: StoredEpisodes) -> list[Block]:
    """Predictions of the judge, false positives and false negatives first."""
    store, judge, outcomes = episodes.store, episodes.judge, episodes.outcomes
    tables = [table for table in (confusion_table(outcomes), _failures(store, judge)) if table is not None]
    return [Section("Episodes", [outcome_chart(outcomes), *tables]), *outcome_sheets(store, outcomes, judge)]


def _failures(store: Store, judge: str) -> Table | None:
    """Episodes that the judge could not label, by reason."""
    by_reason: dict[str, list[int]] = {}
    for failure in Failures(store.ledger).unresolved():
        if failure.source == judge:
            by_reason.setdefault(failure.reason, []).append(failure.episode)
    rows = [(format_ids(ids), Span(reason, "bad")) for reason, ids in by_reason.items()]
    return Table(rows, header=("episodes without a label", "reason")) if rows else None


def _judge_versions(run: RunData) -> list[Block]:
    """Candidates that were trained to replace the judge."""
    if not run.judge_versions:
        return []
    rows: list[Sequence[Cell]] = []
    for version in run.judge_versions:
        result = Span("promoted", "good") if version["promoted"] else Span("rejected", "muted")
        rates = [_current_and_candidate(version, name) for name in ("balanced_accuracy", "fpr", "fnr")]
        rows.append((f"v{version['number']}", result, *rates, format_duration(version["seconds"]), version["message"]))
    header = ("", "", "balanced accuracy", "false-positive rate", "false-negative rate", "time", "reason")
    about = "Trained in the background on reference labels. Rates of held-out episodes, current judge → candidate."
    return [Section("Judge versions", [Text(about, "muted"), Table(rows, header)])]


def _current_and_candidate(version: Mapping[str, Any], name: str) -> Cell:
    if version["current"] is None or version["candidate"] is None:
        return Span("-", "muted")
    rates = [version[side][name] for side in ("current", "candidate")]
    return " → ".join("-" if rate is None else f"{rate:.0%}" for rate in rates)


# Workers, learning, events


def _workers(run: RunData) -> list[Block]:
    """The rates and queues of the workers, over minutes."""
    limit, queue = run.option("run", "max_unlabeled_episodes"), run.over_time("replay/unlabeled_episodes")
    charts = [
        _time_chart(
            run,
            f"Unlabeled episodes (max {limit})",
            "episodes",
            top=_queue_height(queue, limit),
            unlabeled="replay/unlabeled_episodes",
        ),
        _time_chart(run, "Judge latency", "s per episode", latency="time/judge_latency_s"),
        _time_chart(run, "Env steps per second", "1/s", rate="time/env_steps_per_s"),
        _time_chart(run, "Learner updates per second", "1/s", rate="time/updates_per_s"),
        _time_chart(run, "Learner updates", "updates", updates="learner/updates"),
        _time_chart(run, "Pending updates", "updates", pending="learner/pending_updates"),
        _time_chart(run, "Policy version", "version", latest="policy/version", robot="policy/robot_version"),
        _time_chart(run, "Policy staleness", "s", staleness="policy/staleness_s"),
        _time_chart(run, "Time the learner waits for batches", fraction="time/sample_wait_fraction"),
    ]
    charts = [chart for chart in charts if chart is not None]
    return [Section("Workers", [Row(charts)])] if run.is_online and charts else []


def _time_chart(run: RunData, title: str, y: str = "", top: float | None = None, **metrics: str) -> Chart | None:
    """y: the unit; without one the metric is a fraction"""
    curves = {name: [run.over_time(metric)] for name, metric in metrics.items()}
    values = [value for (curve,) in curves.values() for _, value in curve]
    if not values:
        return None
    y_range = (0, top or 1.1 * max(values) or 1) if y else None
    return Chart(line_chart(curves, title=title, x="minutes", y=y, y_range=y_range, percent=not y, size=SMALL))


def _queue_height(queue: Series, limit: int | None) -> float:
    """Of a chart that shows a queue and, when it comes near, its limit."""
    height = 2 * max((length for _, length in queue), default=0) + 4
    return height if limit is None else min(limit, height)


def _learning(run: RunData) -> list[Block]:
    names = run.names("loss/", "policy/", "critic/", "rollout/rewards", "time/compute_model_rewards")
    names = [name for name in names if name not in _WORKER_METRICS]
    charts = [Chart(line_chart({"": [run.points(name)]}, title=name, x="env steps", size=SMALL)) for name in names]
    return [Section("Learning", [Row(charts)])] if charts else []


def _evaluations(run: RunData) -> list[Block]:
    lines = [line for line in run.metrics if "eval/success_once" in line]
    rows = [
        (f"{line['step']:,}", f"{line['eval/success_once']:.0%}", format_duration(line["time/elapsed_s"]))
        for line in lines[-_MAX_EVALUATIONS:]
    ]
    more = len(lines) - len(rows)
    note = [Text(f"{more} earlier evaluations are in metrics.jsonl.", "muted")] if more else []
    header = ("env steps", "success on eval seeds", "time")
    return [Section("Evaluations", [Table(rows, header), *note])] if rows else []


def _events(run: RunData) -> list[Block]:
    if not run.events:
        return []
    styles: dict[str, Any] = {"alarm": "bad", "error": "bad", "restart": "bad", "recovered": "good"}
    styles |= {"judge": "", "warning": ""}
    rows = [
        (
            Span(datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC"), "muted"),
            Span(f"episode {event['episodes']:,}", "muted"),
            Span(event["message"], styles.get(event["event"], "muted")),
        )
        for event in run.events[-_MAX_EVENTS:]
    ]
    more = len(run.events) - len(rows)
    note = [Text(f"{more} earlier events are in events.jsonl.", "muted")] if more else []
    return [Section("Events", [Table(rows), *note])]


# Success rates


def success_chart(run: RunData, rates: SuccessRates) -> list[Block]:
    """Success in training and on eval seeds."""
    evaluations = run.points("eval/success_once")
    curves = {**({"eval seeds": evaluations} if evaluations else {}), **rates.curves}
    if not curves:
        return []
    goal = run.option("evaluation", "stop_success_rate")
    title = f"Success rate of {rates.episodes}" if rates.curves else "Success rate"
    chart = line_chart(
        {name: [curve] for name, curve in curves.items()},
        title=f"{title} ({next(iter(curves))})" if len(curves) == 1 else title,
        x="env steps",
        percent=True,
        marks=() if goal is None else (goal,),
        events=run.markers(),
        bands={CORRECTED: run.band("audit/corrected_success_rate")},
        size=(750, LARGE[1]),
    )
    return [Chart(chart)]


def judge_chart(run: RunData) -> list[Block]:
    """How often the judge is wrong according to its audit, and how often it may be."""
    names = {"false, of its successes": "audit/false_successes", "missed, of all episodes": "audit/missed_successes"}
    bands = {label: run.band(name) for label, name in names.items() if run.band(name)}
    if not bands:
        return []
    limits = [run.option("audit", LIMITS[name]) for name in names.values()]
    chart = line_chart(
        {label: [run.points(names[label])] for label in bands},
        title="Errors of the judge",
        x="env steps",
        percent=True,
        marks=[limit for limit in limits if limit is not None],
        events=run.markers(),
        bands=bands,
        size=(440, LARGE[1]),
    )
    return [Chart(chart)]


def guarantee_note(run: RunData) -> list[Block]:
    """What the intervals of the audit cover, where the run has any."""
    return [Text(_ABOUT_INTERVALS, "muted")] if run.band("audit/corrected_success_rate") else []


def _simulator_curve(run: RunData, outcomes: Sequence[EpisodeOutcome], window: int) -> dict[str, Series]:
    """Success by the simulator of the episodes that the audit reports on, where they are known."""
    own = run.points("env/success_once")
    if not own:
        return {}
    ends, totals = _counted_outcomes(outcomes) if run.is_online else _counted_rollouts(run)
    points: list[tuple[float, float]] = []
    first = audited = previous = 0
    for line in run.metrics:
        if "audit/corrected_success_rate" not in line:
            continue
        if line["audit/episodes"] < audited:  # another judge, whose audit begins anew
            first = previous
        audited, previous = line["audit/episodes"], line["rollout/episodes"]
        start = max(previous - window, first)
        if ends and ends[0] <= start < previous <= ends[-1]:
            successes = np.diff(np.interp([start, previous], ends, totals))
            points.append((line["step"], float(successes[0]) / (previous - start)))
    if points:
        return {"simulator": points}
    return {"simulator, last 50 episodes": own} if run.is_online else {}


def _counted_rollouts(run: RunData) -> tuple[list[int], list[float]]:
    """Episodes at the end of each rollout, and successes by the simulator until then."""
    lines = [line for line in run.metrics if "env/success_once" in line]
    ends = [0, *(int(line["rollout/episodes"]) for line in lines)]
    counts = [(end - start) * line["env/success_once"] for (start, end), line in zip(pairwise(ends), lines)]
    return ends, [0.0, *np.cumsum(counts).tolist()]


def _counted_outcomes(outcomes: Sequence[EpisodeOutcome]) -> tuple[list[int], list[float]]:
    """The same for each stored episode; nothing where the outcome of one is not known."""
    if not outcomes or any(outcome.target is None for outcome in outcomes):
        return [], []
    ends = [outcomes[0].episode, *(outcome.episode + 1 for outcome in outcomes)]
    return ends, [0.0, *np.cumsum([bool(outcome.target) for outcome in outcomes]).tolist()]


def _smooth(points: Series) -> Series:
    """The mean of the last few values."""
    windows = [points[max(0, i - _SMOOTHING + 1) : i + 1] for i in range(len(points))]
    return [(window[-1][0], sum(y for _, y in window) / len(window)) for window in windows]
