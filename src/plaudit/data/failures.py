"""What judges could not judge, kept on the record: a journal beside the ledger, one line a failure.

An episode that a judge fails on gets no label and waits for the next run; why it failed is worth keeping, since an
endpoint that was down and an answer that made no sense call for different things. The file is made with the first
failure. What has been judged since is not forgotten here; `standing` leaves it out.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from plaudit.data.journal import Journal, uninterrupted
from plaudit.data.ledger import Ledger


@dataclass(frozen=True)
class Failure:
    episode: int
    source: str  # the judge
    model: str  # its fingerprint
    time: float  # seconds since 1970, UTC
    reason: str  # a sentence


class Failures:
    """Of one ledger."""

    def __init__(self, ledger: Ledger):
        self.path = path_beside(ledger.path)
        self._ledger = ledger

    def append(self, failures: Iterable[tuple[int, str]], source: str, model: str) -> None:
        """Episodes and why; they are on disk when this returns."""
        lines = [asdict(Failure(episode, source, model, time.time(), reason)) for episode, reason in failures]
        if not lines:
            return
        with uninterrupted():
            if not self.path.exists():
                Journal.create(self.path)
            journal = Journal(self.path)
            journal.read()
            journal.append(lines)

    def all(self) -> list[Failure]:
        """Oldest first."""
        return [Failure(**line) for line in Journal(self.path).read()] if self.path.exists() else []

    def standing(self) -> list[Failure]:
        """The newest of each episode and judge, where that judge has not labelled the episode since."""
        newest = {(failure.episode, failure.source): failure for failure in self.all()}
        return [failure for failure in newest.values() if not self._judged_since(failure)]

    def _judged_since(self, failure: Failure) -> bool:
        version = self._ledger.newest(failure.episode, {failure.source})
        return version is not None and version.time >= failure.time


def path_beside(labels: Path) -> Path:
    return labels.with_name(f"{labels.name}.failures")
