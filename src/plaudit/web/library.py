"""What a server shows: stores, runs, judges, trainings, data sets and reports in the folders that the user named.

A page names an item by its name in this list, never by a path, so nothing else can be reached. Links are not followed.
"""

import glob
import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plaudit.data.store import Store, is_store
from plaudit.errors import DataError

Kind = Literal["store", "run", "judge", "training", "dataset", "report"]
DEPTH = 3  # folders below one that was named
MOST = 2000  # folders that are looked into
FRESH_S = 2.0  # that a list is used for
STORE, JUDGE = ".store", ".judge"  # ends of the names of what pages make (transfer.store_beside, judge_beside)
WORK = ".work"  # the end of a folder's name in which a judge is trained (training/reward_model.py)


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
        self._items: dict[tuple[Kind, str], Item] = {}
        self._listed_at = float("-inf")
        self._guard = threading.Lock()

    def items(self, *, fresh: bool = True) -> dict[tuple[Kind, str], Item]:
        """Items by kind and name. fresh: list the folders again now"""
        now = time.monotonic()
        if fresh or now - self._listed_at > FRESH_S:
            self._items, self._listed_at = self._list(), now
        return self._items

    def _list(self) -> dict[tuple[Kind, str], Item]:
        items: dict[tuple[Kind, str], Item] = {}
        roots = [root for root in self._roots if root.is_dir()]
        made = [path for root in roots if is_store(root) or is_dataset(root) for path in _made_from(root)]
        for root in dict.fromkeys([*roots, *made]):
            name = _name(root) or "store"
            while any(taken == name or taken.startswith(f"{name}/") for _, taken in items):
                name += "_2"
            for path in _folders(root):
                inside = "" if path == root else path.relative_to(root).with_name(_name(path)).as_posix()
                for kind in kinds_of(path):
                    item = Item(kind, f"{name}/{inside}".removesuffix("/"), path)
                    items[kind, item.name] = item
        return items

    def item(self, kind: Kind, name: str) -> Item:
        """The item of this name; `NotServed` if there is none."""
        item = self.items(fresh=False).get((kind, name)) or self.items().get((kind, name))
        if item is None:
            raise NotServed(f"this server has no {kind} '{name}'")
        return item

    def store(self, name: str, *, fresh: bool = True) -> Store:
        """The open store of this name. fresh: with what was added to it by now"""
        path = self.item("store", name).path
        with self._guard:
            is_new = path not in self._stores
            if is_new:
                self._stores[path] = Store.open(path)
            store = self._stores[path]
            if fresh and not is_new:
                store.refresh()
                store.ledger.refresh()
        return store

    def close(self) -> None:
        """Close the stores."""
        for store in self._stores.values():
            store.close()


def kinds_of(path: Path) -> Iterator[Kind]:
    """What a folder is; a run has a store and may have judges in folders of its own."""
    kinds = list(_kinds_of(path))
    yield from kinds
    if not kinds and (path / "report.html").is_file():  # of an exam, an arena, an evaluation
        yield "report"


def _kinds_of(path: Path) -> Iterator[Kind]:
    if is_store(path):
        yield "store"
    if (path / "config.yaml").is_file() and (path / "policy").is_dir() | (path / "metrics.jsonl").is_file():
        yield "run"
    if (path / "model.json").is_file() and (path / "judge.yaml").is_file():
        yield "judge"
    if path.name.endswith(WORK) and (path / "resume_key.json").is_file():
        yield "training"
    if is_dataset(path):
        yield "dataset"


def is_dataset(path: Path) -> bool:
    """Whether this is a LeRobot data set."""
    return (path / "meta" / "info.json").is_file() and not is_store(path)


def judge_beside(store: Path) -> Path:
    """Where a page puts the next judge that is trained on a store: `episodes.judge` next to it."""
    stem = store.name.removesuffix(STORE)
    numbers = itertools.chain([""], (f"_{n}" for n in itertools.count(2)))
    return next(path for n in numbers if not (path := store.with_name(f"{stem}{JUDGE}{n}")).exists())


def _made_from(root: Path) -> Iterator[Path]:
    """What pages have made from a store or a data set that was named by itself: it lies next to it."""
    stem = glob.escape(root.name.removesuffix(STORE))
    for pattern in (f"{stem}{STORE}", f"{stem}{JUDGE}*", f".{stem}{JUDGE}*{WORK}"):
        yield from (path for path in sorted(root.parent.glob(pattern)) if path.is_dir() and not path.is_symlink())


def _name(path: Path) -> str:
    """A training has the name of the judge that it makes."""
    return path.name[1:].removesuffix(WORK) if path.name.endswith(WORK) else path.name


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
            if depth < DEPTH and not is_store(folder) and not is_dataset(folder):
                following += sorted(_children(folder))
        level = following


def _children(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        hidden = path.name[0] == "." and not path.name.endswith(WORK)
        if not hidden and not path.is_symlink() and path.is_dir():
            yield path
