"""What new judges learn from and what old and new are compared on: two stores that only grow.

    lessons/train/       episodes with labels that are believed
    lessons/held_out/    others, which no judge of this run ever learns from

Which of the two an episode goes to is drawn from its own bytes, so it is the same over all retrainings, after a move to
another folder, and for an episode that comes twice: what was held out once stays held out. Episodes are copied: the
run's own store forgets its oldest, and those that somebody looked at are worth more than the disk they take. What a
simulator knows of them is left behind, and of all labels only the newest one that is believed comes along.
"""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from plaudit.data.label_index import LabelVersion
from plaudit.data.store import Store, is_store
from plaudit.errors import EpisodeNotFound
from plaudit.training.audit import lot

Part = Literal["run", "data"]  # the run's own episodes, or those that the first judge was trained on
TRAIN, HELD_OUT = "train", "held_out"


class Lessons:
    """The two stores of a run."""

    def __init__(self, folder: Path, share: float, seed: int = 0):
        """share: of the episodes that is held out"""
        self.train, self.held_out = folder / TRAIN, folder / HELD_OUT
        self._share, self._seed = share, seed

    def holds_out(self, store: Store, episode_id: int) -> bool:
        return lot(self._seed, HELD_OUT, _key(store, episode_id)) < self._share

    def take(self, store: Store, sources: Collection[str], part: Part) -> None:
        """Add what these have labelled and what they have changed their minds about; asked twice, does nothing."""
        with ExitStack() as held:
            targets = [held.enter_context(_opened(path)) for path in (self.train, self.held_out)]
            known = [_known(target) for target in targets]
            for episode_id in labelled(store, sources):
                newest = store.ledger.newest(episode_id, sources)
                assert newest is not None
                side = int(self.holds_out(store, episode_id))
                _take(store, newest, targets[side], known[side], part)


def labelled(store: Store, sources: Collection[str]) -> list[int]:
    """The episodes that are there and of which one of these said something."""
    return [i for i in store.ids if store.ledger.newest(i, sources) is not None]


def part_of(store: Store, episode_id: int) -> Part:
    """Where a copied episode came from."""
    return store.entry(episode_id).line["meta"]["lesson"]["part"]


def _take(store: Store, newest: LabelVersion, target: Store, known: dict[str, int], part: Part) -> None:
    key, labels = _key(store, newest.episode), newest.labels()
    if key not in known:
        if not labels.labeled.any():  # nobody should learn from it
            return
        try:
            episode = store.episode(newest.episode)
        except EpisodeNotFound:  # evicted while this goes on
            return
        lesson = {"key": key, "part": part, "episode": newest.episode}
        known[key] = target.append(replace(episode, privileged={}, meta={**episode.meta, "lesson": lesson}))
    here = target.ledger.newest(known[key])
    if here is None or (here.source, here.time) != (newest.source, newest.time):
        target.ledger.append(known[key], labels)


def _key(store: Store, episode_id: int) -> str:
    """The same for the same bytes."""
    checksums = sorted(store.entry(episode_id).line["crc"].items())
    return sha256(repr(checksums).encode()).hexdigest()[:16]


def _known(store: Store) -> dict[str, int]:
    return {store.entry(i).line["meta"]["lesson"]["key"]: i for i in store.ids}


def _opened(path: Path) -> Store:
    return Store.open(path, write=True) if is_store(path) else Store.create(path)
