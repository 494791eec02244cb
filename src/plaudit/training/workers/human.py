"""A person as a part of the loop: in charge of the labels, or the one who audits the judge that is.

Where the person sits at the machine of the store, the window is open on the store itself. Elsewhere it is open on a
mirror in that person's home folder, which outlives the run: what was begun there is found again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from plaudit.errors import EpisodeGone
from plaudit.judges.config import HUMAN
from plaudit.training.labeling_window import HumanSide, WindowConfig, elsewhere, here
from plaudit.training.replay_buffer import Item, Who
from plaudit.training.workers.judge import Appointed, Desk, Judged
from plaudit.types import Episode

WHO = Who(HUMAN, {})  # whatever a person labelled stands
MIRRORS = Path(".plaudit") / "mirrors"  # in the home folder


class PersonSide:
    """
    side = PersonSide(replay, config)
    side.step()              # in charge: everything that nobody has labelled
    side.step(ids)           # an auditor: these
    """

    def __init__(self, replay: Desk, config: WindowConfig):
        self._replay, self._config = replay, config
        self._side: HumanSide | None = None

    def who(self, appointed: Appointed | None = None) -> Who:
        return WHO

    def step(self, ids: Sequence[int] | None = None) -> Judged:
        """Show what is wanted, take what was said."""
        side = self._open()
        wanted = ids if ids is not None else [i for shelf, i in self._replay.pending(WHO) if shelf == "episodes"]
        side.offer(wanted)
        verdicts = {Item("episodes", i): labels for i, labels in side.collect()}
        if verdicts:
            self._replay.label(verdicts, {}, WHO)
        return Judged(WHO, done=len(verdicts), note=side.status)

    def close(self) -> None:
        if self._side is not None:
            self._side.close()

    def _open(self) -> HumanSide:
        if self._side is None:
            where = self._replay.where()
            if where.is_here:
                self._side = here(Path(where.episodes), self._config)
            else:
                name = hashlib.sha256(repr(where.identity).encode()).hexdigest()[:12]
                self._side = elsewhere(Path.home() / MIRRORS / name, self._fetch, self._config)
        return self._side

    def _fetch(self, episode_id: int) -> Episode:
        item = Item("episodes", episode_id)
        found = self._replay.episodes([item])
        if item not in found:
            raise EpisodeGone(f"episode {episode_id} is no longer in the store")
        return found[item]
