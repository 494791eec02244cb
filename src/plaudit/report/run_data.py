"""What a report reads from a run's folder: config, metrics, events, judge versions and, for online runs, episodes.

An episode has the judge's prediction and, where there is one, a reference: the simulator's success signal, stored with
the episode, or a human label in the ledger.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from markupsafe import Markup

from plaudit.config import read_yaml
from plaudit.data.disk import Folder
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.files import Root, read_json_lines, read_json_object, read_metrics
from plaudit.report import page
from plaudit.report.plots import Band, EventMarker, Series, outcome_strip
from plaudit.report.sheet import contact_sheet

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class RunData:
    """The files of a run's folder; a run that was killed early has some of them only."""

    folder: Path
    config: dict[str, Any]
    metrics: Lines  # a line a moment, by the names in docs/metrics.md
    events: Lines
    judge_versions: Lines  # candidates that were trained to replace the judge, promoted or rejected

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read them; lines that a power cut or a full disk cut off are left out."""
        Folder(folder).check_no_links()  # a report embeds what it reads
        decisions = [read_json_object(path) for path in sorted(folder.glob("judge/[0-9]*/promotion.json"))]
        config = read_yaml(folder / "config.yaml", Root(folder))
        metrics, events = read_metrics(folder / "metrics.jsonl"), read_json_lines(folder / "events.jsonl")
        return cls(folder, config, metrics, events, decisions)

    def option(self, *keys: str) -> Any:
        """A value of the config, like `option("audit", "max_false")`; None where this kind of run has none."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def is_online(self) -> bool:
        return self.config.get("schedule") == "online"

    @property
    def last(self) -> dict[str, Any]:
        """The last line of metrics; empty where nothing was logged yet."""
        return self.metrics[-1] if self.metrics else {}

    def latest(self, name: str) -> Any:
        """The latest value of a metric; None where the run does not log it."""
        return next((line[name] for line in reversed(self.metrics) if name in line), None)

    def points(self, name: str) -> list[tuple[float, float]]:
        """A metric over env steps."""
        return [(line["step"], line[name]) for line in self.metrics if name in line]

    def band(self, name: str) -> Band:
        """The interval of a metric over env steps."""
        low, high = f"{name}_low", f"{name}_high"
        return [(line["step"], line[low], line[high]) for line in self.metrics if low in line]

    def over_time(self, name: str) -> Series:
        """A metric over minutes: a worker that waits makes no steps."""
        return [(line["time/elapsed_s"] / 60, line[name]) for line in self.metrics if name in line]

    def names(self, *prefixes: str) -> list[str]:
        """The metrics whose name begins so."""
        return sorted({name for line in self.metrics for name in line if name.startswith(prefixes)})

    def markers(self) -> list[EventMarker]:
        """Alarms and promotions of a judge, for a chart over env steps."""
        markers: list[EventMarker] = []
        alarm, version = False, 0
        for line in self.metrics:
            rings = bool(line.get("audit/alarm", alarm))
            if rings and not alarm:
                markers.append(EventMarker(line["step"], "alarm"))
            if line.get("judge/version", version) > version:
                markers.append(EventMarker(line["step"], f"judge v{line['judge/version']:.0f}", bad=False))
            alarm, version = rings, line.get("judge/version", version)
        return markers


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
