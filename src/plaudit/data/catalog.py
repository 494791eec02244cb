"""What a store's journal adds up to: which episodes are alive, where they lie, which segments hold them."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plaudit.data.journal import Record
from plaudit.data.segments import Schema, Segment
from plaudit.errors import StoreError


@dataclass(frozen=True)
class Place:
    """Where an episode lies, and what its journal line says of it."""

    segment: int
    row: int
    steps: int
    line: Record

    @property
    def rows(self) -> int:
        return self.steps + 1


class Catalog:
    """Follows a journal; the store asks it where things are."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.places: dict[int, Place] = {}  # alive, oldest first
        self.segments: dict[int, Segment] = {}
        self.growing: dict[Schema, int] = {}  # the segment where the next episode of a schema goes
        self.next_id = 0
        self.next_segment = 0
        self.revision = 0  # lines followed so far
        self.nbytes = 0  # of the episodes alive
        self.missing: dict[int, Path] = {}  # episodes whose segment is not there, until a line says that they went

    def follow(self, lines: Iterable[Record]) -> list[Segment]:
        """Take journal lines in, in order; returns the segments that nothing lives in any more."""
        empty: list[Segment] = []
        for line in lines:
            self.revision += 1
            match line["op"]:
                case "episode":
                    self._add(line)
                case "evict" | "drop":
                    empty += self._remove(line["ids"])
                case other:
                    raise StoreError(
                        f"{self.folder}: the journal speaks of '{other}'; a newer plaudit wrote it, upgrade"
                    )
        return empty

    def segment_folder(self, number: int) -> Path:
        return self.folder / "segments" / f"{number:06d}"

    def size(self, place: Place) -> int:
        return place.rows * self.segments[place.segment].schema.row_bytes

    def surplus(self, new: list[Place], max_episodes: int | None, max_bytes: int | None) -> list[int]:
        """The ids of the oldest episodes that must go once `new` is in; the newest of all always stays."""
        if max_episodes is None and max_bytes is None:
            return []
        count, total = len(self.places) + len(new), self.nbytes + sum(map(self.size, new))
        going: list[int] = []
        for place in itertools.chain(list(self.places.values()), new[:-1]):
            too_many = max_episodes is not None and count > max_episodes
            too_much = max_bytes is not None and total > max_bytes
            if not (too_many or too_much):
                break
            going.append(place.line["id"])
            count, total = count - 1, total - self.size(place)
        return going

    def start_segment(self, schema: Schema) -> int:
        number = self.next_segment
        self.segments[number] = Segment.create(self.segment_folder(number), schema)
        self.growing[schema] = number
        self.next_segment += 1
        return number

    def roll_back(self, rows: dict[int, int]) -> None:
        """Forget a failed append: cut files back to the rows they had, drop segments it had begun."""
        for number in [n for n in self.segments if n not in rows]:
            segment = self.segments.pop(number)
            self.growing.pop(segment.schema, None)
            segment.remove()
        for number, count in rows.items():
            self.segments[number].truncate(count)

    def _add(self, line: Record) -> None:
        place = place_of(line)
        self.next_id = line["id"] + 1
        self.next_segment = max(self.next_segment, place.segment + 1)
        if place.segment not in self.segments:
            try:
                segment = Segment.open(self.segment_folder(place.segment))
            except FileNotFoundError:  # evicted since, and the line that says so comes later; or lost
                self.missing[line["id"]] = self.segment_folder(place.segment)
                return
            self.segments[place.segment] = segment
            self.growing[segment.schema] = place.segment
        segment = self.segments[place.segment]
        segment.rows = max(segment.rows, place.row + place.rows)
        self.places[line["id"]] = place
        self.nbytes += self.size(place)

    def _remove(self, ids: list[int]) -> list[Segment]:
        for episode_id in ids:
            self.missing.pop(episode_id, None)
            place = self.places.pop(episode_id, None)
            if place is not None:
                self.nbytes -= self.size(place)
        alive = {place.segment for place in self.places.values()}
        empty = [self.segments.pop(number) for number in list(self.segments) if number not in alive]
        self.growing = {schema: number for schema, number in self.growing.items() if number in alive}
        return empty


def place_of(line: Record) -> Place:
    return Place(line["segment"], line["row"], line["steps"], line)
