"""Episodes that a robot has recorded and cannot hand over, on the disk of the robot's machine.

    unsent = UnsentEpisodes(store_id)
    unsent.resend(add)                # what a process before this one could not
    with unsent.keep(episode, key):      # on disk once this takes long or fails; gone again when it has worked
        add(episode, key)

While the head of a cluster is away, an episode would be in memory alone, and lost with the process when the node is
started again. It is not written down where the way is free: an episode may have a hundred megabytes.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from plaudit.data.store import Store, is_store
from plaudit.errors import PlauditError
from plaudit.trust import print_plain
from plaudit.types import Episode

UNSENT = Path(".plaudit") / "unsent"  # in the home folder
KEEP_AFTER_S = 1.0  # that handing one over may take before it is written down
KEY = "unsent"  # in the meta of an episode here: the key that it is handed over by


class UnsentEpisodes:
    """Of one run, named by the id of its store."""

    def __init__(self, store_id: str):
        self._folder = Path.home() / UNSENT / store_id[:12]

    def resend(self, add: Callable[[Episode, str], object]) -> None:
        """Give what is here to `add`, which may have got it before, and forget it."""
        for folder in sorted(self._folder.glob("*")):
            # One, or none where the process ended while it was written.
            for _, episode in Store.open(folder) if is_store(folder) else ():
                meta = {name: value for name, value in episode.meta.items() if name != KEY}
                add(replace(episode, meta=meta), episode.meta[KEY])
            shutil.rmtree(folder)

    @contextmanager
    def keep(self, episode: Episode, key: str) -> Iterator[None]:
        """Write the episode down unless this is over soon."""
        folder = self._folder / key
        timer = threading.Timer(KEEP_AFTER_S, self._keep, (episode, key, folder))
        timer.daemon = True
        timer.start()
        try:
            yield
        except PlauditError:
            timer.cancel()
            timer.join()
            self._keep(episode, key, folder)
            raise
        timer.cancel()
        timer.join()
        shutil.rmtree(folder, ignore_errors=True)

    def _keep(self, episode: Episode, key: str, folder: Path) -> None:
        if folder.exists():
            return
        try:
            with Store.create(folder) as store:
                store.append(replace(episode, meta={**episode.meta, KEY: key}))
        except (PlauditError, OSError) as error:
            print_plain(f"an episode that could not be handed over is in memory alone: {error}")
