"""What opening a store does: check that its files belong together, and tidy up what a crash left behind.

Identity: the checksums of a file are still right after it was copied to another store. So files are compared with each
other. This detects the journal of another store, and an old journal whose next ids have labels already.

Recovery: the next writer moves what a crash left behind to the quarantine, and deletes nothing. Only names that a
writer creates are touched. A folder in which `Store.create` was interrupted has no `store.json`, no episode and no
label, and the next `Store.create` starts again there.
"""

import re

from plaudit.data.catalog import Catalog, summary_line
from plaudit.data.disk import MAX_SMALL_FILE, WRITER_LOCK, Folder, set_aside
from plaudit.data.journal import HEAD, Journal, decode, read_head
from plaudit.data.ledger import Ledger
from plaudit.data.segments import EVICTED_SUFFIX, own_files, remove_files, segment_name
from plaudit.data.settings import MARKER, Settings
from plaudit.errors import StoreDamaged

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
    catalog.follow(journal.append([summary_line(last + 1, catalog.next_segment)], exclusive=True))
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
