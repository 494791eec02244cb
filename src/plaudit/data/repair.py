"""Inspection and repair of a journal.

A check reads the lines under a shared lock, so it works on a store that is being written. A repair holds the file's
exclusive lock until the repaired file has replaced it: an append that waits for the lock then notices that the file was
replaced, and goes to the new one.
"""

import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plaudit.data.disk import Folder, disk_errors, read_at, set_aside
from plaudit.data.journal import (
    HEAD,
    HEADER_KEY,
    MAX_LINE_BYTES,
    MAX_REPAIR_BYTES,
    Head,
    Record,
    check_readable,
    decode,
    encode_lines,
    missing_lines,
    read_head,
    repair_lines,
    replace_head,
)

MAX_EFFORT = 2 * MAX_REPAIR_BYTES**2  # a file in which every other line is bad would keep a check busy for days
Closing = Callable[[list[Record], int], list[Record]]  # good records, lines that there ever were -> records to add


@dataclass
class Inspection:
    """What a look at every line found."""

    path: Path
    head: Head | None
    good: list[bytes] = field(default_factory=list)  # lines, some mended
    problems: list[str] = field(default_factory=list)  # messages of a check
    repairs: list[str] = field(default_factory=list)  # messages of a repair
    broken: bool = False  # lines are missing or could not be mended: the others must be numbered anew
    header: Record | None = None
    count: int = 0  # the number of the last line, as far as one can tell
    chain: int | None = 0  # None: unknown, after lines that could not be mended
    effort: int = 0  # spent on finding flipped bits: the squares of what was tried, in bytes

    def records(self) -> list[Record]:
        """The records of the good lines, without headers."""
        lines = (decode(line[:-1]) for line in self.good)
        return [line.record for line in lines if line is not None and not line.is_header]

    def add(self, problem: str, done: str) -> None:
        """Note a problem, and what a repair does about it."""
        self.problems.append(problem)
        self.repairs.append(f"{problem}; {done}")

    def examine(self, lines: Iterator[bytes]) -> None:
        """Look at all lines of a file."""
        damaged: list[bytes] = []  # lines that follow each other: a flipped bit can join two or split one
        for number, line in enumerate(itertools.chain(lines, [b""]), start=1):
            if line and (not line.endswith(b"\n") or decode(line[:-1]) is None):
                damaged.append(line)
                continue
            if damaged:
                self._take_damaged(damaged, number - len(damaged), at_end=not line)
                damaged = []
            if line:
                self._take(line)
        head, name = self.head, self.path.name + HEAD
        if head is not None and self.count < head.count:
            self.broken = True
            gone = f"lost: the last {head.count - self.count} acknowledged line(s) are missing"
            self.add(f"{self.path}: {gone}", "what they said is gone")
        elif head is not None and self.count == head.count and self.chain != head.chain and not self.broken:
            self.add(f"{self.path}: these are not the lines that were counted in {name}", "they were taken as they are")
        if head is None and self.header is not None:
            self.add(
                f"{self.path.with_name(name)} is missing or damaged: whether lines are missing at the end is not known",
                "the lines that are there were counted anew",
            )

    def _take(self, text: bytes) -> None:
        line = decode(text[:-1])
        assert line is not None
        problem = ""
        if self.chain is not None:
            problem = line.order_problem(self.count, self.chain, len(self.good))
        elif line.number > self.count + 1:
            problem = missing_lines(self.count + 1, line.number - 1)
        if problem:
            self.broken = True
            self.add(f"{self.path}: {problem}", "what is left was numbered anew")
        if line.is_header:
            self.header = line.record[HEADER_KEY]
        self.chain = zlib.crc32(text[:-1], self.chain if self.chain is not None and self.good else line.chain)
        self.count = max(self.count, line.number)
        self.good.append(text)

    def _take_damaged(self, damaged: list[bytes], number: int, at_end: bool) -> None:
        where = f"{self.path}: line {number}"
        size = sum(map(len, damaged))
        self.effort += size * size
        mended = repair_lines(b"".join(damaged)) if self.effort <= MAX_EFFORT else None
        if mended is not None:
            self.problems.append(f"{where} fails its checksum")
            self.repairs.append(f"{where}: one flipped bit was put right")
            for line in _split(mended):
                self._take(line)
        elif at_end and not (self.head is not None and self.head.count > self.count):
            counted = (
                "the count next to it does not include it" if self.head else "whether it was acknowledged is not known"
            )
            self.problems.append(
                f"{self.path}: an unfinished last line of {size} bytes; {counted}; the next writer sets it aside"
            )
            self.repairs.append(f"{where}: an unfinished last line was set aside; {counted}")
        else:
            self.broken = True
            self.problems += [f"{self.path}: line {number + i} fails its checksum" for i in range(len(damaged))]
            self.repairs.append(f"{where}: {len(damaged)} damaged line(s) could not be mended and were set aside")
            self.count += len(damaged)
            self.chain = None


def inspect_journal(path: Path) -> Inspection:
    """Look at every line; changes nothing."""
    with _inspected(Folder(path.parent), path, fcntl.LOCK_SH) as inspection:
        return inspection


def repair_journal(
    path: Path, *, header: Record | None = None, closing: Closing = lambda records, lines: []
) -> list[str]:
    """Repair a journal's damaged lines; returns a sentence for each, [] when there was nothing to do.

    The file as it was is kept in the quarantine.

    header: the content of the first line, where that line is lost
    closing: records to add at the end of a file that lost some
    """
    folder = Folder(path.parent)
    with (
        disk_errors(path.parent, f"{path.name} could not be mended"),
        _inspected(folder, path, fcntl.LOCK_EX) as inspection,
    ):
        if not inspection.repairs:
            return []
        if folder.exists(path.name):
            with set_aside(folder, path.name, f"{path} before it was repaired") as aside:
                aside.copy(path.name)
            inspection.repairs.append(f"the file as it was is kept in {aside.path}")
        lines, count, chain = inspection.good, inspection.count, inspection.chain
        if inspection.broken:
            records = list({json.dumps(record): record for record in inspection.records()}.values())  # each once
            last = max(inspection.count, inspection.head.count if inspection.head else 0)
            new_header = {HEADER_KEY: inspection.header or header or {}}
            lines = encode_lines([new_header, *records, *closing(records, last)], last + 1, 0)
            count, chain = last + len(lines), 0
            for line in lines:
                chain = zlib.crc32(line[:-1], chain)
        check_readable(path, lines)
        folder.write(path.name, b"".join(lines))
        replace_head(folder, path.name, count, chain or 0)
        return inspection.repairs


@contextmanager
def _inspected(folder: Folder, path: Path, how: int) -> Iterator[Inspection]:
    """What a look at the file finds, while it is locked; it may be missing."""
    if not folder.exists(path.name):
        head = read_head(folder, path.name)
        gone = f", and with it {head.count} lines" if head else ""
        yield Inspection(
            path,
            head,
            problems=[f"{path} is missing{gone}"],
            repairs=[f"{path} was missing{gone}; it begins anew, what it said is lost"],
            broken=True,
        )
        return
    while True:
        with folder.opened(path.name, os.O_RDONLY) as file:
            fcntl.flock(file, how)
            if os.fstat(file).st_ino == folder.stat(path.name).st_ino:  # else it was replaced meanwhile
                inspection = Inspection(path, read_head(folder, path.name))
                inspection.examine(_lines_of(file))
                yield inspection
                return


def _lines_of(file: int) -> Iterator[bytes]:
    """The lines of a file; of one that is longer than any of ours, only its start, and nothing after it."""
    position = 0
    while data := read_at(file, position, MAX_LINE_BYTES):
        end = data.rfind(b"\n") + 1
        if end == 0:
            yield data if len(data) < MAX_LINE_BYTES else data[:MAX_REPAIR_BYTES]
            return
        yield from _split(data[:end])
        position += end


def _split(data: bytes) -> list[bytes]:
    """Lines end with a newline alone: a flipped bit may make a carriage return."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]]
