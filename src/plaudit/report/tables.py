"""Tables for the terminal."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from plaudit.data.failures import Failures
from plaudit.data.formats import Dataset
from plaudit.data.store import Store
from plaudit.envs.bench import Throughput
from plaudit.envs.catalog import EnvInfo
from plaudit.judges.calibration import Rate
from plaudit.judges.config import Calibrated
from plaudit.judges.controls import ControlResult
from plaudit.judges.cutoffs import CutoffErrors
from plaudit.judges.frames import Rule
from plaudit.judges.metrics import Scores
from plaudit.report.judge import Way, interval, live, number, off, percent, seen_whole, starts


def dataset_table(dataset: Dataset) -> Table:
    return _facts(
        f"{dataset.path}: {dataset.format}", dict(dataset.facts) | _unless_empty("not taken", dataset.ignored)
    )


def store_table(store: Store) -> list[Any]:
    """What a store holds, and a line for each kind of episode in it."""
    places = [store.place(i) for i in store.ids]
    lines = [place.line for place in places]
    judges = Counter(v.source for i in store.ids if (v := store.ledger.newest(i)))
    succeeded = sum(labels.succeeded for i in store.ids if (labels := store.ledger.labels(i)))
    labelled = sum(judges.values())
    failures = Counter(failure.source for failure in Failures(store.ledger).standing())
    facts = {
        "episodes": len(places),
        "steps": sum(p.steps for p in places),
        "bytes": f"{store.nbytes:,}",
        "capacity": _capacity(store),
        "labelled": _by(judges),
        **_unless_empty("not judged", _by(failures)),
        "successes": f"{succeeded} of {labelled}" if labelled else "-",
        "tasks": ", ".join(sorted({line["task"] for line in lines if line["task"]})) or "-",
    }
    kinds = Counter(
        (store.segment(p.segment).schema, line["fps"], line["robot"]) for p, line in zip(places, lines, strict=True)
    )
    table = Table("episodes", "cameras", "state", "actions", "privileged", "Hz", "robot", box=None, pad_edge=False)
    for (schema, fps, robot), count in kinds.most_common():
        cameras = ", ".join(f"{c} {h}x{w}" for c, h, w in schema.cameras)
        known = ", ".join(name for name, _, _ in schema.privileged)
        table.add_row(
            str(count),
            cameras or "-",
            str(schema.state_dim),
            str(schema.action_dim),
            known or "-",
            f"{fps:g}",
            robot or "-",
        )
    return [_facts(f"{store.folder}: plaudit store", facts), table]


def episode_table(store: Store, episode_id: int) -> list[Any]:
    """One episode and every version of its labels."""
    episode, place = store.episode(episode_id), store.place(episode_id)
    facts = {
        "task": episode.task or "-",
        "steps": episode.steps,
        "recorded": _when(place.line["time"]),
        "cameras": ", ".join(f"{c} {f.shape[1]}x{f.shape[2]}" for c, f in episode.frames.items()) or "-",
        "ended": "task ended" if episode.terminated else "cut off",
        "by a person": f"{int(episode.control_mode.sum())} steps",
        "origin": f"{episode.origin.path}, episode {episode.origin.index}" if episode.origin else "recorded here",
        **{
            f"not judged by {failure.source}": f"{failure.reason} ({_when(failure.time)})"
            for failure in Failures(store.ledger).standing()
            if failure.episode == episode_id
        },
    }
    history = Table("version", "judge", "when", "success", "mean reward", "threshold", "note", box=None, pad_edge=False)
    for version in store.ledger.history(episode_id):
        labels = version.labels()
        hits = np.flatnonzero(labels.frames[episode.recorded] == 1)
        said = f"from frame {hits[0]}" if len(hits) else "none"
        mean = f"{np.nanmean(labels.reward):.3f}" if labels.judged.any() else "-"
        note = labels.note or (f"restored from {version.restored_from}" if version.restored_from else "")
        threshold = "-" if labels.threshold is None else f"{labels.threshold:g}"
        history.add_row(str(version.number), labels.source, _when(labels.time), said, mean, threshold, note)
    return [_facts(f"{store.folder}: episode {episode_id}", facts), history]


def env_table(envs: Sequence[EnvInfo]) -> list[Any]:
    """A line for each environment; then what to install for those that lack something."""
    table = Table("name", "task", "cameras", "state", "actions", box=None, pad_edge=False)
    lacking = Table(box=None, show_header=False, title="not installed here:", title_justify="left", pad_edge=False)
    for env in envs:
        table.add_row(env.name, env.about, env.cameras, env.state, env.actions)
        if env.install:
            lacking.add_row(env.name, env.install)
    return [table, lacking] if lacking.row_count else [table]


def speed_table(title: str, speeds: Mapping[str, Throughput]) -> Table:
    """A line for each kind of observation."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("observed")
    for column in ("steps/s", "images/s", "ms a step"):
        table.add_column(column, justify="right")
    for observed, speed in speeds.items():
        images = f"{speed.frames_per_s:,.0f}" if speed.frames_per_s else "-"
        table.add_row(observed, f"{speed.steps_per_s:,.0f}", images, f"{1000 / speed.steps_per_s:.3f}")
    return table


def judge_table(title: str, scores: Scores, controls: Sequence[ControlResult]) -> Table:
    """How good a judge is, in a few lines."""
    asked = [control for control in controls if control.frames]
    passed = sum(control.passed for control in asked)
    facts = {
        "precision, recall": f"{percent(scores.precision)}, {percent(scores.recall)}",
        "ROC AUC": number(scores.roc_auc),
        "failure frames called": interval(Rate(scores.fpr, scores.fpr_low, scores.fpr_high)),
        "threshold": f"{scores.threshold:.4g}",
        "first success frame, live": _found(live(scores)),
        "first success frame, decoded": _found(seen_whole(scores)),
        "calibration error": percent(scores.ece),
        "controls": f"{passed} of {len(asked)} passed" if asked else "none asked",
        "success at first frame": starts(scores),
    }
    return _facts(title, facts)


def calibration_table(title: str, rule: Rule, calibrated: Calibrated, cutoffs: CutoffErrors) -> Table:
    """A rule, and what it is worth on episodes that did not choose it."""
    rate = Rate(calibrated.fpr, calibrated.fpr_low, calibrated.fpr_high)
    facts = {
        "temperature, bias": f"{rule.temperature:.4g}, {rule.bias:.4g}",
        "threshold": f"{rule.threshold:.4g}",
        "shift of cutoffs": f"{rule.shift} frames",
        "failure frames called": f"{interval(rate)}, held back; {percent(calibrated.target_fpr)} was asked for",
        "success frames called": f"{percent(calibrated.recall)}, held back",
        "first success frame, decoded": f"{_found(Way.of('', cutoffs))}, held back",
    }
    return _facts(title, facts)


def ways_table(ways: Sequence[Way]) -> Table:
    """A line for each way from frames to episodes."""
    table = Table("episodes", "successes called", "failures called", "first frame off", "90%", box=None, pad_edge=False)
    for way in ways:
        hit, false = f"{way.hit} of {way.hit + way.missed}", f"{way.false} of {way.false + way.rejected}"
        table.add_row(way.name, hit, Text(false, "red" if way.false else ""), off(way.median), off(way.p90))
    return table


def _found(way: Way) -> str:
    return f"off by {off(way.median)}, 90th percentile {off(way.p90)}" if way.hit else "never called"


def _facts(title: str, facts: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, title=title, title_justify="left", pad_edge=False)
    for name, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, text)) if isinstance(text, list | tuple) else text
        table.add_row(name, str(text))
    return table


def _by(judges: Counter[str]) -> str | int:
    """12 (8 by human, 4 by vlm)"""
    total = sum(judges.values())
    return f"{total} ({', '.join(f'{n} by {who}' for who, n in judges.most_common())})" if total else 0


def _capacity(store: Store) -> str:
    limits = [f"{store.capacity_episodes:,} episodes"] if store.capacity_episodes else []
    limits += [f"{store.capacity_bytes:,} bytes"] if store.capacity_bytes else []
    return " and ".join(limits) + ", oldest go first" if limits else "unlimited"


def _unless_empty(name: str, values: Any) -> dict[str, Any]:
    return {name: values} if values else {}


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
