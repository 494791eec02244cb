"""What a judge is measured against: labels of others that one may believe, or what a simulator knows."""

from collections.abc import Collection, Sequence

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import DataError, JudgeError
from plaudit.judges.classifier.dataset import REFERENCE_SOURCES
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE, SimulatorJudge
from plaudit.types import Episode, FloatArray, Labels


def resolve_reference(asked: Sequence[str] | None, judge: str) -> tuple[str, ...]:
    """Whose labels count: those asked for, or all that a model may learn from; never the judge's own."""
    if asked is not None and judge in asked:
        raise JudgeError(f"the judge is '{judge}' itself; compare it with labels of somebody else (--reference)")
    return tuple(source for source in asked or REFERENCE_SOURCES if source != judge)


def load_reference_labels(
    store: Store, sources: Collection[str], ids: Sequence[int] | None = None
) -> dict[int, FloatArray]:
    """Of each episode that has one: 1, 0 or NaN for each of its frames, [T+1].

    The newest label of any of these sources; where there is none and the simulator is one of them, its stored flag.
    """
    found: dict[int, FloatArray] = {}
    for episode_id in store.ids if ids is None else ids:
        episode = store.episode(episode_id)
        labels = store.ledger.labels(episode_id, sources)
        if labels is None and SOURCE in sources:
            labels = _simulated(episode)
        if labels is None:
            continue
        if labels.steps != episode.steps:
            raise DataError(
                f"{store.folder}: the labels of episode {episode_id} cover {labels.steps} steps, it has "
                f"{episode.steps}; label it again"
            )
        truth = np.full(episode.steps + 1, np.nan, np.float32)
        truth[episode.recorded] = labels.targets[episode.recorded]
        if not np.isnan(truth).all():
            found[episode_id] = truth
    if not found:
        raise JudgeError(
            f"{store.folder} has no labels of {', '.join(sources)} to compare with; label some episodes first (plaudit "
            f"label {store.folder} --judge human, or plaudit data label), or name others with --reference"
        )
    return found


def _simulated(episode: Episode) -> Labels | None:
    (said,) = label_episodes(SimulatorJudge(), [episode])
    return said if isinstance(said, Labels) else None
