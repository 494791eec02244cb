"""The state that a store's journal adds up to: live episodes, their locations and their segments."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from plaudit.data.disk import Folder
from plaudit.data.entries import EpisodeEntry as EpisodeEntry
from plaudit.data.entries import check_fits, next_numbers, parse_entry, segment_line, segment_number, summary_line
from plaudit.data.lines import Record
from plaudit.data.schema import Schema
from plaudit.data.segments import Segment, segment_name
from plaudit.errors import StoreDamaged, StoreError
from plaudit.files import brief


class Catalog:
    """Applies the lines of a journal; the store looks episodes and segments up in it."""

    def __init__(self, root: Folder, before: "Catalog | None" = None):
        """before: the catalog of the same store before its journal was replaced; its segments stay open"""
        self.root = root
        self.entries: dict[int, EpisodeEntry] = {}  # alive, oldest first
        self.segments: dict[int, Segment] = {}
        self.growing: dict[Schema, int] = {}  # the segment where the next episode of a schema goes
        self.next_id = 0
        self.next_segment = 0
        self.revision = before.revision if before else 0  # lines followed so far
        self.nbytes = 0  # of the episodes alive
        self.missing: dict[int, Path] = {}  # episodes whose segment is not there, until a line says that they went
        self.evicted_segments: set[int] = set()  # segments whose last episode was evicted
        self._known = dict(before.segments) if before else {}
        self._schemas: dict[int, Schema] = {}  # of each segment, as the journal has it
        self._alive: Counter[int] = Counter()  # segment -> episodes alive in it, missing ones included
        self._ends: dict[int, int] = {}  # segment -> the row after the last that an episode has
        self._unordered: set[int] = set()  # segments whose episodes do not stand in the order of their rows

    def follow(self, lines: Iterable[Record], own: Mapping[int, EpisodeEntry] | None = None) -> list[Segment]:
        """Apply journal lines in order; returns the segments that became empty.

        own: id -> entry, of lines that this process wrote: to parse them again takes a tenth of an append
        """
        empty: list[Segment] = []
        for line in lines:
            self.revision += 1
            try:
                empty += self._follow(line, own or {})
            except StoreError:
                raise
            except (KeyError, TypeError, ValueError) as error:
                raise StoreDamaged(
                    f"{self.root.path}: a line of the journal makes no sense ({error}: {str(line)[:200]}); "
                    "restore the journal from a backup"
                ) from error
        self._check_no_overlap()
        return empty

    def _follow(self, line: Record, own: Mapping[int, EpisodeEntry]) -> list[Segment]:
        match line["op"]:
            case "episode":
                self._add(own[line["id"]] if line["id"] in own else parse_entry(line))
            case "segment":
                self._describe(segment_number(line), Schema.from_json(line["schema"]))
            case "evict" | "drop":
                return self._remove(line["ids"], line["op"] == "evict")
            case "summary":
                next_id, next_segment = next_numbers(line)
                self.next_id = max(self.next_id, next_id)
                self.next_segment = max(self.next_segment, next_segment)
            case other:
                raise StoreError(
                    f"{self.root.path}: the journal speaks of {brief(other)}; a newer plaudit wrote it, upgrade"
                )
        return []

    def lines(self) -> list[Record]:
        """The shortest journal that adds up to the same."""
        return [
            summary_line(self.next_id, self.next_segment),
            *(segment_line(number, self.segments[number].schema) for number in self.segments),
            *(entry.line for entry in self.entries.values()),
        ]

    def size(self, entry: EpisodeEntry) -> int:
        return entry.rows * self.segments[entry.segment].schema.row_bytes

    def surplus(self, new: list[EpisodeEntry], max_episodes: int | None, max_bytes: int | None) -> list[int]:
        """Ids of the oldest episodes that exceed the capacity once `new` is added. The newest episode always stays."""
        count, total = len(self.entries) + len(new), self.nbytes + sum(map(self.size, new))
        most, most_bytes = max_episodes or math.inf, max_bytes or math.inf
        going: list[int] = []
        for entry in itertools.chain(self.entries.values(), new):
            if count == 1 or (count <= most and total <= most_bytes):
                break
            going.append(entry.id)
            count, total = count - 1, total - self.size(entry)
        return going

    def start_segment(self, schema: Schema) -> int:
        number = self.next_segment
        while self.root.exists(segment_name(number)):  # somebody's own folder, left alone
            number += 1
        self.segments[number] = Segment.create(self.root, number, schema)
        self.growing[schema] = number
        self.next_segment = number + 1
        return number

    def roll_back(self, rows: dict[int, int]) -> None:
        """Forget a failed append: cut files back to the rows they had, drop segments it had begun."""
        for number in [n for n in self.segments if n not in rows]:
            segment = self.segments.pop(number)
            self.growing.pop(segment.schema, None)
            segment.remove()
        for number, count in rows.items():
            self.segments[number].truncate(count)

    def _describe(self, number: int, schema: Schema) -> None:
        if self._schemas.setdefault(number, schema) != schema:
            raise ValueError(f"segment {number} is described twice, and differently")

    def _add(self, entry: EpisodeEntry) -> None:
        if entry.id in self.entries or entry.id in self.missing:
            raise ValueError(f"episode {entry.id} stands there twice")
        self.next_id = max(self.next_id, entry.id + 1)
        self.next_segment = max(self.next_segment, entry.segment + 1)
        self._alive[entry.segment] += 1
        if entry.segment not in self.segments:
            try:
                segment = self._open(entry.segment)
            except FileNotFoundError:  # evicted since, and the line that says so comes later; or lost
                self.missing[entry.id] = self.root.path / segment_name(entry.segment)
                return
            self.segments[entry.segment] = segment
            self.growing[segment.schema] = entry.segment
        segment = self.segments[entry.segment]
        check_fits(entry, segment.schema)
        if entry.row < self._ends.get(entry.segment, 0):
            self._unordered.add(entry.segment)
        self._ends[entry.segment] = max(entry.end, self._ends.get(entry.segment, 0))
        segment.rows = max(segment.rows, entry.end)
        self.entries[entry.id] = entry
        self.nbytes += self.size(entry)

    def _check_no_overlap(self) -> None:
        """No row belongs to two episodes: one that is taken out would take the other's with it."""
        for number in self._unordered:
            entries = sorted((p for p in self.entries.values() if p.segment == number), key=lambda entry: entry.row)
            for entry, following in itertools.pairwise(entries):
                if following.row < entry.end:
                    raise StoreDamaged(
                        f"{self.root.path}: the journal gives rows of segment {number} to episodes {entry.id} and "
                        f"{following.id}; restore the journal from a backup"
                    )
        self._unordered.clear()

    def _open(self, number: int) -> Segment:
        if number in self._known:
            return self._known[number]
        self.root.stat(segment_name(number))
        schema = self._schemas.get(number)
        return Segment.open(self.root, number) if schema is None else Segment(self.root, number, schema)

    def _remove(self, ids: list[int], evicted: bool) -> list[Segment]:
        empty: list[Segment] = []
        for episode_id in ids:
            lost = self.missing.pop(episode_id, None)
            entry = self.entries.pop(episode_id, None)
            number = int(lost.name) if lost else entry.segment if entry else None
            if entry is not None:
                self.nbytes -= self.size(entry)
            if number is None:
                continue
            self._alive[number] -= 1
            if self._alive[number] == 0:
                del self._alive[number]
                if evicted:  # of what was written off as damaged, somebody may want the bytes
                    self.evicted_segments.add(number)
                empty += self._empty(number)
        return empty

    def _empty(self, number: int) -> list[Segment]:
        self._schemas.pop(number, None)
        self._ends.pop(number, None)
        segment = self.segments.pop(number, None)
        if segment is None:
            return []
        if self.growing.get(segment.schema) == number:
            del self.growing[segment.schema]
        return [segment]
