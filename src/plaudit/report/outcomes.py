"""The episodes of an online run in its report: what the judge predicted, and what is true where that is known.

The reference of an episode is the simulator's success signal, stored with the episode, or a human label in the ledger.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.report import page
from plaudit.report.plots import outcome_strip
from plaudit.report.sheet import contact_sheet

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
