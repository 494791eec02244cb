"""What is cloned: the episodes of a store of demonstrations, and the steps in which a person corrected a policy.

Demonstrations are cloned up to their first frame of success. An episode without any label counts as one and is cloned
to its end: people record demonstrations on purpose and often never label them. A labeled failure is left out unless it
is asked for, and an excluded episode always.

A step of an episode in which a person acted (`control_mode`) is experience like any other. It is also a demonstration,
as in HIL-SERL: it is sampled once more in the part of a batch that holds the demonstrations, so whatever clones these
clones it too. A store of demonstrations may hold corrections of a policy (`plaudit record --policy`). Of these
episodes, too, only the person's steps are demonstrations.

With `interventions.successes`, the run's own episodes that were judged a success are demonstrations as well. This is
imitation of the best of what the policy did.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from plaudit.config import Config, Fraction, NonNegativeInt, PositiveInt
from plaudit.data.store import Store
from plaudit.errors import DataError, format_count
from plaudit.types import HUMAN, AnyArray, BoolArray, FloatArray, Labels

SOURCE = "demonstration"  # of the labels that unlabeled episodes get here


@dataclass(frozen=True)
class Demonstrations:
    """The episodes of a store that are cloned, and how many are left out."""

    labels: Mapping[int, Labels]  # of each cloned episode
    summary: str  # for people: cloning 13 of 20 episodes: 3 successful, 10 unlabeled; left out: 7 failed

    @classmethod
    def of(cls, store: Store, *, include_failures: bool = False) -> "Demonstrations":
        """Choose the episodes; raises `DataError` where none is left."""
        cloned: dict[int, Labels] = {}
        used, left_out = {"successful": 0, "unlabeled": 0, "failed": 0}, {"failed": 0, "excluded": 0}
        for episode_id in store.ids:
            labels, steps = store.ledger.labels(episode_id), store.entry(episode_id).steps
            if labels is None:
                kind, labels = "unlabeled", Labels.from_cutoff(steps=steps, cutoff=steps, source=SOURCE)
            elif not labels.labeled.any():
                kind = "excluded"
            else:
                kind = "successful" if labels.success_once else "failed"
            if kind == "excluded" or (kind == "failed" and not include_failures):
                left_out[kind] += 1
            else:
                used[kind] += 1
                cloned[episode_id] = labels
        if not cloned:
            advice = "record demonstrations, or clone failures too with fit.include_failures=true"
            raise DataError(f"{store.folder} has no episode to clone: {_counts(left_out) or 'it is empty'}; {advice}")
        rest = f"; left out: {_counts(left_out)}" if any(left_out.values()) else ""
        return cls(cloned, f"cloning {len(cloned)} of {format_count(len(store.ids), 'episode')}: {_counts(used)}{rest}")

    @contextmanager
    def open(self, store: Store) -> Iterator[Store]:
        """The store with these labels alone, so that nothing else is sampled."""
        with TemporaryDirectory() as folder, Store.open(store.folder, labels=Path(folder) / "labels") as chosen:
            chosen.ledger.extend(self.labels.items())
            yield chosen


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)


class InterventionConfig(Config):
    """How a learner from replay uses the steps in which a person acted."""

    # Of the part of a batch with demonstrations. None: by the numbers of steps, as in HIL-SERL; 0: no second use.
    share: Fraction | None = None
    half_life: PositiveInt | None = None  # episodes after which one is sampled half as often; None: all alike
    drop_before: NonNegativeInt = 0  # steps of the policy just before a person takes over, which are not sampled
    successes: bool = False  # the run's episodes that were judged a success are demonstrations too


def steps_by_person(control_mode: AnyArray) -> AnyArray:
    """[T] for how many steps from here a person acts without a break; 0 where the policy acts.

    >>> steps_by_person(np.array([0, 1, 1, 0, 1])).tolist()
    [0, 2, 1, 0, 1]
    """
    human = control_mode == HUMAN
    position = np.arange(len(human))
    ends = np.minimum.accumulate(np.where(human, len(human), position)[::-1])[::-1]  # the next step of the policy
    return np.where(human, ends - position, 0).astype(np.int32)


def steps_to_clone(control_mode: AnyArray, *, demonstrations: bool) -> AnyArray:
    """[T] for how many steps from here actions are to be cloned; 0 where they are not.

    demonstrations: an episode in which no person acted is one as a whole, like those of a scripted expert

    >>> steps_to_clone(np.array([0, 0, 0]), demonstrations=True).tolist()
    [3, 2, 1]
    """
    if demonstrations and not (control_mode == HUMAN).any():
        return np.arange(len(control_mode), 0, -1, dtype=np.int32)
    return steps_by_person(control_mode)


def steps_before_takeover(control_mode: AnyArray, count: int) -> BoolArray:
    """[T] the last `count` steps of the policy before each time that a person takes over.

    >>> steps_before_takeover(np.array([0, 0, 0, 1, 1, 0, 1]), 2).tolist()
    [False, True, True, False, False, True, False]
    """
    human = control_mode == HUMAN
    before = np.zeros(len(human), bool)
    for start in np.flatnonzero(human[1:] & ~human[:-1]) + 1:
        before[max(0, start - count) : start] = True
    return before & ~human


def sampling_weights(episodes: AnyArray, half_life: int | None) -> FloatArray | None:
    """Weights that sum to 1, by the ages of the steps' episodes; None: all alike.

    >>> sampling_weights(np.array([4, 4, 5]), 1).tolist()
    [0.25, 0.25, 0.5]
    """
    if half_life is None or not len(episodes):
        return None
    weights = 0.5 ** ((episodes.max() - episodes) / half_life)  # from the newest of them: 0.5^1100 is 0
    return weights / weights.sum()
