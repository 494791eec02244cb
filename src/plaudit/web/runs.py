"""Runs and judges as pages show them: a verdict of three lines, curves, and the newest events."""

import math
import time
from pathlib import Path
from typing import Any

from plaudit.data.disk import Folder
from plaudit.errors import PlauditError
from plaudit.files import read_json_object, understood
from plaudit.report.run_data import ABOUT_INTERVALS, RunData
from plaudit.report.verdict import run_verdict
from plaudit.training.audit import CORRECTED

LIVE_S = 30.0  # since the last line of its metrics
POINTS = 400  # of a curve
EVENTS = 30
SUCCESS = {
    "judge": "judge/success_once",
    "corrected by the audit": CORRECTED,
    "simulator": "env/success_once",
    "evaluation seeds": "eval/success_once",
    "without any help": "judge/success_unaided",
}
OTHER = (
    "audit/false_successes",
    "audit/missed_successes",
    "person/intervention_rate",
    "replay/unlabeled_episodes",
    "time/env_steps_per_s",
    "time/updates_per_s",
    "policy/staleness_s",
    "loss/critic",
    "loss/bc",
    "loss/flow",
)


def describe_run(path: Path) -> dict[str, Any]:
    """The state of a run, live or finished, which may be somebody else's."""
    with understood(path):
        return _describe_run(path)


def _describe_run(path: Path) -> dict[str, Any]:
    run = RunData.load(path)
    written = (path / "metrics.jsonl").stat().st_mtime
    live = time.time() - written < LIVE_S and not (path / "report.html").exists()
    success = {label: run.points(name) for label, name in SUCCESS.items() if run.points(name)}
    others = {name: run.points(name) for name in OTHER if run.points(name)}
    band = _thinned(run.band(CORRECTED))
    return {
        "verdict": list(run_verdict(run, live=live).lines.values()),
        "live": live,
        "schedule": run.config.get("schedule"),
        "step": run.last.get("step", 0),
        "elapsed_s": run.last.get("time/elapsed_s", 0),
        "success": {label: _thinned(points) for label, points in success.items()},
        "band": band,
        "about": ABOUT_INTERVALS if band else "",
        "curves": {name: _thinned(points) for name, points in others.items()},
        "latest": {name: run.latest(name) for name in run.names("judge/", "env/", "eval/", "audit/", "person/")},
        "events": [
            {"time": event.get("time"), "kind": str(event.get("event")), "message": str(event.get("message"))}
            for event in run.events[-EVENTS:]
        ][::-1],
        "report": (path / "report.html").is_file(),
    }


def describe_judge(path: Path) -> dict[str, Any]:
    """Scores of a reward model, and whether it may be used."""
    with understood(path):
        return _describe_judge(path)


def _describe_judge(path: Path) -> dict[str, Any]:
    model = read_json_object(path / "model.json")
    scores = model.get("scores") if isinstance(model.get("scores"), dict) else {}
    certificate = (path / "certificate.json").is_file()
    precision, recall = (scores.get(name) for name in ("precision", "recall"))
    good = isinstance(precision, float | int) and isinstance(recall, float | int) and min(precision, recall) >= 0.9
    lines = [
        "Good on held-out frames." if good else "Check it before you use it.",
        f"Precision {_percent(precision)}, recall {_percent(recall)} on held-out frames.",
        "It has a certificate." if certificate else f"plaudit judge exam {path} STORE",
    ]
    simple = {name: value for name, value in scores.items() if isinstance(value, int | float | str)}
    report = (path / "report.html").is_file()
    return {"verdict": lines, "scores": simple, "report": report}


def report_page(path: Path) -> bytes:
    """The report in a folder, which may be somebody else's."""
    try:
        return Folder(path).read("report.html")
    except (OSError, PlauditError) as error:
        raise FileNotFoundError(f"{path.name} has no report") from error


def _percent(value: Any) -> str:
    return f"{value:.1%}" if isinstance(value, int | float) else "unknown"


def _thinned(points: list[Any]) -> list[Any]:
    """At most POINTS of them, with the last. Numbers that no chart can show are left out."""
    points = [point for point in points if all(map(math.isfinite, point))]
    every = max(1, -(-len(points) // POINTS))
    return points[::-every][::-1]
