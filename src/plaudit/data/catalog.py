"""The state that a store's journal adds up to: live episodes, their locations and their segments; and opening it.

A line whose checksum is right may still have been written by hand. So every value is validated once, when a line is
read and before one is written; the rest of the code relies on it.

Opening checks that a store's files belong together: the checksums of a file are still right after it was copied to
another store. So files are compared with each other. This detects the journal of another store, and an old journal
whose next ids have labels already. The next writer then moves what a crash left behind to the quarantine, and deletes
nothing. Only names that a writer creates are touched. A folder in which `Store.create` was interrupted has no
`store.json`, no episode and no label, and the next `Store.create` starts again there.
"""

import itertools
import math
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from plaudit.data.disk import MAX_SMALL_FILE, WRITER_LOCK, Folder, set_aside
from plaudit.data.frame_codecs import MAX_BLOCK, Codec
from plaudit.data.journal import (
    HEAD,
    MAX_ID,
    Journal,
    JournalFile,
    Place,
    Record,
    damage_error,
    decode,
    is_int_in,
    is_number,
    is_time,
    read_head,
)
from plaudit.data.ledger import Ledger
from plaudit.data.segments import (
    EVICTED_SUFFIX,
    STEPS,
    Schema,
    Segment,
    Written,
    camera_column,
    own_files,
    read_schema,
    remove_files,
    segment_name,
)
from plaudit.data.settings import MARKER, Settings
from plaudit.errors import StoreDamaged, StoreError
from plaudit.files import brief
from plaudit.types import Episode

MAX_SEGMENTS = (1 << 31) - 1
MAX_ROWS = 1 << 48
MAX_BYTES = 1 << 62  # of a file
MAX_NUMBERS = 1 << 28  # in the states and actions of one episode, which are read all at once
_ORIGIN = {"format": str, "path": str, "index": int, "digest": str}


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """The location of an episode, and of its journal line, which takes 4 KB in memory when it is parsed."""

    id: int
    segment: int
    row: int
    steps: int
    place: Place | None = field(default=None, repr=False)  # None: not written yet

    @classmethod
    def parse(cls, line: Record, place: Place | None = None) -> "EpisodeEntry":
        """Raises KeyError or ValueError for anything else than the line of an episode."""
        _check_metadata(line)
        return cls(
            _check_int(line, "id", 0, MAX_ID - 1),
            _check_int(line, "segment", 0, MAX_SEGMENTS - 1),
            _check_int(line, "row", 0, MAX_ROWS),
            _check_int(line, "steps", 1, MAX_ROWS),
            place,
        )

    @property
    def rows(self) -> int:
        """Observations."""
        return self.steps + 1

    @property
    def end(self) -> int:
        """The row after its last."""
        return self.row + self.rows

    @property
    def line(self) -> Record:
        """The journal line, read and verified each time in some microseconds."""
        assert self.place is not None
        line = self.place.read()
        try:
            sound = EpisodeEntry.parse(line, self.place) == self
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:  # it fits its own checksum too, where somebody wrote over the file
            raise damage_error(self.place.file.path, f"another line stands where that of episode {self.id} was read")
        return {**line, "op": "episode"}

    def check_fits(self, schema: Schema) -> None:
        """Raise ValueError if it takes more memory than any recording does."""
        if self.rows * (schema.state_dim + schema.action_dim) > MAX_NUMBERS:
            raise ValueError(f"{self.steps:,} steps of {schema.state_dim} and {schema.action_dim} numbers are too many")


def episode_line(episode_id: int, episode: Episode, segment: int, row: int, written: Written) -> Record:
    """The line that makes an episode exist, once it is in the journal."""
    encoded = {"blocks": written.blocks, "source_crc": written.sources} if written.blocks else {}
    return {
        "op": "episode",
        "id": episode_id,
        "segment": segment,
        "row": row,
        "steps": episode.steps,
        "crc": written.checksums,
        **encoded,
        "time": time.time(),
        "task": episode.task,
        "fps": episode.fps,
        "robot": episode.robot,
        "terminated": episode.terminated,
        "repeated": episode.padded,
        "origin": vars(episode.origin) if episode.origin else None,
        "meta": dict(episode.meta),
    }


def source_checksums(line: Record) -> dict[str, int]:
    """Column -> checksum of its frames before they were encoded."""
    return {column: crc for column, crc in line["crc"].items() if column != STEPS} | line.get("source_crc", {})


def _blocks_of(line: Record) -> dict[str, tuple[int, int]]:
    return {column: (place, size) for column, (place, size) in line.get("blocks", {}).items()}


def segment_line(number: int, schema: Schema) -> Record:
    """The line that describes a segment."""
    return {"op": "segment", "segment": number, "schema": schema.to_json()}


def summary_line(next_id: int, next_segment: int) -> Record:
    """The line with the next id and segment, which may be higher than the live episodes tell."""
    return {"op": "summary", "next_id": next_id, "next_segment": next_segment}


def _check_int(line: Record, name: str, least: int, most: int) -> int:
    value = line[name]
    if not is_int_in(value, least, most):
        raise ValueError(f"{name} {brief(value)}, which is not within {least} to {most}")
    return value


def _check_metadata(line: Record) -> None:
    sound = {
        "task": isinstance(line["task"], str),
        "robot": isinstance(line["robot"], str),
        "time": is_time(line["time"]),
        "fps": is_number(line["fps"]) and line["fps"] >= 0,
        "terminated": type(line["terminated"]) is bool,
        "repeated": line["repeated"] in ("none", "first", "last"),
        "crc": isinstance(line["crc"], dict),
        "source_crc": isinstance(line.get("source_crc", {}), dict),
        "meta": isinstance(line["meta"], dict),
        "blocks": _is_blocks(line.get("blocks", {})),
        "origin": line["origin"] is None or _is_origin(line["origin"]),
    }
    if not all(sound.values()):
        name = next(name for name, is_sound in sound.items() if not is_sound)
        raise ValueError(f"its {name} is {brief(line[name])}")


def _is_blocks(blocks: Any) -> bool:
    """Whether these are a place and a size for each encoded column."""
    return isinstance(blocks, dict) and all(
        isinstance(block, list | tuple)
        and len(block) == 2
        and is_int_in(block[0], 0, MAX_BYTES)
        and is_int_in(block[1], 0, MAX_BLOCK)
        for block in blocks.values()
    )


def _is_origin(tree: Any) -> bool:
    return (
        isinstance(tree, Mapping)
        and set(tree) == set(_ORIGIN)
        and all(isinstance(tree[name], kind) for name, kind in _ORIGIN.items())
        and is_int_in(tree["index"], 0, MAX_ID)
    )


_Number = Annotated[int, Field(strict=True, ge=0, le=MAX_BYTES)]


@pydantic_dataclass
class _SavedFiles:
    evicted: list[_Number]
    extents: list[tuple[_Number, list[_Number]]]


@pydantic_dataclass
class _Saved:
    """What a snapshot has of a catalog."""

    next: tuple[_Number, _Number]  # id and segment
    segments: list[tuple[_Number, dict[str, Any]]]
    episodes: list[list[_Number]]  # id, segment, row, steps, place of the line; place and size of each encoded block
    files: _SavedFiles


class Catalog:
    """Applies the lines of a journal; the store looks episodes and segments up in it."""

    def __init__(self, root: Folder, revision: int = 0):
        self.root = root
        self.entries: dict[int, EpisodeEntry] = {}  # live episodes, oldest first
        self.segments: dict[int, Segment] = {}
        self.growing: dict[Schema, int] = {}  # the segment where the next episode of a schema goes
        self.next_id = 0
        self.next_segment = 0
        self.revision = revision  # grows with every line that is followed
        self.nbytes = 0  # of the live episodes
        self.missing: dict[int, Path] = {}  # episodes whose segment is not there, until a line removes them
        self.evicted_segments: set[int] = set()  # segments whose last episode was evicted
        self._schemas: dict[int, Schema] = {}  # of each segment
        self._out_of_order = False  # an episode was moved behind newer ones
        self._empty: list[Segment] = []  # since `settle`
        self._alive: Counter[int] = Counter()  # segment -> live episodes in it, missing ones included

    def follow(self, line: Record, place: Place) -> None:
        """Apply the next line of the journal."""
        self.revision += 1
        try:
            self._follow(line, place)
        except StoreError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            what = f"a line of the journal makes no sense ({error}: {str(line)[:200]})"
            raise StoreDamaged(f"{self.root.path}: {what}; restore the journal from a backup") from error

    def _follow(self, line: Record, place: Place) -> None:
        match line["op"]:
            case "episode":
                entry = EpisodeEntry.parse(line, place)
                if entry.id in self.entries or entry.id in self.missing:
                    raise ValueError(f"episode {entry.id} appears twice")
                self._add(entry, _blocks_of(line))
            case "move":
                self._move(EpisodeEntry.parse(line, place), _blocks_of(line))
            case "segment":
                number, schema = _check_int(line, "segment", 0, MAX_SEGMENTS - 1), Schema.from_json(line["schema"])
                self.next_segment = max(self.next_segment, number + 1)  # also if its first episode was torn
                if self._schemas.setdefault(number, schema) != schema:
                    raise ValueError(f"segment {number} is described twice, and differently")
            case "evict" | "drop":
                self._remove(line["ids"], line["op"] == "evict")
            case "summary":
                self.next_id = max(self.next_id, _check_int(line, "next_id", 0, MAX_ID))
                self.next_segment = max(self.next_segment, _check_int(line, "next_segment", 0, MAX_SEGMENTS))
            case other:
                raise StoreError(f"{self.root.path}: a newer plaudit wrote {brief(other)} into the journal; upgrade")

    def settle(self) -> list[Segment]:
        """Call after lines were followed. Returns the segments that became empty."""
        if self._out_of_order:
            self.entries = dict(sorted(self.entries.items()))
            self._out_of_order = False
        empty, self._empty = self._empty, []
        return empty

    def relocate(self, line: Record, place: Place) -> None:
        """Take in the place of a line in a journal that was rewritten."""
        if line["op"] == "episode":
            self.entries[line["id"]] = replace(self.entries[line["id"]], place=place)

    def save(self) -> Any:
        """The state, for a snapshot of the journal."""
        schemas = self._schemas | {number: segment.schema for number, segment in self.segments.items()}
        extents = {number: segment.extent for number, segment in self.segments.items()}
        return {
            "next": [self.next_id, self.next_segment],
            "segments": [[number, schema.to_json()] for number, schema in sorted(schemas.items())],
            "episodes": [self._row(entry) for entry in self.entries.values()],
            "files": {"evicted": sorted(self.evicted_segments), "extents": list(extents.items())},
        }

    def _row(self, entry: EpisodeEntry) -> list[int]:
        assert entry.place is not None
        blocks = [number for block in self.segments[entry.segment].blocks_of(entry.row) for number in block]
        return [entry.id, entry.segment, entry.row, entry.steps, entry.place.offset, entry.place.length, *blocks]

    def load(self, tree: Any, file: JournalFile) -> None:
        """Take in the state that a snapshot has of a file."""
        saved = _Saved(**tree)
        self.revision += 1
        self.next_id, self.next_segment = saved.next
        self.evicted_segments = set(saved.files.evicted)
        self._schemas = {number: Schema.from_json(schema) for number, schema in saved.segments}
        for episode_id, number, row, steps, offset, length, *blocks in saved.episodes:
            codecs = self._schemas[number].codecs
            if len(blocks) != 2 * len(codecs) or steps < 1 or episode_id in self.entries or episode_id in self.missing:
                raise ValueError(f"episode {episode_id} makes no sense")
            entry = EpisodeEntry(episode_id, number, row, steps, Place(file, offset, length))
            self._add(entry, dict(zip(codecs, zip(blocks[::2], blocks[1::2], strict=True))))
        for number, extent in saved.files.extents:
            if number in self.segments:
                self.segments[number].extend(*extent)

    def lines(self) -> list[Record]:
        """The shortest journal that adds up to the same."""
        return [
            summary_line(self.next_id, self.next_segment),
            *(segment_line(number, self.segments[number].schema) for number in self.segments),
            *(entry.line for entry in self.entries.values()),
        ]

    def size(self, entry: EpisodeEntry) -> int:
        """Bytes of an episode's arrays, as they are stored."""
        return self.segments[entry.segment].size(entry.row, entry.rows)

    def next_raw(self, first: int, codec: Codec) -> int | None:
        """The oldest episode from `first` on whose frames are not stored by a codec; None: only the newest is left."""
        for episode_id in range(first, next(reversed(self.entries), 0)):
            entry = self.entries.get(episode_id)
            if entry is not None:
                schema = self.segments[entry.segment].schema
                if any(schema.codecs.get(camera_column(name)) != codec for name, _, _ in schema.cameras):
                    return episode_id
        return None

    def surplus(self, new: list[EpisodeEntry], max_episodes: int | None, max_bytes: int | None) -> list[int]:
        """Ids of the oldest episodes that exceed the capacity once `new` is added. The newest episode always stays."""
        count, total = len(self.entries) + len(new), self.nbytes + sum(map(self.size, new))
        most, most_bytes = max_episodes or math.inf, max_bytes or math.inf
        surplus: list[int] = []
        for entry in itertools.chain(self.entries.values(), new):
            if count == 1 or (count <= most and total <= most_bytes):
                break
            surplus.append(entry.id)
            count, total = count - 1, total - self.size(entry)
        return surplus

    def start_segment(self, schema: Schema) -> int:
        """Create the next segment; returns its number."""
        number = self.next_segment
        while self.root.exists(segment_name(number)):  # somebody's own folder, left alone
            number += 1
        self.segments[number] = Segment.create(self.root, number, schema)
        self.growing[schema] = number
        self.next_segment = number + 1
        return number

    def roll_back(self, rows: dict[int, int]) -> None:
        """Undo a failed append: cut files back to the rows they had, and drop segments that it created."""
        for number in [n for n in self.segments if n not in rows]:
            segment = self.segments.pop(number)
            self.growing.pop(segment.schema, None)
            self.next_segment = min(self.next_segment, number)
            segment.remove()
        for number, count in rows.items():
            self.segments[number].truncate(count)

    def _move(self, entry: EpisodeEntry, blocks: Mapping[str, tuple[int, int]]) -> None:
        """Take in the new place of an episode whose frames were encoded. It keeps its position among the others."""
        old = self.entries.get(entry.id)
        if old is not None:
            self.nbytes -= self.size(old)
            number = old.segment
        elif entry.id in self.missing:
            number = int(self.missing.pop(entry.id).name)
            self._out_of_order = True
        else:
            raise ValueError(f"episode {entry.id} was moved and is not there")
        self._add(entry, blocks)
        if entry.id in self.missing:
            self.entries.pop(entry.id, None)
        self._release(number, evicted=True)

    def _add(self, entry: EpisodeEntry, blocks: Mapping[str, tuple[int, int]]) -> None:
        number = entry.segment
        self.next_id = max(self.next_id, entry.id + 1)
        self.next_segment = max(self.next_segment, number + 1)
        self._alive[number] += 1
        if number not in self.segments:
            if not self.root.exists(segment_name(number)):  # lost, or evicted by a line that comes later
                self.missing[entry.id] = self.root.path / segment_name(number)
                return
            schema = self._schemas.get(number) or read_schema(self.root, number)
            self.segments[number] = Segment(self.root, number, schema)
            self.growing[schema] = max(number, self.growing.get(schema, 0))
        segment = self.segments[number]
        entry.check_fits(segment.schema)
        if blocks.keys() != segment.blocks.keys():
            raise ValueError(f"its blocks are {brief(blocks)}")
        segment.add(entry.row, entry.rows, blocks)
        self.entries[entry.id] = entry
        self.nbytes += entry.rows * segment.schema.row_bytes + sum(size for _, size in blocks.values())

    def _remove(self, ids: list[int], evicted: bool) -> None:
        for episode_id in ids:
            missing = self.missing.pop(episode_id, None)
            entry = self.entries.pop(episode_id, None)
            if entry is not None:
                self.nbytes -= self.size(entry)
                number = entry.segment
            elif missing is not None:
                number = int(missing.name)
            else:
                continue
            self._release(number, evicted)

    def _release(self, number: int, evicted: bool) -> None:
        """One episode less is in a segment."""
        self._alive[number] -= 1
        if self._alive[number]:
            return
        del self._alive[number]
        if evicted:  # the bytes of episodes that were written off as damaged are kept
            self.evicted_segments.add(number)
        self._schemas.pop(number, None)
        segment = self.segments.pop(number, None)
        if segment is None:
            return
        if self.growing.get(segment.schema) == number:
            del self.growing[segment.schema]
        self._empty.append(segment)


_NUMBER = re.compile(r"\d{6,}")
_JOURNALS = ("journal", "labels")
# What `Store.create` makes before `store.json`.
_UNFINISHED = {
    *("segments", WRITER_LOCK, f"{MARKER}.tmp", *_JOURNALS),
    *(f"{name}{HEAD}{suffix}" for name in _JOURNALS for suffix in ("", ".tmp")),
}


def is_unfinished(root: Folder) -> bool:
    """Whether a folder is empty, or holds only what an interrupted `Store.create` left: no episode and no label."""
    names = root.names()
    if not _UNFINISHED.issuperset(names):
        return False
    if "segments" in names and not (root.is_folder("segments") and not root.names("segments")):
        return False
    if not all(root.is_file(name) for name in names if name != "segments"):
        return False
    for name in _JOURNALS:
        head = read_head(root, name)
        if head is not None and head.count > 1:
            return False
        if name in names:  # a crash may leave it empty, torn, or with zeros for its bytes
            data = root.read(name) if root.stat(name).st_size <= MAX_SMALL_FILE else b"\n"
            line = decode(data[:-1])
            if b"\n" in data and (line is None or not line.is_header):
                return False
    return True


def remove_unfinished(root: Folder) -> None:
    """Remove what an interrupted `Store.create` left, except the lock that the caller holds."""
    for name in root.names():
        if name != WRITER_LOCK:
            root.remove(name)


def check_identity(settings: Settings, journal: Journal, ledger: Ledger | None) -> None:
    """Raise if journal or ledger were copied from another store.

    ledger: the store's own
    """
    empty = ledger is not None and ledger.header is None and not len(ledger)  # made by hand
    for file in (journal, None if empty else ledger):
        if file is not None and (file.header or {}).get("id") != settings.id:
            other = journal.path.with_name(MARKER)
            raise StoreDamaged(
                f"{file.path} does not belong to the store that {other} describes; restore both from one backup"
            )


def skip_labeled_ids(journal: Journal, catalog: Catalog, ledger: Ledger) -> list[str]:
    """Continue ids after the last episode that has labels, if the journal ends before it; returns messages."""
    last = ledger.last_id
    if last < catalog.next_id:
        return []
    ends = f"knows of no episode beyond {catalog.next_id - 1}" if catalog.next_id else "knows of no episode"
    journal.append([summary_line(last + 1, catalog.next_segment)], exclusive=True)
    return [
        f"{journal.path} {ends}, and there are labels of episode {last}: an older journal was put back, or lines are "
        f"lost; ids go on from {last + 1}"
    ]


def recover(root: Folder, catalog: Catalog) -> list[str]:
    """Quarantine or remove what no line refers to; returns messages. The catalog must be up to date."""
    messages: list[str] = []
    for number, segment in catalog.segments.items():
        has_leftovers, may_be_cut = segment.leftovers > 0, True
        if has_leftovers:  # unless the last episode is damaged: then the files may be those of another segment
            last = max((e for e in catalog.entries.values() if e.segment == number), key=lambda entry: entry.row)
            may_be_cut = not segment.damage(last.row, last.rows, last.line["crc"])
        if not (segment.is_whole and may_be_cut) and catalog.growing.get(segment.schema) == number:
            del catalog.growing[segment.schema]
        if has_leftovers and may_be_cut:
            messages.append(segment.quarantine_leftovers())
    for name in root.names("segments"):
        number_text = name.removesuffix(EVICTED_SUFFIX)
        whole = f"segments/{name}"
        if not _NUMBER.fullmatch(number_text) or segment_name(int(number_text)) != f"segments/{number_text}":
            continue
        number, is_evicted = int(number_text), name != number_text
        if (not is_evicted and number in catalog.segments) or not root.is_folder(whole):
            continue
        if is_evicted or number in catalog.evicted_segments:
            if remove_files(root, whole):
                messages.append(f"{root.path / whole}: removed, its episodes were evicted")
        elif own_files(root, whole) == root.names(whole):  # else it is a user's
            what = f"{root.path / whole}: no line speaks of it"
            with set_aside(root, f"segment-{name}", what) as aside:
                aside.move(whole)
            messages.append(f"{what}; it was set aside in {aside.path}")
    return messages
