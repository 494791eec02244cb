"""An append-only file of JSON records that a crash cannot confuse: one line a record, numbered and chained.

    1c291ca3 18 17 8d3f00a2 {"op":"episode",...}
    checksum of the rest, the line's number, that of the first line of its append, checksum of all lines before it

`append` returns when the lines are on the platter, so whatever a record speaks of must be synced before it. What can be
wrong with such a file is told apart:

- a torn tail: the last lines are incomplete or fail their checksums, and belong to one append. It never returned, so
  nobody was promised anything, unless the head (data/head.py) counts them; readers stop before it and the next writer
  sets it aside. Lines of one append know of each other because a power cut may keep a later one and lose an earlier.
- a line that fails its checksum and was promised: opening refuses, and `mend` finds the single bit that makes the
  checksum fit again (a line of 600 bytes has 4,800 candidates; the odds of a wrong fit are one in a million).
- lines that are missing: in the middle the numbers and the chain tell, at the end the head does.
- another file under the same name: a repair or a compaction replaced it. `Replaced` is raised, and whoever follows the
  file reads it from the start.

The first line of a file says whose it is, `{"journal": {...}}`, and may have any number: a journal that is written anew
goes on counting. Files of earlier versions have lines without numbers, `crc32 json`; they are read as they are, and
the first append vouches for all of them.

Text rather than a binary framing or SQLite: a person can read it with `less` on the worst day of the project,
appends are one write and one sync, and readers in other processes need no locks at all.
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

MAX_TORN_BYTES = 4 * MAX_LINE_BYTES  # bytes of one append


class JournalFile:
    """The file itself, whatever comes to lie under its name; closed when nothing refers to it any more.

    A line that was read once can be read again from here, also after a repair has put another file in its place.
    """

    def __init__(self, path: Path, folder: Folder):
        self.path = path
        with _missed(path):
            self.descriptor = folder.open(path.name, os.O_RDONLY)
        weakref.finalize(self, os.close, self.descriptor)
        self.identity = identity(os.fstat(self.descriptor))

    def record(self, offset: int, length: int) -> Record:
        """What the line says that stands there, without its end; compared with its checksum."""
        with disk_errors(self.path.parent, f"{self.path.name} cannot be read"):
            line = decode(read_at(self.descriptor, offset, length))
        if line is None:
            raise damaged(self.path, f"the line at byte {offset:,} was sound and fails its checksum now")
        return line.record


class Journal:
    """One process's view of the file; `read` and `append` both leave it at the end of what is known."""

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
        self._check_same()
        return self._catch_up(self.held.descriptor)

    def append(self, records: Iterable[Record], *, exclusive: bool = False) -> list[Record]:
        """Write records and sync. Returns what other processes had appended since the last `read`.

        alone: nobody else may have; where somebody has, nothing is written
        """
        self.folder.check_same()
        with self._locked() as file:
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
        """Put a torn last line into the quarantine, and count anew where a power cut tore the count.

        Returns what others had appended, and what was done.
        """
        with self._locked() as file:
            others, messages = self._catch_up(file), self._quarantine_tail(file)
            if self._counted and self.header is not None and read_head(self.folder, self.path.name) is None:
                replace_head(self.folder, self.path.name, self.count, self._chain)
                messages.append(f"{self.path}: its count was missing or torn; the {self.lines} lines were counted anew")
            return others, messages

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the file by one that says these records and no others; numbers go on."""
        with self.folder.opened(self.path.name, os.O_RDONLY) as old:
            fcntl.flock(old, fcntl.LOCK_EX)
            self._check_same(os.fstat(old))
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
        """The next append says so first, unless the file does already: one of an earlier version does not."""
        self._new_header = header
        self._header_pending = self.header is not None and self.header != header

    def damaged(self, what: str) -> StoreDamaged:
        return damaged(self.path, what)

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
            self._offset += len(line)
        self.count += len(lines)
        self.lines += len(lines)

    def _catch_up(self, file: int) -> list[Record]:
        size = os.fstat(file).st_size
        if size < self._offset:
            raise self.damaged(f"it lost its last {self._offset - size:,} bytes while it was open")
        records: list[Record] = []
        while (before := self._offset) < size:
            data = read_at(file, before, min(size - before, MAX_LINE_BYTES))  # a hole of terabytes is a file too
            records += self._take(file, data)
            if self._offset == before:
                if b"\n" not in data and size - before > len(data):
                    raise self.damaged(f"line {self.lines + 1} is longer than any that is written here")
                break
        head = self._head
        if head is not None and self.count < head.count:
            raise self.damaged(f"its last {head.count - self.count} acknowledged line(s) are missing or damaged")
        if head is not None and self.count == head.count and self._chain != head.chain:
            raise self.damaged("these are not the lines that were written here")
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
                    raise self.damaged(f"line {self.lines + 1} fails its checksum")
                break
            problem = order_problem(line, self.count, self._chain, self.lines, self.header is not None)
            if problem:
                raise self.damaged(problem)
            if line.is_header:
                self.header = line.record[HEADER_KEY]
            else:
                records.append(line.record)
                if self.on_line is not None:
                    self.on_line(line.record, self._offset, len(text))
            self.count = self.count + 1 if line.number is None else line.number
            self._chain = zlib.crc32(text, self._chain if self.lines else line.chain)
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
            raise self.damaged(f"line {self.lines + 1} fails its checksum")
        counted = "the count beside it does not have it" if self._head else "whether it was acknowledged is not known"
        messages = f"{self.path}: {torn:,} bytes of an unfinished last line"
        with Quarantine(self.folder).entry(f"{self.path.name}-tail", f"{messages}; {counted}") as aside:
            aside.tail(self.path.name, file, self._offset)
        os.ftruncate(file, self._offset)
        sync_file(file)
        return [f"{messages} were set aside in {aside.path}; {counted}"]

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, open for writing, once nobody else writes to it; JournalMissing or Replaced where it is not there.

        A repair gives the old file a second name before it puts another in its place, so names are counted last.
        """
        with _missed(self.path):
            opened = self._file.open()
        file = self._file.descriptor
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self.folder.check_file(self.path.name, self._check_same(opened), exclusive=True)
            yield file
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _check_same(self, opened: os.stat_result | None = None) -> os.stat_result:
        """The file that was read so far still lies under its name; what the disk says of that name.

        opened: another descriptor's, which is to be of the same file
        """
        with _missed(self.path):
            there = self.folder.stat(self.path.name)
        if not (identity(there) == self.held.identity == identity(opened or there)):
            raise Replaced(f"{self.path} was replaced while it was open; open the store again")
        return there


def damaged(path: Path, what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path}: {what}; run 'plaudit data check {path.parent} --repair', "
        "which mends it or sets it aside and keeps a copy of the file"
    )


@contextmanager
def _missed(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise JournalMissing(
            f"{path} is missing; restore it from a backup, or run 'plaudit data check {path.parent} --repair'"
        ) from error
