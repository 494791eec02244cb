"""Runs as pages show them: a verdict of three lines, the state of the running loop, curves, events and rewards."""

import json
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from plaudit.data.disk import Folder
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, PlauditError
from plaudit.files import MAX_STEP, Root, parse_json, understood
from plaudit.judges.human.queue import disagreement
from plaudit.report.verdict import run_verdict
from plaudit.training.audit import CORRECTED
from plaudit.training.live import ask
from plaudit.web.episodes import as_json, rewards_of

if TYPE_CHECKING:  # it draws charts too
    from plaudit.report.plots import Series
    from plaudit.report.run_data import RunData

POINTS, SMALL = 400, 150  # of a curve, and of one in a small chart
EVENTS, MAX_TEXT = 30, 500  # shown, and characters of each
CLIPS = 4  # latest and most disputed episodes
RECENT = 200  # episodes that the disputed ones are chosen from
MAX_METRICS = 1 << 30  # bytes
SUCCESS = {
    "evaluation seeds": "eval/success_once",
    "evaluation seeds, by the judge": "eval/judge_success_once",
    "judge": "judge/success_once",
    "corrected by the audit": CORRECTED,
    "simulator": "env/success_once",
    "without any help": "judge/success_unaided",
}
OTHER = {  # heading -> title of a chart -> metric; entropy comes last
    "Audit": {
        "false successes, of the judge's successes": "audit/false_successes",
        "missed successes, of all episodes": "audit/missed_successes",
    },
    "Robot": {
        "age of the observation behind a command (ms)": "time/observation_age_ms",
        "time of one inference (ms)": "time/inference_ms",
        "delay of a control step (ms)": "time/late_ms",
        "control steps without a command": "rollout/held_fraction",
        "env steps per second": "time/env_steps_per_s",
        "age of the robot's policy version (s)": "policy/staleness_s",
        "steps by a person": "person/intervention_rate",
    },
    "Queues": {
        "episodes without labels": "replay/unlabeled_episodes",
        "updates that the learner may make": "learner/pending_updates",
        "judge's time per episode (s)": "time/judge_latency_s",
        "updates per second": "time/updates_per_s",
    },
    "Learning": {
        "rewards per step": "rollout/rewards",
        "loss of the critic": "loss/critic",
        "loss of cloning": "loss/bc",
        "loss of the flow": "loss/flow",
        "loss of the policy": "loss/policy",
        "entropy of the policy": "policy/entropy",
    },
}


@dataclass
class _Read:
    """What was read of a run's folder so far."""

    stamp: tuple[tuple[int, int, int], ...] = ()  # of its files
    end: int = 0  # bytes of metrics that were read
    run: "RunData | None" = None
    guard: threading.Lock = field(default_factory=threading.Lock)


class RunReader:
    """Reads runs again and again. Of a run that is being written, only the new metrics are read."""

    def __init__(self) -> None:
        self._reads: dict[Path, _Read] = {}

    def load(self, path: Path) -> "RunData":
        """The run as it is now."""
        from plaudit.report.run_data import RunData  # with matplotlib, which takes seconds to import

        read = self._reads.setdefault(path, _Read())
        with read.guard:
            stamp = tuple(_stamp(path / name) for name in ("metrics.jsonl", "events.jsonl", "config.yaml", "judge"))
            if read.run is None or stamp != read.stamp:
                continues = read.run is not None and stamp[0][0] == read.stamp[0][0] and stamp[0][1] >= read.end
                before = read.run.metrics if read.run is not None and continues else []
                new, read.end = _new_metrics(path, read.end if continues else 0)
                if continues and read.run is not None and stamp[1:] == read.stamp[1:]:
                    read.run = read.run.extended(new)
                else:
                    read.run = RunData.load(path, metrics=[*before, *new])
                read.stamp = stamp
            return read.run


def _new_metrics(path: Path, start: int) -> tuple[list[dict[str, float]], int]:
    """The complete lines of metrics from this byte on, and where they end."""
    try:
        with Root(path).open(path / "metrics.jsonl", MAX_METRICS) as file:
            file.seek(start)
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return [], 0
    end = start + sum(len(line) + 1 for line in lines[:-1])
    parsed = [parse_json(line) for line in lines[:-1] if line]
    return [line for line in parsed if _is_metrics(line)], end


def _is_metrics(line: Any) -> bool:
    if not isinstance(line, dict) or not all(isinstance(value, int | float) for value in line.values()):
        return False
    return 0 <= line.get("step", math.nan) <= MAX_STEP


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.lstat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def describe_run(run: "RunData") -> dict[str, Any]:
    """The state of a run, live or finished, which may be somebody else's."""
    with understood(run.folder):
        return _describe_run(run)


def _describe_run(run: "RunData") -> dict[str, Any]:
    from plaudit.report.run_data import ABOUT_INTERVALS

    path = run.folder
    live, band = ask(path), _thinned(run.band(CORRECTED))
    success = success_of(run)
    groups = {
        title: {name: curve for name, metric in names.items() if len(curve := _thinned(run.points(metric), SMALL)) > 1}
        for title, names in OTHER.items()
    }
    return {
        "verdict": as_json(run_verdict(run, live=live is not None)),
        "live": live,
        "schedule": run.config.get("schedule"),
        "step": run.last.get("step", 0),
        "elapsed_s": run.last.get("time/elapsed_s", 0),
        "success": {label: _thinned(points) for label, points in success.items()},
        "band": band,
        "about": " ".join(filter(None, (_windows(run), ABOUT_INTERVALS if band else ""))),
        "markers": [list(marker) for marker in run.markers()],
        "groups": {title: curves for title, curves in groups.items() if curves},
        "latest": {name: run.latest(name) for name in run.names("judge/", "env/", "eval/", "audit/", "person/")},
        "events": [
            {
                "time": event.get("time"),
                "kind": str(event.get("event")),
                "message": str(event.get("message"))[:MAX_TEXT],
            }
            for event in run.events[-EVENTS:]
        ][::-1],
        "versions": [
            {"number": one.get("number"), "promoted": bool(one.get("promoted")), "message": str(one.get("message"))}
            for one in run.judge_versions
        ],
        "videos": [name for name in ("first", "last") if Folder(path).exists(f"videos/{name}.mp4")],
        "report": (path / "report.html").is_file(),
    }


def success_of(run: "RunData") -> "dict[str, Series]":
    """Success rates by kind. With an audit, the judge's is of the same episodes as its correction."""
    metrics = SUCCESS | ({"judge": "audit/judge_success_rate"} if run.points(CORRECTED) else {})
    rates = {label: points for label, name in metrics.items() if (points := run.rates(name))}
    if run.points(CORRECTED) and not run.is_online and rates.pop("simulator", None):
        from plaudit.report.run import SuccessRates

        rates |= SuccessRates.of(run).curves  # all of the same episodes, as in the report
    return rates


def _windows(run: "RunData") -> str:
    """Which episodes the rates in training are of, where they differ."""
    if not (run.points(CORRECTED) and run.points(SUCCESS["simulator"])):
        return ""
    judged = f"the last {window} episodes" if (window := run.option("audit", "window")) else "the audit's window"
    if not run.is_online:
        return f"Rates in training cover {judged}."
    return f"The judge's rate and its correction cover {judged}. The simulator's rate covers the last 50 episodes."


def compare_runs(runs: Sequence[tuple[str, "RunData"]]) -> list[dict[str, Any]]:
    """Curves of success and the last numbers of several runs, by metric."""
    return [_compared(name, run) for name, run in runs]


def _compared(name: str, run: "RunData") -> dict[str, Any]:
    with understood(run.folder):
        return {
            "name": name,
            "step": run.last.get("step", 0),
            "elapsed_s": run.last.get("time/elapsed_s", 0),
            "learner": str(run.option("learner", "type") or "-"),
            "judge": str(run.option("judge", "type") or "-"),
            "success": {label: _thinned(points) for label, points in success_of(run).items()},
            "about": _windows(run),
            "verdict": as_json(run_verdict(run)),
        }


def recent_episodes(store: Store, run: "RunData") -> dict[str, Any]:
    """The latest and the most disputed episodes of a run, and the rewards of the latest labeled ones."""
    newest = store.ids[: -RECENT - 1 : -1]
    disputes = {i: disagreement([v.labels() for v in _newest(store, i).values()]) for i in newest}
    disputed = sorted((i for i in newest if disputes[i] > 0), key=lambda i: (-disputes[i], -i))
    rewards, config = list[dict[str, Any]](), reward_config(run)
    for episode_id in newest:
        if len(rewards) == CLIPS:
            break
        if store.ledger.current(episode_id) is not None:
            rewards.append(_rewards(store, episode_id, config))
    return {"latest": newest[:CLIPS], "disputed": disputed[:CLIPS], "rewards": rewards}


def _newest(store: Store, episode_id: int) -> dict[str, Any]:
    return {version.source: version for version in store.ledger.history(episode_id)}


def _rewards(store: Store, episode_id: int, config: RewardConfig) -> dict[str, Any]:
    """The rewards that the learner gets for an episode: their sum, and the frames of the largest ones."""
    episode, version = store.episode(episode_id), store.ledger.current(episode_id)
    assert version is not None
    reward = rewards_of(episode, version.labels(), config)
    values = np.nan_to_num(reward)
    best = [int(t) for t in np.argsort(-np.abs(values), kind="stable")[:3] if values[t]]
    return {
        "id": episode_id,
        "source": version.source,
        "total": round(float(values.sum()), 3),
        "steps": int(np.isfinite(reward).sum()),
        "frames": [[t + 1, round(float(values[t]), 3)] for t in sorted(best)] or [[episode.steps, 0.0]],
    }


def reward_config(run: "RunData") -> RewardConfig:
    """How the learner of a run computes rewards."""
    try:
        return RewardConfig.model_validate(
            {name: value for name in RewardConfig.model_fields if (value := run.option("reward", name)) is not None}
        )
    except ValidationError:  # the config of another version
        return RewardConfig()


def describe_training(path: Path) -> dict[str, Any]:
    """A judge that is being trained: the losses of its epochs. Lines that a resumed training repeats count once."""
    epochs = training_curve(path)
    return {"epochs": epochs, "seconds": epochs[-1]["seconds"] if epochs else 0}


def training_curve(path: Path) -> list[dict[str, Any]]:
    """The epochs of a training, or of a finished judge."""
    try:
        lines = [json.loads(line) for line in Folder(path).read("curve.jsonl").splitlines()]
    except (OSError, ValueError):
        return []
    names = ("fold", "member", "epoch", "train_loss", "validation_loss", "train_acc", "seconds")
    complete = [line for line in lines if isinstance(line, dict) and line.keys() >= set(names)]
    rows = [{name: line[name] for name in names} for line in complete]
    return list({(row["fold"], row["member"], row["epoch"]): row for row in rows}.values())


def read_report(path: Path) -> bytes:
    """The report in a folder, which may be somebody else's."""
    try:
        return Folder(path).read("report.html")
    except (OSError, PlauditError, EpisodeNotFound) as error:
        raise FileNotFoundError(f"{path.name} has no report") from error


def _thinned(points: Sequence[Any], most: int = POINTS) -> list[Any]:
    """At most so many of them, with the last. Left out are digits and numbers that no chart can show."""
    every = max(1, -(-len(points) // most))
    shown = [point for point in points[::-every][::-1] if all(map(math.isfinite, point))]
    return [[float(f"{number:.6g}") for number in point] for point in shown]
