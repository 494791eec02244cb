"""What opening a store does: whether its files belong together, what a crash left behind, the upgrade of version 1.

Identity: the checksums of a file are still right after it was copied to another store. So files are compared with each
other: this detects the journal of another store, and an old copy of the journal whose next ids have labels already.

Recovery: the next writer moves what a crash left behind to the quarantine, and deletes nothing. Only names that a
writer creates are touched; a user's own folder among the segments, an export for example, stays.

Creation: `store.json` is written last. A folder that was left half-made holds no episode and no label, and the next
`Store.create` begins again there.

Migration: a store of version 1 becomes one of version 2 when it is first opened for writing; reading changes nothing.
Nothing is removed or converted: the old lines stay at the start of journal and ledger, and later lines cover them,
because each carries the checksum of all lines before it. Added are the store's id, the schemas in the journal, the
checksums of `store.json` and `schema.json` (whose old files are kept in the quarantine) and the line counts.
`store.json` is written last: an interrupted migration starts again.
"""

import re

from plaudit.data.catalog import Catalog
from plaudit.data.disk import MAX_SMALL_FILE, Folder
from plaudit.data.entries import EpisodeEntry, segment_line, summary_line
from plaudit.data.head import head_name, read_head
from plaudit.data.journal import Journal
from plaudit.data.ledger import Ledger
from plaudit.data.lines import decode
from plaudit.data.locking import FILE
from plaudit.data.quarantine import Quarantine
from plaudit.data.segments import EVICTED_SUFFIX, SCHEMA, is_ours, remove_files, segment_name
from plaudit.data.settings import MARKER, VERSION, Settings
from plaudit.errors import StoreDamaged

_NUMBER = re.compile(r"\d{6,}")
_JOURNALS = ("journal", "labels")
# What `Store.create` makes before `store.json`.
_UNFINISHED = {
    *("segments", FILE, f"{MARKER}.tmp", *_JOURNALS),
    *(f"{head_name(name)}{suffix}" for name in _JOURNALS for suffix in ("", ".tmp")),
}


def is_unfinished(root: Folder) -> bool:
    """Whether a folder is empty, or holds only what an interrupted `Store.create` left: no episode and no label."""
    names = root.names()
    if not _UNFINISHED.issuperset(names):
        return False
    heads = [read_head(root, name) for name in _JOURNALS]
    return (
        ("segments" not in names or (root.is_folder("segments") and not root.names("segments")))
        and all(root.is_file(name) for name in names if name != "segments")
        and all(head is None or head.count == 1 for head in heads)
        and all(_has_only_header(root, name) for name in _JOURNALS if name in names)
    )


def _has_only_header(root: Folder, name: str) -> bool:
    """Whether a journal has no line after its header. A crash may leave it empty, torn, or with zeros for its bytes."""
    if root.stat(name).st_size > MAX_SMALL_FILE:
        return False
    data = root.read(name)
    line = decode(data[:-1])
    return b"\n" not in data or (line is not None and line.is_header)


def remove_unfinished(root: Folder) -> None:
    """Remove what an interrupted `Store.create` left, except the lock that the caller holds."""
    for name in root.names():
        if name == "segments":
            root.remove_empty_folder(name)
        elif name != FILE:
            root.remove(name)


def check_identity(settings: Settings, journal: Journal, ledger: Ledger | None) -> None:
    """Journal and ledger are this store's, not another's that were copied here.

    ledger: the store's own
    """
    if settings.version < VERSION:
        return
    empty = ledger is not None and ledger.header is None and not len(ledger)  # one that somebody made by hand
    for file in (journal, None if empty else ledger):
        if file is not None and (file.header or {}).get("id") != settings.id:
            raise StoreDamaged(
                f"{file.path} is not of the store that {journal.path.with_name(MARKER)} speaks of; restore both from "
                "one backup"
            )


def skip_labeled_ids(journal: Journal, catalog: Catalog, ledger: Ledger) -> list[str]:
    """Continue ids after the last episode that has labels, if the journal ends before it; returns messages."""
    last = ledger.last_id
    if last < catalog.next_id:
        return []
    known = f"knows of no episode beyond {catalog.next_id - 1}" if catalog.next_id else "knows of no episode"
    line = summary_line(last + 1, catalog.next_segment)
    journal.append([line], exclusive=True)
    catalog.follow([line])
    return [
        f"{journal.path} {known}, and there are labels of episode {last}: an older journal was put back, or lines are "
        f"lost; ids go on from {last + 1}"
    ]


def recover(root: Folder, catalog: Catalog) -> list[str]:
    """Sentences that say what was done. The catalog must have followed the whole journal."""
    return [*_tails(root, catalog), *_folders(root, catalog)]


def _tails(root: Folder, catalog: Catalog) -> list[str]:
    messages: list[str] = []
    for number, segment in catalog.segments.items():
        extra = segment.leftovers
        may_be_cut = not segment.is_shared and (not extra or _last_fits(catalog, number))
        if not (segment.may_grow and may_be_cut) and catalog.growing.get(segment.schema) == number:
            del catalog.growing[segment.schema]
        if not extra or not may_be_cut:
            continue
        what = f"{segment.folder}: {extra:,} bytes that no line speaks of, of an unfinished episode or of lost lines"
        with Quarantine(root).entry(f"segment-{segment.folder.name}-tail", what) as aside:
            segment.set_aside(aside)
        segment.cut()
        messages.append(f"{what}, were set aside in {aside.path}")
    return messages


def _last_fits(catalog: Catalog, number: int) -> bool:
    """Whether the last episode of a segment is sound: behind one that is not, the files may be another segment's."""
    last = max((p for p in catalog.entries.values() if p.segment == number), key=lambda entry: entry.row)
    return catalog.segments[number].checksums(last.row, last.rows) == last.line["crc"]


def _folders(root: Folder, catalog: Catalog) -> list[str]:
    messages: list[str] = []
    for name in root.names("segments"):
        whole = f"segments/{name}"
        evicted = name.removesuffix(EVICTED_SUFFIX)
        if not _NUMBER.fullmatch(evicted) or segment_name(int(evicted)) != f"segments/{evicted}":
            continue
        number = int(evicted)
        if name == evicted and number in catalog.segments:
            continue
        if not root.is_folder(whole):
            continue
        if name != evicted or number in catalog.evicted_segments:
            if remove_files(root, whole):
                messages.append(f"{root.path / whole}: removed, its episodes were evicted")
        elif is_ours(root, whole):
            what = f"{root.path / whole}: no line speaks of it"
            with Quarantine(root).entry(f"segment-{name}", what) as aside:
                aside.move(whole)
            messages.append(f"{what}; it was set aside in {aside.path}")
    return messages


def check_schemas(root: Folder, catalog: Catalog) -> None:
    """One episode of each segment must match its checksums: then a `schema.json` without a checksum is right.

    By a wrong one, good arrays would look like leftovers and be cut off.
    """
    entries: dict[int, list[EpisodeEntry]] = {}
    for entry in catalog.entries.values():
        entries.setdefault(entry.segment, []).append(entry)
    for number, segment in catalog.segments.items():
        if not any(segment.checksums(p.row, p.rows) == p.line["crc"] for p in reversed(entries[number])):
            raise StoreDamaged(
                f"{segment.folder}: no episode fits its checksum, so its {SCHEMA} or its arrays are damaged; nothing "
                "was changed, restore it from a backup"
            )


def migrate(
    root: Folder, old: Settings, catalog: Catalog, journal: Journal, ledger: Ledger | None
) -> tuple[Settings, list[str]]:
    """The new settings, and a sentence."""
    begun = journal.header or {}
    settings = old.of_this_version(begun.get("id"))
    with Quarantine(root).entry("before-version-2", f"{root.path}: its descriptions as version 1 had them") as aside:
        aside.copy(MARKER)
        for segment in catalog.segments.values():
            aside.copy(f"{segment.name}/{SCHEMA}")
    journal.set_header(settings.to_json())
    lines = [segment_line(number, segment.schema) for number, segment in catalog.segments.items()]
    journal.append(lines, exclusive=True)
    catalog.follow(lines)
    if ledger is not None:
        ledger.set_header({"id": settings.id})
    for segment in catalog.segments.values():
        segment.write_schema()
    settings.write(root)
    return settings, [f"{root.path}: a store of version 1 is one of version {VERSION} now; see {aside.path}"]
