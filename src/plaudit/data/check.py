"""Verification of a store: every byte against its checksum, and repair of what can be repaired.

The order is: settings, lines of journal and ledger, files, arrays. A check changes nothing and works on a store that is
being written: it reads lines under a shared lock. A repair is the store's writer while it runs, and holds each file's
own lock until the repaired file has replaced it. An append that waits for the lock then notices that the file was
replaced, and goes to the new one. A repair corrects single flipped bits, restores lost files from their second copy,
and drops episodes whose arrays fail their checksum, so that nothing is trained on them; their bytes stay where they
are.
"""

import fcntl
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from plaudit.data.catalog import MAX_SEGMENTS, summary_line
from plaudit.data.disk import Folder, decode_checked, disk_errors, encode_checked, lock, quarantined, read_at, set_aside
from plaudit.data.journal import (
    HEAD,
    HEADER_KEY,
    MAX_LINE_BYTES,
    MAX_REPAIR_BYTES,
    SNAPSHOT,
    Head,
    Record,
    check_readable,
    decode,
    encode_lines,
    is_int_in,
    missing_lines,
    read_head,
    repair_bit,
    repair_lines,
    replace_head,
)
from plaudit.data.ledger import failures_path
from plaudit.data.settings import MARKER, Settings, is_store, read_settings
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, ForeignFile, StoreDamaged, StoreError
from plaudit.types import ProgressFn

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


MAX_SETTINGS_BYTES = 1 << 14  # of a `store.json` in which a flipped bit is searched


@dataclass
class CheckReport:
    """Result of a check: what was verified and which problems exist."""

    episodes: int = 0
    nbytes: int = 0
    labels: int = 0
    lines: int = 0  # of journal, ledger and failures
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)  # messages about the entries of the quarantine
    unexplained: list[str] = field(default_factory=list)  # about bytes that no line refers to, of an append maybe

    @property
    def ok(self) -> bool:
        """Whether there are no problems, or all were repaired."""
        return not self.problems


def check(folder: str | Path, *, repair: bool = False, progress: ProgressFn = iter) -> CheckReport:
    """Verify a store; with `repair`, as its writer, also put right what can be."""
    folder = Path(folder)
    if not is_store(folder) and not (folder / "journal").is_file():
        raise StoreError(f"{folder} holds no store")
    root, report = Folder(folder), CheckReport()
    with disk_errors(folder, "the check did not get to its end"):
        try:
            with lock(root) if repair else nullcontext():  # no other process may write while files are repaired
                if repair:
                    report.repaired += _repair_files(root)
                try:
                    read_settings(root)
                except StoreError as error:
                    report.problems.append(str(error))
                for path in _journals(root):
                    inspection = inspect_journal(path)
                    report.problems += inspection.problems
                    report.lines += len(inspection.good)
            if not report.problems:
                _check_contents(root, report, repair, progress)
            report.aside = list(quarantined(root).values())
        except ForeignFile as error:  # a link or a pipe among its files: nothing is looked at beyond it
            report.problems.append(str(error))
    return report


def empty_quarantine(folder: str | Path) -> list[str]:
    """Delete everything in the quarantine; returns a message for each entry."""
    if not is_store(folder):
        raise StoreError(f"{folder} holds no store")
    root = Folder(Path(folder))
    with disk_errors(root.path, "the quarantine was not emptied"), lock(root):
        entries = quarantined(root)
        for name in entries:
            root.remove(name)
        return list(entries.values())


def _journals(root: Folder) -> list[Path]:
    """Those that must be there; and failures, once a judge failed on something."""
    failures = failures_path(root.path / "labels")
    there = root.exists(failures.name) or root.exists(failures.name + HEAD)
    return [root.path / "journal", root.path / "labels", *([failures] if there else [])]


def _repair_files(root: Folder) -> list[str]:
    messages = _repair_settings(root)
    for path in _journals(root):
        if root.exists(path.name + SNAPSHOT):  # nothing is lost: it is written again from the lines
            root.remove(path.name + SNAPSHOT)
    try:
        settings = read_settings(root)
    except StoreError:  # the check that follows reports it
        return messages
    journal, *others = _journals(root)
    messages += repair_journal(journal, header=settings.to_json(), closing=_skip_lost)
    for path in others:
        messages += repair_journal(path, header={"id": settings.id})
    return messages


def _repair_settings(root: Folder) -> list[str]:
    """Repair one flipped bit of `store.json`, or restore it from the journal's header."""
    path = root.path / MARKER
    try:
        read_settings(root)
        return []
    except StoreDamaged:
        data, what = repair_bit(root.read(MARKER), MAX_SETTINGS_BYTES, _is_checked), "one flipped bit was put right"
    except StoreError:
        if root.exists(MARKER):  # of a newer version, or unreadable
            return []
        data, what = None, ""
    if data is None:
        try:
            data = encode_checked(Settings.from_json(inspect_journal(root.path / "journal").header or {}).to_json())
        except (ValueError, KeyError):
            return []
        was = "damaged" if root.exists(MARKER) else "missing"
        what = f"it was {was}, and was written again from the journal"
    if root.exists(MARKER):
        with set_aside(root, MARKER, f"{path} before it was repaired") as aside:
            aside.copy(MARKER)
        what += f"; the file as it was is kept in {aside.path}"
    root.write(MARKER, data)
    return [f"{path}: {what}"]


def _is_checked(data: bytes) -> bool:
    try:
        return bool(decode_checked(bytes(data)))
    except ValueError:
        return False


def _skip_lost(records: list[Record], lines: int) -> list[Record]:
    """Continue after all ids and segments that lost lines may have used: labels or readers may refer to them."""
    highest = {
        name: max((r[name] for r in records if is_int_in(r.get(name), 0, MAX_SEGMENTS // 2)), default=0)
        for name in ("id", "next_id", "segment", "next_segment")
    }
    next_id, next_segment = (max(highest[name], highest[f"next_{name}"]) for name in ("id", "segment"))
    return [summary_line(next_id + lines, next_segment + lines)]


def _check_contents(root: Folder, report: CheckReport, repair: bool, progress: ProgressFn) -> None:
    try:
        with Store.open(root.path, write=repair, write_off_missing=repair, snapshots=False) as store:
            report.repaired += store.repaired
            _check_snapshots(store, report)
            for segment in store.segments:
                problem = segment.schema_problem()
                if problem and repair:
                    segment.write_schema()
                    report.repaired.append(f"{problem}; it was written again from the journal")
                elif problem:
                    report.problems.append(f"{problem}; --repair writes it again from the journal")
            _check_arrays(store, report, repair, progress)
            _check_labels(store, report)
            report.unexplained = [
                f"{segment.folder}: {extra:,} bytes that no line speaks of, of an append that is under way or was cut "
                "off; the next writer sets them aside"
                for segment in store.segments
                if (extra := segment.leftovers)
            ]
            report.labels = len(store.ledger)
    except StoreDamaged as error:
        report.problems.append(str(error))


def _check_snapshots(store: Store, report: CheckReport) -> None:
    """Compare what the snapshots say with what the lines say."""
    problems: list[str] = []
    for _ in range(3):  # a writer may add lines in between
        states = Store.open(store.folder).states()
        store.refresh()
        store.ledger.refresh()
        problems = [
            f"{store.folder / name}{SNAPSHOT} contradicts the lines; --repair removes it"
            for name, state in store.states().items()
            if state != states[name]
        ]
        if not problems:
            break
    report.problems += problems


def _check_arrays(store: Store, report: CheckReport, repair: bool, progress: ProgressFn) -> None:
    lost: list[int] = []
    for episode_id in progress(store.ids):
        try:
            problem = _damage(store, episode_id)
            if problem:  # or it was evicted while it was read
                store.refresh()
                problem = _damage(store, episode_id)
            size = store.nbytes_of(episode_id)
        except EpisodeNotFound:
            continue
        report.episodes += not problem
        report.nbytes += 0 if problem else size
        if problem and repair:
            report.repaired.append(f"{problem}; the episode is written off")
            lost.append(episode_id)
        elif problem:
            report.problems.append(f"{problem}; --repair writes the episode off")
    if lost:
        store.write_off(lost)


def _damage(store: Store, episode_id: int) -> str:
    entry = store.entry(episode_id)
    problem = store.segment(entry.segment).damage(entry.row, entry.rows, entry.line["crc"])
    return f"episode {episode_id}: its part of {problem}" if problem else ""


def _check_labels(store: Store, report: CheckReport) -> None:
    if store.ledger.last_id >= store.next_id:
        report.problems.append(
            f"{store.ledger.path} has labels of episode {store.ledger.last_id}, and the journal knows of none beyond "
            f"{store.next_id - 1}: an older journal was put back, or its last lines are lost. Restore the newest from "
            "a backup (whoever writes next gives no id a second time)"
        )
    for episode_id in store.ids:
        for version in store.ledger.history(episode_id):
            try:
                steps = version.labels().steps
            except StoreDamaged as error:
                report.problems.append(str(error))
                continue
            if steps != store.entry(episode_id).steps:
                report.problems.append(
                    f"episode {episode_id}: version {version.number} of its labels covers {steps} steps, it has "
                    f"{store.entry(episode_id).steps}; label it again"
                )
