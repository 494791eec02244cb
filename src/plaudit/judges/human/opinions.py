"""Who judged an episode before, and what they said: shown beside it, their probabilities as curves over the strip."""

from dataclasses import dataclass

import numpy as np

from plaudit.data.ledger import Ledger
from plaudit.judges.human.annotation import FrameAnnotation
from plaudit.rule import threshold_of
from plaudit.types import Episode, FloatArray


@dataclass(frozen=True, eq=False)
class LabelTrace:
    """The newest label of one source."""

    source: str  # "classifier", "vlm", "human", ...
    verdict: FrameAnnotation
    curve: FloatArray | None  # [F] P(success) of each recorded frame; None where it gave none
    threshold: float | None
    time: float  # seconds since 1970
    note: str


def existing_labels(ledger: Ledger, episode_id: int, episode: Episode) -> list[LabelTrace]:
    """The newest first."""
    newest = {version.source: version for version in ledger.history(episode_id)}
    found = []
    for version in sorted(newest.values(), key=lambda v: v.time, reverse=True):
        labels = version.labels()
        if labels.steps != episode.steps:  # not of this episode; `plaudit data check` says so
            continue
        curve = None if labels.scores is None else labels.frame_probs[episode.recorded]
        if curve is not None and np.isnan(curve).all():
            curve = None
        verdict = FrameAnnotation.of_labels(episode, labels)
        found.append(
            LabelTrace(labels.judge.source, verdict, curve, threshold_of(labels.judge), labels.time, labels.note)
        )
    return found
