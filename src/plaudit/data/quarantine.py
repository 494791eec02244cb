"""The quarantine: bytes that no journal line refers to, `quarantine/20261116-101502-segment-000003/`.

What a killed writer left behind and what a damaged journal no longer lists look the same, and the latter may be the
only copy of a recording. So neither is deleted: it is moved or copied here and synced, with a note that says where it
came from and how to restore it, before the store is changed. Only `plaudit data check --empty-quarantine` deletes it.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plaudit.data.disk import Folder, copy_from
from plaudit.errors import ForeignFile

NAME = "quarantine"
ABOUT = "ABOUT.txt"
MAX_SHOWN = 500  # characters of an entry's note


class Entry:
    """One entry, while it is filled."""

    def __init__(self, folder: Folder, name: str):
        self.path: Path = folder.path / name
        self.how: list[str] = []  # lines of the note that say how to restore it
        self._folder, self._name = folder, name

    def copy(self, source: str, offset: int = 0) -> None:
        """Copy a file, or what it holds from `offset` on."""
        copy = source.replace("/", "-") + (f".from-{offset}" if offset else "")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            self._folder.opened(source, os.O_RDONLY) as file,
            self._folder.opened(f"{self._name}/{copy}", flags) as target,
        ):
            copy_from(file, offset, target)
            os.fsync(target)
        if offset:
            self.how.append(f"- {copy} are the bytes of {source} from byte {offset} on: append them to it again,")
            self.how.append("  together with the journal's lines that speak of them, from a backup.")
        else:
            self.how.append(f"- {copy} is {source} as it was: copy it back.")

    def move(self, source: str) -> None:
        """Move a folder with everything in it."""
        kept = Path(source).name
        self._folder.rename(source, f"{self._name}/{kept}")
        self._folder.sync(str(Path(source).parent))
        self.how.append(f"- {kept}/ was {source}/: move it back, together with the journal's lines that speak of it.")


@contextmanager
def set_aside(folder: Folder, what: str, why: str) -> Iterator[Entry]:
    """A new entry of the folder's quarantine; its note is written and everything synced when the block is left."""
    if not folder.exists(NAME):
        folder.mkdir(NAME)
        folder.sync()
    base = f"{NAME}/{time.strftime('%Y%m%d-%H%M%S')}-{what}"
    name = next(n for i in range(1, 1 << 30) if not folder.exists(n := base if i == 1 else f"{base}-{i}"))
    folder.mkdir(name)
    entry = Entry(folder, name)
    yield entry
    text = "\n".join([why, "", "To put it back, while no process writes to the store:", *entry.how, ""])
    folder.write(f"{name}/{ABOUT}", text.encode())
    folder.sync(NAME)


def quarantined(folder: Folder) -> dict[str, str]:
    """Name of each entry -> a sentence about it."""
    sentences: dict[str, str] = {}
    for name in folder.names(NAME) if folder.exists(NAME) else []:
        try:
            lines = folder.read(f"{NAME}/{name}/{ABOUT}").decode(errors="replace").splitlines()
        except (OSError, ForeignFile):
            lines = []
        about = lines[0][:MAX_SHOWN] if lines else "without a note; a process was killed while it set this aside"
        sentences[f"{NAME}/{name}"] = f"{folder.path / NAME / name}: {about}"
    return sentences
