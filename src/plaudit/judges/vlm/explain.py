"""A vision-language model in words, episode by episode, for a person who wants to know what it sees.

Words are no rewards. An answer that cannot be read goes to the record of failures, beside those of labelling, and the
others go on.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from plaudit.data.failures import Failures
from plaudit.data.store import Store
from plaudit.judges.vlm.prompt import Reasoned
from plaudit.types import Episode

SOURCE = "vlm in words"  # on the record; not the name of a judge, since it labels nothing


class Reasoning(Protocol):
    """A scorer that can also speak."""

    @property
    def fingerprint(self) -> str: ...

    def reason(self, episode: Episode) -> Reasoned: ...


@dataclass(frozen=True)
class Audit:
    """What was said of one episode, beside the newest label it has."""

    episode: int
    text: str
    answer: bool | None  # None where none could be read
    error: str | None
    labelled: bool | None  # whether the newest label calls it a success; None without one
    source: str | None  # whose label that is

    @property
    def words(self) -> str:
        said = self.error if self.answer is None else ("success" if self.answer else "no success")
        if self.labelled is None:
            return str(said)
        return f"{said} ({self.source} says {'success' if self.labelled else 'no success'})"


def audit(
    store: Store, scorer: Reasoning, ids: Sequence[int], tell: Callable[[Audit], None], output: Path | None = None
) -> int:
    """Ask about each of these episodes; returns how many answers could not be read."""
    unread = 0
    for episode_id in ids:
        said = scorer.reason(store.episode(episode_id))
        newest = store.ledger.newest(episode_id)
        labels = None if newest is None else newest.labels()
        found = Audit(
            episode_id,
            said.text,
            said.answer,
            said.error,
            None if labels is None else labels.success_once,
            None if labels is None else labels.judge.source,
        )
        if said.answer is None:
            unread += 1
            Failures(store.ledger).append([(episode_id, str(said.error))], SOURCE, scorer.fingerprint)
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            with output.open("a") as file:
                file.write(json.dumps({**asdict(found), "model": scorer.fingerprint}) + "\n")
        tell(found)
    return unread
