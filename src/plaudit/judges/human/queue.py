"""Which episode comes next, and how many are left.

    unlabeled       those without a human label, oldest first
    disagreement    those on which judges disagree most, until a human has labeled them

Judges are compared by the newest label of each source. Two of them differ on an episode by

    mean over the frames both labeled of |P_a - P_b|,  plus 1 where one saw success in it and the other did not

with P the probability where the judge gave one, its 0 or 1 elsewhere; an episode's score is that of the two judges who
are furthest apart, so those with opposite outcomes come before all others. A person's own label is one of those
compared: a label of mine that the classifier contradicts is shown to me again, and once my label is newer than all
others the matter is settled.

In either order, requested episodes come before all others: a run that audits its judge needs labels of certain
episodes, and writes their list into the store's folder. A window checks ten times a second whether the list has
changed, which costs one `stat`.

Rows keep their places while one works: a row that is done stays where it was, with a tick, and those left are put in
order again among their own places when labels arrive.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.data.disk import Folder, write_atomic
from plaudit.data.entries import MAX_ID, is_int_in
from plaudit.data.store import Store
from plaudit.files import parse_json
from plaudit.judges.human.drafts import SOURCE
from plaudit.types import Labels

REQUESTS = "label_requests.json"  # in a store's folder
QueueOrder = Literal["unlabeled", "disagreement"]
AT_A_TIME = 100  # episodes whose judges are compared in one go: some 50 ms


def write_requests(store: Path, ids: Sequence[int]) -> None:
    """Replace the list by these, the most wanted first."""
    write_atomic(store / REQUESTS, json.dumps(list(ids)).encode())


class LabelRequests:
    """The list of a store, as it is now."""

    def __init__(self, store: Path):
        self._path = store / REQUESTS
        self._stamp: tuple[int, int] | None = None  # of the file that was read
        self._ranks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def rank(self, episode_id: int) -> int:
        """0 for the most wanted; an episode that was not requested comes after all others."""
        return self._ranks.get(episode_id, len(self._ranks))

    def update(self) -> bool:
        """Whether it has changed since."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._ranks = {episode_id: rank for rank, episode_id in enumerate(self._read())}
        return True

    def _read(self) -> list[int]:
        """Empty where the file is no list of episodes."""
        try:
            ids = parse_json(Folder(self._path.parent).read(REQUESTS))
        except (OSError, ValueError):  # ForeignFile is one
            return []
        return ids if isinstance(ids, list) and all(is_int_in(i, 0, MAX_ID) for i in ids) else []


class Queue:
    """The episodes of a store in the order a person should see them."""

    def __init__(self, store: Store, order: QueueOrder, drafts: Collection[int]):
        """drafts: the episodes with an unfinished label, now and later; they need a label, whatever the ledger has"""
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
        """How far its judges are apart, from 0 to 2; 0 in the other order, which does not compare."""
        return self._scores.get(episode_id, 0.0)

    def needs_label(self, episode_id: int) -> bool:
        return episode_id in self._left or episode_id in self._drafts

    def next_episode(self, episode_id: int | None, taken: Collection[int] = ()) -> int | None:
        """The next that needs a label, from the top again after the last, but requested ones first; one that
        is taken only when there is no other."""
        start = self.rows.index(episode_id) + 1 if episode_id in self.rows else 0
        coming = [i for i in self.rows[start:] + self.rows[:start] if self.needs_label(i) and i != episode_id]
        coming.sort(key=self._requests.rank)
        return next((i for i in coming if i not in taken), coming[0] if coming else None)

    def neighbor(self, episode_id: int | None, by: int) -> int | None:
        """The row so many further down, done or not; None past either end."""
        row = self.rows.index(episode_id) + by if episode_id in self.rows else 0
        return self.rows[row] if 0 <= row < len(self.rows) else None

    def update(self) -> bool:
        """Take in what store and ledger have seen since; False when that is nothing.

        Many labels at once are compared a few at a time, so that the window stays responsive: call it until it returns
        False.
        """
        ledger, now = self._store.ledger, (self._store.revision, len(self._store.ledger))
        requested = self._requests.update()
        if now == self._seen and not self._unscored and not requested:
            return False
        alive, listed = self._store.ids, set(self.rows)
        alive_ids = set(alive)
        new = [i for i in alive if i not in listed]
        changed = (ledger.changed_since(self._seen[1]) & alive_ids) | set(new)
        self._seen = now
        self.rows = [i for i in self.rows if i in alive_ids] + new
        if self.order == "disagreement":
            self._unscored = (self._unscored | changed) & alive_ids
            scored = {self._unscored.pop() for _ in range(min(AT_A_TIME, len(self._unscored)))}
            self._scores |= {i: self._disagreement(i) for i in scored}
            changed |= scored
        self._left = (self._left & alive_ids | changed) - {i for i in changed if self._is_resolved(i)}
        if self.order == "disagreement" or self._requests or requested:
            places = [row for row, i in enumerate(self.rows) if i in self._left]
            for row, episode_id in zip(places, sorted(self._left, key=self._key)):
                self.rows[row] = episode_id
        return True

    def _key(self, episode_id: int) -> tuple[int, float, int]:
        return self._requests.rank(episode_id), -self.score(episode_id), episode_id

    def _is_resolved(self, episode_id: int) -> bool:
        """Whether a human has labeled it; where judges are compared, after all others or in agreement with them."""
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
    return max((_pair_disagreement(a, b) for n, a in enumerate(judges) for b in judges[:n]), default=0.0)


def _pair_disagreement(one: Labels, other: Labels) -> float:
    if one.steps != other.steps:  # one of them is not of this episode; `plaudit data check` says so
        return 0.0
    gap = np.abs(one.frame_probs - other.frame_probs)
    both = ~np.isnan(gap)
    return float(gap[both].mean()) + (one.success_once != other.success_once) if both.any() else 0.0
