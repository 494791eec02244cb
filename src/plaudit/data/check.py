"""Verification of a store: every byte against its checksum, and repair of what can be repaired.

The order is: settings, lines of journal and ledger, files, arrays. A check changes nothing and works on a store that is
being written. A repair is the store's writer while it runs, and holds each file's own lock while it replaces it. It
corrects single flipped bits, restores lost files from their second copy, and drops episodes whose arrays fail their
checksum, so that nothing is trained on them; their bytes stay where they are.
"""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from plaudit.data.catalog import MAX_SEGMENTS, summary_line
from plaudit.data.disk import Folder, decode_checked, disk_errors, encode_checked, lock, quarantined, set_aside
from plaudit.data.journal import HEAD, Record, is_int_in, repair_bit
from plaudit.data.ledger import failures_path
from plaudit.data.repair import inspect_journal, repair_journal
from plaudit.data.settings import MARKER, Settings, is_store, read_settings
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, ForeignFile, StoreDamaged, StoreError
from plaudit.types import ProgressFn

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
        with Store.open(root.path, write=repair, write_off_missing=repair) as store:
            report.repaired += store.repaired
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
