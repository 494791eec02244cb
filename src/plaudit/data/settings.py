"""`store.json`: which store this is, how large it may become, whose labels count, and how its files are read.

It carries a checksum (data/checked_json.py): one flipped bit in a capacity would evict episodes. The same
settings are in the journal's header, from which a lost `store.json` is restored.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from plaudit.data.checked_json import Tree, decode_checked, encode_checked
from plaudit.data.disk import Folder
from plaudit.data.label_order import DEFAULT_ORDER, Tiers, check_tiers
from plaudit.errors import StoreDamaged, StoreError
from plaudit.files import brief

VERSION = 2
MARKER = "store.json"
FORMAT = "plaudit store"
MAX_CAPACITY = 1 << 62  # episodes or bytes


@dataclass(frozen=True)
class Settings:
    """The content of `store.json`."""

    version: int
    id: str  # made at random with the store
    capacity_episodes: int | None  # beyond this, the oldest go
    capacity_bytes: int | None
    label_order: Tiers = DEFAULT_ORDER  # whose labels count most

    @classmethod
    def new(cls, capacity_episodes: int | None, capacity_bytes: int | None) -> Self:
        """Settings of a new store."""
        for name, value in {"capacity_episodes": capacity_episodes, "capacity_bytes": capacity_bytes}.items():
            if value is not None and value < 1:
                raise StoreError(f"{name} must be at least 1, got {value}")
        return cls(VERSION, secrets.token_hex(16), capacity_episodes, capacity_bytes)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Raises ValueError or KeyError for anything else than settings."""
        version, store_id = tree["version"], tree["id"]
        if tree["format"] != FORMAT or version != VERSION:
            raise ValueError(f"it says {brief(tree['format'])}, version {brief(version)}")
        if not isinstance(store_id, str) or not re.fullmatch("[0-9a-f]{32}", store_id):
            raise ValueError(f"its id is {brief(store_id)}")
        capacity = [tree[name] for name in ("capacity_episodes", "capacity_bytes")]
        if any(c is not None and (type(c) is not int or not 1 <= c <= MAX_CAPACITY) for c in capacity):
            raise ValueError(f"its capacities are {brief(capacity[0])} and {brief(capacity[1])}")
        order = check_tiers(tree.get("label_order", DEFAULT_ORDER))
        return cls(version, store_id, capacity[0], capacity[1], order)

    def to_json(self) -> Tree:
        """The tree that `from_json` reads."""
        tree = {"format": FORMAT, **vars(self)}
        if self.label_order == DEFAULT_ORDER:
            del tree["label_order"]
        return tree

    def write(self, root: Folder) -> None:
        """Write `store.json`."""
        root.write(MARKER, encode_checked(self.to_json()))


def read_settings(root: Folder) -> Settings:
    """Read `store.json`."""
    path = root.path / MARKER
    try:
        tree = decode_checked(root.read(MARKER))
        version = tree["version"]
        if not isinstance(version, int) or version <= VERSION:
            return Settings.from_json(tree)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreDamaged(
            f"{path} does not describe a store ({error}); restore it from a backup, or run "
            f"'plaudit data check {root.path} --repair'"
        ) from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    raise StoreError(f"{path} has version {brief(version)}, this plaudit reads {VERSION}; upgrade plaudit")


def is_store(folder: str | Path) -> bool:
    """Whether a folder holds a store."""
    try:
        return (Path(folder) / MARKER).is_file()
    except OSError as error:
        raise StoreError(f"{folder} cannot be looked into: {error.strerror}") from error
