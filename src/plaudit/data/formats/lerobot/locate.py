"""Files of a LeRobot data set that are not where `meta/info.json` says.

Folders are renamed, converted to another container and unpacked a level deeper, and info.json stays as it was. Where
none of the files of a camera (or none of the tables) is in its place, they are looked for by their names: each must be
found exactly once, as a file that is nobody else's. One that is missing among others is missing, and is not looked for:
a backup beside it would be taken for it.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from plaudit.data.formats.lerobot.episodes import Listing, Row
from plaudit.files import Root

_TABLES = (".parquet",)
_VIDEOS = (".mp4", ".mkv", ".webm", ".mov", ".m4v")
_CHUNK = re.compile(r"chunk-\d+")


def found_elsewhere(root: Root, listing: Listing, notes: dict[str, str]) -> Listing:
    """The same episodes with the files that are there.

    notes: filled in with where they were found
    """
    rows = [row for row in listing.rows if not row.problem]
    keys = sorted({key for row in rows for key in row.videos})
    expected = {"": {row.data for row in rows}} | {k: {r.videos[k].path for r in rows if k in r.videos} for k in keys}
    lost = [key for key, paths in expected.items() if paths and not any(root.is_file(path) for path in paths)]
    if not lost:
        return listing
    files = _Files(root, taken={path for key, paths in expected.items() if key not in lost for path in paths})
    moved: dict[Path, Path] = {}
    for key in lost:
        places = {path: files.find(path, key, alone=len(keys) == 1) for path in expected[key]}
        found = {path: place for path, place in places.items() if place is not None}
        taken = [*moved.values(), *found.values()]
        if found and len(set(taken)) == len(taken):
            moved |= found
            first = min(found)
            notes.setdefault(
                f"elsewhere {key}",
                f"meta/info.json names {first.relative_to(root.path)}, which is not there; "
                f"{found[first].relative_to(root.path)} is read in its place, and so are the others",
            )
    return Listing(
        [_relocate(row, moved) for row in listing.rows], {moved.get(p, p): n for p, n in listing.counts.items()}
    )


def _relocate(row: Row, moved: Mapping[Path, Path]) -> Row:
    videos = {key: replace(video, path=moved.get(video.path, video.path)) for key, video in row.videos.items()}
    return replace(row, data=moved.get(row.data, row.data), videos=videos)


class _Files:
    """The tables and videos that lie in a data set, by their names without an ending."""

    def __init__(self, root: Root, taken: Collection[Path]):
        """
        taken: those that are in their place
        """
        self._by_stem: defaultdict[str, list[Path]] = defaultdict(list)
        for path in root.files(root.path, (*_TABLES, *_VIDEOS)):
            parts = path.relative_to(root.path).parts
            if path not in taken and parts[0] != "meta" and not any(part.startswith(".") for part in parts):
                self._by_stem[path.stem].append(path)

    def find(self, expected: Path, key: str, *, alone: bool) -> Path | None:
        """The one file that can be meant; None where there is none, or a choice.

        key: the camera's feature, "" for a table
        alone: no other camera could be meant
        """
        endings = _VIDEOS if key else _TABLES
        found = [path for path in self._by_stem[expected.stem] if path.suffix in endings]
        if key and (not alone or len(found) > 1):
            found = [path for path in found if any(_same_camera(part, key) for part in path.parts[:-1])]
        if len(found) > 1:
            chunks = {part for part in expected.parts if _CHUNK.fullmatch(part)}
            found = [path for path in found if chunks <= set(path.parts)]
        return found[0] if len(found) == 1 else None


def _same_camera(folder: str, key: str) -> bool:
    return folder.rpartition(".")[2] == key.rpartition(".")[2]
