"""The stores of a run: the episodes that it plays, where they are kept, and its demonstrations."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.rollout.demos import record_demos
from plaudit.rollout.rounds import Round
from plaudit.train.folder import RunFolder, open_demos
from plaudit.train.referee import Referee
from plaudit.types import Labels

DEMOS = 2_000_000_000  # where the seeds of demonstrations begin


class Kept:
    """The run's own episodes with their verdicts, numbered from 0 in the order they were played.

    A run that goes on from a checkpoint plays again what came after it: such episodes are in the store already, and
    count again once it has come to them.
    """

    def __init__(self, store: Store, charge: Referee):
        self.store, self._charge = store, charge
        self.count = 0

    def add(self, played: Round) -> None:
        pairs = self._charge.episodes(played)
        alive = set(self.store.ids)
        there = [i for i in range(self.count, self.count + len(pairs)) if i in alive]
        there += self.store.extend([episode for episode, _ in pairs[len(there) :]])
        self.store.ledger.extend(zip(there, (labels for _, labels in pairs), strict=True))
        self.count += len(pairs)

    def go_back_to(self, count: int) -> None:
        """To where the run stands."""
        self.count = count
        later = [i for i in self.store.ids if i >= count]
        self.store.ledger.extend((i, _not_yet(self.store.place(i).steps, self._charge.source)) for i in later)


def _not_yet(steps: int, source: str) -> Labels:
    unknown = np.full(steps, np.nan, np.float32)
    return Labels(unknown, np.zeros(steps, bool), source=source, note="later than the resumed checkpoint")


@contextmanager
def stores(
    folder: RunFolder, charge: Referee, track: Callable[[str], Any]
) -> Iterator[tuple[Kept | None, Store | None]]:
    """The run's own episodes, where they are kept, and the demonstrations, where there are some."""
    config = folder.config
    keep = config.keep_episodes or config.off_policy
    episodes = _open(folder.path / "episodes", config.capacity_gb) if keep else None
    try:
        if episodes is not None:
            charge.judge_again(episodes, track)
        demos = _demonstrations(folder, charge, track)
        judged = None if demos is None else charge.judge_demos(demos, folder.path / "demos.labels", track)
        yield None if episodes is None else Kept(episodes, charge), judged
    finally:
        if episodes is not None:
            episodes.close()


def _demonstrations(folder: RunFolder, charge: Referee, track: Callable[[str], Any]) -> Store | None:
    config, path = folder.config, folder.path / "demos"
    if not config.scripted_demos:
        return open_demos(config)
    if not path.exists():  # made aside: a run that is killed meanwhile begins them anew, and has the same ones
        part = path.with_name(".demos.part")
        shutil.rmtree(part, ignore_errors=True)
        with Store.create(part) as store:
            record_demos(
                config.env,
                store,
                episodes=config.scripted_demos,
                noise=config.demo_noise,
                seed=DEMOS + config.seed * 100_003,
                linger=charge.linger,
                track=track("demonstrations"),
            )
        part.rename(path)
    return Store.open(path)


def _open(path: Path, capacity_gb: float) -> Store:
    return Store.open(path, write=True) if path.exists() else Store.create(path, capacity_bytes=int(capacity_gb * 1e9))
