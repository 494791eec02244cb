"""Crash recovery: the next writer moves what a crash left behind to the quarantine, and deletes nothing.

Only names that a writer creates are touched. A user's own folder among the segments, an export for example, stays.
"""

import re

from plaudit.data.catalog import Catalog
from plaudit.data.disk import Folder
from plaudit.data.quarantine import Quarantine
from plaudit.data.segments import EVICTED_SUFFIX, is_ours, remove_files, segment_name

_NUMBER = re.compile(r"\d{6,}")


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
