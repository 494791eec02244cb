"""A person as a worker of a run, who labels its episodes or audits its judge.

If the person sits at the machine of the store, the window is open on the store itself, and labels are in its ledger at
once. Elsewhere it is open on a mirror in the person's home folder, which outlives the run: drafts are kept, and labels
that were given while the run was away are sent when it is back. A mirror is named by the id of the store, because the
machine that has the store may have been rebooted or replaced.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from plaudit.data.store import Store
from plaudit.judges.human.judge import HumanJudge, with_window_id
from plaudit.judges.labeling import LabelRunner
from plaudit.training.handles import Handle
from plaudit.training.labeling_window import LabelingWindowConfig, Mirror, Window
from plaudit.training.replay_buffer import EpisodeRef, ReplayBuffer
from plaudit.training.workers.judge import BufferQueue, LabelReport
from plaudit.types import Episode, JudgeId, Labels

WHO = HumanJudge.id  # whatever a person labeled stands
MIRRORS = Path(".plaudit") / "mirrors"  # in the home folder


class WindowQueue(BufferQueue):
    """The run's episodes, by the ids that they have in the window that is open on the run's store."""

    def stale(self, judge: JudgeId) -> Sequence[EpisodeRef]:
        return [ref for ref in super().stale(judge) if ref.dataset == "episodes"]

    def episodes(self, keys: Sequence[EpisodeRef]) -> Mapping[EpisodeRef, Episode]:
        return {ref: with_window_id(episode, ref.id) for ref, episode in super().episodes(keys).items()}


class MirrorQueue(BufferQueue):
    """The run's episodes as copies in a mirror, each of which is fetched once."""

    def __init__(self, replay: Handle[ReplayBuffer], mirror: Mirror):
        super().__init__(replay)
        self._mirror = mirror

    def stale(self, judge: JudgeId) -> Sequence[EpisodeRef]:
        """Episodes without a label, and those that the person has labeled or relabeled since."""
        pending = [ref for ref in super().stale(judge) if ref.dataset == "episodes"]
        return list(dict.fromkeys([*self.answered(), *pending]))

    def answered(self) -> list[EpisodeRef]:
        """Episodes with an answer that is not in the run's ledger yet."""
        return [EpisodeRef("episodes", remote_id) for remote_id in self._mirror.answered()]

    def episodes(self, keys: Sequence[EpisodeRef]) -> Mapping[EpisodeRef, Episode]:
        """Episodes from the mirror; missing ones are fetched. Episodes that the run has deleted are left out."""
        alive = set(self._mirror.store.ids)
        missing = [ref for ref in keys if self._mirror.local_id(ref.id) not in alive]
        fetched = self._replay.call(ReplayBuffer.episodes, missing) if missing else {}
        for ref in missing:
            if ref in fetched and not self._mirror.is_answered(ref.id):
                self._mirror.add(fetched[ref], ref.id)
        local = {ref: self._mirror.local_id(ref.id) for ref in keys}
        return {
            ref: with_window_id(fetched[ref] if ref in fetched else self._mirror.store.episode(i), i)
            for ref, i in local.items()
            if i is not None and (ref in fetched or i in alive)
        }

    def write(self, labels: Mapping[EpisodeRef, Labels], failed: Mapping[EpisodeRef, str], judge: JudgeId) -> None:
        super().write(labels, failed, judge)
        self._mirror.mark_collected()


class HumanLabelWorker:
    """
    worker = HumanLabelWorker(replay, config)
    worker.label_pending()       # who labels the run: everything that has no label
    worker.label_pending(ids)    # who audits: these
    """

    def __init__(self, replay: Handle[ReplayBuffer], config: LabelingWindowConfig):
        self._replay, self._config = replay, config
        self._runner: LabelRunner[EpisodeRef] | None = None
        self._queue: WindowQueue | MirrorQueue
        self._judge: HumanJudge
        self._window: Window
        self._mirror: Mirror | None = None

    def label_pending(self, ids: Sequence[int] | None = None) -> LabelReport:
        """Show what is wanted, take what was answered."""
        runner = self._open()
        only = None if ids is None else [EpisodeRef("episodes", i) for i in ids]
        if only is not None and isinstance(self._queue, MirrorQueue):
            only = list(dict.fromkeys([*self._queue.answered(), *only]))
        stats = runner.step(only)
        if not stats.pending:
            self._judge.request([])
        return LabelReport.of(WHO, stats, self._window.status)

    def close(self) -> None:
        """Close the window; what was begun in it is kept."""
        if self._runner is not None:
            self._window.close()
        if self._mirror is not None:
            self._mirror.close()

    def _open(self) -> LabelRunner[EpisodeRef]:
        if self._runner is None:
            where = self._replay.call(ReplayBuffer.location)
            if where.is_here:
                folder = where.episodes
                self._queue, store = WindowQueue(self._replay), Store.open(folder)
            else:
                folder = Path.home() / MIRRORS / where.store_id[:12]
                self._mirror = Mirror(folder)
                self._queue, store = MirrorQueue(self._replay, self._mirror), self._mirror.store
            self._window = Window(folder, self._config)
            self._judge = HumanJudge(store, self._window.show)
            self._runner = LabelRunner(self._judge, self._queue, batch_size=sys.maxsize)
        return self._runner
