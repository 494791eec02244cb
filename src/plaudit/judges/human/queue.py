"""Which episode comes next, and how many are left.

    unlabeled       those without a human label, oldest first
    disagreement    those on which judges disagree most, until a human has labeled them
    uncertain       those without a human label, the scores closest to their judge's threshold first
    random          those without a human label, in an order that is the same each time and follows nothing
    repeat          those that this person has labeled once, in random order, to measure how far they agree with
                    themselves: no judge can be expected to agree with people better than that

Judges are compared by the newest label of each source. Two of them differ on an episode by

    mean over the frames both labeled of |P_a - P_b|,  plus 1 where one saw success in it and the other did not

with P the probability where the judge gave one, its 0 or 1 elsewhere; an episode's score is that of the two judges who
are furthest apart, so those with opposite outcomes come before all others. Human labels are compared too: one that the
classifier contradicts later is shown again, and a human label that is newer than all others settles the episode.

In every order, requested episodes come first: a run that audits its judge writes the list of episodes it needs labels
of into the store's folder. Rows keep their places while one works: a row that is done stays where it was, with a tick,
and those left are sorted among their own places when labels arrive.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, Self
from zlib import crc32

import numpy as np

from plaudit.data.disk import Folder, write_atomic
from plaudit.data.journal import MAX_ID, is_int_in
from plaudit.data.store import Store
from plaudit.files import parse_json
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


REQUESTS = "label_requests.json"  # in a store's folder
QueueOrder = Literal["unlabeled", "disagreement", "uncertain", "random", "repeat"]
AT_A_TIME = 100  # episodes whose judges are compared in one go: some 50 ms


def write_requests(store: Path, ids: Sequence[int]) -> None:
    """Replace the list by these, the most wanted first."""
    write_atomic(store / REQUESTS, json.dumps(list(ids)).encode())


class LabelRequests:
    """The list of a store; empty if the file is no list of episodes."""

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
        """Read the list again if its file has changed; returns whether it has."""
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return False
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            ids = parse_json(Folder(self._path.parent).read(REQUESTS))
        except (OSError, ValueError):  # ForeignFile is one
            ids = []
        valid = isinstance(ids, list) and all(is_int_in(i, 0, MAX_ID) for i in ids)
        self._ranks = {episode_id: rank for rank, episode_id in enumerate(ids)} if valid else {}
        return True


class Queue:
    """The episodes of a store in the order a person should see them."""

    def __init__(
        self,
        store: Store,
        order: QueueOrder,
        is_draft: Callable[[int], bool] = lambda episode_id: False,
        name: str = "",
    ):
        """
        is_draft: whether an episode has an unfinished label now; then it needs one, whatever is in the ledger
        name: the labeler's, whose labels are repeated
        """
        self.order, self._name = order, name
        self.rows: list[int] = []
        self._store, self._is_draft, self._requests = store, is_draft, LabelRequests(store.folder)
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
        """By which it is sorted, from 0 to 2: how far its judges are apart, or how uncertain they are; 0 in other
        orders, which do not compare."""
        return self._scores.get(episode_id, 0.0)

    def needs_label(self, episode_id: int) -> bool:
        return episode_id in self._left or self._is_draft(episode_id)

    def next_episode(self, episode_id: int | None, taken: Collection[int] = ()) -> int | None:
        """The next that needs a label, from the top again after the last, but requested ones first; one that
        is taken only when there is no other."""
        start = self.rows.index(episode_id) + 1 if episode_id in self.rows else 0
        coming = [i for i in self.rows[start:] + self.rows[:start] if self.needs_label(i) and i != episode_id]
        coming.sort(key=self._requests.rank)
        return next((i for i in coming if i not in taken), coming[0] if coming else None)

    def neighbor(self, episode_id: int | None, by: int) -> int | None:
        """The episode `by` rows further down, done or not; None past either end."""
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
        if self.order in SCORES:
            self._unscored = (self._unscored | changed) & alive_ids
            scored = {self._unscored.pop() for _ in range(min(AT_A_TIME, len(self._unscored)))}
            for i in scored:
                newest = {version.source: version for version in ledger.history(i)}
                self._scores[i] = SCORES[self.order]([version.labels() for version in newest.values()])
            changed |= scored
        self._left = (self._left & alive_ids | changed) - {i for i in changed if self._is_resolved(i)}
        if self.order != "unlabeled" or self._requests or requested:
            places = [row for row, i in enumerate(self.rows) if i in self._left]
            for row, episode_id in zip(places, sorted(self._left, key=self._key)):
                self.rows[row] = episode_id
        return True

    def _key(self, episode_id: int) -> tuple[int, float, int]:
        rank = self._requests.rank(episode_id)
        if self.order in ("random", "repeat"):
            return rank, crc32(f"{self._store.settings.id}/{episode_id}".encode()), episode_id
        return rank, -self.score(episode_id), episode_id

    def _is_resolved(self, episode_id: int) -> bool:
        """Whether a human has labeled it; where judges are compared, after all others or in agreement with them."""
        ledger = self._store.ledger
        if self.order == "repeat":
            return len(repeated_labels(self._store, episode_id, self._name)) != 1
        if ledger.newest(episode_id, (SOURCE,)) is None:
            return False
        newest = ledger.newest(episode_id)
        by_human = newest is not None and newest.source == SOURCE
        return by_human or self.order != "disagreement" or self.score(episode_id) == 0


def disagreement(judges: Sequence[Labels]) -> float:
    """How far apart the two are that differ most, from 0 to 2; 0 for fewer than two."""
    largest = 0.0
    for one, other in combinations(judges, 2):
        if one.steps == other.steps:  # else one is of another episode; `plaudit data check` reports it
            gap = np.abs(one.frame_probs - other.frame_probs)
            if not np.isnan(gap).all():
                largest = max(largest, float(np.nanmean(gap)) + (one.success_once != other.success_once))
    return largest


def uncertainty(judges: Sequence[Labels]) -> float:
    """How close the scores of a model are to its threshold, from 0 to 1, of the model that is least certain. An
    out-of-distribution episode has 1."""
    largest = 0.0
    for labels in judges:
        rule = labels.judge.rule
        if labels.scores is None or rule is None or labels.judge.source == SOURCE:
            continue
        gap = abs(rule.episode_score(labels.scores.success_prob) - rule.threshold)
        largest = max(largest, 1.0 if labels.ood else 1 - gap / max(rule.threshold, 1 - rule.threshold))
    return largest


SCORES: Mapping[str, Callable[[Sequence[Labels]], float]] = {
    "disagreement": disagreement,
    "uncertain": uncertainty,
}
