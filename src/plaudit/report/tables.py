"""Tables for the terminal."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from plaudit.data.failures import Failures
from plaudit.data.formats.base import Dataset
from plaudit.data.store import Store
from plaudit.envs.bench import Throughput
from plaudit.envs.catalog import EnvInfo
from plaudit.judges.calibration import CalibrationRecord, Fit
from plaudit.judges.controls import ControlResult
from plaudit.judges.metrics import JudgeMetrics, OnsetErrors, RateCI
from plaudit.report.judge import DecodeResult, causal, first_frame_count, offline
from plaudit.report.text import format_frames, format_interval, format_number, format_percent
from plaudit.rule import threshold_of


def dataset_table(dataset: Dataset) -> Table:
    return _facts(
        f"{dataset.path}: {dataset.format}", dict(dataset.metadata) | _unless_empty("not taken", dataset.ignored)
    )


def store_table(store: Store) -> list[Any]:
    """What a store holds, and a line for each kind of episode in it."""
    places = [store.entry(i) for i in store.ids]
    lines = [place.line for place in places]
    judges = Counter(v.source for i in store.ids if (v := store.ledger.newest(i)))
    succeeded = sum(labels.success_once for i in store.ids if (labels := store.ledger.labels(i)))
    labelled = sum(judges.values())
    failures = Counter(failure.source for failure in Failures(store.ledger).unresolved())
    facts = {
        "episodes": len(places),
        "steps": sum(p.steps for p in places),
        "bytes": f"{store.nbytes:,}",
        "capacity": _capacity(store),
        "labelled": _by(judges),
        **_unless_empty("not judged", _by(failures)),
        "successes": f"{succeeded} of {labelled}" if labelled else "-",
        **_unless_empty("dense rewards", _recorded_rewards(store)),
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


def _recorded_rewards(store: Store) -> str:
    """Rewards of an earlier version, which are no part of labels any more: how many, and who reads them."""
    count = sum(v.recorded_rewards() is not None for i in store.ids if (v := store.ledger.newest(i)))
    return f"{count} episodes, recorded by an earlier version; reward.env_reward=dense uses them" if count else ""


def episode_table(store: Store, episode_id: int) -> list[Any]:
    """One episode and every version of its labels."""
    episode, place = store.episode(episode_id), store.entry(episode_id)
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
            for failure in Failures(store.ledger).unresolved()
            if failure.episode == episode_id
        },
    }
    history = Table("version", "judge", "when", "success", "threshold", "note", box=None, pad_edge=False)
    for version in store.ledger.history(episode_id):
        labels = version.labels()
        hits = np.flatnonzero(labels.targets[episode.recorded] == 1)
        said = f"from frame {hits[0]}" if len(hits) else "none"
        note = labels.note or (f"restored from {version.restored_from}" if version.restored_from else "")
        threshold = "-" if (found := threshold_of(labels.judge)) is None else f"{found:g}"
        history.add_row(str(version.number), labels.judge.source, _when(labels.time), said, threshold, note)
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


def judge_table(title: str, scores: JudgeMetrics, controls: Sequence[ControlResult]) -> Table:
    """The metrics of a judge."""
    run = [control for control in controls if control.frames]
    passed = sum(control.passed for control in run)
    facts = {
        "precision, recall": f"{format_percent(scores.precision)}, {format_percent(scores.recall)}",
        "ROC AUC": format_number(scores.roc_auc),
        "false-positive rate (frames)": format_interval(RateCI(scores.fpr, scores.fpr_low, scores.fpr_high)),
        "threshold": f"{scores.threshold:.4g}",
        "success-onset error, causal": _onset_error(causal(scores)),
        "success-onset error, offline": _onset_error(offline(scores)),
        "calibration error (ECE)": format_percent(scores.ece),
        "negative controls": f"{passed} of {len(run)} passed" if run else "not run",
        "success at first frame": first_frame_count(scores),
    }
    return _facts(title, facts)


def calibration_table(title: str, fit: Fit, calibrated: CalibrationRecord, cutoffs: OnsetErrors) -> Table:
    """A decision rule and its error rates on held-out episodes."""
    rate = RateCI(calibrated.fpr, calibrated.fpr_low, calibrated.fpr_high)
    target = format_percent(calibrated.target_fpr)
    facts = {
        "temperature, bias": f"{fit.calibration.temperature:.4g}, {fit.calibration.bias:.4g}",
        "threshold": f"{fit.rule.threshold:.4g}",
        "cutoff offset": f"{fit.rule.cutoff_offset} frames",
        "false-positive rate (frames)": f"{format_interval(rate)}, held out; target {target}",
        "recall (frames)": f"{format_percent(calibrated.recall)}, held out",
        "success-onset error, offline": f"{_onset_error(DecodeResult.from_errors('', cutoffs))}, held out",
    }
    return _facts(title, facts)


def decode_table(decodes: Sequence[DecodeResult]) -> Table:
    """A line for each decision rule."""
    table = Table("decision rule", "true positives", "false positives", box=None, pad_edge=False)
    table.add_column("success-onset error")
    table.add_column("90th percentile")
    for d in decodes:
        tp, fp = f"{d.tp} of {d.tp + d.fn}", f"{d.fp} of {d.fp + d.tn}"
        onset = format_frames(d.onset_median), format_frames(d.onset_p90)
        table.add_row(d.name, tp, Text(fp, "red" if d.fp else ""), *onset)
    return table


def _onset_error(decode: DecodeResult) -> str:
    if not decode.tp:
        return "no success predicted"
    return f"median {format_frames(decode.onset_median)}, 90th percentile {format_frames(decode.onset_p90)}"


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
    limits = [f"{store.settings.capacity_episodes:,} episodes"] if store.settings.capacity_episodes else []
    limits += [f"{store.settings.capacity_bytes:,} bytes"] if store.settings.capacity_bytes else []
    return " and ".join(limits) + ", oldest go first" if limits else "unlimited"


def _unless_empty(name: str, values: Any) -> dict[str, Any]:
    return {name: values} if values else {}


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
