"""The label ledger: append-only, versioned labels of episodes.

Labels come minutes or days after their episode, from several judges, and may be revised. So nothing is overwritten: new
labels are a new version, and restoring an old version appends it again. Which version counts is decided when labels are
read: people's before those of models, the newest of equals (data/label_order.py). The file is a journal
(data/journal.py); several processes may append at once, each under a short lock, so a person can label while the robot
records and a classifier judges. Arrays are stored in the line, compressed and base64-encoded: a hundred bytes for a
clear-cut episode of 50 steps, two kilobytes for 400 steps with a probability each.
"""

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from plaudit.data.disk import Folder, disk_errors
from plaudit.data.journal import Journal, Record
from plaudit.data.label_index import LabelIndex, LabelVersion, can_decode, encode_labels, is_label_line
from plaudit.data.label_order import LabelOrder
from plaudit.data.signals import defer_signals
from plaudit.errors import DataError, Replaced, StoreError
from plaudit.types import PEOPLE, Labels


class Ledger:
    """The labels of one store's episodes."""

    def __init__(
        self, path: Path, folder: Folder | None = None, header: Record | None = None, order: LabelOrder | None = None
    ):
        """
        folder: where it lies, if that is open already
        header: the id of the store, for a file without a header
        order: whose labels count most; None: the default
        """
        self.path = path
        self.order = order or LabelOrder()
        self._folder, self._header = folder or Folder(path.parent), header
        self._guard = threading.Lock()
        self.generation = 0  # how often a repair has replaced the file; version counts of before mean nothing then
        self._start()
        self.refresh()

    def _start(self) -> None:
        self._journal = Journal(self.path, self._folder, header=self._header)
        self._index = LabelIndex(self._journal.held)
        self._journal.on_line = self._index.add  # of each line that is read or written, in order

    def __len__(self) -> int:
        """How many versions there are, of all episodes."""
        return len(self._index)

    def refresh(self) -> None:
        """Read what other processes have appended."""
        with self._guard, disk_errors(self.path.parent, f"{self.path.name} cannot be read"):
            self._refresh()

    def _refresh(self) -> None:
        while True:
            try:
                self._journal.read()
                return
            except Replaced:  # by a repair or a backup, which may have fewer lines: all of them are read again
                self._folder.check_same()
                self._read_again()

    def _read_again(self) -> None:
        before, journal, index = self.header, self._journal, self._index
        try:
            self._start()
            self._journal.read()
        except Exception:  # damaged: what was read before stays
            self._journal, self._index = journal, index
            raise
        self.generation += 1
        if before and self.header != before:
            self._journal, self._index = journal, index
            raise StoreError(
                f"{self.path} was replaced by the labels of another store while it was open; nothing was written, "
                "open the store again"
            )

    def recover_tail(self) -> list[str]:
        """Move an incomplete last line of a killed process to the quarantine; returns messages."""
        with self._guard, disk_errors(self.path.parent, f"{self.path.name} cannot be written"):
            self._refresh()
            return self._journal.recover_tail()[1]

    @property
    def header(self) -> Record | None:
        """The header of the file."""
        return self._journal.header

    def set_header(self, header: Record) -> None:
        """Write it down, in a file of an earlier version."""
        self._header = header
        self._journal.set_header(header)
        self._append([])

    @property
    def last_id(self) -> int:
        """The highest id of an episode that has labels; -1 where none has."""
        return self._index.last_id

    def changed_since(self, count: int) -> set[int]:
        """The episodes that got labels after the first `count` versions: how replay keeps up."""
        return self._index.changed_since(count)

    def since(self, count: int) -> list[LabelVersion]:
        """The versions that came after the first `count`, of all episodes, in the order they came."""
        return self._index.since(count)

    def append(self, episode_id: int, labels: Labels) -> int:
        """Add labels; returns their version number once they are synced to disk."""
        return self.extend([(episode_id, labels)])[0]

    def extend(self, labeled: Iterable[tuple[int, Labels]]) -> list[int]:
        """Several at once, with one sync."""
        return self._write([(episode_id, labels, None) for episode_id, labels in labeled])

    def restore(self, episode_id: int, number: int) -> int:
        """Make an old version count again, as the newest; returns the new version's number.

        Somebody chose it, so it stands as high as labels of the sources that count most.
        """
        return self._write([(episode_id, self.version(episode_id, number).labels(), number)])[0]

    def labels(self, episode_id: int, sources: Collection[str] | None = None) -> Labels | None:
        """The labels that count, of all judges or of certain ones; None if there are none."""
        version = self.current(episode_id, sources)
        return None if version is None else version.labels()

    def current(self, episode_id: int, sources: Collection[str] | None = None) -> LabelVersion | None:
        """The version that counts: of the source that ranks highest, the newest. Of a single source, its newest."""
        if sources is not None and len(set(sources)) == 1:
            return self.newest(episode_id, sources)
        return self._index.current(episode_id, sources, self.order)

    def newest(self, episode_id: int, sources: Collection[str] | None = None) -> LabelVersion | None:
        """The last one that was added, whether it counts or not."""
        return self._index.newest(episode_id, sources)

    def is_excluded(self, episode_id: int) -> bool:
        """Whether a person has excluded an episode: their label that counts leaves out every frame."""
        labels = self.labels(episode_id, PEOPLE)
        return labels is not None and not labels.labeled.any()

    def history(self, episode_id: int) -> list[LabelVersion]:
        """Every version, oldest first."""
        return self._index.history(episode_id)

    def version(self, episode_id: int, number: int) -> LabelVersion:
        history = self.history(episode_id)
        if not 1 <= number <= len(history):
            has = f"versions 1 to {len(history)}" if history else "no labels"
            raise DataError(f"episode {episode_id} has {has}, not version {number}")
        return history[number - 1]

    def _write(self, labeled: list[tuple[int, Labels, int | None]]) -> list[int]:
        now = time.time()
        lines = [
            encode_labels(i, labels if labels.time else replace(labels, time=now), back) for i, labels, back in labeled
        ]
        for line in lines:
            if not is_label_line(line) or not can_decode(line):  # before it is on disk, where nobody could read past it
                raise DataError(f"these labels cannot be stored: {str(line)[:200]}")
        with self._guard, defer_signals():
            return self._append(lines)

    def _append(self, lines: list[Record]) -> list[int]:
        """Returns the version number that each got."""
        with disk_errors(self.path.parent, "these labels were not stored"):
            while True:
                try:
                    self._journal.append(lines)
                    return self._index.numbers_since(len(self) - len(lines))
                except Replaced:  # nothing was written into the old file
                    self._refresh()
