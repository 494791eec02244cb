"""The label ledger: append-only verdicts on episodes, who said what and when.

Labels come minutes or days after their episode, from several judges, and judges change their minds. So nothing is
ever overwritten: each verdict is a new version of that episode's labels, the newest wins, and restoring an old one
appends it again. The file is a journal (data/journal.py); several processes may append at once, each append under a
short lock, so a person can label while the robot records and a classifier judges. Arrays stand in the line,
compressed and base64: a hundred bytes for a clear-cut episode of 50 steps, two kilobytes for 400 steps with a
probability each.
"""

import base64
import threading
import time
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.disk import Folder, told, uninterrupted
from plaudit.data.journal import Journal, Record
from plaudit.errors import DataError, Replaced, StoreDamaged
from plaudit.types import Labels


@dataclass(frozen=True)
class Version:
    """One entry of an episode's history. `labels()` unpacks the arrays."""

    episode: int
    number: int  # 1, 2, ... per episode
    source: str
    time: float
    restored_from: int | None
    line: Record

    def labels(self) -> Labels:
        return _unpack(self.line)


class Ledger:
    """The verdicts on one store's episodes."""

    def __init__(self, path: Path, folder: Folder | None = None, facts: Record | None = None):
        """
        folder: where it lies, if that is open already
        facts: whose it is, for a file that does not say so yet
        """
        self.path = path
        self._folder, self._facts = folder or Folder(path.parent), facts
        self._guard = threading.Lock()
        self._start()
        self.refresh()

    def _start(self) -> None:
        self._journal = Journal(self.path, self._folder, facts=self._facts)
        self._history: dict[int, list[Version]] = {}
        self._order: list[Version] = []  # of all episodes, in the order they came

    def __len__(self) -> int:
        """How many versions there are, of all episodes."""
        return len(self._order)

    def refresh(self) -> None:
        """Read what other processes have appended."""
        with self._guard, told(self.path.parent, f"{self.path.name} cannot be read"):
            self._refresh()

    def _refresh(self) -> None:
        while True:
            try:
                self._follow(self._journal.read())
                return
            except Replaced:  # by a repair: what is left of it may be less, so all of it is read again
                self._folder.check_same()
                self._start()

    def settle(self) -> list[str]:
        """Put what a killed process left of its last line aside; says what."""
        with self._guard, told(self.path.parent, f"{self.path.name} cannot be written"):
            self._refresh()
            others, said = self._journal.settle()
            self._follow(others)
            return said

    @property
    def facts(self) -> Record | None:
        """Whose it says it is."""
        return self._journal.facts

    def say_whose(self, facts: Record) -> None:
        """Write it down, in a file of an earlier version."""
        self._facts = facts
        self._journal.say_whose(facts)
        self._append([])

    def changed_since(self, count: int) -> set[int]:
        """The episodes that got a verdict after the first `count` versions: how replay keeps up."""
        return {version.episode for version in self.since(count)}

    def since(self, count: int) -> list[Version]:
        """The versions that came after the first `count`, of all episodes, in the order they came."""
        return self._order[count:]

    def append(self, episode_id: int, labels: Labels) -> int:
        """Add a verdict; returns its version number once it is safe on disk."""
        return self.extend([(episode_id, labels)])[0]

    def extend(self, verdicts: Iterable[tuple[int, Labels]]) -> list[int]:
        """Several at once, with one sync."""
        return self._write([(episode_id, labels, None) for episode_id, labels in verdicts])

    def restore(self, episode_id: int, number: int) -> int:
        """Make an old version the newest again; returns the new version's number."""
        return self._write([(episode_id, self.version(episode_id, number).labels(), number)])[0]

    def labels(self, episode_id: int, sources: Collection[str] | None = None) -> Labels | None:
        """The newest verdict, or the newest of certain judges; None where there is none."""
        version = self.newest(episode_id, sources)
        return None if version is None else version.labels()

    def newest(self, episode_id: int, sources: Collection[str] | None = None) -> Version | None:
        history = self._history.get(episode_id, [])
        return next((v for v in reversed(history) if sources is None or v.source in sources), None)

    def history(self, episode_id: int) -> list[Version]:
        """Every version, oldest first."""
        return list(self._history.get(episode_id, []))

    def version(self, episode_id: int, number: int) -> Version:
        history = self._history.get(episode_id, [])
        if not 1 <= number <= len(history):
            has = f"versions 1 to {len(history)}" if history else "no labels"
            raise DataError(f"episode {episode_id} has {has}, not version {number}")
        return history[number - 1]

    def _write(self, verdicts: list[tuple[int, Labels, int | None]]) -> list[int]:
        now = time.time()
        lines = [_pack(i, labels if labels.time else replace(labels, time=now), back) for i, labels, back in verdicts]
        with self._guard, uninterrupted():
            return self._append(lines)

    def _append(self, lines: list[Record]) -> list[int]:
        with told(self.path.parent, "these labels were not stored"):
            while True:
                try:
                    self._follow(self._journal.append(lines))
                    return self._follow(lines)
                except Replaced:  # nothing was written into the old file
                    self._refresh()

    def _follow(self, lines: list[Record]) -> list[int]:
        """Take lines in; returns the version number that each got."""
        numbers = []
        for line in lines:
            history = self._history.setdefault(line["episode"], [])
            number = len(history) + 1
            version = Version(line["episode"], number, line["source"], line["time"], line["restored"], line)
            history.append(version)
            self._order.append(version)
            numbers.append(number)
        return numbers


def _pack(episode_id: int, labels: Labels, restored_from: int | None) -> Record:
    parts = [labels.reward.astype("<f4").tobytes(), labels.success.astype("u1").tobytes()]
    if labels.probability is not None:
        parts.append(labels.probability.astype("<f4").tobytes())
    return {
        "episode": episode_id,
        "source": labels.source,
        "model": labels.model,
        "threshold": labels.threshold,
        "time": labels.time,
        "start": None if np.isnan(labels.start) else labels.start,
        "note": labels.note,
        "rule": labels.rule,
        "restored": restored_from,
        "steps": len(labels.reward),
        "probability": labels.probability is not None,
        "data": base64.b64encode(zlib.compress(b"".join(parts))).decode(),
    }


def _unpack(line: Record) -> Labels:
    steps = line["steps"]
    data: Any = zlib.decompressobj().decompress(base64.b64decode(line["data"]), 9 * steps + 1)
    if len(data) != (9 if line["probability"] else 5) * steps:
        raise StoreDamaged(f"a verdict on episode {line['episode']} has {len(data)} bytes for {steps} steps")
    return Labels(
        reward=np.frombuffer(data, "<f4", steps),
        success=np.frombuffer(data, "u1", steps, offset=4 * steps).astype(bool),
        probability=np.frombuffer(data, "<f4", steps, offset=5 * steps) if line["probability"] else None,
        start=float("nan") if line["start"] is None else line["start"],
        source=line["source"],
        model=line["model"],
        threshold=line["threshold"],
        time=line["time"],
        note=line["note"],
        rule=line.get("rule", ""),  # which earlier versions did not write
    )
