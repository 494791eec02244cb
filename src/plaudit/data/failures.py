"""Episodes that a judge failed on, and why: a journal next to the ledger, one line a failure.

An episode that a judge fails on gets no label and is retried by the next run. The reason is kept, because an endpoint
that was down and an answer that could not be parsed need different fixes. The file is created with the first failure.
Failures are never removed; `unresolved` omits those of episodes that were labeled since.
"""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from plaudit.data.disk import defer_signals, disk_errors
from plaudit.data.journal import MAX_ID, Journal, Record, damage_error, is_int_in, is_time
from plaudit.data.ledger import Ledger
from plaudit.errors import Replaced


@dataclass(frozen=True)
class Failure:
    """One attempt of a judge that failed."""

    episode: int
    source: str  # the judge
    model: str  # its fingerprint
    time: float  # seconds since 1970, UTC
    reason: str  # a sentence


class Failures:
    """The failures of judges on the episodes of one ledger."""

    def __init__(self, ledger: Ledger):
        self.path = failures_path(ledger.path)
        self._ledger = ledger
        self._journal: Journal | None = None  # None until the file exists
        self._failures: dict[tuple[int, str], list[Failure]] = {}  # by episode and source, oldest first

    def append(self, failures: Iterable[tuple[int, str]], source: str, model: str) -> None:
        """Add episodes and reasons; they are on disk when this returns."""
        lines = [asdict(Failure(episode, source, model, time.time(), reason)) for episode, reason in failures]
        if not lines:
            return
        with defer_signals(), disk_errors(self.path.parent, "these failures were not noted"):
            if not self.path.exists():
                with suppress(FileExistsError):  # another process, just now
                    Journal.create(self.path, header=self._ledger.header)
            while True:
                self._refresh()
                assert self._journal is not None
                with suppress(Replaced):  # by a repair, and nothing was written into the old file
                    self._follow(self._journal.append(lines))
                    return

    def all(self) -> list[Failure]:
        """All failures, oldest first."""
        self._refresh()
        failures = [failure for failures in self._failures.values() for failure in failures]
        return sorted(failures, key=lambda failure: failure.time)

    def unresolved(self) -> list[Failure]:
        """The newest of each episode and judge, where that judge has not labeled the episode since."""
        self._refresh()
        newest = {key: failures[-1] for key, failures in self._failures.items()}
        labeled = {key: self._ledger.newest(key[0], {key[1]}) for key in newest}
        return [f for key, f in newest.items() if (version := labeled[key]) is None or version.time < f.time]

    def attempts(self, episode: int, source: str, model: str, since: float = 0.0) -> int:
        """How often one version of a judge has failed on an episode.

        since: s since 1970; earlier failures do not count
        """
        self._refresh()
        failures = self._failures.get((episode, source), ())
        return sum(failure.model == model and failure.time >= since for failure in failures)

    def _refresh(self) -> None:
        """Read what this and other processes have appended."""
        if not self.path.exists():
            return
        if self._journal is not None:
            with suppress(Replaced):
                self._follow(self._journal.read())
                return
        self._failures = {}
        self._journal = Journal(self.path, header=self._ledger.header)
        self._follow(self._journal.read())

    def _follow(self, lines: Iterable[Record]) -> None:
        for line in lines:
            sound = (
                line.keys() == {field.name for field in fields(Failure)}
                and is_int_in(line["episode"], 0, MAX_ID)
                and is_time(line["time"])
                and all(isinstance(line[name], str) for name in ("source", "model", "reason"))
            )
            if not sound:
                raise damage_error(self.path, f"a line is no failure of a judge ({str(line)[:200]})")
            failure = Failure(**line)
            self._failures.setdefault((failure.episode, failure.source), []).append(failure)


def failures_path(labels: Path) -> Path:
    """The failures of a ledger."""
    return labels.with_name(f"{labels.name}.failures")
