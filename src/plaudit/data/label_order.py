"""Which of an episode's labels counts, where several judges have labeled it.

    human+cutoff,operator,simulator+dataset        # the default; whoever is not named comes last: models

A person who corrected a label knows better than the model that labels the episode again tomorrow. So sources have an
order, and among labels of equal standing the newest counts. The order is a setting of the store (`store.json`), hence
the same for replay, export, training of a judge and evaluation; the ledger keeps every version whatever it is. Whoever
asks for the labels of one source gets that source's newest, as the learner of a run does with the run's judge.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from plaudit.errors import DataError
from plaudit.files import brief
from plaudit.types import PEOPLE

Tiers = tuple[tuple[str, ...], ...]  # sources of equal standing together, the ones that count most first

DEFAULT_ORDER: Tiers = (("human", "cutoff"), ("operator",), ("simulator", "dataset"))
NEWEST, DEFAULT = "newest", "default"  # words for the empty order, by which the newest label counts, and for ours
MAX_NAMES, MAX_LENGTH = 64, 100


def counted_sources(judge: str) -> frozenset[str]:
    """Sources whose labels a learner uses in a run with this judge: its own and people's, not a simulator's audit."""
    return PEOPLE | {judge}


class LabelOrder:
    """Ranks sources; 0 counts most. Sources that are not in `ranks` come last."""

    def __init__(self, tiers: Tiers = DEFAULT_ORDER):
        self.tiers = tiers
        self.ranks = {source: rank for rank, tier in enumerate(tiers) for source in tier}

    def __str__(self) -> str:
        return ",".join("+".join(tier) for tier in self.tiers) or NEWEST

    def describe(self) -> str:
        """human or cutoff, then operator, then others"""
        if not self.tiers:
            return "the newest label counts, whoever gave it"
        return ", then ".join([*(" or ".join(tier) for tier in self.tiers), "others"]) + "; the newest of equals"


def parse_order(text: str) -> Tiers:
    """Of 'human+cutoff,simulator', 'newest' or 'default'."""
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
    """As `store.json` has them; a ValueError where they are none."""
    if not _is_list(tiers) or not all(_is_list(tier) and tier for tier in tiers):
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
    """Names in an order that nothing is known of, neither by us nor by these sources of a ledger."""
    known = {source for tier in DEFAULT_ORDER for source in tier} | {"classifier", "progress", "vlm", *labeled}
    return [source for tier in order.tiers for source in tier if source not in known]


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
