"""Upgrade of a store of version 1 to version 2, when it is first opened for writing; reading changes nothing.

Nothing is removed or converted: the old lines stay at the start of journal and ledger, and later lines cover them,
because each carries the checksum of all lines before it. Added are the store's id, the schemas in the journal, the
checksums of `store.json` and `schema.json` (whose old files are kept in the quarantine) and the line counts.

`store.json` is written last: an interrupted migration starts again.
"""

from plaudit.data.catalog import Catalog
from plaudit.data.disk import Folder
from plaudit.data.entries import EpisodeEntry, segment_line
from plaudit.data.journal import Journal
from plaudit.data.ledger import Ledger
from plaudit.data.quarantine import Quarantine
from plaudit.data.segments import SCHEMA
from plaudit.data.settings import MARKER, VERSION, Settings
from plaudit.errors import StoreDamaged


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
