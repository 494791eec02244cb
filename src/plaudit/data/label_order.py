"""Which of an episode's labels counts, where several judges have labeled it.

    human+cutoff,operator,simulator+dataset        # the default; whoever is not named comes last: models

A person's correction must not be overruled by a model that labels the episode again. So sources have an order, and
among equal ones the newest label counts. The order is a setting of the store (`store.json`), the same for replay,
export, training of a judge and evaluation. The ledger keeps every version. Labels of a single source are its newest.
"""

from collections.abc import Iterable
from typing import Any

from plaudit.errors import DataError
from plaudit.files import brief

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
            f"'{text[:100]}' is no order of sources ({error}); write those that count most first, with a + between "
            f"equals, like {LabelOrder()}, or '{NEWEST}', or '{DEFAULT}'"
        ) from error


def check_tiers(tiers: Any) -> Tiers:
    """Tiers from JSON; ValueError if they are invalid."""
    if not isinstance(tiers, list | tuple) or not all(isinstance(tier, list | tuple) and tier for tier in tiers):
        raise ValueError(f"its label order is {brief(tiers)}")
    names = [name for tier in tiers for name in tier]
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_LENGTH or not name.isprintable() or " " in name:
            raise ValueError(f"{brief(name)} is no name of a source")
        if names.count(name) > 1:
            raise ValueError(f"'{name}' is named twice")
    if len(names) > MAX_NAMES:
        raise ValueError(f"{len(names)} sources are more than {MAX_NAMES}")
    return tuple(tuple(tier) for tier in tiers)


def unknown_sources(order: LabelOrder, labeled: Iterable[str]) -> list[str]:
    """Names in an order that are neither ours nor among these sources of a ledger."""
    ours = {source for tier in DEFAULT_ORDER for source in tier} | {"classifier", "progress", "vlm"}
    return [source for tier in order.tiers for source in tier if source not in {*ours, *labeled}]
