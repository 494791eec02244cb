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

from plaudit.config import read_yaml
from plaudit.data.disk import Folder
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.files import Root, read_json_lines, read_json_object, read_metrics
from plaudit.report.page import Block, Chart, Section, Span, Table, Text, count_correct, count_mistakes, image_block
from plaudit.report.plots import Band, EventMarker, Series, outcome_strip
from plaudit.report.sheet import contact_sheet
from plaudit.types import Episode, FloatArray

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

    def latest(self, *names: str) -> Any:
        """The latest value of the first of these metrics that the run logs; None where it logs none of them."""
        values = [line[name] for name in names for line in self.metrics if name in line]
        return values[-1] if values else None

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

    def first_alarm(self) -> dict[str, Any] | None:
        """The line of the first audit alarm."""
        return next((line for line in self.metrics if line.get("audit/alarm")), None)

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
    """One for each episode, oldest first.

    judge: the source of its labels in the ledger
    """
    sources = {judge, HUMAN} if judge == CASCADE else {judge}  # what a cascade leaves to a human, they decide
    return [EpisodeOutcome(i, _labeled_success(store, i, sources), _target(store, i, judge)) for i in store.ids]


def judge_source(store: Store, config: dict[str, Any]) -> str:
    """The source of the labels of a run's judge: its type, or for a plugin the most frequent other source."""
    judge_type = str(config["judge"].get("type", ""))
    sources = Counter(version.source for version in store.ledger.since(0))
    others = [source for source, _ in sources.most_common() if source not in (SIMULATOR, HUMAN)]
    return judge_type if judge_type in sources or not others else others[0]


def confusion_table(outcomes: Sequence[EpisodeOutcome]) -> Table | None:
    """Predictions by reference; None where no episode has a reference."""
    if not any(outcome.target is not None for outcome in outcomes):
        return None
    count = Counter((outcome.target, outcome.predicted) for outcome in outcomes)
    rows: list[Sequence[str | Span]] = [
        ("success", count_correct(count[True, True]), count_mistakes(count[True, False]), f"{count[True, None]}"),
        (
            "failure",
            count_mistakes(count[False, True]),
            count_correct(count[False, False]),
            f"{count[False, None]}",
        ),
    ]
    if any(outcome.target is None for outcome in outcomes):
        rows.append(("unknown", f"{count[None, True]}", f"{count[None, False]}", f"{count[None, None]}"))
    return Table(rows, header=("reference", "predicted success", "predicted failure", "not labeled"))


def outcome_chart(outcomes: Sequence[EpisodeOutcome]) -> Chart:
    """All episodes as stripes, in order."""
    rows = {"judge": [_number(outcome.predicted) for outcome in outcomes]}
    if any(outcome.target is not None for outcome in outcomes):
        rows["reference"] = [_number(outcome.target) for outcome in outcomes]
    title = "All episodes (green: success, gray: failure, light: unknown)"
    return Chart(outcome_strip(rows, title=title, x="episode", first=outcomes[0].episode))


def outcome_sheets(store: Store, outcomes: Sequence[EpisodeOutcome], judge: str) -> list[Block]:
    """Contact sheets of the latest false positives and false negatives, then of the latest other episodes."""
    sections: list[Block] = []
    shown: set[int] = set()
    for heading, kind in (("Latest false positives", "false positive"), ("Latest false negatives", "false negative")):
        chosen = [outcome for outcome in outcomes if outcome.kind == kind][-MAX_SHEETS:]
        shown |= {outcome.episode for outcome in chosen}
        sections += _sheet_section(store, heading, chosen, judge)
    latest = [outcome for outcome in outcomes if outcome.episode not in shown][-MAX_SHEETS:]
    return [*sections, *_sheet_section(store, "Latest episodes", latest, judge)]


def _sheet_section(store: Store, heading: str, outcomes: Sequence[EpisodeOutcome], judge: str) -> list[Block]:
    if not outcomes:
        return []
    legend = (
        "The strips have one column a frame: the judge's label with its P(success) as a curve, and below it the "
        "reference, where there is one."
    )
    return [Section(heading, [Text(legend, "muted"), *(_sheet(store, o, judge) for o in reversed(outcomes))])]


def _sheet(store: Store, outcome: EpisodeOutcome, judge: str) -> Block:
    try:
        episode = store.episode(outcome.episode)
    except DataError as error:
        return Text(f"Episode {outcome.episode}: {error}", "muted")
    version = f", policy v{episode.meta['weights']}" if "weights" in episode.meta else ""
    title = f"episode {outcome.episode}: {outcome.kind}{version}"
    if not episode.frames:
        return Text(title)
    image = contact_sheet(
        episode,
        store.ledger.labels(outcome.episode, {judge}),
        title=title,
        frames=NUM_FRAMES,
        columns=NUM_FRAMES,
        cell_width=CELL_WIDTH,
        target=_frame_targets(store, episode, outcome.episode, judge),
    )
    return image_block(image, title)


def _labeled_success(store: Store, episode_id: int, sources: set[str]) -> bool | None:
    labels = store.ledger.labels(episode_id, sources)
    return labels.success_once if labels is not None and labels.labeled.any() else None


def _target(store: Store, episode_id: int, judge: str) -> bool | None:
    for source in (SIMULATOR, HUMAN):
        success = _labeled_success(store, episode_id, {source}) if source != judge else None
        if success is not None:
            return success
    try:
        success = store.episode(episode_id).success
    except DataError:
        return None
    return None if success is None else bool(success.any())


def _frame_targets(store: Store, episode: Episode, episode_id: int, judge: str) -> FloatArray | None:
    """[T+1] the reference label of each frame."""
    if episode.success is not None:
        return np.concatenate([[0], episode.success]).astype(np.float32)
    labels = None if judge == HUMAN else store.ledger.labels(episode_id, {HUMAN})
    return None if labels is None else labels.targets


def _number(value: bool | None) -> float:
    return math.nan if value is None else float(value)
