"""Which episodes a run waits for: a list in the store's folder that puts them first in the queue of every window.

A run that audits its judge samples episodes and needs a person's answer on those and no others. The list is replaced as
a whole by whoever asks; a window checks ten times a second whether it has changed, which costs one `stat`.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from plaudit.data.disk import Folder, write_atomic
from plaudit.data.entries import MAX_ID, is_int_in
from plaudit.untrusted import parse_json

FILE = "label_requests.json"


def write_requests(store: Path, ids: Sequence[int]) -> None:
    """Replace the list by these, the most wanted first."""
    write_atomic(store / FILE, json.dumps(list(ids)).encode())


class LabelRequests:
    """The list of a store, as it is now."""

    def __init__(self, store: Path):
        self._path = store / FILE
        self._stamp: tuple[int, int] | None = None  # of the file that was read
        self._ranks: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ranks)

    def rank(self, episode_id: int) -> int:
        """0 for the most wanted; one that nobody waits for comes after all others."""
        return self._ranks.get(episode_id, len(self._ranks))

    def update(self) -> bool:
        """Whether it has changed since."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return False
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self._ranks = {episode_id: rank for rank, episode_id in enumerate(self._read())}
        return True

    def _read(self) -> list[int]:
        """Nothing, where the file is no list of episodes: nobody who asks writes such a one."""
        try:
            ids = parse_json(Folder(self._path.parent).read(FILE))
        except (OSError, ValueError):  # ForeignFile is one
            return []
        return ids if isinstance(ids, list) and all(is_int_in(i, 0, MAX_ID) for i in ids) else []
