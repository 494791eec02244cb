"""Which episodes of a store behavior cloning imitates. Without torch.

Successes are cloned up to their first frame of success. An episode without any label counts as a demonstration and is
cloned to its end: people record demonstrations on purpose and often never label them. A labeled failure is left out
unless it is asked for, and an excluded episode always. Of an episode in which a person corrected a policy, only the
person's steps are cloned (data/interventions.py).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.types import Labels

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
        return cls(cloned, f"cloning {len(cloned)} of {len(store.ids)} episodes: {_counts(used)}{rest}")

    @contextmanager
    def open(self, store: Store) -> Iterator[Store]:
        """The store with these labels alone, so that nothing else is sampled."""
        with TemporaryDirectory() as folder, Store.open(store.folder, labels=Path(folder) / "labels") as chosen:
            chosen.ledger.extend(self.labels.items())
            yield chosen


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
