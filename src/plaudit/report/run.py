"""The report of a run: one HTML page, the same for `plaudit train`, `plaudit online` and the demo.

    write_run_report(Path("runs/lift"))

Everything on it comes from the run's folder (run_data.py), so it can be written at any time, also for a run in progress
or one that was killed. A section appears if the run has data for it.

Success rates that are compared are of the same episodes. If the judge is audited, these are the newest `audit.window`
episodes of the current judge, since the audit reports on no others. What the judge predicted of an episode of an online
run is compared with the simulator's success signal, stored with the episode, or with a human label in the ledger.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from markupsafe import Markup

from plaudit.data.disk import Folder
from plaudit.data.ledger import Failures
from plaudit.data.store import Store, is_store
from plaudit.errors import DataError, format_count
from plaudit.files import understood
from plaudit.report import page
from plaudit.report.plots import LARGE, SMALL, Series, line_chart, outcome_strip
from plaudit.report.run_data import ABOUT_INTERVALS, RunData
from plaudit.report.verdict import (
    CORRECTED_RATE,
    ERROR_LIMITS,
    Verdict,
    format_duration,
    format_ids,
    run_verdict,
)
from plaudit.report.video import contact_sheet

SIMULATOR, HUMAN = "simulator", "human"  # sources of labels that serve as the reference
CASCADE = "cascade"  # of judges who are asked in turn, a human last
MAX_SHEETS = 3  # contact sheets of a kind
NUM_FRAMES, CELL_WIDTH = 12, 92  # of each contact sheet


@dataclass(frozen=True)
class EpisodeOutcome:
    """One episode, by the newest label of the judge."""

    episode: int
    predicted: bool | None  # None: not labeled yet, or excluded
    target: bool | None  # None: no reference

    @property
    def kind(self) -> str:
        if self.predicted is None:
            return "not labeled"
        if self.target is None:
            return "predicted success" if self.predicted else "predicted failure"
        if self.predicted == self.target:
            return "correct: success" if self.target else "correct: failure"
        return "false positive" if self.predicted else "false negative"


def load_outcomes(store: Store, judge: str) -> list[EpisodeOutcome]:
    """One for each episode, oldest first. judge: the source of its labels in the ledger"""

    def labeled_success(episode_id: int, sources: set[str]) -> bool | None:
        labels = store.ledger.labels(episode_id, sources)
        return labels.success_once if labels is not None and labels.labeled.any() else None

    def target(episode_id: int) -> bool | None:
        for source in (SIMULATOR, HUMAN):
            success = labeled_success(episode_id, {source}) if source != judge else None
            if success is not None:
                return success
        try:
            flags = store.episode(episode_id).success
        except DataError:
            return None
        return None if flags is None else bool(flags.any())

    sources = {judge, HUMAN} if judge == CASCADE else {judge}  # what a cascade leaves to a human, they decide
    return [EpisodeOutcome(i, labeled_success(i, sources), target(i)) for i in store.ids]


def judge_source(store: Store, config: dict[str, Any]) -> str:
    """The source of the labels of a run's judge: its type, or for a plugin the most frequent other source."""
    judge_type = str(config["judge"].get("type", ""))
    sources = Counter(version.source for version in store.ledger.since(0))
    others = [source for source, _ in sources.most_common() if source not in (SIMULATOR, HUMAN)]
    return judge_type if judge_type in sources or not others else others[0]


def confusion_table(outcomes: Sequence[EpisodeOutcome]) -> list[Markup]:
    """Predictions by reference; nothing where no episode has a reference."""
    count = Counter((outcome.target, outcome.predicted) for outcome in outcomes)
    right, wrong = page.count_correct, page.count_mistakes
    rows = [
        ("success", right(count[True, True]), wrong(count[True, False]), f"{count[True, None]}"),
        ("failure", wrong(count[False, True]), right(count[False, False]), f"{count[False, None]}"),
        ("unknown", *(f"{count[None, predicted]}" for predicted in (True, False, None))),
    ]
    has_target = [outcome.target is not None for outcome in outcomes]
    header = ("reference", "predicted success", "predicted failure", "not labeled")
    return [page.table(rows[:2] if all(has_target) else rows, header)] if any(has_target) else []


def outcome_chart(outcomes: Sequence[EpisodeOutcome]) -> Markup:
    """All episodes as stripes, in order."""
    columns = {"judge": [one.predicted for one in outcomes], "reference": [one.target for one in outcomes]}
    if not any(target is not None for target in columns["reference"]):
        del columns["reference"]
    rows = {name: [math.nan if one is None else float(one) for one in values] for name, values in columns.items()}
    title = "All episodes (blue: success, orange: failure, gray: unknown)"
    return page.chart(outcome_strip(rows, title=title, x="episode", first=outcomes[0].episode))


def outcome_sheets(store: Store, outcomes: Sequence[EpisodeOutcome], judge: str) -> list[Markup]:
    """Contact sheets of the latest false positives and false negatives, then of the latest other episodes."""
    kinds = {kind: [one for one in outcomes if one.kind == kind] for kind in ("false positive", "false negative")}
    groups = {f"Latest {kind}s": some[-MAX_SHEETS:] for kind, some in kinds.items()}
    shown = {one.episode for some in groups.values() for one in some}
    groups["Latest episodes"] = [one for one in outcomes if one.episode not in shown][-MAX_SHEETS:]
    legend = page.text(
        "The strips have one column a frame: the judge's label with its P(success) as a curve, and below it the "
        "reference, where there is one.",
        "muted",
    )
    return [
        page.section(heading, legend, page.row(_sheet(store, one, judge) for one in reversed(some)))
        for heading, some in groups.items()
        if some
    ]


def _sheet(store: Store, outcome: EpisodeOutcome, judge: str) -> Markup:
    try:
        episode = store.episode(outcome.episode)
    except DataError as error:
        return page.text(f"Episode {outcome.episode}: {error}", "muted")
    version = f", policy v{episode.meta['weights']}" if "weights" in episode.meta else ""
    title = f"episode {outcome.episode}: {outcome.kind}{version}"
    if not episode.frames:
        return page.text(title)
    target = None
    if episode.success is not None:
        target = np.concatenate([[0], episode.success]).astype(np.float32)
    elif judge != HUMAN and (human := store.ledger.labels(outcome.episode, {HUMAN})) is not None:
        target = human.targets
    image = contact_sheet(
        episode,
        store.ledger.labels(outcome.episode, {judge}),
        title=title,
        frames=NUM_FRAMES,
        columns=NUM_FRAMES,
        cell_width=CELL_WIDTH,
        target=target,
    )
    return page.sheet(image, title)


CORRECTED = "corrected by the audit"
_FALSE, _MISSED = ERROR_LIMITS
_SPENT = "person/time_"  # of a metric, before a kind of work
_SMOOTHING = 5  # rollouts: one of sixteen episodes is a coarse measure
_MAX_EVENTS = 60  # latest
_MAX_VIDEO = 64 << 20  # bytes; ours have about one megabyte
_MAX_EVALUATIONS = 30  # latest
JUDGED, _EVAL_JUDGED = "eval/judge_success_once", "eval seeds, by the judge"
_WORKER_CHARTS: tuple[tuple[str, str, dict[str, str]], ...] = (  # title, unit, name of a curve -> metric
    ("Judge latency", "s per episode", {"latency": "time/judge_latency_s"}),
    ("Env steps per second", "1/s", {"rate": "time/env_steps_per_s"}),
    ("Learner updates per second", "1/s", {"rate": "time/updates_per_s"}),
    ("Learner updates", "updates", {"updates": "learner/updates"}),
    ("Pending updates", "updates", {"pending": "learner/pending_updates"}),
    ("Policy version", "version", {"latest": "policy/version", "robot": "policy/robot_version"}),
    ("Policy staleness", "s", {"staleness": "policy/staleness_s"}),
    ("Time the learner waits for batches", "", {"fraction": "time/sample_wait_fraction"}),
)
_SHOWN_OVER_TIME = {metric for _, _, metrics in _WORKER_CHARTS for metric in metrics.values()}


@dataclass(frozen=True)
class SuccessRates:
    """Success in training over env steps; all curves are of the same episodes unless a name says otherwise."""

    episodes: str  # that each point is about: "the last 200 episodes"
    curves: Mapping[str, Series]

    @classmethod
    def of(cls, run: RunData, outcomes: Sequence[EpisodeOutcome] = ()) -> Self:
        """outcomes: of all stored episodes of an online run"""
        if corrected := run.points(CORRECTED_RATE):
            window, judge = int(run.option("audit", "window")), run.points("audit/judge_success_rate")
            curves = {"judge": judge, **_simulator_curve(run, outcomes, window), CORRECTED: corrected}
            return cls(f"the last {window} episodes", curves)
        points = {"judge": run.points("judge/success_once"), "simulator": run.points("env/success_once")}
        if run.option("judge", "type") == "simulator":
            points = {"training": points["simulator"] or points["judge"]}
        if run.is_online:  # the run has averaged them already
            return cls("the last 50 episodes", {name: curve for name, curve in points.items() if curve})
        smooth: dict[str, Series] = {}
        for name, curve in points.items():
            windows = [curve[max(0, i - _SMOOTHING + 1) : i + 1] for i in range(len(curve))]
            if curve:
                smooth[name] = [(window[-1][0], sum(y for _, y in window) / len(window)) for window in windows]
        return cls(f"the last {_SMOOTHING} rollouts", smooth)


def write_run_report(
    folder: Path,
    path: Path | None = None,
    *,
    title: str = "",
    verdict: Verdict | None = None,
    summary: str = "",
    tiles: Mapping[str, str] | None = None,
    lead: Sequence[Markup] = (),
    appendix: Sequence[Markup] = (),
) -> Path:
    """Write the report of a run; returns its path.

    path: report.html in the run's folder when not given
    title, verdict, summary, tiles: in place of the run's own
    lead, appendix: blocks before the first chart and before the diagnostics
    """
    with understood(folder):
        run = RunData.load(folder)
        outcomes, episodes = _episodes(run)
        rates = SuccessRates.of(run, outcomes)
        blocks = [
            page.text(summary or _summary(run), "muted"),
            page.tiles(_tiles(run, rates) if tiles is None else tiles),
            *_warnings(run),
            *lead,
            *_rate_charts(run, rates),
            *_videos(run),
            *episodes,
            *_judge_versions(run),
            *_evaluations(run),
            *_events(run),
            *appendix,
            *_workers(run),
            *_learning(run),
            page.section("Config", page.code(json.dumps(run.config, indent=1), "Show all keys")),
        ]
        target = path or folder / "report.html"
        return page.write_page(target, title or _title(run), verdict or run_verdict(run), blocks)


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
    counts = {"episode": run.latest("rollout/episodes"), "step": run.last["step"]}
    counts["update"] = run.latest("learner/updates")
    text = ", ".join(format_count(int(count), noun) for noun, count in counts.items() if count is not None)
    text += f" in {format_duration(run.last['time/elapsed_s'])}."
    if solved := next((line for line in run.metrics if line.get("eval/success_once", 0) >= 0.9), None):
        after = f"{solved['step']:,} steps and {format_duration(solved['time/elapsed_s'])}"
        text += f" Success on eval seeds reached 90% after {after}."
    sessions = [event for event in run.events if event["event"] in ("started", "ended")]
    if not sessions:
        return text
    if sessions[-1]["event"] == "ended":
        message = sessions[-1]["message"]
        return f"{text} {message[:1].upper()}{message[1:]}."
    return f"{text} The run is in progress or was killed; resume it with: plaudit online --resume {run.folder}"


def _tiles(run: RunData, rates: SuccessRates) -> dict[str, str]:
    """The most important numbers, meaning -> number."""

    def interval(name: str) -> str:
        """The latest of a metric, in percent; empty where it has none."""
        band = run.band(name)
        return f" [{100 * band[-1][1]:.0f}-{100 * band[-1][2]:.0f}]" if band else ""

    tiles: dict[str, str] = {}
    evaluations = [value for _, value in run.points("eval/success_once")]
    if len(evaluations) > 1:
        tiles["success on eval seeds, first and last evaluation"] = f"{evaluations[0]:.0%} → {evaluations[-1]:.0%}"
    elif evaluations:
        tiles["success on eval seeds"] = f"{evaluations[0]:.0%}"
    for source, curve in rates.curves.items():
        ends = interval(CORRECTED_RATE) if source == CORRECTED else ""
        tiles[f"success in training, {rates.episodes} ({source})"] = f"{curve[-1][1]:.0%}{ends}"
    errors = {_FALSE: "false, of the successes by the judge", _MISSED: "missed successes, of all episodes"}
    for name, meaning in errors.items():
        most = run.option("audit", ERROR_LIMITS[name])
        limit = "" if most is None else f" (max {100 * most:.0f})"
        if ends := interval(name):
            tiles[f"{meaning}{limit}"] = f"{run.latest(name):.0%}{ends}"
    if stages := run.names("judge/cascade_share/"):  # judges are asked in turn
        shares = [f"{name.rpartition('/')[2]} {run.latest(name):.0%}" for name in stages]
        human, compute = (run.latest(name) / 60 for name in ("judge/human_s", "judge/compute_s"))
        tiles["of the episodes, decided by"] = ", ".join(shares)
        tiles["undecided episodes"] = f"{run.latest('judge/undecided_episodes'):.0f}"
        tiles["minutes of a human, and of compute"] = f"{human:.3g} and {compute:.3g}"
    if run.points("judge/success_unaided"):
        tiles["success without help, of the last 50 episodes"] = f"{run.latest('judge/success_unaided'):.0%}"
        if run.points("judge/success_with_help"):
            tiles["success with help"] = f"{run.latest('judge/success_with_help'):.0%}"
        tiles["steps by a person, of the last 50 episodes"] = f"{run.latest('person/intervention_rate'):.0%}"
    spent = {name.removeprefix(_SPENT).removesuffix("_s").replace("_", " "): name for name in run.names(_SPENT)}
    if spent:
        minutes = (f"{kind} {run.latest(name) / 60:.1f}" for kind, name in spent.items())
        tiles["minutes of work by people"] = ", ".join(minutes)
    if ood := run.latest("judge/ood_share"):
        recent = "the last 50 episodes" if run.is_online else "the last rollout"
        tiles[f"of {recent}, out of distribution"] = f"{ood:.0%}"
    if version := run.latest("policy/version"):
        tiles["latest policy version"] = f"v{version:,}"
    return tiles


def _warnings(run: RunData) -> list[Markup]:
    alarms = [event["message"] for event in run.events if event["event"] == "alarm"]
    line = next((line for line in run.metrics if line.get("audit/alarm")), None)  # the first
    if line is not None and not alarms:
        errors = "the judge was wrong about too many audited episodes"
        if _MISSED in line:
            errors = (
                f"{line.get(_FALSE, 0):.0%} of the successes by the judge were false, which train the policy to "
                f"exploit it, and {line[_MISSED]:.0%} of the episodes were successes that it missed"
            )
        alarms = [f"after {line['step']:,} steps {errors}"]
    advice = "Look at the audited episodes, label them and retrain the judge."
    messages = [f"Audit alarm: {message}. {advice}" for message in dict.fromkeys(alarms)]
    if count := run.last.get("judge/failed_episodes"):
        messages.append(f"The judge could not label {format_count(count, 'episode')}; the reasons are below.")
    return [page.text(message, "warning") for message in messages]


# Videos, episodes, the judge


def _videos(run: RunData) -> list[Markup]:
    captions, folder = {"first.mp4": "The first policy", "last.mp4": "The last policy"}, Folder(run.folder)
    videos = [
        page.video(folder.read(f"videos/{name}", _MAX_VIDEO), caption)
        for name, caption in captions.items()
        if folder.exists(f"videos/{name}")
    ]
    about = "The same test seeds in both. Under each episode: P(success) of the judge, and what the simulator says."
    return [page.section("First and last policy", page.text(about, "muted"), page.row(videos))] if videos else []


def _episodes(run: RunData) -> tuple[list[EpisodeOutcome], list[Markup]]:
    """The stored episodes of an online run, and blocks that show them, false positives and false negatives first."""
    if not run.is_online or not is_store(run.folder / "episodes"):
        return [], []
    store = Store.open(run.folder / "episodes")
    if not store.ids:
        return [], []
    judge = judge_source(store, run.config)
    outcomes = load_outcomes(store, judge)
    by_reason: dict[str, list[int]] = {}  # episodes that the judge could not label
    for failure in Failures(store.ledger).unresolved():
        if failure.source == judge:
            by_reason.setdefault(failure.reason, []).append(failure.episode)
    rows = [(format_ids(ids), page.span(reason, "bad")) for reason, ids in by_reason.items()]
    failures = [page.table(rows, ("episodes without a label", "reason"))] if rows else []
    shown = page.section("Episodes", outcome_chart(outcomes), *confusion_table(outcomes), *failures)
    return outcomes, [shown, *outcome_sheets(store, outcomes, judge)]


def _judge_versions(run: RunData) -> list[Markup]:
    """Candidates that were trained to replace the judge."""
    rows = []
    for version in run.judge_versions:
        result = page.span("promoted", "good") if version["promoted"] else page.span("rejected", "muted")
        rates: list[str] = [page.span("-", "muted")] * 3
        if version["current"] is not None and version["candidate"] is not None:
            sides = [[version[side][name] for side in ("current", "candidate")] for name in _VERSION_RATES]
            rates = [" → ".join("-" if rate is None else f"{rate:.0%}" for rate in pair) for pair in sides]
        rows.append((f"v{version['number']}", result, *rates, format_duration(version["seconds"]), version["message"]))
    about = "Trained in the background on reference labels. Rates of held-out episodes, current judge → candidate."
    table = page.table(rows, ("", "", *_VERSION_RATES.values(), "time", "reason"))
    return [page.section("Judge versions", page.text(about, "muted"), table)] if rows else []


_VERSION_RATES = {"balanced_accuracy": "balanced accuracy", "fpr": "false-positive rate", "fnr": "false-negative rate"}


# Workers, learning, events


def _workers(run: RunData) -> list[Markup]:
    """The rates and queues of the workers, over minutes: a worker that waits makes no steps."""
    if not run.is_online:
        return []
    limit, name = run.option("run", "max_unlabeled_episodes"), "replay/unlabeled_episodes"
    queue = (f"Unlabeled episodes (max {limit})", "episodes", {"unlabeled": name})
    charts = []
    for title, unit, metrics in (queue, *_WORKER_CHARTS):  # without a unit, the metric is a fraction
        curves = {label: [run.over_time(metric)] for label, metric in metrics.items()}
        values = [value for (curve,) in curves.values() for _, value in curve]
        if not values:
            continue
        top = 1.1 * max(values) or 1
        if name in metrics.values():  # shows the limit only when the queue comes near
            top = 2 * max(values) + 4 if limit is None else min(limit, 2 * max(values) + 4)
        y_range = (0, top) if unit else None
        options: dict[str, Any] = {"x": "minutes", "y": unit, "y_range": y_range, "percent": not unit, "size": SMALL}
        charts.append(page.chart(line_chart(curves, title=title, **options)))
    return [page.section("Workers", page.row(charts, "grid"))] if charts else []


def _learning(run: RunData) -> list[Markup]:
    names = run.names("loss/", "policy/", "critic/", "rollout/rewards", "time/compute_model_rewards")
    charts = [
        page.chart(line_chart({"": [run.points(name)]}, title=name, x="env steps", size=SMALL))
        for name in names
        if name not in _SHOWN_OVER_TIME
    ]
    return [page.section("Learning", page.row(charts, "grid"))] if charts else []


def _latest(heading: str, rows: Sequence[Sequence[str]], header: Sequence[str], most: int, rest: str) -> list[Markup]:
    """A table of the latest rows. rest: what the others are, and where"""
    more = [page.text(f"{len(rows) - most} earlier {rest}.", "muted")] if len(rows) > most else []
    return [page.section(heading, page.table(rows[-most:], header), *more)] if rows else []


def _evaluations(run: RunData) -> list[Markup]:
    lines = [line for line in run.metrics if "eval/success_once" in line]
    judged = any(JUDGED in line for line in lines)
    rows = []
    for line in lines:
        by_judge = [f"{line[JUDGED]:.0%}" if JUDGED in line else ""] if judged else []
        took = format_duration(line["time/elapsed_s"])
        rows.append((f"{line['step']:,}", f"{line['eval/success_once']:.0%}", *by_judge, took))
    header, rest = ["env steps", "success on eval seeds", "time"], "evaluations are in metrics.jsonl"
    if judged:
        header[1:2] = ["true success on eval seeds", "by the judge"]
    return _latest("Evaluations", rows, header, _MAX_EVALUATIONS, rest)


def _events(run: RunData) -> list[Markup]:
    styles: dict[str, Any] = {"alarm": "bad", "error": "bad", "restart": "bad", "recovered": "good"}
    styles |= {"judge": "", "warning": ""}
    rows = [
        (
            page.span(datetime.fromtimestamp(event["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC"), "muted"),
            page.span(f"episode {event['episodes']:,}", "muted"),
            page.span(event["message"], styles.get(event["event"], "muted")),
        )
        for event in run.events
    ]
    return _latest("Events", rows, (), _MAX_EVENTS, "events are in events.jsonl")


# Success rates


def _rate_charts(run: RunData, rates: SuccessRates) -> list[Markup]:
    """Success, and errors of the judge."""
    charts = [*_success_chart(run, rates), *_error_chart(run)]
    return [page.section("Success", page.row(charts), *_audit_note(run))] if charts else []


def _success_chart(run: RunData, rates: SuccessRates) -> list[Markup]:
    """Success in training and on eval seeds."""
    evaluations = {"eval seeds": run.points("eval/success_once"), _EVAL_JUDGED: run.points(JUDGED)}
    curves = {**{name: points for name, points in evaluations.items() if points}, **rates.curves}
    if not curves:
        return []
    goal = run.option("evaluation", "stop_success_rate")
    title = f"Success rate; in training, of {rates.episodes}" if rates.curves else "Success rate"
    title = f"{title} ({next(iter(curves))})" if len(curves) == 1 else title
    return [_rate_chart(run, title, curves, [goal], {CORRECTED: run.band(CORRECTED_RATE)}, 600)]


def _error_chart(run: RunData) -> list[Markup]:
    """How often the judge is wrong according to its audit, and how often it may be."""
    names = {"false, of its successes": _FALSE, "missed, of all episodes": _MISSED}
    bands = {label: run.band(name) for label, name in names.items() if run.band(name)}
    curves = {label: run.points(names[label]) for label in bands}
    limits = [run.option("audit", ERROR_LIMITS[name]) for name in names.values()]
    title = f"Errors of the judge ({next(iter(bands))})" if len(bands) == 1 else "Errors of the judge"
    return [_rate_chart(run, title, curves, limits, bands, 440)] if bands else []


def _rate_chart(run: RunData, title: str, curves: Mapping[str, Series], marks: Any, bands: Any, width: int) -> Markup:
    lines, shown = {name: [curve] for name, curve in curves.items()}, [mark for mark in marks if mark is not None]
    options: dict[str, Any] = {"marks": shown, "events": run.markers(), "bands": bands, "size": (width, LARGE[1])}
    options["dashed"] = [_EVAL_JUDGED]  # where the judge is right, this curve covers another one
    return page.chart(line_chart(lines, title=title, x="env steps", percent=True, **options))


def _audit_note(run: RunData) -> list[Markup]:
    """What the intervals of the audit cover, where the run has any."""
    about = f"{ABOUT_INTERVALS} Dashed lines are the limits of the config."
    return [page.text(about, "muted")] if run.band(CORRECTED_RATE) else []


def _simulator_curve(run: RunData, outcomes: Sequence[EpisodeOutcome], window: int) -> dict[str, Series]:
    """Success by the simulator of the episodes that the audit reports on, where they are known."""
    own = run.points("env/success_once")
    if not own:
        return {}
    # Episodes up to some moment, and successes by the simulator until then.
    ends, counts = [0], []
    if not run.is_online:
        lines = [line for line in run.metrics if "env/success_once" in line]
        ends += [int(line["rollout/episodes"]) for line in lines]
        counts = [(end - start) * line["env/success_once"] for (start, end), line in zip(pairwise(ends), lines)]
    elif all(outcome.target is not None for outcome in outcomes):
        ends = [outcome.episode for outcome in outcomes[:1]] + [outcome.episode + 1 for outcome in outcomes]
        counts = [bool(outcome.target) for outcome in outcomes]
    totals = [0.0, *np.cumsum(counts).tolist()]
    points: list[tuple[float, float]] = []
    first = audited = previous = 0
    for line in run.metrics:
        if CORRECTED_RATE not in line:
            continue
        if line["audit/episodes"] < audited:  # another judge, whose audit begins anew
            first = previous
        audited, previous = line["audit/episodes"], line["rollout/episodes"]
        start = max(previous - window, first)
        if counts and ends[0] <= start < previous <= ends[-1]:
            successes = np.diff(np.interp([start, previous], ends, totals))
            points.append((line["step"], float(successes[0]) / (previous - start)))
    if points:
        return {"simulator": points}
    return {"simulator, last 50 episodes": own} if run.is_online else {}
