"""Whether the files of a store belong together, checked when it is opened.

The checksums of a file are still right after it was copied to another store. So files are compared with each other:
this detects the journal of another store, and an old copy of the journal whose next ids have labels already.
"""

from plaudit.data.catalog import Catalog
from plaudit.data.entries import summary_line
from plaudit.data.journal import Journal
from plaudit.data.ledger import Ledger
from plaudit.data.settings import MARKER, VERSION, Settings
from plaudit.errors import StoreDamaged


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
