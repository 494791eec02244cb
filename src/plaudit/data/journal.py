"""An append-only file of JSON records that survives crashes: one line a record, numbered and chained.

    1c291ca3 18 17 8d3f00a2 {"op":"episode",...}
    checksum of the rest, number of the line, number of the first line of its append, checksum of all lines before it

`append` returns when the lines are on disk; whatever a record refers to must be synced before. The first line of a file
is its header, `{"journal": {...}}`, and may have any number: a rewritten journal continues the numbering.

`journal.head` stores the number of the last line and the checksum of all lines a second time, because a journal that
lost its last lines looks like a shorter journal. The head is written after the line is synced and is not synced itself,
which would double the cost of a label. So it may lag behind after a power cut, and never leads. Its two slots are
written in turn, each with a checksum, so that one torn write leaves the other.

Damage is classified:

- A torn tail: the last lines are incomplete or fail their checksums, and belong to one append. That append never
  returned, unless the head counts its lines. Readers stop before it, and the next writer moves it to the quarantine.
  Each line has the number of its append's first line: a power cut may keep a later line and lose an earlier one.
- An acknowledged line that fails its checksum: opening raises, and a repair (data/check.py) searches for the single
  bit that makes the checksum right (a line of 600 bytes has 4,800 candidates; the odds of a wrong match are one in a
  million).
- Missing lines: in the middle, the numbers and the chain show it; at the end, the head does.
- Another file under the same name, or other bytes in the same file: a repair or a compaction replaced it, or somebody
  restored a backup. `Replaced` is raised before anything is written, and a reader reads the file from the start.

`journal.snapshot` has what the first lines add up to, so that opening parses only the lines after them. It is one line
of JSON: its own checksum, the number and the checksum of the journal's bytes that it stands for, and the state. It is
written again when the lines after it make up a ninth of all. The journal's bytes are compared with the checksum each
time. If they differ, or the snapshot is missing or damaged, all lines are read. So damage is never hidden. A check
(data/check.py) compares its state with the lines.

Text rather than a binary format or SQLite: it can be read with `less`, an append is one write and one sync, and readers
in other processes need no locks.
"""

import fcntl
import json
import math
import os
import re
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pydantic_core import from_json, to_json

from plaudit.data.disk import Folder, checksum_at, disk_errors, identity, read_at, set_aside, sync_file, write_at
from plaudit.errors import DataError, ForeignFile, JournalMissing, Replaced, StoreDamaged, StoreError
from plaudit.files import MAX_DEPTH, parse_json

Record = dict[str, Any]
LineCallback = Callable[[Record, "Place"], None]

MAX_ID = 1 << 53  # of an episode; every program that reads JSON can count this far
MAX_TIME = 253_402_300_800  # s since 1970: the year 10000
HEADER_KEY = "journal"  # the one key of a header
MAX_LINE_BYTES = 1 << 24  # a million steps of labels have 12 MB
MAX_TORN_BYTES = 4 * MAX_LINE_BYTES  # bytes of one append
MAX_REPAIR_BYTES = 1 << 15  # trying every bit takes time with the square of the length: 3 s for this one
SHORT_LINE = 1 << 15  # bytes of a record that cannot have too many values for `parse_json`
LINE_START = 64  # bytes of a line that tell it from every other: its checksum and its numbers
HEAD = ".head"  # after the name of a journal
SNAPSHOT = ".snapshot"  # after the name of a journal
SNAPSHOT_FORMAT = 1
SNAPSHOT_AFTER = 1000, 8  # it is written again after this many lines, and after one in so many of all
SLOT = 64  # bytes of a slot of the head
_NUMBERS = re.compile(rb"([0-9a-f]{8}) (\d{1,15}) (\d{1,15}) ([0-9a-f]{8}) ")  # before the record of a line
_SLOT = re.compile(rb"([0-9a-f]{8}) ((\d{1,15}) ([0-9a-f]{8}))[ \n]*")


def is_number(value: Any) -> bool:
    """Whether a value of a record is a finite number."""
    return isinstance(value, float | int) and type(value) is not bool and -math.inf < value < math.inf


def is_int_in(value: Any, least: int, most: int) -> bool:
    """Whether a value of a record is an integer within these bounds."""
    return type(value) is int and least <= value <= most


def is_time(value: Any) -> bool:
    """Whether a value of a record is a time in s since 1970 that a calendar has."""
    return is_number(value) and 0 <= value < MAX_TIME


class Line(NamedTuple):
    """A line that fits its checksum."""

    record: Record
    number: int
    first: int  # the number of the first line of its append
    chain: int  # the checksum of all lines before it

    @property
    def is_header(self) -> bool:
        """Whether it is the header of a file."""
        return len(self.record) == 1 and isinstance(self.record.get(HEADER_KEY), dict)

    def order_problem(self, count: int, chain: int, lines: int) -> str:
        """Why it cannot follow `lines` others, the last of which has number `count`; "" if it can."""
        if (self.number == count + 1 and self.chain == chain) or (lines == 0 and self.is_header):
            return ""
        if self.number > count + 1:
            return missing_lines(count + 1, self.number - 1)
        return f"line {lines + 1} does not follow the one before it: lines were swapped, doubled or changed"


def missing_lines(first: int, last: int) -> str:
    """The message about lines that are missing."""
    return f"line {first} is missing" if first == last else f"lines {first} to {last} are missing"


def encode_lines(records: Iterable[Record], first: int, chain: int) -> list[bytes]:
    """The lines of one append."""
    lines: list[bytes] = []
    for number, record in enumerate(records, start=first):
        text = json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode()
        rest = b"%d %d %08x %s" % (number, first, chain, text)
        lines.append(b"%08x %s\n" % (zlib.crc32(rest), rest))
        chain = zlib.crc32(lines[-1][:-1], chain)
    return lines


def decode(text: bytes | bytearray) -> Line | None:
    """A parsed line, or None if its checksum is wrong or it is no line of ours: anyone can compute a checksum."""
    numbers = _NUMBERS.match(text)
    if numbers is None or int(numbers[1], 16) != zlib.crc32(memoryview(text)[9:]):
        return None
    try:
        record = _parse_record(bytes(text[numbers.end() :]))
    except ValueError:
        return None
    return Line(record, int(numbers[2]), int(numbers[3]), int(numbers[4], 16)) if isinstance(record, dict) else None


def _parse_record(text: bytes) -> Any:
    """`parse_json`, three times as fast for short lines.

    What pydantic's parser reads and writes again byte by byte has no key twice and nothing else that is to be refused.
    """
    if len(text) <= SHORT_LINE and text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        record = from_json(text)
        if to_json(record) == text:
            return record
    return parse_json(text)


def check_readable(path: Path, lines: Iterable[bytes]) -> None:
    """Raise if a line that is about to be written could not be read back."""
    for line in lines:
        if len(line) > MAX_LINE_BYTES or decode(line[:-1]) is None:
            why = f"more than {MAX_LINE_BYTES:,} bytes, nested too deeply, or half a character in a text"
            raise DataError(f"{path}: nothing was written; it could not be read back ({why}): {line[:200].decode()}")


def repair_bit(data: bytes, most: int, is_sound: Callable[[bytes], bool]) -> bytes | None:
    """The data with the one bit flipped that makes it sound; None if there is none, or more than `most` bytes."""
    candidate = bytearray(data if len(data) <= most else b"")
    for position in range(len(candidate)):
        for bit in range(8):
            candidate[position] ^= 1 << bit
            if is_sound(repaired := bytes(candidate)):
                return repaired
            candidate[position] ^= 1 << bit
    return None


def repair_lines(damaged: bytes) -> bytes | None:
    """The bytes with the one bit put right that makes every line fit its checksum, or None."""

    def is_sound(data: bytes) -> bool:
        return data.endswith(b"\n") and all(decode(line) is not None for line in data[:-1].split(b"\n"))

    return repair_bit(damaged, MAX_REPAIR_BYTES, is_sound)


@dataclass(frozen=True)
class Head:
    """What was noted last about the lines of a journal."""

    count: int  # the number of the last line
    chain: int  # the checksum of all lines up to it
    slot: int  # where this was read


def read_head(folder: Folder, journal: str) -> Head | None:
    """The newer of the two slots; None if neither can be read."""
    try:
        with folder.opened(journal + HEAD, os.O_RDONLY) as file:
            return _read_open_head(file)
    except FileNotFoundError:
        return None


def _read_open_head(file: int) -> Head | None:
    data = os.pread(file, 2 * SLOT, 0)
    matches = [_SLOT.fullmatch(data, slot * SLOT, (slot + 1) * SLOT) for slot in (0, 1)]
    sound = [m for m in matches if m is not None and int(m[1], 16) == zlib.crc32(m[2])]
    heads = [Head(int(m[3]), int(m[4], 16), m.start() // SLOT) for m in sound]
    return max(heads, key=lambda head: head.count, default=None)


def replace_head(folder: Folder, journal: str, count: int, chain: int) -> None:
    """Write a new, synced head: with a new journal, and after a repair, which may count fewer lines."""
    folder.write(journal + HEAD, _encode_slot(count, chain) + b" " * (SLOT - 1) + b"\n")


def _encode_slot(count: int, chain: int) -> bytes:
    text = b"%d %08x" % (count, chain)
    return (b"%08x %s" % (zlib.crc32(text), text)).ljust(SLOT - 1) + b"\n"


class JournalFile:
    """The file itself, held open; closed when nothing refers to it any more.

    A line that was read once can be read again from here, also after a repair has put another file in its place. While
    it is open, no other file gets its inode.
    """

    def __init__(self, path: Path, folder: Folder):
        self.path = path
        with _report_missing(path):
            self.descriptor = folder.open(path.name, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.identity = identity(os.fstat(self.descriptor))


class Place(NamedTuple):
    """The place of a line in a file, without its line end."""

    file: JournalFile
    offset: int
    length: int

    def read(self) -> Record:
        """The record, verified by the checksum of its line."""
        path = self.file.path
        with disk_errors(path.parent, f"{path.name} cannot be read"):
            line = decode(read_at(self.file.descriptor, self.offset, self.length))
        if line is None:
            raise damage_error(path, f"the line at byte {self.offset:,} was sound and fails its checksum now")
        return line.record


class State(Protocol):
    """What the lines of a journal add up to, saved as a snapshot and loaded again."""

    def save(self) -> Any:
        """As JSON."""
        ...

    def load(self, tree: Any, file: JournalFile) -> None:
        """Take in what was saved, about lines of a file; an error if it makes no sense."""
        ...


@dataclass(frozen=True)
class Snapshot:
    """What the first bytes of a journal add up to."""

    format: int
    size: int  # bytes of the journal that it stands for
    crc: int  # their checksum
    last: int  # the byte at which the last of these lines begins
    lines: int
    state: Any

    @classmethod
    def decode(cls, data: bytes) -> "Snapshot":
        """ValueError or TypeError if it is damaged, or of another version."""
        if int(data[:8], 16) != zlib.crc32(data[9:]):
            raise ValueError("it fails its checksum")
        snapshot = cls(**from_json(data[9:]))
        numbers = (snapshot.size, snapshot.crc, snapshot.last, snapshot.lines)
        if snapshot.format != SNAPSHOT_FORMAT or not all(is_int_in(number, 0, MAX_ID) for number in numbers):
            raise ValueError("it is of another version")
        return snapshot

    def encode(self) -> bytes:
        """The content of the file."""
        text = to_json(vars(self))
        return b"%08x %s" % (zlib.crc32(text), text)


class Journal:
    """One process's view of the file; after `read` and `append` it is at the end of the file."""

    def __init__(
        self,
        path: Path,
        on_line: LineCallback,
        folder: Folder | None = None,
        *,
        header: Record | None = None,
        state: State | None = None,
    ):
        """
        on_line: called for each record that is read or written
        folder: where it lies, if that is open already
        header: the content of its first line, for a file that has none yet
        state: what `on_line` changes, for snapshots; None: all lines are read
        """
        self.path = path
        self.folder = folder or Folder(path.parent)
        self.header: Record | None = None  # the content of its first line; None: it has no line
        self.count = 0  # the number of the last line
        self.lines = 0  # in the file
        self.held = JournalFile(path, self.folder)
        self._on_line, self._state = on_line, state
        self._new_header = header or {}
        self._offset = 0  # bytes read so far, always at the start of a line
        self._chain = 0
        self._last = (0, b"")  # where the last line begins, and its first bytes
        self._head: Head | None = None
        self._saved_lines = 0  # that the snapshot stands for

    @staticmethod
    def create(path: Path, folder: Folder | None = None, *, header: Record | None = None) -> None:
        """Create the file, with its header."""
        folder = folder or Folder(path.parent)
        (line,) = encode_lines([{HEADER_KEY: header or {}}], 1, 0)
        with folder.opened(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            write_at(file, memoryview(line), 0)
            os.fsync(file)
        replace_head(folder, path.name, 1, zlib.crc32(line[:-1]))
        folder.sync()

    def read(self) -> None:
        """Read the lines that came since the last call."""
        if self._offset == 0:  # before the lines: it never leads them
            self._head = read_head(self.folder, self.path.name)
            if self._state is not None:
                self._load(self._state)
        self.check_same()
        self._catch_up(self.held.descriptor)

    def append(self, records: Iterable[Record], *, exclusive: bool = False) -> None:
        """Write records and sync. Lines of others are read before these.

        exclusive: raise if others have appended anything, before anything is read or written
        """
        self.folder.check_same()
        with (
            self._open_locked() as file,
            self.folder.opened(self.path.name + HEAD, os.O_RDWR | os.O_CREAT) as head_file,
        ):
            self._head = _read_open_head(head_file)
            if exclusive and os.fstat(file).st_size > self._offset:
                raise StoreError(f"{self.path}: another process wrote here; nothing was written, open the store again")
            self._catch_up(file)
            self._quarantine_tail(file)
            header = [{HEADER_KEY: self._new_header}] if self.header is None else []
            lines = encode_lines([*header, *records], self.count + 1, self._chain)
            check_readable(self.path, lines)
            try:
                write_at(file, memoryview(b"".join(lines)), self._offset)
                sync_file(file)
            except OSError:  # as if it had never been tried
                os.ftruncate(file, self._offset)
                raise
            self._catch_up(file)
            # A failed write is harmless: the lines are already synced, and the head may lag behind.
            slot = 1 - self._head.slot if self._head else 0
            with suppress(OSError):
                write_at(head_file, memoryview(_encode_slot(self.count, self._chain)), slot * SLOT)
            least, share = SNAPSHOT_AFTER
            if self._state is not None and self.lines - self._saved_lines > max(least, self.lines // share):
                self._save(file, self._state)

    def recover_tail(self) -> list[str]:
        """Move a torn last line to the quarantine, and restore a head that a power cut tore; returns messages."""
        with self._open_locked() as file:
            self._catch_up(file)
            messages = self._quarantine_tail(file)
            if self.header is not None and read_head(self.folder, self.path.name) is None:
                replace_head(self.folder, self.path.name, self.count, self._chain)
                messages.append(f"{self.path}: its count was missing or torn; the {self.lines} lines were counted anew")
            return messages

    def rewrite(self, records: Iterable[Record], on_line: LineCallback) -> None:
        """Replace the file by one with exactly these records; the numbering continues.

        on_line: called for each of them, with its new place
        """
        with self._open_locked():
            lines = encode_lines([{HEADER_KEY: self.header or self._new_header}, *records], self.count + 1, self._chain)
            if max(map(len, lines)) > MAX_LINE_BYTES:  # a foreign line, which was shorter in its own spelling
                return
            self.folder.write(self.path.name, b"".join(lines))
            self.held = JournalFile(self.path, self.folder)
            self._offset = self.lines = self._saved_lines = 0
            follow, self._on_line = self._on_line, on_line
            try:
                self._catch_up(self.held.descriptor)
            finally:
                self._on_line = follow
            replace_head(self.folder, self.path.name, self.count, self._chain)

    def _load(self, state: State) -> None:
        """Begin after the lines that the snapshot stands for, if this file has these lines."""
        try:
            most = max(MAX_LINE_BYTES, os.fstat(self.held.descriptor).st_size)
            snapshot = Snapshot.decode(self.folder.read(self.path.name + SNAPSHOT, most))
        except (OSError, ForeignFile, ValueError, TypeError):
            return
        if checksum_at(self.held.descriptor, 0, snapshot.size) != snapshot.crc:
            return
        last = read_at(self.held.descriptor, snapshot.last, snapshot.size - snapshot.last)
        first, _, _ = read_at(self.held.descriptor, 0, SHORT_LINE).partition(b"\n")
        header, line = decode(first), decode(last[:-1])
        if header is None or line is None:
            return
        try:
            state.load(snapshot.state, self.held)
        except (LookupError, TypeError, ValueError) as error:
            name = self.path.name + SNAPSHOT
            raise damage_error(self.path, f"{name} contradicts it ({type(error).__name__}: {error})"[:300]) from error
        self.header = header.record[HEADER_KEY] if header.is_header else None
        self.count, self._chain = line.number, zlib.crc32(last[:-1], line.chain)
        self.lines = self._saved_lines = snapshot.lines
        self._offset, self._last = snapshot.size, (snapshot.last, last[:LINE_START])

    def _save(self, file: int, state: State) -> None:
        """Write a snapshot. If the disk refuses, the older one stands for fewer lines."""
        crc = checksum_at(file, 0, self._offset)
        snapshot = Snapshot(SNAPSHOT_FORMAT, self._offset, crc, self._last[0], self.lines, state.save())
        with suppress(OSError):
            self.folder.write(self.path.name + SNAPSHOT, snapshot.encode())
        self._saved_lines = self.lines

    def _catch_up(self, file: int) -> None:
        size = os.fstat(file).st_size
        while (before := self._offset) < size:
            data = read_at(file, before, min(size - before, MAX_LINE_BYTES))  # a sparse file may claim terabytes
            self._take(file, data)
            if self._offset == before:
                if b"\n" not in data and size - before > len(data):
                    raise damage_error(self.path, f"line {self.lines + 1} is longer than any that is written here")
                break
        head = self._head
        if head is not None and self.count < head.count:
            lost = head.count - self.count
            raise damage_error(self.path, f"its last {lost} acknowledged line(s) are missing or damaged")
        if head is not None and self.count == head.count and self._chain != head.chain:
            raise damage_error(self.path, "these are not the lines that were written here")

    def _take(self, file: int, data: bytes) -> None:
        """Take in the complete lines of `data`, which begins at the current offset."""
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            text = data[position:end]
            line = decode(text)
            if line is None:
                if not self._is_torn(file, self._offset + len(text) + 1):
                    raise damage_error(self.path, f"line {self.lines + 1} fails its checksum")
                break
            if problem := line.order_problem(self.count, self._chain, self.lines):
                raise damage_error(self.path, problem)
            if line.is_header:
                self.header = line.record[HEADER_KEY]
            else:
                self._on_line(line.record, Place(self.held, self._offset, len(text)))
            self.count = line.number
            self._chain = zlib.crc32(text, self._chain if self.lines else line.chain)
            self._last = (self._offset, data[position : min(end + 1, position + LINE_START)])
            self._offset += end + 1 - position
            self.lines += 1
            position = end + 1

    def _is_torn(self, file: int, offset: int) -> bool:
        """Whether what follows a bad line belongs to the same append, which then never returned."""
        rest = read_at(file, offset, MAX_TORN_BYTES)
        if len(rest) == MAX_TORN_BYTES:
            return False
        if b"\n" not in rest:
            return True
        later = [line for line in map(decode, rest.split(b"\n")[:-1]) if line is not None]
        uncounted = self._head is not None and self._head.count <= self.count
        return all(line.first <= self.count + 1 for line in later) and (bool(later) or uncounted)

    def _quarantine_tail(self, file: int) -> list[str]:
        torn = os.fstat(file).st_size - self._offset
        if torn <= 0:
            return []
        # A complete line with one flipped bit was acknowledged.
        if torn <= MAX_REPAIR_BYTES and repair_lines(read_at(file, self._offset, torn)) is not None:
            raise damage_error(self.path, f"line {self.lines + 1} fails its checksum")
        counted = (
            "the count next to it does not include it" if self._head else "whether it was acknowledged is not known"
        )
        message = f"{self.path}: {torn:,} bytes of an unfinished last line"
        with set_aside(self.folder, f"{self.path.name}-tail", f"{message}; {counted}") as aside:
            aside.copy(self.path.name, self._offset)
        os.ftruncate(file, self._offset)
        sync_file(file)
        return [f"{message} were set aside in {aside.path}; {counted}"]

    @contextmanager
    def _open_locked(self) -> Iterator[int]:
        """The file, open for writing and locked; raises JournalMissing or Replaced if it is gone."""
        with _report_missing(self.path):
            file = self.folder.open(self.path.name, os.O_RDWR)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.check_same(os.fstat(file))
            yield file
        finally:
            os.close(file)

    def check_same(self, opened: os.stat_result | None = None) -> None:
        """Raise Replaced unless the file still has its name and the lines that were read.

        opened: the status of another descriptor, which must be of the same file
        """
        with _report_missing(self.path):
            there = self.folder.stat(self.path.name)
        same_file = identity(there) == self.held.identity == identity(opened or there)
        start, line = self._last
        if not same_file or there.st_size < self._offset or read_at(self.held.descriptor, start, len(line)) != line:
            raise Replaced(
                f"{self.path} was replaced while it was open, by a restored backup or a repair; nothing was written, "
                "open the store again"
            )


def damage_error(path: Path, what: str) -> StoreDamaged:
    """The error for a journal with damage, which a repair can handle."""
    return StoreDamaged(
        f"{path}: {what}; run 'plaudit data check {path.parent} --repair', "
        "which mends it or sets it aside and keeps a copy of the file"
    )


@contextmanager
def _report_missing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise JournalMissing(
            f"{path} is missing; restore it from a backup, or run 'plaudit data check {path.parent} --repair'"
        ) from error
