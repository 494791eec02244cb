"""What a server shows: the stores, runs and judges in the folders that the user named.

A page names an item by the name that it has here, never by a path, so nothing else can be reached. Links are not
followed.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plaudit.data.store import Store, is_store
from plaudit.errors import DataError

Kind = Literal["store", "run", "judge"]
DEPTH = 3  # folders below one that was named
MOST = 2000  # folders that are looked into


class NotServed(DataError):
    """There is no such item on this server."""


@dataclass(frozen=True)
class Item:
    """A folder that can be shown."""

    kind: Kind
    name: str
    path: Path


class Library:
    """The items in some folders, and the open stores among them."""

    def __init__(self, roots: list[Path]):
        self._roots = roots
        self._stores: dict[Path, Store] = {}
        self._guard = threading.Lock()

    def items(self) -> dict[tuple[Kind, str], Item]:
        """By kind and name, as they are now."""
        found: dict[tuple[Kind, str], Item] = {}
        for root in self._roots:
            name = root.name or "store"
            while any(known == name or known.startswith(f"{name}/") for _, known in found):
                name += "_2"
            for path in _folders(root):
                inside = path.relative_to(root).as_posix()
                for kind in kinds_of(path):
                    item = Item(kind, name if inside == "." else f"{name}/{inside}", path)
                    found[kind, item.name] = item
        return found

    def item(self, kind: Kind, name: str) -> Item:
        """The item of this name; `NotServed` if there is none."""
        item = self.items().get((kind, name))
        if item is None:
            raise NotServed(f"there is no {kind} '{name}' in the folders of this server")
        return item

    def store(self, name: str) -> Store:
        """The open store of this name, with what was added to it by now."""
        path = self.item("store", name).path
        with self._guard:
            if path not in self._stores:
                self._stores[path] = Store.open(path)
            store = self._stores[path]
            store.refresh()
            store.ledger.refresh()
        return store

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores.values():
            store.close()


def kinds_of(path: Path) -> Iterator[Kind]:
    """What a folder is; a run has a store and may have judges in folders of its own."""
    if is_store(path):
        yield "store"
    if (path / "config.yaml").is_file() and (path / "metrics.jsonl").is_file():
        yield "run"
    if (path / "model.json").is_file() and (path / "judge.yaml").is_file():
        yield "judge"


def _folders(root: Path) -> Iterator[Path]:
    """The root, and the folders in it, to a limited depth."""
    level, count = [root], 0
    for depth in range(DEPTH + 1):
        following: list[Path] = []
        for folder in level:
            if not os.access(folder, os.R_OK | os.X_OK):  # of another user, or deleted by now
                continue
            yield folder
            count += 1
            if count >= MOST:
                return
            if depth < DEPTH and not is_store(folder):
                following += sorted(
                    p for p in folder.iterdir() if not p.is_symlink() and p.is_dir() and p.name[0] != "."
                )
        level = following
