"""The episode store: a folder that one process writes, many read, and no crash can tear.

    store/
      store.json          format, version, capacity
      journal             one line an episode: where it lies, its checksums, its task, ...  (data/journal.py)
      segments/000000/    the arrays: steps.bin, camera.front.bin, ...                      (data/segments.py)
      labels              the ledger: who said what of which episode                        (data/ledger.py)
      drafts/             what people have begun to say                                     (labelers/human/drafts.py)
      asked.json          which episodes somebody waits for                                 (labelers/human/asked.py)
      writer.lock         held with flock by the one writer

To append: write the arrays, sync them, write the journal line, sync it, return. The line is what makes an episode
exist, and it is written last, so a process killed or a machine unplugged at any moment leaves whole episodes plus
bytes that no line speaks of; the next writer cuts those off. Readers never lock: they follow the journal's end.

Rejected: one file an episode (a batch of 256 would open hundreds), HDF5 (one writer or many readers, and a crash
can lose the file), LMDB (values are not arrays), torchrl's LazyMemmapStorage (its length lives in memory, so a
crash loses all).
"""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from plaudit.data.catalog import Catalog, Place, place_of
from plaudit.data.journal import Journal, Record, disk_error, sync, uninterrupted, write_atomic
from plaudit.data.ledger import Ledger
from plaudit.data.segments import STEPS, Schema, Segment, camera_column
from plaudit.errors import EpisodeGone, SegmentMissing, StoreError, StoreLocked
from plaudit.types import Episode, Origin

VERSION = 1
MARKER = "store.json"
SEGMENT_BYTES = 4 << 30  # a new segment begins beyond this
SEGMENTS_PER_CAPACITY = 16  # eviction frees whole segments, so a full store takes up to 1/16 more than its capacity


class Store:
    """Open with `Store.open` or `Store.create`; use as a context manager.

    with Store.create("episodes") as store:
        episode_id = store.append(episode)        # returns when it would survive a power cut
        store.episode(episode_id).frames["front"]  # a view of the file, not a copy
    """

    def __init__(self, folder: Path, lock: IO[str] | None, labels: Path | None = None):
        """Not for users: see `open` and `create`."""
        settings = _read_settings(folder / MARKER)
        self.folder = folder
        self.capacity_episodes: int | None = settings["capacity_episodes"]  # beyond this, the oldest go
        self.capacity_bytes: int | None = settings["capacity_bytes"]
        self.repaired: list[str] = []  # what opening for writing had to put right, a sentence each
        self.ledger = Ledger(labels or folder / "labels")
        self._lock_file = lock
        self._guard = threading.RLock()
        self._journal = Journal(folder / "journal")
        self._catalog = Catalog(folder)

    @classmethod
    def create(
        cls, folder: str | Path, *, capacity_episodes: int | None = None, capacity_bytes: int | None = None
    ) -> Self:
        """A new, empty store, open for writing. The folder must not exist or be empty."""
        folder = Path(folder)
        capacity = {"capacity_episodes": capacity_episodes, "capacity_bytes": capacity_bytes}
        for name, value in capacity.items():
            if value is not None and value < 1:
                raise StoreError(f"{name} must be at least 1, got {value}")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            what = "is a store already; open it to add to it" if is_store(folder) else "is not empty; name a new folder"
            raise StoreError(f"{folder} {what}")
        new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
        (folder / "segments").mkdir(parents=True)
        Journal.create(folder / "journal")
        Journal.create(folder / "labels")
        marker = {"format": "plaudit store", "version": VERSION, **capacity}
        write_atomic(folder / MARKER, json.dumps(marker, indent=1).encode())
        for path in new_folders:
            sync(path.parent)
        return cls.open(folder, write=True)

    @classmethod
    def open(
        cls, folder: str | Path, *, write: bool = False, write_off_missing: bool = False, labels: Path | None = None
    ) -> Self:
        """For reading, by any number of processes; or for writing, by one.

        write_off_missing: how a repair gets past segments that somebody deleted
        labels: a ledger somewhere else, made if it is not there: for verdicts that are nobody else's business
        """
        folder = Path(folder)
        if not is_store(folder):
            there = "holds no store" if folder.is_dir() else "does not exist"
            raise StoreError(f"{folder} {there}; 'plaudit data import' makes one")
        if labels is not None and not labels.exists():
            Journal.create(labels)
        held = lock(folder) if write else None
        try:
            store = cls(folder, held, labels)
            try:
                store.refresh()
            except SegmentMissing:
                if not write_off_missing:
                    raise
                store._write_off_missing()
            if write:
                store._clean_up()
        except BaseException:
            if held is not None:
                held.close()
            raise
        return store

    def close(self) -> None:
        """Let another process write. What was appended is on disk already."""
        if self._lock_file is not None:
            self._lock_file.close()
            self._lock_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._catalog.places)

    def __iter__(self) -> Iterator[tuple[int, Episode]]:
        """Ids and episodes, oldest first; those evicted meanwhile are passed over."""
        for episode_id in self.ids:
            with suppress(EpisodeGone):
                yield episode_id, self.episode(episode_id)

    @property
    def ids(self) -> list[int]:
        """Every episode alive, oldest first. Ids count up and are never used again."""
        with self._guard:
            return list(self._catalog.places)

    @property
    def revision(self) -> int:
        """Grows with every change: who follows a store compares it."""
        return self._catalog.revision

    @property
    def nbytes(self) -> int:
        """Of the arrays of the episodes alive."""
        return self._catalog.nbytes

    def place(self, episode_id: int) -> Place:
        """Where an episode lies; for who gathers rows from many episodes."""
        try:
            return self._catalog.places[episode_id]
        except KeyError:
            ids = self.ids
            gone = "is no longer" if 0 <= episode_id < self._catalog.next_id else "was never"
            has = f"episodes {ids[0]} to {ids[-1]}" if ids else "no episodes"
            raise EpisodeGone(f"episode {episode_id} {gone} in {self.folder}, which has {has}") from None

    def segment(self, number: int) -> Segment:
        try:
            return self._catalog.segments[number]
        except KeyError:  # evicted by another thread since its number was looked up
            raise EpisodeGone(f"segment {number} of {self.folder} was evicted just now") from None

    def episode(self, episode_id: int) -> Episode:
        """The episode as views of the files: nothing is read before it is looked at."""
        place = self.place(episode_id)
        line = place.line
        segment = self.segment(place.segment)
        rows, actions = slice(place.row, place.row + place.rows), slice(place.row, place.row + place.steps)
        steps = segment.column(STEPS)
        return Episode(
            frames={c: segment.column(camera_column(c))[rows] for c, _, _ in segment.schema.cameras},
            state=steps["state"][rows],
            actions=steps["action"][actions],
            control_mode=steps["control_mode"][actions],
            privileged={n: steps[f"privileged.{n}"][actions] for n, _, _ in segment.schema.privileged},
            task=line["task"],
            fps=line["fps"],
            robot=line["robot"],
            terminated=line["terminated"],
            repeated=line["repeated"],
            origin=Origin(**line["origin"]) if line["origin"] else None,
            meta=line["meta"],
        )

    def refresh(self) -> None:
        """See what the writer, in another process, has added and evicted since."""
        with self._guard:
            self._catalog.follow(self._journal.read())
            if self._catalog.missing:  # evicted between the two: its line was written before its folder went
                self._catalog.follow(self._journal.read())
            missing = self._catalog.missing
            if missing:
                episode_id, folder = next(iter(missing.items()))
                raise SegmentMissing(
                    f"{folder} is missing, and with it {len(missing)} episodes from {episode_id} on; restore it from "
                    f"a backup, or run 'plaudit data check {self.folder} --repair' to write them off"
                )

    def append(self, episode: Episode) -> int:
        """Store one episode and return its id; when this returns, a power cut cannot take it away."""
        return self.extend([episode])[0]

    def extend(self, episodes: Sequence[Episode]) -> list[int]:
        """Store several with one sync: all are acknowledged, or none is."""
        if self._lock_file is None:
            raise StoreError(f"{self.folder} is open for reading; open it with write=True to add episodes")
        with self._guard, uninterrupted():
            rows_before = {number: segment.rows for number, segment in self._catalog.segments.items()}
            try:
                lines = [self._write(self._catalog.next_id + i, episode) for i, episode in enumerate(episodes)]
                for number in {line["segment"] for line in lines}:
                    self.segment(number).sync()
                going = self._catalog.surplus(list(map(place_of, lines)), self.capacity_episodes, self.capacity_bytes)
                if going:
                    lines.append({"op": "evict", "ids": going})
                self._journal.append(lines)
            except BaseException as error:
                self._catalog.roll_back(rows_before)
                if isinstance(error, OSError):
                    raise disk_error(error, self.folder, "this episode was not stored") from error
                raise
            for segment in self._catalog.follow(lines):
                segment.remove()
            return [line["id"] for line in lines if line["op"] == "episode"]

    def write_off(self, ids: Sequence[int]) -> None:
        """Stop serving episodes that a check found damaged. Their bytes stay until their whole segment goes."""
        with self._guard:
            line: Record = {"op": "drop", "ids": list(ids)}
            self._journal.append([line])
            self._catalog.follow([line])

    def _write_off_missing(self) -> None:
        for folder in sorted(set(self._catalog.missing.values())):
            self.repaired.append(f"{folder}: missing; its episodes are written off")
        self.write_off(list(self._catalog.missing))

    def _write(self, episode_id: int, episode: Episode) -> Record:
        """The arrays of one episode, unsynced, and the journal line that will make it exist."""
        number = self._segment_for(Schema.of(episode))
        row = self.segment(number).rows
        return {
            "op": "episode",
            "id": episode_id,
            "segment": number,
            "row": row,
            "steps": episode.steps,
            "crc": self.segment(number).write(episode),
            "time": time.time(),
            "task": episode.task,
            "fps": episode.fps,
            "robot": episode.robot,
            "terminated": episode.terminated,
            "repeated": episode.repeated,
            "origin": vars(episode.origin) if episode.origin else None,
            "meta": dict(episode.meta),
        }

    def _segment_for(self, schema: Schema) -> int:
        limit = float(SEGMENT_BYTES)
        if self.capacity_bytes is not None:
            limit = min(limit, self.capacity_bytes / SEGMENTS_PER_CAPACITY)
        if self.capacity_episodes is not None and len(self):
            limit = min(limit, self.nbytes / len(self) * self.capacity_episodes / SEGMENTS_PER_CAPACITY)
        number = self._catalog.growing.get(schema)
        if number is None or self.segment(number).rows * schema.row_bytes >= limit:
            number = self._catalog.start_segment(schema)
        return number

    def _clean_up(self) -> None:
        """What a crash left behind, put right by the next writer."""
        torn = self._journal.cut_tail()
        if torn:
            self.repaired.append(
                f"{self._journal.path}: cut off {torn} bytes of an unfinished line, never acknowledged"
            )
        for segment in self._catalog.segments.values():
            extra = segment.truncate(segment.rows)
            if extra:
                self.repaired.append(f"{segment.folder}: cut off {extra:,} bytes of an unfinished episode")
        for folder in sorted((self.folder / "segments").iterdir()):
            if folder.name.isdigit() and int(folder.name) not in self._catalog.segments:
                Segment(folder, Schema((), 0, 0, ())).remove()
                self.repaired.append(f"{folder}: removed, no episode lives in it")


def is_store(folder: str | Path) -> bool:
    return (Path(folder) / MARKER).is_file()


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(path.read_text())
        settings = {name: tree[name] for name in ("version", "capacity_episodes", "capacity_bytes")}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} does not describe a store ({error}); restore it from a backup") from error
    if settings["version"] != VERSION:
        raise StoreError(f"{path} has version {settings['version']}, this plaudit reads {VERSION}; upgrade plaudit")
    return settings


def lock(folder: Path) -> IO[str]:
    file = (folder / "writer.lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        who = file.read().strip() or "another process"
        file.close()
        raise StoreLocked(
            f"{folder} is being written by {who}; a store has one writer and any number of readers"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    return file
