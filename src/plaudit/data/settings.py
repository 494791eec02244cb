"""`store.json`: the id of a store, its format version, its capacity, and whose labels count.

It carries a checksum (data/disk.py): one flipped bit in a capacity would evict episodes. The same settings are
in the journal's header, from which a lost `store.json` is restored.

    human+cutoff,operator,simulator+dataset    # the default order of label sources; all others, the models, are last

A person's correction must not be overruled by a model that labels the episode again. So sources have an order, and
among equal ones the newest label counts. It is the same for replay, export, training of a judge and evaluation. The
ledger keeps every version. Labels of a single source are its newest.
"""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from plaudit.data.disk import Folder, Tree, decode_checked, encode_checked
from plaudit.data.frame_codecs import RAW, RAW_IMAGES, Codec, StoreImages
from plaudit.errors import DataError, StoreDamaged, StoreError
from plaudit.files import brief

VERSION = 3
RAW_VERSION = 2  # of stores in which no frame is encoded, which older versions of Plaudit read
MARKER = "store.json"
FORMAT = "plaudit store"
MAX_CAPACITY = 1 << 62  # episodes or bytes
Tiers = tuple[tuple[str, ...], ...]  # sources of equal standing together, the ones that count most first

DEFAULT_ORDER: Tiers = (("human", "cutoff"), ("operator",), ("simulator", "dataset"))
NEWEST, DEFAULT = "newest", "default"  # names of the empty order, where the newest label counts, and of DEFAULT_ORDER
MAX_NAMES, MAX_LENGTH = 64, 100


class LabelOrder:
    """Ranks sources; 0 counts most. Sources that are not in `ranks` come last."""

    def __init__(self, tiers: Tiers = DEFAULT_ORDER):
        self.tiers = tiers
        self.ranks = {source: rank for rank, tier in enumerate(tiers) for source in tier}

    def __str__(self) -> str:
        return ",".join("+".join(tier) for tier in self.tiers) or NEWEST

    def describe(self) -> str:
        """As in "human or cutoff, then operator, then others"."""
        if not self.tiers:
            return "the newest label counts, whoever gave it"
        return ", then ".join([*(" or ".join(tier) for tier in self.tiers), "others"]) + "; the newest of equals"


def parse_order(text: str) -> Tiers:
    """Parse an order like 'human+cutoff,simulator', 'newest' or 'default'."""
    if text == DEFAULT:
        return DEFAULT_ORDER
    if text == NEWEST:
        return ()
    try:
        return check_tiers([[name.strip() for name in tier.split("+")] for tier in text.split(",")])
    except ValueError as error:
        raise DataError(
            f"'{text[:100]}' is not a valid order of sources ({error}); write those that count most first, with a + "
            f"between equals, like {LabelOrder()}, or '{NEWEST}', or '{DEFAULT}'"
        ) from error


def check_tiers(tiers: Any) -> Tiers:
    """Tiers from JSON; ValueError if they are invalid."""
    if not isinstance(tiers, list | tuple) or not all(isinstance(tier, list | tuple) and tier for tier in tiers):
        raise ValueError(f"its label order is {brief(tiers)}")
    names = [name for tier in tiers for name in tier]
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_LENGTH or not name.isprintable() or " " in name:
            raise ValueError(f"{brief(name)} is not a valid source name")
        if names.count(name) > 1:
            raise ValueError(f"'{name}' is named twice")
    if len(names) > MAX_NAMES:
        raise ValueError(f"{len(names)} sources are more than {MAX_NAMES}")
    return tuple(tuple(tier) for tier in tiers)


def unknown_sources(order: LabelOrder, labeled: Iterable[str]) -> list[str]:
    """Names in an order that are neither ours nor among these sources of a ledger."""
    ours = {source for tier in DEFAULT_ORDER for source in tier} | {"classifier", "progress", "vlm"}
    return [source for tier in order.tiers for source in tier if source not in {*ours, *labeled}]


@dataclass(frozen=True)
class Settings:
    """The content of `store.json`."""

    version: int
    id: str  # made at random with the store
    capacity_episodes: int | None  # beyond this, the oldest go
    capacity_bytes: int | None
    label_order: Tiers = DEFAULT_ORDER  # whose labels count most
    images: StoreImages = RAW_IMAGES  # how frames are stored
    compress_old: Codec = RAW  # of the oldest episodes beyond `capacity_bytes`, before they are evicted; raw: evicted

    @classmethod
    def new(
        cls, capacity_episodes: int | None, capacity_bytes: int | None, images: StoreImages, compress_old: Codec
    ) -> Self:
        """Settings of a new store."""
        for name, value in {"capacity_episodes": capacity_episodes, "capacity_bytes": capacity_bytes}.items():
            if value is not None and value < 1:
                raise StoreError(f"{name} must be at least 1, got {value}")
        version = RAW_VERSION if images.is_raw and compress_old.is_raw else VERSION
        how = {"images": images, "compress_old": compress_old}
        return cls(version, secrets.token_hex(16), capacity_episodes, capacity_bytes, **how)

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Raises ValueError or KeyError for anything else than settings."""
        version, store_id = tree["version"], tree["id"]
        if tree["format"] != FORMAT or version not in (RAW_VERSION, VERSION):
            raise ValueError(f"it says {brief(tree['format'])}, version {brief(version)}")
        if not isinstance(store_id, str) or not re.fullmatch("[0-9a-f]{32}", store_id):
            raise ValueError(f"its id is {brief(store_id)}")
        capacity = [tree[name] for name in ("capacity_episodes", "capacity_bytes")]
        if any(c is not None and (type(c) is not int or not 1 <= c <= MAX_CAPACITY) for c in capacity):
            raise ValueError(f"its capacities are {brief(capacity[0])} and {brief(capacity[1])}")
        order = check_tiers(tree.get("label_order", DEFAULT_ORDER))
        images, old = tree.get("images", "raw"), tree.get("compress_old", "raw")
        if not isinstance(images, str) or not isinstance(old, str):
            raise ValueError(f"its images are {brief(images)} and {brief(old)}")
        return cls(version, store_id, capacity[0], capacity[1], order, StoreImages.parse(images), Codec.parse(old))

    def to_json(self) -> Tree:
        """The tree that `from_json` reads."""
        tree = {"format": FORMAT, **vars(self)}
        if self.label_order == DEFAULT_ORDER:
            del tree["label_order"]
        for name in ("images", "compress_old"):
            if tree[name].is_raw:
                del tree[name]
            else:
                tree[name] = str(tree[name])
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
        raise StoreError(f"{folder} cannot be opened: {error.strerror}") from error
