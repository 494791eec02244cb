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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from plaudit.data.disk import Folder, disk_errors, read_at
from plaudit.data.head import Head, head_name, read_head, replace_head
from plaudit.data.lines import (
    HEADER_KEY,
    MAX_LINE_BYTES,
    MAX_REPAIR_BYTES,
    Record,
    check_readable,
    decode,
    encode_lines,
    missing,
    order_problem,
    repair_lines,
)

MAX_EFFORT = 2 * MAX_REPAIR_BYTES**2  # a file in which every other line is bad would keep a check busy for days
Closing = Callable[[list[Record], int], list[Record]]  # good records, lines lost at the end -> records to add


@dataclass
class Inspection:
    """What a look at every line found."""

    good: list[bytes] = field(default_factory=list)  # lines, some mended
    problems: list[str] = field(default_factory=list)  # as a check says them
    repairs: list[str] = field(default_factory=list)  # as a repair does
    broken: bool = False  # lines are missing or could not be mended: what is left must be numbered anew
    header: Record | None = None
    count: int = 0  # the number of the last line
    chain: int = 0
    effort: int = 0  # spent on finding flipped bits: the squares of what was tried, in bytes
    last: int = 0  # the number of the last good one
    lost: int = 0  # lines after it that are missing or beyond mending

    def records(self) -> list[Record]:
        lines = (decode(line[:-1]) for line in self.good)
        return [line.record for line in lines if line is not None and not line.is_header]

    def add(self, problem: str, repair: str) -> None:
        self.problems.append(problem)
        self.repairs.append(repair)


def inspect_journal(path: Path, *, counted: bool = True) -> Inspection:
    """Look at every line; changes nothing."""
    with _inspect(Folder(path.parent), path, counted, fcntl.LOCK_SH) as found:
        return found


def repair_journal(
    path: Path, *, counted: bool = True, header: Record | None = None, closing: Closing = lambda records, lost: []
) -> list[str]:
    """Repair a journal's damaged lines; returns a sentence for each, [] when there was nothing to do.

    The file as it was is kept beside it.

    header: the content of the first line, where that line is lost
    closing: records to add at the end of a file that lost some
    """
    folder = Folder(path.parent)
    with (
        disk_errors(path.parent, f"{path.name} could not be mended"),
        _inspect(folder, path, counted, fcntl.LOCK_EX) as found,
    ):
        names = [path.name, *([head_name(path.name)] if counted else [])]
        found.repairs += [
            f"{folder.path / name} had a second name somewhere (a hard link) and was replaced by a copy"
            for name in names
            if folder.is_file(name) and folder.stat(name).st_nlink > 1
        ]
        if found.repairs:
            if folder.exists(path.name):
                found.repairs.append(f"the file as it was is kept as {_keep(folder, path)}")
            _replace(folder, path, found, counted, header, closing)
        return found.repairs


@contextmanager
def _inspect(folder: Folder, path: Path, counted: bool, how: int) -> Iterator[Inspection]:
    """What a look at the file finds, while it is locked; it may be missing."""
    if not folder.exists(path.name):
        yield _examine(path, iter(()), read_head(folder, path.name) if counted else None, counted, there=False)
        return
    with _held(folder, path.name, how) as file:
        yield _examine(path, _lines_of(file), read_head(folder, path.name) if counted else None, counted)


def _examine(path: Path, lines: Iterator[bytes], head: Head | None, counted: bool, there: bool = True) -> Inspection:
    found = Inspection()
    if not there:
        found.broken = True
        gone = f", and with it {head.count} lines" if head else ""
        found.add(f"{path} is missing{gone}", f"{path} was missing{gone}; it begins anew, what it said is lost")
    run: list[bytes] = []
    for number, line in enumerate(itertools.chain(lines, [b""]), start=1):
        if line and (not line.endswith(b"\n") or decode(line[:-1]) is None):
            run.append(line)
            continue
        if run:
            _judge(path, found, run, number - len(run), at_end=not line, head=head)
            run = []
        if line:
            _follow(path, found, line)
    found.lost = max(found.count, head.count if head else 0) - found.last
    if there and head is not None and found.count < head.count:
        what = f"{path}: lost: the last {head.count - found.count} acknowledged line(s) are missing"
        found.add(what, f"{what}; what they said is gone")
        found.broken = True
    elif head is not None and there and found.count == head.count and found.chain != head.chain and not found.broken:
        what = f"{path}: these are not the lines that were counted in {head_name(path.name)}"
        found.add(what, f"{what}; they were taken as they are")
    if there and counted and head is None and found.header is not None:
        what = f"{path.with_name(head_name(path.name))} is missing or damaged: whether lines are missing at the end"
        found.add(f"{what} is not known", f"{what} is not known; the lines that are there were counted anew")
    return found


def _judge(path: Path, found: Inspection, run: list[bytes], number: int, at_end: bool, head: Head | None) -> None:
    """Bad lines that stand together: a flipped bit can join two lines or split one."""
    where = f"{path}: line {number}"
    size = sum(map(len, run))
    found.effort += size * size
    fixed = repair_lines(b"".join(run)) if found.effort <= MAX_EFFORT else None
    if fixed is not None:
        found.add(f"{where} fails its checksum", f"{where}: one flipped bit was put right")
        for line in _split(fixed):
            _follow(path, found, line)
        return
    if at_end and not (head is not None and head.count > found.count):
        known = "the count beside it does not have it" if head else "whether it was acknowledged is not known"
        found.add(
            f"{path}: an unfinished last line of {size} bytes; {known}; the next writer sets it aside",
            f"{where}: an unfinished last line was set aside; {known}",
        )
        return
    found.broken = True
    found.problems += [f"{path}: line {number + i} fails its checksum" for i in range(len(run))]
    found.repairs.append(f"{where}: {len(run)} damaged line(s) could not be mended and were set aside")
    found.count += len(run)  # their numbers, as far as one can tell: the next line says which
    found.chain = -1


def _follow(path: Path, found: Inspection, text: bytes) -> None:
    line = decode(text[:-1])
    assert line is not None
    if found.chain < 0 and line.number is not None:  # after lines that are gone anyway
        if line.number > found.count + 1:
            what = f"{path}: {missing(found.count + 1, line.number - 1)}"
            found.add(what, f"{what}; what is left was numbered anew")
    elif found.chain >= 0:
        numbered = found.header is not None
        problem = order_problem(line, found.count, found.chain, len(found.good), numbered)
        if problem:
            found.broken = True
            found.add(f"{path}: {problem}", f"{path}: {problem}; what is left was numbered anew")
    if line.is_header:
        found.header = line.record[HEADER_KEY]
    start = found.chain if found.chain >= 0 and found.good else line.chain
    found.chain = zlib.crc32(text[:-1], start)
    found.count = found.count + 1 if line.number is None else max(found.count, line.number)
    found.last = found.count
    found.good.append(text)


def _replace(
    folder: Folder, path: Path, found: Inspection, counted: bool, header: Record | None, closing: Closing
) -> None:
    lines, count, chain = found.good, found.count, found.chain
    if found.broken:
        records = list(_each_once(found.records()))
        header_records = {HEADER_KEY: found.header or header or {}}
        first = found.last + found.lost + 1
        lines = encode_lines([header_records, *records, *closing(records, found.lost)], first, 0)
        count, chain = first + len(lines) - 1, 0
        for line in lines:
            chain = zlib.crc32(line[:-1], chain)
    check_readable(path, lines)
    folder.write(path.name, b"".join(lines))
    if counted:
        replace_head(folder, path.name, count, chain)


def _each_once(records: Iterable[Record]) -> Iterator[Record]:
    """Without exact duplicates: no two appends have the same time."""
    seen: set[str] = set()
    for record in records:
        text = json.dumps(record)
        if text not in seen:
            seen.add(text)
            yield record


def _keep(folder: Folder, path: Path) -> Path:
    backups = (f"{path.name}.before-repair-{number}" for number in itertools.count(1))
    backup = next(name for name in backups if not folder.exists(name))
    folder.link(path.name, backup)
    folder.sync()
    return path.with_name(backup)


def _lines_of(file: int) -> Iterator[bytes]:
    """The lines of a file; of one that is longer than any of ours, and of all after it, the beginning."""
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
    *whole, tail = data.split(b"\n")
    return [line + b"\n" for line in whole] + ([tail] if tail else [])


@contextmanager
def _held(folder: Folder, name: str, how: int) -> Iterator[int]:
    """The file that lies under the name, locked."""
    while True:
        with folder.opened(name, os.O_RDONLY) as file:
            fcntl.flock(file, how)
            if os.fstat(file).st_ino == folder.stat(name).st_ino:
                yield file
                return
