"""A person as a part of the loop: in charge of the labels, or the one who audits the judge that is.

Where the person sits at the machine of the store, the window is open on the store itself. Elsewhere it is open on a
mirror in that person's home folder, which outlives the run: what was begun there is found again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from plaudit.errors import EpisodeNotFound
from plaudit.judges.config import HUMAN
from plaudit.training.handles import Handle
from plaudit.training.labeling_window import HumanSide, WindowConfig, elsewhere, here
from plaudit.training.replay_buffer import EpisodeRef, ReplayBuffer
from plaudit.training.workers.judge import LabelReport
from plaudit.types import Episode, JudgeId

WHO = JudgeId(HUMAN)  # whatever a person labelled stands
MIRRORS = Path(".plaudit") / "mirrors"  # in the home folder


class HumanLabelWorker:
    """
    worker = HumanLabelWorker(replay, config)
    worker.label_pending()       # who labels the run: everything that has no label
    worker.label_pending(ids)    # who audits: these
    """

    def __init__(self, replay: Handle[ReplayBuffer], config: WindowConfig):
        self._replay, self._config = replay, config
        self._side: HumanSide | None = None

    def label_pending(self, ids: Sequence[int] | None = None) -> LabelReport:
        """Show what is wanted, take what was said."""
        side = self._open()
        if ids is None:
            ids = [i for shelf, i in self._replay.call(ReplayBuffer.pending, WHO) if shelf == "episodes"]
        side.offer(ids)
        verdicts = {EpisodeRef("episodes", i): labels for i, labels in side.collect()}
        if verdicts:
            self._replay.call(ReplayBuffer.add_labels, verdicts, {}, WHO)
        return LabelReport(WHO, done=len(verdicts), note=side.status)

    def close(self) -> None:
        if self._side is not None:
            self._side.close()

    def _open(self) -> HumanSide:
        if self._side is None:
            where = self._replay.call(ReplayBuffer.location)
            if where.is_here:
                self._side = here(Path(where.episodes), self._config)
            else:
                name = hashlib.sha256(repr(where.identity).encode()).hexdigest()[:12]
                self._side = elsewhere(Path.home() / MIRRORS / name, self._fetch, self._config)
        return self._side

    def _fetch(self, episode_id: int) -> Episode:
        item = EpisodeRef("episodes", episode_id)
        found = self._replay.call(ReplayBuffer.episodes, [item])
        if item not in found:
            raise EpisodeNotFound(f"episode {episode_id} is no longer in the store")
        return found[item]
