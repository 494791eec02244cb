"""The episodes of a run beside what its judge said of them and, where anybody knows, what is true.

What is true stands in the episode where it came from a simulator, and in the ledger where a person looked at it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.report.page import section, sheet, table, words
from plaudit.report.plot import barcode
from plaudit.report.sheet import draw_sheet
from plaudit.types import Episode, FloatArray

SIMULATOR, HUMAN = "simulator", "human"  # sources of labels that are believed
SHOWN = 3  # episodes of a kind that are drawn
FRAMES, CELL = 12, 84  # of each of these: moments, and how wide one is


@dataclass(frozen=True)
class Verdict:
    """On one episode, by the newest label of the judge."""

    episode: int
    judged: bool | None  # None: not yet, or nobody should learn from it
    true: bool | None  # None: nobody knows

    @property
    def kind(self) -> str:
        if self.judged is None:
            return "not judged"
        if self.true is None:
            return f"judged {_outcome(self.judged)}"
        if self.judged == self.true:
            return f"rightly judged {_outcome(self.true)}"
        return "false success" if self.judged else "missed success"


def read_verdicts(store: Store, judge: str) -> list[Verdict]:
    """Of all episodes that are there, the oldest first.

    judge: the source of its labels
    """
    return [Verdict(i, _said(store, i, judge), _truth(store, i, judge)) for i in store.ids]


def judge_of(store: Store, config: dict[str, Any]) -> str:
    """The source of the labels of a run's judge: named like its type, unless it is somebody's own."""
    named = str(config["judge"].get("type", ""))
    sources = Counter(version.source for version in store.ledger.since(0))
    others = [source for source, _ in sources.most_common() if source not in (SIMULATOR, HUMAN)]
    return named if named in sources or not others else others[0]


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """Called and not called by what is true, where it is known of any."""
    if not any(v.true is not None for v in verdicts):
        return ""
    count = Counter((v.true, v.judged) for v in verdicts)
    rows = [
        ("success", words(f"{count[True, True]}", "good"), _bad(count[True, False]), f"{count[True, None]}"),
        ("failure", _bad(count[False, True]), words(f"{count[False, False]}", "good"), f"{count[False, None]}"),
    ]
    if any(v.true is None for v in verdicts):
        rows.append(("not known", f"{count[None, True]}", f"{count[None, False]}", f"{count[None, None]}"))
    return table(rows, header=("truth", "called", "not called", "not judged"))


def stripes(verdicts: Sequence[Verdict]) -> str:
    """All of them, one beside the other."""
    rows = {"judged": [_number(v.judged) for v in verdicts]}
    if any(v.true is not None for v in verdicts):
        rows["true"] = [_number(v.true) for v in verdicts]
    title = "All episodes: green a success, grey a failure, faint where nobody knows"
    return barcode(rows, title=title, x="episode", first=verdicts[0].episode)


def sheets(store: Store, verdicts: Sequence[Verdict], judge: str) -> str:
    """The newest of each kind of mistake, then the newest."""
    mistakes = [("False successes, the newest", "false success"), ("Missed successes, the newest", "missed success")]
    told = "Under each: every frame as judged, how sure the judge was, and below that what is true, where it is known."
    parts, shown = [f"<p>{words(told, 'faint')}</p>"], set()
    for heading, kind in mistakes:
        chosen = [v for v in verdicts if v.kind == kind][-SHOWN:]
        shown |= {v.episode for v in chosen}
        parts.append(_drawn(store, heading, chosen, judge))
    newest = [v for v in verdicts if v.episode not in shown][-SHOWN:]
    return "".join([*parts, _drawn(store, "The newest episodes", newest, judge)])


def _drawn(store: Store, heading: str, verdicts: Sequence[Verdict], judge: str) -> str:
    pictures = []
    for verdict in reversed(verdicts):
        try:
            episode = store.episode(verdict.episode)
        except DataError as error:
            pictures.append(f"<p>{words(f'Episode {verdict.episode}: {error}', 'faint')}</p>")
            continue
        if not episode.frames:
            pictures.append(f"<p>{words(_title(verdict, episode.meta))}</p>")
            continue
        image = draw_sheet(
            episode,
            store.ledger.labels(verdict.episode, {judge}),
            title=_title(verdict, episode.meta),
            frames=FRAMES,
            columns=FRAMES,
            cell_width=CELL,
            truth=_true_frames(store, episode, verdict.episode, judge),
        )
        pictures.append(sheet(image))
    return section(heading, *pictures) if pictures else ""


def _title(verdict: Verdict, meta: Any) -> str:
    weights = f", weights {meta['weights']}" if "weights" in meta else ""
    return f"episode {verdict.episode}: {verdict.kind}{weights}"


def _said(store: Store, episode_id: int, judge: str) -> bool | None:
    labels = store.ledger.labels(episode_id, {judge})
    return labels.succeeded if labels is not None and labels.judged.any() else None


def _truth(store: Store, episode_id: int, judge: str) -> bool | None:
    for source in (SIMULATOR, HUMAN):
        said = _said(store, episode_id, source) if source != judge else None
        if said is not None:
            return said
    try:
        success = store.episode(episode_id).success
    except DataError:
        return None
    return None if success is None else bool(success.any())


def _true_frames(store: Store, episode: Episode, episode_id: int, judge: str) -> FloatArray | None:
    """[T+1] what is true of each frame, by whoever knows it best."""
    if episode.success is not None:
        return np.concatenate([[0], episode.success]).astype(np.float32)
    said = None if judge == HUMAN else store.ledger.labels(episode_id, {HUMAN})
    return None if said is None else said.frames


def _outcome(success: bool) -> str:
    return "a success" if success else "a failure"


def _bad(count: int) -> str:
    return words(f"{count}", "bad" if count else "good")


def _number(value: bool | None) -> float:
    return math.nan if value is None else float(value)
