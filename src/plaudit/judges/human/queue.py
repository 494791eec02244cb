"""Which episode comes next, and how many are left.

    unlabelled      those that no person has judged, oldest first
    disagreement    those on which judges contradict each other most, until a person has said who is right

Judges are compared by the newest label of each source. Two of them differ on an episode by

    mean over the frames both judged of |P_a - P_b|,  plus 1 where one saw success in it and the other did not

with P the probability where the judge gave one, its 0 or 1 elsewhere; an episode's score is that of the two judges who
are furthest apart, so those with opposite outcomes come before all others. A person's own label is one of those
compared: a label of mine that the classifier contradicts is shown to me again, and once my label is newer than all
others the matter is settled.

In either order, episodes that somebody waits for (requests.py) come before all others.

Rows keep their places while one works: a row that is done stays where it was, with a tick, and those left are put in
order again among their own places when labels arrive.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from plaudit.data.store import Store
from plaudit.judges.human.annotation import SOURCE
from plaudit.judges.human.requests import LabelRequests
from plaudit.types import Labels

Order = Literal["unlabelled", "disagreement"]
AT_A_TIME = 100  # episodes whose judges are compared in one go: some 50 ms


class Queue:
    """The episodes of a store in the order a person should see them."""

    def __init__(self, store: Store, order: Order, drafts: Collection[int]):
        """drafts: the episodes with an unfinished verdict, now and later; they are left, whatever the ledger says"""
        self.order = order
        self.rows: list[int] = []
        self._store, self._drafts, self._requests = store, drafts, LabelRequests(store.folder)
        self._left: set[int] = set()
        self._scores: dict[int, float] = {}
        self._unscored: set[int] = set()
        self._seen = (-1, 0)  # the store's revision and the ledger's length
        while self.update():
            pass
        self.rows.sort(key=lambda i: (i not in self._left, *self._key(i)))

    def __len__(self) -> int:
        """How many are left."""
        return len(self._left)

    def score(self, episode_id: int) -> float:
        """How far its judges are apart, from 0 to 2; 0 in the other order, where nobody asks."""
        return self._scores.get(episode_id, 0.0)

    def is_left(self, episode_id: int) -> bool:
        return episode_id in self._left or episode_id in self._drafts

    def next_after(self, episode_id: int | None, taken: Collection[int] = ()) -> int | None:
        """The next that is left, from the top again after the last, but first those that somebody waits for; one that
        is taken only when there is no other."""
        start = self.rows.index(episode_id) + 1 if episode_id in self.rows else 0
        coming = [i for i in self.rows[start:] + self.rows[:start] if self.is_left(i) and i != episode_id]
        coming.sort(key=self._requests.rank)
        return next((i for i in coming if i not in taken), coming[0] if coming else None)

    def neighbour(self, episode_id: int | None, by: int) -> int | None:
        """The row so many further down, done or not; None past either end."""
        row = self.rows.index(episode_id) + by if episode_id in self.rows else 0
        return self.rows[row] if 0 <= row < len(self.rows) else None

    def update(self) -> bool:
        """Take in what store and ledger have seen since; False when that is nothing.

        Many labels at once are compared a few at a time, so that nobody waits: call it again until it returns False.
        """
        ledger, now = self._store.ledger, (self._store.revision, len(self._store.ledger))
        requested = self._requests.update()
        if now == self._seen and not self._unscored and not requested:
            return False
        alive, known = self._store.ids, set(self.rows)
        here = set(alive)
        new = [i for i in alive if i not in known]
        changed = (ledger.changed_since(self._seen[1]) & here) | set(new)
        self._seen = now
        self.rows = [i for i in self.rows if i in here] + new
        if self.order == "disagreement":
            self._unscored = (self._unscored | changed) & here
            scored = {self._unscored.pop() for _ in range(min(AT_A_TIME, len(self._unscored)))}
            self._scores |= {i: self._disagreement(i) for i in scored}
            changed |= scored
        self._left = (self._left & here | changed) - {i for i in changed if self._settled(i)}
        if self.order == "disagreement" or self._requests or requested:
            places = [row for row, i in enumerate(self.rows) if i in self._left]
            for row, episode_id in zip(places, sorted(self._left, key=self._key)):
                self.rows[row] = episode_id
        return True

    def _key(self, episode_id: int) -> tuple[int, float, int]:
        return self._requests.rank(episode_id), -self.score(episode_id), episode_id

    def _settled(self, episode_id: int) -> bool:
        """A person has judged it; and, where judges are compared, after all others or in agreement with them."""
        ledger = self._store.ledger
        if ledger.newest(episode_id, (SOURCE,)) is None:
            return False
        newest = ledger.newest(episode_id)
        return self.score(episode_id) == 0 or (newest is not None and newest.source == SOURCE)

    def _disagreement(self, episode_id: int) -> float:
        newest = {version.source: version for version in self._store.ledger.history(episode_id)}
        return disagreement([version.labels() for version in newest.values()])


def disagreement(judges: Sequence[Labels]) -> float:
    """How far apart the two are that differ most, from 0 to 2; 0 for fewer than two."""
    return max((_apart(a, b) for n, a in enumerate(judges) for b in judges[:n]), default=0.0)


def _apart(one: Labels, other: Labels) -> float:
    if one.steps != other.steps:  # one of them is not of this episode; `plaudit data check` says so
        return 0.0
    gap = np.abs(one.frame_probs - other.frame_probs)
    both = ~np.isnan(gap)
    return float(gap[both].mean()) + (one.success_once != other.success_once) if both.any() else 0.0
