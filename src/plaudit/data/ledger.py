"""The label ledger: append-only, versioned labels of episodes; and the episodes that a judge failed on.

Labels come minutes or days after their episode, from several judges, and may be revised. So nothing is overwritten: new
labels are a new version, and restoring an old version appends it again. Which version counts is decided when labels are
read: people's before those of models, the newest of equals (data/settings.py). The file is a journal
(data/journal.py); several processes may append at once, each under a short lock, so a person can label while the robot
records and a classifier judges. Arrays are stored in the line, compressed and base64-encoded: a hundred bytes for a
clear-cut episode of 50 steps, two kilobytes for 400 steps with a probability each.

A run of weeks writes one or two labels an episode, and labels are never removed. So a `LabelVersion` in memory has the
judge, the time and the position of its line, about 300 bytes, and the arrays are read from the file when they are
needed. The file is held open: a repair replaces it by another file, which is then read from its start.

An episode that a judge fails on gets no label and is retried by the next run. The reason is kept in a journal next to
the ledger, because an endpoint that was down and an answer that could not be parsed need different fixes. The file is
created with the first failure. Failures are never removed; `unresolved` omits those of episodes labeled since.
"""

import base64
import sys
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from plaudit.data.disk import Folder, defer_signals, disk_errors
from plaudit.data.journal import MAX_ID, MAX_TIME, Journal, JournalFile, Place, Record, damage_error, is_int_in, is_time
from plaudit.data.settings import LabelOrder
from plaudit.errors import DataError, Replaced, StoreError
from plaudit.files import brief
from plaudit.rule import DecisionRule
from plaudit.types import PEOPLE, CascadeResult, JudgeId, Labeler, Labels, Scores

FORMAT = 2  # of a line
MAX_VERSIONS = 0xFFFFFFFE  # of an episode
MAX_STEPS = 1 << 22  # of an episode with labels: 11 hours at 100 Hz
_INVALID_LINE = (KeyError, TypeError, ValueError, OverflowError, zlib.error)  # what a line made by hand may raise


@dataclass(frozen=True, slots=True)
class LabelVersion:
    """One entry of an episode's history. `labels()` reads the arrays from the ledger."""

    episode: int
    number: int  # 1, 2, ... per episode
    source: str
    model: str
    time: float
    restored_from: int | None
    place: Place = field(repr=False)

    @property
    def line(self) -> Record:
        """The whole record, read from the ledger and verified each time."""
        line = self.place.read()
        # A line with other labels fits its own checksum too, where somebody wrote over the file.
        if not is_label_line(line) or any(line[name] != getattr(self, name) for name in ("episode", "source", "time")):
            raise damage_error(
                self.place.file.path, f"other labels stand where those of episode {self.episode} were read"
            )
        return line

    def labels(self) -> Labels:
        """The labels, read from the ledger."""
        line = self.line
        try:
            return decode_labels(line)
        except _INVALID_LINE as error:
            what = f"version {self.number} of episode {self.episode}'s labels makes no sense ({error})"
            raise damage_error(self.place.file.path, what) from error

    @property
    def judge(self) -> JudgeId:
        """Whose labels these are."""
        return parse_judge_id(self.line)


_Index = Annotated[int, Field(strict=True, ge=0, lt=MAX_ID)]


@pydantic_dataclass
class _Saved:
    """What a snapshot has of a ledger."""

    judges: list[tuple[str, str]]  # source and model
    # episode, index of the judge, time, version that was restored, place of the line
    labels: list[tuple[_Index, _Index, Annotated[float, Field(ge=0, lt=MAX_TIME)], _Index | None, _Index, _Index]]


class Ledger:
    """The labels of one store's episodes."""

    def __init__(
        self,
        path: Path,
        folder: Folder | None = None,
        header: Record | None = None,
        order: LabelOrder | None = None,
        snapshots: bool = True,
    ):
        """
        folder: where it lies, if that is open already
        header: the id of the store, for a file without a header
        order: whose labels count most; None: the default
        snapshots: as for `Store.open`
        """
        self.path = path
        self.order = order or LabelOrder()
        self.generation = 0  # how often a repair has replaced the file; earlier version counts are void then
        self._folder, self._header, self._snapshots = folder or Folder(path.parent), header, snapshots
        self._guard = threading.Lock()
        self._start()
        self.refresh()

    def _start(self) -> None:
        self._versions: list[LabelVersion] = []  # in the order of their lines
        self._histories: dict[int, list[LabelVersion]] = {}  # by episode, oldest first
        state = self if self._snapshots else None
        self._journal = Journal(self.path, self._follow, self._folder, header=self._header, state=state)

    def _follow(self, line: Record, place: Place) -> None:
        """Take in the next line."""
        if not is_label_line(line):
            raise damage_error(self.path, f"a line holds no labels ({str(line)[:200]})")
        source, model = sys.intern(line["source"]), sys.intern(line["model"])
        self._add(line["episode"], source, model, line["time"], line["restored"], place)

    def _add(self, episode: int, source: str, model: str, time: float, restored: int | None, place: Place) -> None:
        history = self._histories.setdefault(episode, [])
        version = LabelVersion(episode, len(history) + 1, source, model, time, restored, place)
        self._versions.append(version)
        history.append(version)

    def save(self) -> Any:
        """The state, for a snapshot of the file."""
        judges: dict[tuple[str, str], int] = {}
        labels = [
            (v.episode, judges.setdefault((v.source, v.model), len(judges)), v.time, v.restored_from, *v.place[1:])
            for v in self._versions
        ]
        return {"judges": list(judges), "labels": labels}

    def load(self, tree: Any, file: JournalFile) -> None:
        """Take in the state that a snapshot has of a file."""
        saved = _Saved(**tree)
        for episode, judge, time_s, restored, offset, length in saved.labels:
            self._add(episode, *saved.judges[judge], time_s, restored, Place(file, offset, length))

    def __len__(self) -> int:
        """How many versions there are, of all episodes."""
        return len(self._versions)

    def refresh(self) -> None:
        """Read what other processes have appended."""
        with self._guard, defer_signals(), disk_errors(self.path.parent, f"{self.path.name} cannot be read"):
            self._refresh()

    def _refresh(self) -> None:
        while True:
            try:
                self._journal.read()
                return
            except Replaced:  # by a repair or a backup, which may have fewer lines: all of them are read again
                self._folder.check_same()
            before = self._journal, self._versions, self._histories
            try:
                self._start()
                self._journal.read()
                if before[0].header and self.header != before[0].header:
                    what = "was replaced by the labels of another store while it was open"
                    raise StoreError(f"{self.path} {what}; nothing was written, open the store again")
            except Exception:  # what was read before stays
                self._journal, self._versions, self._histories = before
                raise
            self.generation += 1

    def recover_tail(self) -> list[str]:
        """Move an incomplete last line of a killed process to the quarantine; returns messages."""
        with self._guard, disk_errors(self.path.parent, f"{self.path.name} cannot be written"):
            self._refresh()
            return self._journal.recover_tail()

    @property
    def header(self) -> Record | None:
        """The header of the file."""
        return self._journal.header

    @property
    def last_id(self) -> int:
        """The highest id of an episode that has labels; -1 if none has."""
        return max(self._histories, default=-1)

    def changed_since(self, count: int) -> set[int]:
        """The episodes that got labels after the first `count` versions: how replay keeps up."""
        return {version.episode for version in self._versions[count:]}

    def since(self, count: int) -> list[LabelVersion]:
        """The versions that came after the first `count`, of all episodes, in the order they came."""
        return self._versions[count:]

    def append(self, episode_id: int, labels: Labels) -> int:
        """Add labels; returns their version number once they are synced to disk."""
        return self.extend([(episode_id, labels)])[0]

    def extend(self, labeled: Iterable[tuple[int, Labels]]) -> list[int]:
        """Add labels of several episodes with one sync; returns their version numbers."""
        return self._write([(episode_id, labels, None) for episode_id, labels in labeled])

    def restore(self, episode_id: int, number: int) -> int:
        """Make an old version count again, as the newest; returns the new version's number.

        Somebody chose it, so it ranks with the sources that count most.
        """
        return self._write([(episode_id, self.version(episode_id, number).labels(), number)])[0]

    def copy(self, versions: Iterable[LabelVersion]) -> None:
        """Add versions of another store's ledger, whose episodes have the same ids here."""
        self._write([(version.episode, version.labels(), version.restored_from) for version in versions])

    def labels(self, episode_id: int, sources: Collection[str] | None = None) -> Labels | None:
        """The labels that count, of all judges or of certain ones; None if there are none."""
        version = self.current(episode_id, sources)
        return None if version is None else version.labels()

    def current(self, episode_id: int, sources: Collection[str] | None = None) -> LabelVersion | None:
        """The version that counts: of the source that ranks highest, the newest. Of a single source, its newest."""
        if sources is not None and len(set(sources)) == 1:
            return self.newest(episode_id, sources)
        ranks, last = self.order.ranks, len(self.order.tiers)
        return min(
            self._newest_first(episode_id, sources),
            key=lambda version: 0 if version.restored_from else ranks.get(version.source, last),
            default=None,
        )

    def newest(self, episode_id: int, sources: Collection[str] | None = None) -> LabelVersion | None:
        """The last one that was added, whether it counts or not."""
        return next(iter(self._newest_first(episode_id, sources)), None)

    def _newest_first(self, episode_id: int, sources: Collection[str] | None) -> Sequence[LabelVersion]:
        history = self._histories.get(episode_id, ())
        return [version for version in reversed(history) if sources is None or version.source in sources]

    def is_excluded(self, episode_id: int) -> bool:
        """Whether a person has excluded an episode: their label that counts leaves out every frame."""
        labels = self.labels(episode_id, PEOPLE)
        return labels is not None and not labels.labeled.any()

    def history(self, episode_id: int) -> list[LabelVersion]:
        """Every version, oldest first."""
        return list(self._histories.get(episode_id, ()))

    def version(self, episode_id: int, number: int) -> LabelVersion:
        """A version by its number."""
        history = self.history(episode_id)
        if not 1 <= number <= len(history):
            has = f"versions 1 to {len(history)}" if history else "no labels"
            raise DataError(f"episode {episode_id} has {has}, not version {number}")
        return history[number - 1]

    def _write(self, labeled: list[tuple[int, Labels, int | None]]) -> list[int]:
        now = time.time()
        lines = [
            encode_labels(i, labels if labels.time else replace(labels, time=now), back) for i, labels, back in labeled
        ]
        for line in lines:  # a line on disk that makes no sense would stop every reader
            try:
                sound = is_label_line(line) and decode_labels(line) is not None
            except _INVALID_LINE:
                sound = False
            if not sound:
                raise DataError(f"these labels cannot be stored: {str(line)[:200]}")
        with self._guard, defer_signals(), disk_errors(self.path.parent, "these labels were not stored"):
            while True:
                try:
                    self._journal.append(lines)
                    return [version.number for version in self._versions[len(self) - len(lines) :]]
                except Replaced:  # nothing was written into the old file
                    self._refresh()


def counted_sources(judge: str) -> frozenset[str]:
    """Sources whose labels a learner uses in a run with this judge: its own and people's, not a simulator's audit."""
    return PEOPLE | {judge}


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
        self._write([Failure(episode, source, model, time.time(), reason) for episode, reason in failures])

    def copy(self, failures: Sequence[Failure]) -> None:
        """Add failures of another store, unless that was done."""
        self._write(failures[len(self.all()) :])

    def _write(self, failures: Iterable[Failure]) -> None:
        lines = [asdict(failure) for failure in failures]
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
                    self._journal.append(lines)
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
                self._journal.read()
                return
        self._failures = {}
        self._journal = Journal(self.path, self._follow, header=self._ledger.header)
        self._journal.read()

    def _follow(self, line: Record, place: Place) -> None:
        sound = (
            line.keys() == {one.name for one in fields(Failure)}
            and is_int_in(line["episode"], 0, MAX_ID)
            and is_time(line["time"])
            and all(isinstance(line[name], str) for name in ("source", "model", "reason"))
        )
        if not sound:
            raise damage_error(self.path, f"a line does not describe a failure of a judge ({str(line)[:200]})")
        failure = Failure(**line)
        self._failures.setdefault((failure.episode, failure.source), []).append(failure)


def failures_path(labels: Path) -> Path:
    """The failures of a ledger."""
    return labels.with_name(f"{labels.name}.failures")


def is_label_line(line: Record) -> bool:
    """Whether a record has an episode, a judge, a time and a version, as far as a `LabelVersion` needs them."""
    restored = line.get("restored", 0)
    return (
        is_int_in(line.get("episode"), 0, MAX_ID - 1)
        and isinstance(line.get("source"), str)
        and isinstance(line.get("model"), str)
        and is_time(line.get("time"))
        and (restored is None or is_int_in(restored, 1, MAX_VERSIONS))
        and is_int_in(line.get("steps"), 0, MAX_STEPS)
    )


_MORE_IDS = ("progress", "ood_detector")  # of a judge; a line has those that are not empty


def encode_labels(episode_id: int, labels: Labels, restored_from: int | None) -> Record:
    """The line of an episode's labels."""
    scores = labels.scores
    parts = [labels.success.astype("u1").tobytes(), labels.labeled.astype("u1").tobytes()]
    if scores is not None:
        measured = (scores.success_prob, scores.progress)
        parts += [values.astype("<f4").tobytes() for values in measured if values is not None]
    return {
        "format": FORMAT,
        "episode": episode_id,
        "source": labels.judge.source,
        "model": labels.judge.fingerprint,
        "rule": "" if labels.judge.rule is None else labels.judge.rule.model_dump_json(exclude_none=True),
        "time": labels.time,
        "note": labels.note,
        "restored": restored_from,
        "steps": labels.steps,
        "scores": 0 if scores is None else 1 if scores.progress is None else 2,  # arrays
        "data": base64.b64encode(zlib.compress(b"".join(parts))).decode(),
        **({"ood": scores.ood} if scores is not None and scores.ood else {}),
        **{name: value for name in _MORE_IDS if (value := getattr(labels.judge, name))},
        **({"review": True} if labels.review else {}),
        **({"labeler": vars(labels.labeler)} if labels.labeler else {}),
        **({"cascade": vars(scores.cascade)} if scores is not None and scores.cascade else {}),
    }


def decode_labels(line: Record) -> Labels:
    """The labels of a line."""
    ood = line.get("ood", line.get("unlike", ""))  # older lines call it "unlike"
    if not all(isinstance(text, str) for text in (line["note"], line.get("rule", ""), ood)):
        raise ValueError("its note or its rule has the wrong type")
    frames, count = line["steps"] + 1, line["scores"]
    if line["format"] != FORMAT or not is_int_in(count, 0, 2):
        raise ValueError(f"its format is {brief(line['format'])}, with {brief(count)} scores")
    size = (2 + 4 * count) * frames
    data = zlib.decompressobj().decompress(base64.b64decode(line["data"]), size + 1)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes for {line['steps']} steps")
    flags = np.frombuffer(data, "u1", 2 * frames).astype(bool)
    arrays = [np.frombuffer(data, "<f4", frames, offset=(2 + 4 * i) * frames) for i in range(count)]
    cascade = None
    if "cascade" in line:
        tree = line["cascade"]
        cascade = CascadeResult(str(tree["decided_by"]), float(tree["cost_s"]), str(tree["why"]))
    return Labels(
        success=flags[:frames],
        labeled=flags[frames:],
        judge=parse_judge_id(line),
        scores=Scores(arrays[0], arrays[1] if count == 2 else None, ood=ood, cascade=cascade) if arrays else None,
        time=line["time"],
        note=line["note"],
        review=bool(line.get("review")),
        labeler=_labeler(line),
    )


def _labeler(line: Record) -> Labeler | None:
    if "labeler" not in line:  # a judge's, or by an earlier version, which wrote the name into the note
        return None
    labeler = Labeler(**line["labeler"])
    if not (isinstance(labeler.name, str) and isinstance(labeler.repeat, bool)):
        raise ValueError(f"its labeler is {brief(line['labeler'])}")
    return labeler


def parse_judge_id(line: Record) -> JudgeId:
    """Whose labels a line has."""
    more = {name: str(line.get(name, "")) for name in _MORE_IDS}
    return JudgeId(line["source"], line["model"], DecisionRule.parse(str(line.get("rule", ""))), **more)
