"""The stores of a run: the episodes that it plays, where they are kept, and its demonstrations."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plaudit.data.store import Store
from plaudit.rollout.scripted import record_demos
from plaudit.rollout.vector import RolloutBatch
from plaudit.training.reward import Referee
from plaudit.training.run_folder import RunFolder, open_demos

DEMOS = 2_000_000_000  # where the seeds of demonstrations begin


class Kept:
    """The run's own episodes with their verdicts.

    A run that goes on from a checkpoint plays again what came after it: the same episodes with the same judge, others
    with another. Either way those of the lost rounds are dropped, and what is played again is stored again.
    """

    def __init__(self, store: Store, charge: Referee):
        self.store, self._charge = store, charge
        self.end = 0  # ids from here on are not of the run as it stands; a checkpoint keeps this

    def add(self, played: RolloutBatch) -> None:
        pairs = self._charge.episodes(played)
        ids = self.store.extend([episode for episode, _ in pairs])
        self.store.ledger.extend(zip(ids, (labels for _, labels in pairs), strict=True))
        self.end = ids[-1] + 1

    def go_back_to(self, end: int) -> None:
        """To where a checkpoint stands: episodes that were stored after it are dropped."""
        later = [i for i in self.store.ids if i >= end]
        if later:
            self.store.evict(later)
        self.end = end


@contextmanager
def stores(
    folder: RunFolder, charge: Referee, track: Callable[[str], Any]
) -> Iterator[tuple[Kept | None, Store | None]]:
    """The run's own episodes, where they are kept, and the demonstrations, where there are some.

    Both are as the newest checkpoint has them, with verdicts of whoever is in charge now.
    """
    config = folder.config
    keep = config.keep_episodes or config.off_policy
    episodes = _open(folder.path / "episodes", config.capacity_gb) if keep else None
    try:
        kept = None if episodes is None else Kept(episodes, charge)
        if kept is not None:
            facts = folder.newest_facts()
            kept.go_back_to(facts["study"]["kept"] if facts else 0)
            charge.judge_again(kept.store, track)
        demos = _demonstrations(folder, charge, track)
        judged = None if demos is None else charge.judge_demos(demos, folder.path / "demos.labels", track)
        yield kept, judged
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
                progress=track("demonstrations"),
            )
        part.rename(path)
    return Store.open(path)


def _open(path: Path, capacity_gb: float) -> Store:
    return Store.open(path, write=True) if path.exists() else Store.create(path, capacity_bytes=int(capacity_gb * 1e9))
