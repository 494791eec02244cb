"""What candidates are trained on, and what they are compared with the current judge on: two stores that only grow.

    judge/data/train/    episodes with labels of a trusted source
    judge/data/val/      others, which no judge of this run is ever trained on

A comparison is fair only on episodes that no judge has chosen. The audit looks at a judge's errors more often than at
its other episodes, so among all audited episodes the current judge looks worse than it is, and an equally good
candidate would seem better. Of the run's own episodes, only those that the audit drew whatever the judge decided can be
held out, and of these `val_fraction`. All others are trained on.

Which store an episode goes to depends only on the draw and on its own bytes. It is the same over all retrainings, after
a move to another folder, and for an episode that comes twice: what was held out once stays held out. Episodes are
copied: the run's own store evicts its oldest, and labeled ones are worth more than the disk space they take. What a
simulator knows about them is left out, and only the trusted label that counts is copied.
"""

from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from plaudit.data.label_index import LabelVersion
from plaudit.data.store import Store, is_store
from plaudit.errors import EpisodeNotFound
from plaudit.judges.cascade import lot_of
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.training.audit import hashed_uniform

Origin = Literal["online", "initial"]  # the run's own episodes, or those that the first judge was trained on
META = "retrain"  # in a copied episode's meta: where it came from


class RetrainData:
    """The two stores of a run."""

    def __init__(self, folder: Path, val_fraction: float, seed: int = 0, lots: float = 0.0):
        """
        val_fraction: of the episodes that no judge has chosen, the fraction that is held out
        lots: fraction of the episodes that a cascade sends to a person by lot; all of them are held out
        """
        self.train, self.val = folder / "train", folder / "val"
        self._val_fraction, self._seed, self._lots = val_fraction, seed, lots

    def is_held_out(self, store: Store, episode_id: int) -> bool:
        """Whether an episode that no judge has chosen is one of those that nothing is trained on."""
        drawn = hashed_uniform(self._seed, "held_out", _key(store, episode_id)) < self._val_fraction
        return drawn or self.is_by_lot(store, episode_id)

    def is_by_lot(self, store: Store, episode_id: int) -> bool:
        """Whether a cascade sends it to a person by lot."""
        return self._lots > 0 and lot_of(store.episode(episode_id)) < self._lots

    def add_labeled(
        self, store: Store, sources: Collection[str], origin: Origin, unchosen: Collection[int] | None = None
    ) -> None:
        """Copy what these sources have labeled, and labels that they have changed; called again, does nothing.

        unchosen: episodes that no judge has chosen, which may be held out; None: all
        """
        with ExitStack() as held:
            targets = [held.enter_context(_open_or_create(path)) for path in (self.train, self.val)]
            copies = [_copies(target) for target in targets]
            for episode_id in labeled_episodes(store, sources):
                current = store.ledger.current(episode_id, sources)
                assert current is not None
                with suppress(EpisodeNotFound):  # evicted while this goes on
                    fair = unchosen is None or episode_id in unchosen or self.is_by_lot(store, episode_id)
                    split = int(fair and self.is_held_out(store, episode_id))
                    if not split or current.source in REFERENCE_SOURCES:  # a model's label measures no judge
                        _copy(store, current, targets[split], copies[split], origin)


def labeled_episodes(store: Store, sources: Collection[str]) -> list[int]:
    """The stored episodes that one of these sources has labeled."""
    return [i for i in store.ids if store.ledger.newest(i, sources) is not None]


def episode_origin(store: Store, episode_id: int) -> Origin:
    """Where a copied episode came from."""
    return store.entry(episode_id).line["meta"][META]["origin"]


def _copy(store: Store, newest: LabelVersion, target: Store, copies: dict[str, int], origin: Origin) -> None:
    key, labels = _key(store, newest.episode), newest.labels()
    if key not in copies:
        if not labels.labeled.any():  # excluded
            return
        episode = store.episode(newest.episode)
        source = {"key": key, "origin": origin, "episode": newest.episode}
        copies[key] = target.append(replace(episode, privileged={}, meta={**episode.meta, META: source}))
    copied = target.ledger.newest(copies[key])
    if copied is None or (copied.source, copied.time) != (newest.source, newest.time):
        target.ledger.append(copies[key], labels)


def _key(store: Store, episode_id: int) -> str:
    """The same for the same bytes."""
    checksums = sorted(store.entry(episode_id).line["crc"].items())
    return sha256(repr(checksums).encode()).hexdigest()[:16]


def _copies(store: Store) -> dict[str, int]:
    return {store.entry(i).line["meta"][META]["key"]: i for i in store.ids}


def _open_or_create(path: Path) -> Store:
    return Store.open(path, write=True) if is_store(path) else Store.create(path)
