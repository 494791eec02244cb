"""The episode store: a folder with one writer and any number of readers, which stays consistent after a crash.

    store/
      store.json          id, format version, capacity, whose labels count                 (data/settings.py)
      journal             one line an episode: location, checksums, task, ...              (data/journal.py)
      journal.head        the number of lines, stored a second time                        (data/journal.py)
      segments/000000/    the arrays: steps.bin, camera.front.bin, ...                     (data/segments.py)
      labels              the ledger: versioned labels of episodes                         (data/ledger.py)
      quarantine/         bytes that no line refers to, moved aside                        (data/disk.py)
      drafts/             unfinished labels of human labelers                              (judges/human/drafts.py)
      label_requests.json episodes that were requested for labeling                        (judges/human/queue.py)
      writer.lock         locked with flock by the writer, as is the folder itself         (data/disk.py)

An append writes the arrays, syncs them, writes the journal line, syncs it and returns. An episode exists once its line
does: a kill or a power cut at any moment leaves complete episodes and bytes without a line, which the next writer moves
to the quarantine. Readers take no lock: they follow the end of the journal, and read it from the start after it was
replaced. An episode's bytes are compared with its checksums when a `Store` first reads it. The journal is rewritten
when most of its lines are about evicted episodes, so that opening takes time in proportion to the live ones.

Rejected: one file an episode (a batch of 256 would open hundreds), HDF5 (one writer or many readers, and a crash can
lose the file), LMDB (values are not arrays), torchrl's LazyMemmapStorage (its length is lost in a crash).
"""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from plaudit.data.catalog import (
    Catalog,
    EpisodeEntry,
    check_identity,
    episode_line,
    is_unfinished,
    recover,
    remove_unfinished,
    segment_line,
    skip_labeled_ids,
    source_checksums,
    summary_line,
)
from plaudit.data.disk import Folder, defer_signals, disk_error, disk_errors, lock, sync
from plaudit.data.frame_codecs import Codec, StoreImages
from plaudit.data.journal import Journal, Record
from plaudit.data.ledger import Ledger
from plaudit.data.segments import STEPS, Schema, Segment, camera_column
from plaudit.data.settings import MARKER, LabelOrder, Settings, Tiers, read_settings
from plaudit.data.settings import is_store as is_store
from plaudit.errors import (
    DataError,
    EpisodeNotFound,
    InvalidEpisode,
    PlauditError,
    Replaced,
    SegmentMissing,
    StoreDamaged,
    StoreError,
    format_count,
)
from plaudit.types import ByteArray, Episode, LazyFrames, Origin

SEGMENT_BYTES = 4 << 30  # a new segment begins beyond this
SEGMENTS_PER_CAPACITY = 16  # eviction frees whole segments, so a full store takes up to 1/16 more than its capacity
COMPACT_AFTER = 1000, 4  # the journal is rewritten beyond this many lines plus this many for each live episode


class NotSmaller(Exception):
    """A codec would not make an episode smaller."""


class Store:
    """Open with `Store.open` or `Store.create`; use as a context manager.

    with Store.create("episodes") as store:
        episode_id = store.append(episode)        # returns when it would survive a power cut
        store.episode(episode_id).frames["front"]  # a view of the file, not a copy
    """

    def __init__(self, root: Folder, held: ExitStack | None, labels: Path | None = None, snapshots: bool = True):
        """Not for users: see `open` and `create`."""
        self.folder = root.path
        self.settings = read_settings(root)
        self.repaired: list[str] = []  # messages about what opening for writing repaired
        self._root = root
        self._lock = held
        self._snapshots = snapshots
        self._guard = threading.RLock()
        self._catalog = Catalog(root)
        self._journal = self._open_journal(self._catalog)
        self._own_ledger = labels is None
        path, folder = (labels, None) if labels else (self.folder / "labels", root)
        order = LabelOrder(self.settings.label_order)
        self.ledger = Ledger(path, folder, {"id": self.settings.id}, order, snapshots)
        self._verified: dict[tuple[int, int], set[str]] = {}  # episode and segment -> columns
        self._evicted: list[Segment] = []  # evicted, and not removed yet
        self._first_raw = 0  # no episode before it is left to be compressed
        self._write_error = ""  # why nothing more can be written

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        capacity_episodes: int | None = None,
        capacity_bytes: int | None = None,
        images: str | StoreImages = "raw",
        compress_old: str = "raw",
    ) -> Self:
        """Create an empty store and open it for writing.

        The folder must not exist, or hold nothing but what an interrupted `create` left.

        images: how frames are stored; see data/frame_codecs.py
        compress_old: codec of the oldest episodes beyond `capacity_bytes`; they are evicted when all are compressed
        """
        folder = Path(folder)
        images = StoreImages.parse(images) if isinstance(images, str) else images
        settings = Settings.new(capacity_episodes, capacity_bytes, images, Codec.parse(compress_old))
        with defer_signals(), disk_errors(folder, "no store can be made there"):
            new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
            if folder not in new_folders:
                cls._check_vacant(folder)
            folder.mkdir(parents=True, exist_ok=True)
            root = Folder(folder)
            with lock(root):
                cls._check_vacant(folder)  # again: another process may have finished it before the lock was free
                remove_unfinished(root)
                root.mkdir("segments")
                Journal.create(folder / "journal", root, header=settings.to_json())
                Journal.create(folder / "labels", root, header={"id": settings.id})
                settings.write(root)  # last: it makes the folder a store
            for path in new_folders:
                sync(path.parent)
        return cls.open(folder, write=True)

    @classmethod
    def open_or_create(
        cls,
        folder: str | Path,
        *,
        capacity_bytes: int | None = None,
        images: str | None = None,
        compress_old: str = "raw",
    ) -> Self:
        """Open a store for writing; create it if the folder has none.

        images: how frames are stored; None: raw, or as the store does. An error if the store does something else.
        compress_old: as for `create`
        """
        if not is_store(Path(folder)):
            options: dict[str, Any] = {"images": images or "raw", "compress_old": compress_old}
            return cls.create(folder, capacity_bytes=capacity_bytes, **options)
        store = cls.open(folder, write=True)
        if images is not None and store.settings.images != StoreImages.parse(images):
            store.close()
            raise StoreError(
                f"{folder} stores frames as {store.settings.images}, not {images}; leave the setting out, name a new "
                f"store, or copy this one ('plaudit data repack {folder} NEW --images {images}')"
            )
        return store

    @staticmethod
    def _check_vacant(folder: Path) -> None:
        """Raise if a folder holds something else than an unfinished store."""
        if folder.is_dir() and is_unfinished(Folder(folder)):
            return
        what = "is not empty; name a new folder"
        if is_store(folder):
            what = "is a store already; open it to add to it"
        elif (folder / "journal").exists():
            what = f"is a store without its {MARKER}; 'plaudit data check {folder} --repair' writes it again"
        raise StoreError(f"{folder} {what}")

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        write: bool = False,
        write_off_missing: bool = False,
        labels: Path | None = None,
        snapshots: bool = True,
    ) -> Self:
        """Open for reading, by any number of processes, or for writing, by one.

        write_off_missing: drop episodes whose segment was deleted, for a repair
        labels: another ledger than the store's own, created if it does not exist
        snapshots: read what the lines of journal and ledger add up to; False: read every line
        """
        folder = Path(folder)
        if not is_store(folder):
            there = "holds no store" if folder.is_dir() else "does not exist"
            raise StoreError(f"{folder} {there}; 'plaudit data import' makes one")
        with disk_errors(folder, "it cannot be opened"):
            root = Folder(folder)
            held = lock(root) if write else None
            try:
                if labels is not None and not labels.exists():
                    Journal.create(labels, header={"id": read_settings(root).id})
                store = cls(root, held, labels, snapshots)
                store._begin(write_off_missing)
            except BaseException:
                if held is not None:
                    held.close()
                raise
        return store

    def _begin(self, write_off_missing: bool) -> None:
        """Read the journal, check that the files belong together, and tidy up after a crash if it is the writer."""
        try:
            self.refresh()
        except SegmentMissing:
            if not write_off_missing:
                raise
            missing = self._catalog.missing
            folders = sorted(set(missing.values()))
            self.repaired += [f"{folder}: missing; its episodes are written off" for folder in folders]
            self.write_off(list(missing))
        own = self.ledger if self._own_ledger else None
        check_identity(self.settings, self._journal, own)
        if self._lock is not None:
            self.repaired += self._journal.recover_tail() + recover(self._root, self._catalog)
            if own is not None:
                self.repaired += own.recover_tail() + skip_labeled_ids(self._journal, self._catalog, own)

    def close(self) -> None:
        """Let another process write. What was appended is on disk already."""
        for segment in self.segments:
            segment.commit()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._catalog.entries)

    def __iter__(self) -> Iterator[tuple[int, Episode]]:
        """Ids and episodes, oldest first; those evicted meanwhile are passed over."""
        for episode_id in self.ids:
            with suppress(EpisodeNotFound):
                yield episode_id, self.episode(episode_id)

    @property
    def ids(self) -> list[int]:
        """Every live episode, oldest first. Ids count up and are never used again."""
        with self._guard:
            return list(self._catalog.entries)

    @property
    def next_id(self) -> int:
        """The id that the next episode gets."""
        return self._catalog.next_id

    @property
    def revision(self) -> int:
        """Grows with every change of the episodes."""
        return self._catalog.revision

    @property
    def nbytes(self) -> int:
        """Size of the arrays of all live episodes."""
        return self._catalog.nbytes

    @property
    def segments(self) -> list[Segment]:
        """The segments that hold live episodes."""
        with self._guard:
            return list(self._catalog.segments.values())

    @property
    def raw_nbytes(self) -> int:
        """Size of the arrays of all live episodes if no frame was encoded."""
        with self._guard:
            segments, entries = self._catalog.segments, self._catalog.entries.values()
            return sum(entry.rows * segments[entry.segment].schema.raw_row_bytes for entry in entries)

    def nbytes_of(self, episode_id: int) -> int:
        """Size of the arrays of one episode."""
        return self._catalog.size(self.entry(episode_id))

    def entry(self, episode_id: int) -> EpisodeEntry:
        """The location of an episode, and its journal line."""
        try:
            return self._catalog.entries[episode_id]
        except KeyError:
            ids = self.ids
            gone = "is no longer" if 0 <= episode_id < self._catalog.next_id else "was never"
            has = f"episodes {ids[0]} to {ids[-1]}" if ids else "no episodes"
            raise EpisodeNotFound(f"episode {episode_id} {gone} in {self.folder}, which has {has}") from None

    def segment(self, number: int) -> Segment:
        """A segment by its number; EpisodeNotFound if it was evicted."""
        try:
            return self._catalog.segments[number]
        except KeyError:  # evicted by another thread since its number was looked up
            raise EpisodeNotFound(f"segment {number} of {self.folder} was evicted just now") from None

    def episode(self, episode_id: int) -> Episode:
        """The episode as views of the files; its bytes are verified the first time."""
        self.verify(episode_id)
        entry = self.entry(episode_id)
        line, segment = entry.line, self.segment(entry.segment)
        rows, actions = slice(entry.row, entry.end), slice(entry.row, entry.row + entry.steps)
        steps = segment.column(STEPS, entry.end)
        return Episode(
            frames=self._frames(entry, line, segment),
            state=steps["state"][rows],
            actions=steps["action"][actions],
            control_mode=steps["control_mode"][actions],
            privileged={n: steps[f"privileged.{n}"][actions] for n, _, _ in segment.schema.privileged},
            task=line["task"],
            fps=line["fps"],
            robot=line["robot"],
            terminated=line["terminated"],
            padded=line["repeated"],
            origin=Origin(**line["origin"]) if line["origin"] else None,
            meta=line["meta"],
        )

    def _frames(self, entry: EpisodeEntry, line: Record, segment: Segment) -> Mapping[str, ByteArray]:
        """Views of raw frames. Encoded ones are decoded when they are read."""
        columns = {camera: camera_column(camera) for camera, _, _ in segment.schema.cameras}
        raw = {
            camera: segment.column(column, entry.end)[entry.row : entry.end]
            for camera, column in columns.items()
            if column not in segment.schema.codecs
        }
        if not segment.schema.codecs:
            return raw
        from plaudit.data.frame_decoder import encoded_column

        def read(camera: str) -> Callable[[], ByteArray]:
            if camera in raw:
                return lambda: raw[camera]
            crc = line["crc"][columns[camera]]
            encoded = encoded_column(segment, camera)
            encoded.column.checked(sum(segment.span(columns[camera], entry.row, entry.rows)))
            return lambda: encoded.episode(entry.row, entry.rows, (self.settings.id, entry.id, crc, camera))

        return LazyFrames({camera: read(camera) for camera in columns})

    def some_frames(self, episode_id: int, camera: str, frames: Sequence[int]) -> ByteArray:
        """uint8 [n, H, W, 3] a few frames of an episode, for previews.

        Their bytes are not verified: checksums cover whole episodes, which may have hundreds of megabytes.
        """
        entry = self.entry(episode_id)
        segment, column = self.segment(entry.segment), camera_column(camera)
        if column not in segment.schema.columns:
            cameras = ", ".join(name for name, _, _ in segment.schema.cameras)
            raise DataError(f"episode {episode_id} has no camera '{camera}'; it has: {cameras}")
        if not all(0 <= frame < entry.rows for frame in frames):
            raise DataError(f"episode {episode_id} has frames 0 to {entry.rows - 1}, not {max(frames)}")
        if column not in segment.schema.codecs:
            return segment.column(column, entry.end)[entry.row : entry.end][list(frames)]
        from plaudit.data.frame_decoder import encoded_column

        encoded = encoded_column(segment, camera)
        pixels = np.empty((len(frames), encoded.height, encoded.width, 3), np.uint8)
        encoded.read((entry.row, frame, out) for frame, out in zip(frames, pixels, strict=True))
        return pixels

    def verify(self, episode_id: int, columns: Collection[str] | None = None) -> None:
        """Compare an episode's bytes with their checksums, unless it was done before; all columns or some."""
        entry = self.entry(episode_id)
        segment = self.segment(entry.segment)
        verified = self._verified.setdefault((episode_id, entry.segment), set())
        unverified = [c for c in columns or segment.schema.columns if c not in verified]
        if not unverified:
            return
        if len(self._verified) > 2 * len(self) + 1000:  # mostly evicted ones
            alive = self._catalog.entries
            self._verified = {key: done for key, done in self._verified.copy().items() if key[0] in alive}
        if problem := segment.damage(entry.row, entry.rows, entry.line["crc"], unverified):
            how = f"'plaudit data check {self.folder} --repair' writes it off"
            raise StoreDamaged(f"{self.folder}: episode {episode_id} is damaged ({problem}); {how}")
        verified.update(unverified)

    def refresh(self) -> None:
        """See what the writer, in another process, has added and evicted since."""
        with self._guard, defer_signals(), disk_errors(self.folder, "it cannot be read"):
            self._read_journal()
            if self._catalog.missing:  # evicted between the two: its line was written before its folder went
                self._read_journal()
            if missing := self._catalog.missing:
                episode_id, folder = next(iter(missing.items()))
                raise SegmentMissing(
                    f"{folder} is missing, and with it {format_count(len(missing), 'episode')} from {episode_id} on; "
                    f"restore it from a backup, or run 'plaudit data check {self.folder} --repair' to write them off"
                )

    def _read_journal(self) -> None:
        while True:
            try:
                self._journal.read()
                self._catalog.settle()
                return
            except Replaced:  # by a shorter one, or by a repair
                self._root.check_same()
                if self._lock is not None:  # no other process may
                    raise
                catalog = Catalog(self._root, self._catalog.revision)
                journal = self._open_journal(catalog)
                journal.read()  # if it is damaged, what was read before stays
                catalog.settle()
                self._journal, self._catalog = journal, catalog

    def _open_journal(self, catalog: Catalog) -> Journal:
        header, state = self.settings.to_json(), catalog if self._snapshots else None
        return Journal(self.folder / "journal", catalog.follow, self._root, header=header, state=state)

    def states(self) -> dict[str, Any]:
        """What the lines of each journal add up to, to compare a snapshot with the lines."""
        with self._guard:
            return {"journal": self._catalog.save() | {"files": None}, "labels": self.ledger.save()}

    def append(self, episode: Episode) -> int:
        """Store one episode and return its id; when this returns, a power cut cannot take it away."""
        return self.extend([episode])[0]

    def extend(self, episodes: Sequence[Episode], *, evict: bool = True, copied: Sequence[Record] = ()) -> list[int]:
        """Store several episodes with one sync: all of them or none.

        evict: the oldest episodes beyond the capacity
        copied: the journal lines of these episodes in another store, whose times and keys they keep
        """

        def write() -> Iterator[Record]:
            for i, episode in enumerate(episodes):
                yield from self._write(self.next_id + i, episode, self.settings.images, copied[i] if copied else None)

        compressing = evict and not self.settings.compress_old.is_raw
        ids = self._commit(write, evict=evict and not compressing)
        if compressing:
            self.compress_surplus()
            if surplus := self.surplus():
                self.evict(surplus)
        return ids

    def compress_surplus(self) -> None:
        """Compress the oldest episodes beyond the capacity, if this store does. The newest stays as it is."""
        codec, most = self.settings.compress_old, self.settings.capacity_bytes or math.inf
        while not codec.is_raw and self.nbytes > most:
            oldest = self._catalog.next_raw(self._first_raw, codec)
            if oldest is None:
                break
            self._first_raw = oldest + 1
            try:
                self._compress(oldest, codec)
            except NotSmaller:  # it stays, so that the next session, which tries it again, ends up the same
                if self.segment(self.entry(oldest).segment).schema.codecs:  # compressed better before, as others are
                    self._first_raw = self.next_id
            except (InvalidEpisode, StoreDamaged):  # of a size that the codec does not take, or damaged: it stays
                continue
            except StoreError:  # the disk is full
                break

    def _compress(self, episode_id: int, codec: Codec) -> None:
        """Store an episode's frames by a codec. Its id and its labels stay, its old place is evicted."""
        episode, copied = self.episode(episode_id), self.entry(episode_id).line

        def write() -> Iterator[Record]:
            *segment, line = self._write(episode_id, episode, StoreImages(codec), copied)
            line = {**line, "op": "move"}
            if self._catalog.size(EpisodeEntry.parse(line)) >= self.nbytes_of(episode_id):
                raise NotSmaller
            yield from [*segment, line]

        self._commit(write)

    def _commit(self, write: Callable[[], Iterable[Record]], *, evict: bool = False) -> list[int]:
        """Write episodes and their journal lines: all of them or none. Returns their ids."""
        with self._guard, defer_signals():
            self._check_writable()
            rows_before = {number: segment.rows for number, segment in self._catalog.segments.items()}
            try:
                lines = list(write())
                new = [EpisodeEntry.parse(line) for line in lines if line["op"] in ("episode", "move")]
                grown = {entry.segment: self.segment(entry.segment) for entry in new}
                for entry in new:
                    entry.check_fits(grown[entry.segment].schema)
                for segment in grown.values():
                    segment.sync()
                surplus = self.surplus(new) if evict else []
                if surplus:
                    lines.append({"op": "evict", "ids": surplus})
                self._journal.append(lines, exclusive=True)
            except BaseException as error:
                self._roll_back(rows_before)
                if isinstance(error, OSError):
                    raise disk_error(error, self.folder, "this episode was not stored") from error
                if isinstance(error, KeyError | ValueError) and not isinstance(error, PlauditError):
                    raise InvalidEpisode(f"this episode cannot be stored: {error}") from error
                raise
            for segment in grown.values():
                segment.commit()
            self._remove_evicted(self._catalog.settle())
            least, share = COMPACT_AFTER
            if self._journal.lines > least + share * len(self) and not self._evicted:
                with suppress(OSError):  # a full disk: the longer journal says the same
                    self._journal.rewrite(self._catalog.lines(), self._catalog.relocate)
            return [entry.id for entry in new]

    def surplus(self, new: list[EpisodeEntry] | None = None) -> list[int]:
        """Ids of the oldest episodes that exceed the capacity once `new` is added. The newest episode always stays."""
        return self._catalog.surplus(new or [], self.settings.capacity_episodes, self.settings.capacity_bytes)

    def skip_ids(self, next_id: int) -> None:
        """Give the next episode this id, unless that is lower than its own."""
        with self._guard, defer_signals():
            self._check_writable()
            if next_id > self.next_id:
                line = summary_line(next_id, self._catalog.next_segment)
                with disk_errors(self.folder, "nothing was written"):
                    self._journal.append([line], exclusive=True)

    def set_label_order(self, order: Tiers) -> None:
        """Set whose labels count most, for everybody who opens the store; see data/settings.py."""
        self._check_writable()
        settings = replace(self.settings, label_order=order)
        settings.write(self._root)
        self.settings = settings
        self.ledger.order = LabelOrder(order)

    def write_off(self, ids: Sequence[int]) -> None:
        """Drop damaged episodes. Their bytes stay until their whole segment is evicted."""
        self._note("drop", ids)

    def evict(self, ids: Sequence[int]) -> None:
        """Evict episodes; disk space is freed by whole segments."""
        self._remove_evicted(self._note("evict", ids))

    def _note(self, what: str, ids: Sequence[int]) -> list[Segment]:
        with self._guard, defer_signals():
            self._check_writable()
            line: Record = {"op": what, "ids": list(ids)}
            with disk_errors(self.folder, "no episode was written off"):
                self._journal.append([line], exclusive=True)
            return self._catalog.settle()

    def _check_writable(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.folder} is open for reading; open it with write=True to add episodes")
        if self._write_error:
            raise StoreError(f"{self.folder}: {self._write_error}; open it again")
        self._root.check_same()
        self._journal.check_same()

    def _roll_back(self, rows: dict[int, int]) -> None:
        """Undo a failed append, unless the files are not this writer's any more."""
        try:
            self._journal.check_same()
            self._catalog.roll_back(rows)
        except StoreError as error:
            self._write_error = str(error)
        except OSError as error:
            self._write_error = f"an append failed and could not be undone ({error.strerror})"

    def _remove_evicted(self, segments: list[Segment]) -> None:
        """Remove evicted segments. If the disk refuses, the next append tries again: this one has succeeded."""
        self._evicted += segments
        for segment in list(self._evicted):
            with suppress(OSError):
                segment.remove()
                self._evicted.remove(segment)
        if not self._evicted:
            self._catalog.evicted_segments.clear()

    def _write(
        self, episode_id: int, episode: Episode, images: StoreImages, copied: Record | None = None
    ) -> list[Record]:
        """The arrays of one episode, unsynced, and the journal lines that will make it exist."""
        schema = Schema.of(episode, images)
        number = self._catalog.growing.get(schema)
        is_new = number is None or self.segment(number).nbytes >= self._segment_limit()
        if number is None or is_new:
            number = self._catalog.start_segment(schema)
        segment = self.segment(number)
        row = segment.rows
        line = episode_line(episode_id, episode, number, row, segment.write(episode))
        if copied is not None:
            sources = {c: crc for c, crc in source_checksums(copied).items() if line["crc"].get(c) != crc}
            line |= {"time": copied["time"], **({"source_crc": sources} if sources else {})}
        return [segment_line(number, schema), line] if is_new else [line]

    def _segment_limit(self) -> float:
        """Bytes from which on a segment does not grow any more."""
        limit = float(SEGMENT_BYTES)
        if self.settings.capacity_bytes is not None:
            limit = min(limit, self.settings.capacity_bytes / SEGMENTS_PER_CAPACITY)
        if self.settings.capacity_episodes is not None and len(self):
            limit = min(limit, self.nbytes / len(self) * self.settings.capacity_episodes / SEGMENTS_PER_CAPACITY)
        return limit
