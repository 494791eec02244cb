"""How far a person agrees with themselves: labels that they gave twice, the second time without seeing the first.

The order `repeat` (queue.py) shows a person episodes that they have labeled once. No judge can be expected to agree
with people better than they do with themselves.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from plaudit.data.store import Store
from plaudit.judges.human.drafts import SOURCE
from plaudit.types import Labels


@dataclass(frozen=True)
class SelfAgreement:
    """Agreement between the two labels that one person gave to the same episodes."""

    episodes: int = 0
    same_outcome: int = 0  # of these, both times success or both times none
    onset_differences: tuple[int, ...] = ()  # frames between the two first success frames, where both have one

    @classmethod
    def of(cls, store: Store, name: str) -> Self:
        """Compute it from the ledger of a store."""
        pairs = [labels for i in store.ids if len(labels := repeated_labels(store, i, name)) > 1]
        same = [one for one in pairs if one[0].success_once == one[-1].success_once]
        onsets = [[int(np.argmax(labels.success)) for labels in one] for one in same if one[0].success_once]
        return cls(len(pairs), len(same), tuple(abs(one[0] - one[-1]) for one in onsets))

    def describe(self) -> str:
        """A summary in two sentences."""
        if not self.episodes:
            return "You have not labeled any episode twice yet."
        text = f"Your two labels agree in {self.same_outcome} of {self.episodes} episodes."
        if self.onset_differences:
            text += f" The first success frames differ by {np.median(self.onset_differences):g} (median)."
        return text


def repeated_labels(store: Store, episode_id: int, name: str) -> list[Labels]:
    """The last label that a person gave to an episode before they were asked again, and their newest repeated one."""
    before: Labels | None = None
    again: Labels | None = None
    for version in store.ledger.history(episode_id):
        if version.source != SOURCE:
            continue
        labels = version.labels()
        if labels.labeler is None or labels.labeler.name != name:
            continue
        if labels.labeler.repeat:
            again = labels
        elif again is None:
            before = labels
    return [labels for labels in (before, again) if labels is not None]
