"""Tables for the terminal: data sets, stores, episodes, environments, robots, and what `plaudit judge plan` prints."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Column, Table

from plaudit.data.ledger import Failures
from plaudit.data.store import Store
from plaudit.errors import DataError, format_count

if TYPE_CHECKING:
    from plaudit.data.formats.base import Dataset
    from plaudit.envs.commands import EnvInfo, Throughput
    from plaudit.judges.plan import Noise, Plan, Prediction
    from plaudit.robots.check import RobotCheck


def dataset_table(dataset: "Dataset") -> Table:
    """A data set of any layout."""
    from plaudit.data.formats.base import ReadOptions, size_text

    nbytes = dataset.store_bytes(ReadOptions().max_episode_gb)
    metadata = {
        **dataset.metadata,
        **_unless_empty("not taken", dataset.ignored),
        **_unless_empty("as a store", size_text(nbytes) if nbytes else ""),
    }
    return key_value_table(f"{dataset.path}: {dataset.format}", metadata)


def store_table(store: Store) -> list[Any]:
    """What a store holds, and a line for each kind of episode in it."""
    entries = [store.entry(i) for i in store.ids]
    lines = [entry.line for entry in entries]
    judges = Counter(v.source for i in store.ids if (v := store.ledger.current(i)))
    succeeded = sum(labels.success_once for i in store.ids if (labels := store.ledger.labels(i)))
    num_labeled = sum(judges.values())
    failures = Counter(failure.source for failure in Failures(store.ledger).unresolved())
    values = {
        "episodes": len(entries),
        "steps": sum(p.steps for p in entries),
        "size": stored_size(store.nbytes, store.raw_nbytes),
        "new frames": str(store.settings.images),
        "capacity": _capacity(store),
        "labeled": _by(judges),
        "label order": store.ledger.order.describe(),
        **_unless_empty("not labeled", _by(failures)),
        "successes": f"{succeeded} of {num_labeled}" if num_labeled else "-",
        "tasks": ", ".join(sorted({line["task"] for line in lines if line["task"]})) or "-",
    }
    kinds = Counter(
        (store.segment(p.segment).schema, line["fps"], line["robot"]) for p, line in zip(entries, lines, strict=True)
    )
    table = Table("episodes", "cameras", "state", "actions", "privileged", "Hz", "robot", box=None, pad_edge=False)
    for (schema, fps, robot), count in kinds.most_common():
        codecs = dict(schema.images)
        cameras = ", ".join(f"{c} {h}x{w}" + (f" {codecs[c]}" if c in codecs else "") for c, h, w in schema.cameras)
        privileged = ", ".join(name for name, _, _ in schema.privileged)
        sizes = str(schema.state_dim), str(schema.action_dim)
        table.add_row(str(count), cameras or "-", *sizes, privileged or "-", f"{fps:g}", robot or "-")
    return [key_value_table(f"{store.folder}: plaudit store", values), table]


def stored_size(nbytes: int, raw_nbytes: int) -> str:
    """As in "1,234 bytes (10.0% of 12,340 raw)"."""
    return f"{nbytes:,} bytes" + ("" if nbytes == raw_nbytes else f" ({nbytes / raw_nbytes:.1%} of {raw_nbytes:,} raw)")


def episode_table(store: Store, episode_id: int) -> list[Any]:
    """One episode and every version of its labels."""
    from plaudit.rule import threshold_of

    episode, entry = store.episode(episode_id), store.entry(episode_id)
    end = "terminated" if episode.terminated else "truncated"
    values = {
        "task": episode.task or "-",
        "steps": episode.steps,
        "recorded": _when(entry.line["time"]),
        "cameras": ", ".join(f"{c} {f.shape[1]}x{f.shape[2]}" for c, f in episode.frames.items()) or "-",
        "end": f"{end}: {reason}" if (reason := episode.meta.get("ended")) else end,
        "by a person": format_count(int(episode.control_mode.sum()), "step"),
        "origin": f"{episode.origin.path}, episode {episode.origin.index}" if episode.origin else "recorded here",
        **{
            f"not labeled by {failure.source}": f"{failure.reason} ({_when(failure.time)})"
            for failure in Failures(store.ledger).unresolved()
            if failure.episode == episode_id
        },
    }

    history = Table("version", "counts", "judge", "when", "success", "threshold", "note", box=None, pad_edge=False)
    current = store.ledger.current(episode_id)
    for version in store.ledger.history(episode_id):
        labels = version.labels()
        hits = np.flatnonzero(labels.targets[episode.observed] == 1)
        outcome = f"from frame {hits[0]}" if len(hits) else "none"
        note = labels.remark or (f"restored from {version.restored_from}" if version.restored_from else "")
        threshold = "-" if (value := threshold_of(labels.judge)) is None else f"{value:g}"
        counts = "yes" if current is not None and version.number == current.number else "-"
        history.add_row(str(version.number), counts, labels.judge.source, _when(labels.time), outcome, threshold, note)
    return [key_value_table(f"{store.folder}: episode {episode_id}", values), history]


def env_table(envs: "Sequence[EnvInfo]") -> list[Any]:
    """A line for each environment; then what to install for those that lack something."""
    table = Table("name", "task", "cameras", "state", "actions", box=None, pad_edge=False)
    lacking = Table(box=None, show_header=False, title="not installed here:", title_justify="left", pad_edge=False)
    for env in envs:
        table.add_row(env.name, env.about, env.cameras, env.state, env.actions)
        if env.install:
            lacking.add_row(env.name, env.install)
    return [table, lacking] if lacking.row_count else [table]


def speed_table(title: str, speeds: "Mapping[str, Throughput]") -> Table:
    """A line for each kind of observation."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("observed")
    for column in ("steps/s", "images/s", "ms a step"):
        table.add_column(column, justify="right")
    for observed, speed in speeds.items():
        images = f"{speed.frames_per_s:,.0f}" if speed.frames_per_s else "-"
        table.add_row(observed, f"{speed.steps_per_s:,.0f}", images, f"{1000 / speed.steps_per_s:.3f}")
    return table


def robots_table(classes: Mapping[str, type[Any]]) -> Table:
    """Each with the first line of its module's docstring."""
    table = Table("robot", "what it is", box=None, pad_edge=False)
    for name, cls in classes.items():
        table.add_row(name, (import_module(cls.__module__).__doc__ or "").strip().split("\n")[0])
    return table


def check_table(name: str, results: "Sequence[RobotCheck]") -> Table:
    """A row for each topic, red where there is a problem."""
    topic = Column("topic", overflow="fold")
    table = Table(name, topic, "expected", "received", "rate", "age", "result", box=None, pad_edge=False)
    for r in results:
        style = "red" if r.problem else ""
        table.add_row(r.name, r.topic, r.expected, r.received, r.rate, r.age, r.problem or "ok", style=style)
    return table


def key_value_table(title: str, values: Mapping[str, Any]) -> Table:
    """A line for each name and its value."""
    table = Table(box=None, show_header=False, title=title, title_justify="left", pad_edge=False)
    for name, value in values.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        text = ", ".join(map(str, text)) if isinstance(text, list | tuple) else text
        table.add_row(name, str(text))
    return table


def _by(judges: Counter[str]) -> str | int:
    """12 (8 by human, 4 by vlm)"""
    total = sum(judges.values())
    return f"{total} ({', '.join(f'{n} by {who}' for who, n in judges.most_common())})" if total else 0


def _capacity(store: Store) -> str:
    episodes = store.settings.capacity_episodes
    limits = [format_count(episodes, "episode")] if episodes else []
    limits += [f"{store.settings.capacity_bytes:,} bytes"] if store.settings.capacity_bytes else []
    return " and ".join(limits) + ", oldest go first" if limits else "unlimited"


def _unless_empty(name: str, values: Any) -> dict[str, Any]:
    return {name: values} if values else {}


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


RECALLS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)  # that precision is asked for
WORDS = {
    "false_positives": "of failures called a success at a random moment",
    "misses": "of successes never seen",
    "tricks": "of near successes passing for a success",
    "late_by": "episodes late",
}
BOTH = ("false_positives", "misses")


def describe_noise(noise: "Noise") -> str:
    """10% of successes never seen, 64 episodes late."""
    parts = [
        f"{level:g} {WORDS[kind]}" if kind == "late_by" else f"{level:.0%} {WORDS[kind]}"
        for kind, level in noise.items()
        if level
    ]
    return ", ".join(parts) or "never wrong"


def describe_prediction(prediction: "Prediction") -> str:
    """93% +- 2, or at most that where nothing so noisy was run."""
    most = "at most " if prediction.beyond else ""
    return f"{most}{prediction.success:.0%} +- {100 * prediction.spread:.0f}"


def success_table(plan: "Plan") -> Table:
    """Success under each level of errors that was run, and under false positives and misses together."""
    runs = {learner: sum(run.learner == learner for run in plan.runs) for learner in plan.recipes}
    made = ", ".join(f"{count} of {learner}" for learner, count in runs.items() if count)
    table = Table("the judge is wrong", "true success", box=None, pad_edge=False, title=f"{plan.env}: {made} runs")
    for noise in _rows(plan):
        table.add_row(describe_noise(noise), describe_prediction(plan.predict(noise)))
    return table


def _rows(plan: "Plan") -> list[dict[str, float]]:
    alone = [{kind: float(level)} for kind, curve in plan.curves.items() for level in curve.levels[1:]]
    levels = plan.curves["false_positives"].levels[1:] if set(BOTH) <= set(plan.curves) else ()
    return [{}, *alone, *(dict.fromkeys(BOTH, float(level)) for level in levels)]


def needs_table(plan: "Plan", success: float) -> Table:
    """The precision that a judge of each recall needs."""
    from plaudit.judges.plan import precision_of

    table = Table("recall", "precision", "false positives", box=None, pad_edge=False)
    most, most_missed = (float(plan.curves[kind].levels[-1]) for kind in BOTH)  # that were run
    for recall in RECALLS:
        if 1 - recall > most_missed + 1e-9:
            continue
        false = plan.highest(success, "false_positives", given={"misses": 1 - recall})
        if false is not None:
            precision = f"{precision_of(false, 1 - recall):.0%}"
            table.add_row(f"{recall:.0%}", precision, f"{false:.0%}{' or more' if false >= most else ''}")
    return table


def needs_sentences(plan: "Plan", success: float, confidence: float) -> list[str]:
    """What a judge must be for this success, and what it takes to prove that of one."""
    from plaudit.judges.plan import precision_of
    from plaudit.judges.stats import episodes_needed

    if not set(BOTH) <= set(plan.curves):
        raise DataError(
            f"the runs of '{plan.env}' lack false positives or misses; plaudit judge plan --measure adds them"
        )
    if success > plan.best:
        return [
            f"no judge brings {plan.env} to {success:.0%} with this recipe, which reaches {plan.best:.0%} with a "
            "perfect judge; ask for less, or train longer (--measure run.max_steps=200000)"
        ]
    rate = plan.highest(success, *BOTH)
    assert rate is not None
    lines = []
    if "tricks" in plan.curves:
        share, top = plan.highest(success, "tricks"), float(plan.curves["tricks"].levels[-1])
        most = "all" if share == top == 1 else f"up to {share or 0:.0%}"
        lines.append(f"of near successes {most} may pass for a success, where it makes no other error")
    if rate <= 0:
        return [*lines, f"for {success:.0%} the judge has to be right about every episode, which nothing proves"]
    # Episodes of one kind. Both rates are to hold at once, so each has half of the doubt.
    each = [episodes_needed(rate, (1 + confidence) / 2, actual) for actual in (0.0, rate / 2)]
    worst = min(plan.curves[kind].levels[-1] for kind in BOTH)
    capped = ", and no run was worse than that" if rate >= worst else ""
    return [
        *lines,
        f"for {success:.0%} it may be wrong about {rate:.0%} of failures and {rate:.0%} of successes, which is a "
        f"precision of {precision_of(rate, rate):.0%} where half of the episodes succeed{capped}",
        f"to prove that with {confidence:.0%} confidence, label {format_count(2 * each[0], 'episode')} that it has not "
        "seen, half of them successes, if it is wrong about none",
        f"if it is wrong half as often as it may be, this takes about {2 * each[1]:,} episodes",
        "the number of training episodes that it needs is not predicted: train it, examine it (plaudit judge exam), "
        "label more of what it gets wrong, and repeat",
    ]


def labels_sentence(plan: "Plan", labels: int, confidence: float) -> str:
    """What this many labeled episodes can prove at best, and the success to expect then."""
    from plaudit.judges.stats import upper_bound

    if labels < 2:
        raise DataError(
            f"--labels {labels}: nothing is proven without a success and a failure; give at least 2, or leave it out"
        )
    rate = upper_bound(np.zeros(labels // 2), (1 + confidence) / 2)
    prediction = plan.predict(dict.fromkeys(BOTH, rate))
    return (
        f"{labels:,} labeled episodes, half of them successes, prove at best an error rate of {rate:.0%} on each kind "
        f"with {confidence:.0%} confidence; the true success is then at least {describe_prediction(prediction)}"
    )


def judge_sentences(plan: "Plan", cases: "Mapping[str, Noise]") -> list[str]:
    """What to expect of judges by name."""
    lines = []
    for name, noise in cases.items():
        prediction = plan.predict(noise)
        lines.append(f"{name}: {describe_noise(noise)}: true success of {describe_prediction(prediction)} to expect")
        if prediction.beyond:
            kinds = " and ".join(kind.replace("_", " ") for kind in prediction.beyond)
            lines.append(f"no run had so many {kinds}: it may be far less; measure it (--measure)")
    return lines
