"""Is the store what it says it is? Every byte against its checksum, and what can be put right.

Three layers, in order: the lines of journal and ledger, the files they promise, the arrays in them. A check changes
nothing. A repair mends lines (data/journal.py), writes off episodes whose arrays fail their checksum, so that nobody
trains on them, and leaves their bytes where they are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plaudit.data.failures import path_beside
from plaudit.data.journal import decode, mend
from plaudit.data.store import Store, is_store, lock
from plaudit.errors import StoreDamaged, StoreError


@dataclass
class Report:
    """What a check found. `ok` when nothing is wrong, or all that was is repaired."""

    episodes: int = 0
    nbytes: int = 0
    labels: int = 0
    problems: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def check(
    folder: str | Path, *, repair: bool = False, track: Callable[[Sequence[Any]], Iterable[Any]] = iter
) -> Report:
    """Verify a store; with `repair`, as its writer, also put right what can be."""
    folder = Path(folder)
    if not is_store(folder):
        raise StoreError(f"{folder} holds no store")
    report = Report()
    failures = path_beside(folder / "labels")  # there once a judge failed on something
    journals = [folder / "journal", folder / "labels", *([failures] if failures.exists() else [])]
    if repair:
        with lock(folder):  # nobody else may write while lines are mended
            report.repaired += [sentence for path in journals for sentence in mend(path)]
    else:
        report.problems += [sentence for path in journals for sentence in _bad_lines(path)]
        if report.problems:
            return report
    try:
        with Store.open(folder, write=repair, write_off_missing=repair) as store:
            report.repaired += store.repaired
            _check_arrays(store, report, repair, track)
            report.episodes, report.nbytes, report.labels = len(store), store.nbytes, len(store.ledger)
    except StoreDamaged as error:
        report.problems.append(str(error))
    return report


def _bad_lines(path: Path) -> list[str]:
    lines = path.read_bytes().split(b"\n")
    *whole, tail = lines
    bad = [f"{path}: line {n} fails its checksum" for n, line in enumerate(whole, start=1) if decode(line) is None]
    if tail:
        bad.append(
            f"{path}: an unfinished last line of {len(tail)} bytes, never acknowledged; the next writer cuts it off"
        )
    return bad


def _check_arrays(store: Store, report: Report, repair: bool, track: Callable[[Sequence[Any]], Iterable[Any]]) -> None:
    lost: list[int] = []
    for episode_id in track(store.ids):
        place = store.place(episode_id)
        found = store.segment(place.segment).checksums(place.row, place.rows)
        for column, checksum in place.line["crc"].items():
            if found[column] != checksum:
                what = "is cut short" if found[column] == -1 else "fails its checksum"
                file = store.segment(place.segment).file(column)
                sentence = f"episode {episode_id}: its part of {file} {what}"
                if repair:
                    report.repaired.append(f"{sentence}; the episode is written off")
                else:
                    report.problems.append(f"{sentence}; --repair writes the episode off")
                lost.append(episode_id)
                break
    for episode_id in store.ids:
        for version in store.ledger.history(episode_id):
            steps = version.line["steps"]
            if steps != store.place(episode_id).steps:
                report.problems.append(
                    f"episode {episode_id}: version {version.number} of its labels covers {steps} steps, it has "
                    f"{store.place(episode_id).steps}; label it again"
                )
    if repair and lost:
        store.write_off(lost)
