"""An append-only file of JSON records that survives crashes: one line a record, numbered and chained.

    1c291ca3 18 17 8d3f00a2 {"op":"episode",...}
    checksum of the rest, number of the line, number of the first line of its append, checksum of all lines before it

`append` returns when the lines are on disk; whatever a record refers to must be synced before. Damage is classified:

- A torn tail: the last lines are incomplete or fail their checksums, and belong to one append. That append never
  returned, unless the head (data/head.py) counts its lines. Readers stop before it, and the next writer moves it to the
  quarantine. Each line has the number of its append's first line, because a power cut may keep a later line and lose an
  earlier one.
- An acknowledged line that fails its checksum: opening raises, and `repair_journal` searches for the single bit that
  makes the checksum right (a line of 600 bytes has 4,800 candidates; the odds of a wrong match are one in a million).
- Missing lines: in the middle, the numbers and the chain show it; at the end, the head does.
- Another file under the same name, or other bytes in the same file: a repair or a compaction replaced it, or somebody
  restored a backup. `Replaced` is raised before anything is written, and a reader reads the file from the start. The
  last known line is compared: it has the checksum of all lines before it.

The first line of a file is its header, `{"journal": {...}}`, and may have any number: a rewritten journal continues the
numbering. Files of version 1 have lines without numbers, `crc32 json`; they are read as they are, and the first append
covers all of them with its chain.

Text rather than a binary format or SQLite: it can be read with `less`, an append is one write and one sync, and readers
in other processes need no locks.
"""

import fcntl
import os
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from plaudit.data.disk import Folder, WritableFile, disk_errors, identity, read_at, sync_file, write_at
from plaudit.data.head import Head, head_name, read_head, read_open_head, replace_head, write_head
from plaudit.data.lines import (
    HEADER_KEY,
    MAX_LINE_BYTES,
    MAX_REPAIR_BYTES,
    check_readable,
    decode,
    encode_lines,
    order_problem,
    repair_lines,
)
from plaudit.data.lines import Record as Record
from plaudit.data.quarantine import Quarantine
from plaudit.errors import JournalMissing, Replaced, StoreDamaged, StoreError

LineCallback = Callable[[Record, int, int], None]  # a record, the byte at which its line begins, and the line's length

LINE_START = 64  # bytes of a line that tell it from every other: its checksum and its numbers
MAX_TORN_BYTES = 4 * MAX_LINE_BYTES  # bytes of one append


class JournalFile:
    """The file itself, whatever comes to lie under its name; closed when nothing refers to it any more.

    A line that was read once can be read again from here, also after a repair has put another file in its place.
    """

    def __init__(self, path: Path, folder: Folder):
        self.path = path
        with _report_missing(path):
            self.descriptor = folder.open(path.name, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.identity = identity(os.fstat(self.descriptor))

    def record(self, offset: int, length: int) -> Record:
        """The record of a line without its line end, verified by its checksum."""
        with disk_errors(self.path.parent, f"{self.path.name} cannot be read"):
            line = decode(read_at(self.descriptor, offset, length))
        if line is None:
            raise damage_error(self.path, f"the line at byte {offset:,} was sound and fails its checksum now")
        return line.record


class Journal:
    """One process's view of the file; after `read` and `append` it is at the end of the file."""

    def __init__(self, path: Path, folder: Folder | None = None, *, counted: bool = True, header: Record | None = None):
        """
        folder: where it lies, if that is open already
        counted: whether the number of lines is kept in a second place
        header: the content of its first line, for a file that has none yet
        """
        self.path = path
        self.folder = folder or Folder(path.parent)
        self.header: Record | None = None  # what its first line says; None: it has none
        self.count = 0  # the number of the last line
        self.lines = 0  # in the file
        self._counted, self._new_header = counted, header or {}
        self._header_pending = False  # the next append says whose it is
        self._offset = 0  # bytes read so far, always at the start of a line
        self._chain = 0
        self._last = (0, b"")  # where the last known line begins, and its first bytes
        self._head: Head | None = None
        self._file = WritableFile(self.folder, path.name, os.O_RDWR, allow_hard_links=True)
        self._head_file = WritableFile(self.folder, head_name(path.name), os.O_RDWR | os.O_CREAT)
        self.on_line: LineCallback | None = None  # told where each record is stored; excludes `rewrite`
        # Held, so that no other file gets its number on the disk while this object knows it by that.
        self.held = JournalFile(path, self.folder)

    @staticmethod
    def create(path: Path, folder: Folder | None = None, *, counted: bool = True, header: Record | None = None) -> None:
        folder = folder or Folder(path.parent)
        (line,) = encode_lines([{HEADER_KEY: header or {}}], 1, 0)
        with folder.opened(path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            write_at(file, memoryview(line), 0)
            os.fsync(file)
        if counted:
            replace_head(folder, path.name, 1, zlib.crc32(line[:-1]))
        folder.sync()

    def read(self) -> list[Record]:
        """The records that came since the last call."""
        if self._offset == 0 and self._counted:  # before the lines: it never leads them
            self._head = read_head(self.folder, self.path.name)
        self.check_same()
        return self._catch_up(self.held.descriptor)

    def append(self, records: Iterable[Record], *, exclusive: bool = False) -> list[Record]:
        """Write records and sync. Returns what other processes had appended since the last `read`.

        exclusive: nobody else may have; where somebody has, nothing is written
        """
        self.folder.check_same()
        with self._open_locked() as file:
            if self._counted:
                self._head_file.open()
                self._head = read_open_head(self._head_file.descriptor)
            others = self._catch_up(file)
            if others and exclusive:
                raise StoreError(f"{self.path}: another process wrote here; nothing was written, open the store again")
            self._quarantine_tail(file)
            records = list(records)
            lines = self._encode(records)
            check_readable(self.path, lines)
            try:
                write_at(file, memoryview(b"".join(lines)), self._offset)
                sync_file(file)
            except OSError:  # as if it had never been tried
                os.ftruncate(file, self._offset)
                raise
            self.header = self._new_header if self.header is None or self._header_pending else self.header
            self._header_pending = False
            self._notify_own(records, lines)
            self._advance(lines)
            if self._counted:
                self._head = write_head(self._head_file.descriptor, self.count, self._chain, self._head)
            return others

    def recover_tail(self) -> tuple[list[Record], list[str]]:
        """Move a torn last line to the quarantine, and restore a head that a power cut tore.

        Returns the records that other processes appended, and messages.
        """
        with self._open_locked() as file:
            others, messages = self._catch_up(file), self._quarantine_tail(file)
            if self._counted and self.header is not None and read_head(self.folder, self.path.name) is None:
                replace_head(self.folder, self.path.name, self.count, self._chain)
                messages.append(f"{self.path}: its count was missing or torn; the {self.lines} lines were counted anew")
            return others, messages

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file by one with exactly these records; the numbering continues."""
        with self.folder.opened(self.path.name, os.O_RDONLY) as old:
            fcntl.flock(old, fcntl.LOCK_EX)
            self.check_same(os.fstat(old))
            assert self.on_line is None, "somebody remembers where the old lines stand"
            lines = encode_lines([{HEADER_KEY: self.header or self._new_header}, *records], self.count + 1, self._chain)
            if max(map(len, lines)) > MAX_LINE_BYTES:  # a foreign line, which was shorter in its own spelling: it stays
                return
            self.folder.write(self.path.name, b"".join(lines))
            self.held = JournalFile(self.path, self.folder)
            self._offset = self.lines = 0
            self._advance(lines)
            if self._counted:
                replace_head(self.folder, self.path.name, self.count, self._chain)
                self._head = read_head(self.folder, self.path.name)

    def set_header(self, header: Record) -> None:
        """The next append writes this header first, unless the file has it already."""
        self._new_header = header
        self._header_pending = self.header is not None and self.header != header

    def _encode(self, records: Iterable[Record]) -> list[bytes]:
        header_records = [{HEADER_KEY: self._new_header}] if self.header is None or self._header_pending else []
        return encode_lines([*header_records, *records], self.count + 1, self._chain)

    def _notify_own(self, records: list[Record], lines: list[bytes]) -> None:
        if self.on_line is None:
            return
        offset = self._offset + sum(map(len, lines[: len(lines) - len(records)]))  # one more may say whose it is
        for record, line in zip(records, lines[len(lines) - len(records) :], strict=True):
            self.on_line(record, offset, len(line) - 1)
            offset += len(line)

    def _advance(self, lines: list[bytes]) -> None:
        for line in lines:
            self._chain = zlib.crc32(line[:-1], self._chain)
            self._last = (self._offset, line[:LINE_START])
            self._offset += len(line)
        self.count += len(lines)
        self.lines += len(lines)

    def _catch_up(self, file: int) -> list[Record]:
        size = os.fstat(file).st_size
        records: list[Record] = []
        while (before := self._offset) < size:
            data = read_at(file, before, min(size - before, MAX_LINE_BYTES))  # a hole of terabytes is a file too
            records += self._take(file, data)
            if self._offset == before:
                if b"\n" not in data and size - before > len(data):
                    raise damage_error(self.path, f"line {self.lines + 1} is longer than any that is written here")
                break
        head = self._head
        if head is not None and self.count < head.count:
            raise damage_error(
                self.path, f"its last {head.count - self.count} acknowledged line(s) are missing or damaged"
            )
        if head is not None and self.count == head.count and self._chain != head.chain:
            raise damage_error(self.path, "these are not the lines that were written here")
        return records

    def _take(self, file: int, data: bytes) -> list[Record]:
        records: list[Record] = []
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            text = data[position:end]
            line = decode(text)
            if line is None:
                # More was appended after it, so this one was complete once.
                if not self._is_torn(file, self._offset + len(text) + 1):
                    raise damage_error(self.path, f"line {self.lines + 1} fails its checksum")
                break
            problem = order_problem(line, self.count, self._chain, self.lines, self.header is not None)
            if problem:
                raise damage_error(self.path, problem)
            if line.is_header:
                self.header = line.record[HEADER_KEY]
            else:
                records.append(line.record)
                if self.on_line is not None:
                    self.on_line(line.record, self._offset, len(text))
            self.count = self.count + 1 if line.number is None else line.number
            self._chain = zlib.crc32(text, self._chain if self.lines else line.chain)
            self._last = (self._offset, data[position : end + 1][:LINE_START])
            self._offset += end + 1 - position
            self.lines += 1
            position = end + 1
        return records

    def _is_torn(self, file: int, offset: int) -> bool:
        """Whether what follows a bad line belongs to the same append, which then never returned."""
        rest = read_at(file, offset, MAX_TORN_BYTES)
        if len(rest) == MAX_TORN_BYTES:
            return False
        if b"\n" not in rest:
            return True
        later = [line for line in map(decode, rest.split(b"\n")[:-1]) if line is not None]
        same_append = all(line.number is not None and line.first <= self.count + 1 for line in later)
        uncounted = self._head is not None and self._head.count <= self.count
        return same_append and (bool(later) or uncounted)

    def _quarantine_tail(self, file: int) -> list[str]:
        torn = os.fstat(file).st_size - self._offset
        if torn <= 0:
            return []
        # A whole record with one flipped bit is kept.
        if torn <= MAX_REPAIR_BYTES and repair_lines(read_at(file, self._offset, torn)) is not None:
            raise damage_error(self.path, f"line {self.lines + 1} fails its checksum")
        counted = "the count beside it does not have it" if self._head else "whether it was acknowledged is not known"
        messages = f"{self.path}: {torn:,} bytes of an unfinished last line"
        with Quarantine(self.folder).entry(f"{self.path.name}-tail", f"{messages}; {counted}") as aside:
            aside.tail(self.path.name, file, self._offset)
        os.ftruncate(file, self._offset)
        sync_file(file)
        return [f"{messages} were set aside in {aside.path}; {counted}"]

    @contextmanager
    def _open_locked(self) -> Iterator[int]:
        """The file, open for writing and locked; raises JournalMissing or Replaced if it is gone.

        A repair gives the old file a second name before it puts another in its place, so names are counted last.
        """
        with _report_missing(self.path):
            opened = self._file.open()
        file = self._file.descriptor
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self.folder.check_file(self.path.name, self.check_same(opened), exclusive=True)
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def check_same(self, opened: os.stat_result | None = None) -> os.stat_result:
        """Check that the file still has its name and the lines that were read; returns the status of that name.

        opened: another descriptor's, which is to be of the same file
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
        return there


def damage_error(path: Path, what: str) -> StoreDamaged:
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
