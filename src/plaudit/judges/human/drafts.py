"""The labels of one episode while a person edits them, saved after every change.

    store/drafts/1a2b3c4d.journal    the changes of one session: the labels before and after each
    store/drafts/1a2b3c4d.lock       locked while that session is open

`FrameAnnotation` has 0, 1 or nothing for each recorded frame. Padded observations (types.py) are neither shown nor
labeled by hand.

A change is on disk before the screen shows it. A session reads its journal when it starts. After a closed window, a
crash or a power cut, the next session of the same person continues there, with its drafts and its undo history. Drafts
are not labels: only Complete writes a label to the ledger. A session that ends without drafts removes its journal.

Each session has its own journal, so two people cannot overwrite each other's drafts. A held lock means that a session
is open, and its episode is not offered to anybody else.
"""

import fcntl
import os
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

from plaudit.data.cutoffs import over_all_frames
from plaudit.data.disk import Folder, disk_error
from plaudit.data.entries import MAX_ID, is_int_in
from plaudit.data.journal import Journal, Record
from plaudit.data.repair import repair_journal
from plaudit.data.signals import defer_signals
from plaudit.errors import DataError, ForeignFile, JournalMissing, StoreDamaged, StoreError
from plaudit.files import brief
from plaudit.types import Episode, FloatArray, Labels

SOURCE = "human"
EXCLUDED = "excluded"  # the text of an episode that is left out, and the word for it in a label's note
_SIGNS = {"0": 0.0, "1": 1.0, "?": float("nan")}


@dataclass(frozen=True, eq=False)
class FrameAnnotation:
    """
    >>> FrameAnnotation.unlabeled(5).success_from(3).rle
    '0x3 1x2'
    """

    frames: FloatArray  # [F] of 0, 1 and NaN for the F recorded frames
    excluded: bool = False  # on purpose, so that nothing learns from it; then all frames are NaN

    @classmethod
    def unlabeled(cls, count: int) -> Self:
        return cls(np.full(count, np.nan, np.float32))

    @classmethod
    def from_labels(cls, episode: Episode, labels: Labels) -> Self:
        """Existing labels, to start from."""
        frames = labels.targets[episode.observed]
        return cls(frames, excluded=bool(np.isnan(frames).all()))

    @classmethod
    def from_rle(cls, text: str, count: int) -> Self:
        """What `rle` wrote of an episode of `count` recorded frames."""
        if text == EXCLUDED:
            return cls(np.full(count, np.nan, np.float32), excluded=True)
        runs = [run.split("x") for run in text.split()]
        frames = np.concatenate([np.full(int(length), _SIGNS[sign], np.float32) for sign, length in runs])
        if len(frames) != count:
            raise DataError(f"the draft '{text}' covers {len(frames)} frames, the episode has {count}")
        return cls(frames)

    @property
    def rle(self) -> str:
        """Run-length encoding, `0x53 1x47`: a line of a journal that a person can read."""
        if self.excluded:
            return EXCLUDED
        return " ".join(f"{'?' if np.isnan(v) else int(v)}x{last - first + 1}" for first, last, v in self.runs)

    @property
    def runs(self) -> list[tuple[int, int, float]]:
        """(first, last, value) of each stretch of frames with the same label."""
        signs = np.nan_to_num(self.frames, nan=-1)
        firsts = [0, *(np.flatnonzero(np.diff(signs)) + 1).tolist()]
        return [(a, b - 1, float(self.frames[a])) for a, b in zip(firsts, [*firsts[1:], len(self.frames)])]

    @property
    def num_unlabeled(self) -> int:
        return int(np.isnan(self.frames).sum())

    @property
    def cutoff(self) -> int | None:
        """The first frame of success where it is one and stays so to the end; None otherwise."""
        hits = np.flatnonzero(self.frames == 1)
        return int(hits[0]) if len(hits) and len(hits) == len(self.frames) - hits[0] else None

    @property
    def summary(self) -> str:
        """For a person: `success from frame 53`."""
        if self.excluded:
            return "excluded"
        num_unlabeled = self.num_unlabeled
        if num_unlabeled == len(self.frames):
            return "nothing labeled"
        ranges = [(first, last) for first, last, value in self.runs if value == 1]
        if self.cutoff is not None:
            outcome = f"success from frame {self.cutoff}"
        elif len(ranges) > 3:
            outcome = f"success in {len(ranges)} ranges"
        else:
            parts = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)
            outcome = f"success in {parts}" if ranges else "no success"
        return f"{outcome}, {num_unlabeled} not labeled" if num_unlabeled else outcome

    def set_range(self, first: int, last: int, value: float) -> Self:
        """Both ends included."""
        frames = self.frames.copy()
        frames[first : last + 1] = value
        return type(self)(frames)

    def success_from(self, frame: int) -> Self:
        return type(self)((np.arange(len(self.frames)) >= frame).astype(np.float32))

    def all_failure(self) -> Self:
        return type(self)(np.zeros_like(self.frames))

    def as_excluded(self) -> Self:
        return type(self)(np.full_like(self.frames, np.nan), excluded=True)

    def labels(self, episode: Episode, name: str = "") -> Labels:
        """As the ledger takes it; the name of the labeler is in the note."""
        note = ", ".join(part for part in (f"by {name}" if name else "", EXCLUDED if self.excluded else "") if part)
        return Labels.from_targets(over_all_frames(episode, self.frames), SOURCE, note=note)


@dataclass(frozen=True)
class Edit:
    """One change, as it can be taken back."""

    episode: int
    frame: int  # where the person stood
    before: str | None  # the draft (`FrameAnnotation.text`); None where there was none
    after: str | None  # None: completed, the draft has become a label
    what: str  # in words


class UndoHistory:
    """What a journal's lines add up to."""

    def __init__(self) -> None:
        self.drafts: dict[int, str] = {}  # episode -> its labels so far, as run-length encoding
        self.frames: dict[int, int] = {}  # episode -> where the person stood
        self.last: int | None = None  # the episode that was open
        self.done: list[Edit] = []
        self.undone: list[Edit] = []

    def apply(self, line: Record) -> Edit | None:
        """A KeyError, TypeError or ValueError where the line is none of a session's."""
        match line["op"]:
            case "at":
                self.last = _whole(line["episode"])
                self.frames |= {_whole(episode): _whole(frame) for episode, frame in line["frames"]}
            case "change":
                step = Edit(
                    _whole(line["episode"]),
                    _whole(line["frame"]),
                    _text(line["before"]),
                    _text(line["after"]),
                    str(line["what"]),
                )
                self.undone.clear()
                return self._do(step)
            case "undo" if self.done:
                step = self.done.pop()
                self.undone.append(step)
                self._put(step.episode, step.before, step.frame)
                return step
            case "redo" if self.undone:
                return self._do(self.undone.pop())
            case "forget":
                gone = _whole(line["episode"])
                self._put(gone, None, 0)
                self.done = [step for step in self.done if step.episode != gone]
                self.undone = [step for step in self.undone if step.episode != gone]
        return None

    def _do(self, step: Edit) -> Edit:
        self.done.append(step)
        self._put(step.episode, step.after, step.frame)
        return step

    def _put(self, episode: int, text: str | None, frame: int) -> None:
        self.frames[episode] = frame
        if text is None:
            self.drafts.pop(episode, None)
        else:
            self.drafts[episode] = text


def _whole(value: Any) -> int:
    if not is_int_in(value, 0, MAX_ID):
        raise ValueError(f"{brief(value)} is no number of an episode or a frame")
    return value


def _text(value: Any) -> str | None:
    if not (value is None or isinstance(value, str)):
        raise ValueError(f"{brief(value)} is no draft")
    return value


class DraftStore:
    """One session's drafts, on disk. Open with `DraftStore.open`."""

    def __init__(self, journal: Path, lock: IO[str]):
        """Not for users: see `open`."""
        self.path = journal
        self.history = UndoHistory()
        self.saved: float | None = None  # when a change was last written, seconds since 1970
        self._lock = lock
        self._journal = Journal(journal, counted=False)
        self._others: dict[Path, tuple[Journal, UndoHistory]] = {}

    @classmethod
    def open(cls, store: Path, name: str = "") -> "DraftStore":
        """Go on with what this person left behind in a store, or begin."""
        folder = store / "drafts"
        try:
            _make_folder(Folder(store))
            own = _recoverable(folder, name) or [_begin(folder, name)]
        except OSError as error:
            raise disk_error(error, store, "drafts cannot be kept there") from error
        newest = max(own, key=lambda drafts: drafts.path.stat().st_mtime)
        for other in own:
            if other is not newest:
                newest._merge(other)
        return newest

    def change(self, episode: int, frame: int, after: str | None, what: str) -> None:
        before = self.history.drafts.get(episode)
        self._write(op="change", episode=episode, frame=frame, before=before, after=after, what=what)

    def undo(self) -> Edit | None:
        return self._write(op="undo") if self.history.done else None

    def redo(self) -> Edit | None:
        return self._write(op="redo") if self.history.undone else None

    def at(self, episode: int, frames: dict[int, int]) -> None:
        """Which episode is open, and where one stands in it and in the one that was left."""
        self._write(op="at", episode=episode, frames=list(frames.items()))

    def forget(self, episode: int) -> None:
        """An episode is gone from the store, and its draft with it."""
        self._write(op="forget", episode=episode)

    def locked_by_others(self) -> set[int]:
        """The episodes that other sessions on this store, alive now, have in hand."""
        taken = set()
        for path in set(self.path.parent.glob("*.journal")) - {self.path}:
            lock = _try_lock(path)
            if lock is not None:  # nobody holds it: that session is over
                _release_lock(path, lock)
                continue
            # It ended just now; or is damaged, which its owner will mend.
            with suppress(StoreError, KeyError, TypeError, ValueError):
                journal, history = self._others.setdefault(path, (Journal(path, counted=False), UndoHistory()))
                for line in journal.read():
                    history.apply(line)
                taken |= {history.last} - {None}
        return taken

    def close(self) -> None:
        """Drafts stay; a journal without any goes."""
        if self._lock.closed:
            return
        if not self.history.drafts:
            self.path.unlink(missing_ok=True)
        _release_lock(self.path, self._lock)

    def _write(self, **line: object) -> Edit | None:
        now = time.time()
        with defer_signals():
            try:
                self._journal.append([{**line, "time": round(now, 3)}])
            except OSError as error:
                raise disk_error(error, self.path.parent, "this change was not saved and not made") from error
            step = self.history.apply(line)
            if step is not None:
                self.saved = now
            return step

    def _read(self) -> str | None:
        """Catch up with the file, mended where it must be; returns whose it is, None for a file without a line."""
        try:
            lines = self._journal.read()
        except StoreDamaged:
            repair_journal(self.path, counted=False)
            self._journal = Journal(self.path, counted=False)
            lines = self._journal.read()
        for line in lines:
            try:
                self.history.apply(line)
            except (KeyError, TypeError, ValueError) as error:
                raise StoreDamaged(
                    f"{self.path}: a line is no draft ({error}: {str(line)[:200]}); move the file away and go on"
                ) from error
        return lines[0].get("by", "") if lines else None

    def _merge(self, other: "DraftStore") -> None:
        """The drafts of a session that ran beside ours; where both have one, ours counts and theirs is an undo away."""
        for episode, theirs in other.history.drafts.items():
            ours = self.history.drafts.get(episode)
            for text in (theirs,) if ours is None else (theirs, ours):
                self.change(episode, other.history.frames.get(episode, 0), text, "a draft of an earlier session")
        other.path.unlink()
        _release_lock(other.path, other._lock)


def is_being_labeled(store: Path) -> bool:
    """Whether a session is alive on a store, in any process of this machine."""
    for path in (store / "drafts").glob("*.journal"):
        lock = _try_lock(path)
        if lock is None:
            return True
        _release_lock(path, lock)
    return False


def _make_folder(store: Folder) -> None:
    """Whoever's store it is: drafts are kept in it, and not where a link leads."""
    with suppress(FileExistsError):
        store.mkdir("drafts")
    if not store.is_folder("drafts"):
        raise ForeignFile(f"{store.path / 'drafts'} is no folder of this store, a link say; remove it to label here")


def _begin(folder: Path, name: str) -> DraftStore:
    path = folder / f"{uuid.uuid4().hex[:8]}.journal"
    lock = _try_lock(path)
    assert lock is not None  # its name is new
    Journal.create(path, counted=False)
    drafts = DraftStore(path, lock)
    drafts._write(op="begin", by=name)
    return drafts


def _recoverable(folder: Path, name: str) -> list[DraftStore]:
    """This person's journals that no living session holds, and their locks with them."""
    own = []
    for path in sorted(folder.glob("*.journal")):
        lock = _try_lock(path)
        if lock is None:
            continue
        try:
            drafts = DraftStore(path, lock)
        except JournalMissing:  # its session ended just now, and took it away
            _release_lock(path, lock)
            continue
        by = drafts._read()
        if by == name:
            own.append(drafts)
            continue
        if by is None:  # killed before its first line
            path.unlink()
        _release_lock(path, lock)
    return own


def _try_lock(journal: Path) -> IO[str] | None:
    name = journal.with_suffix(".lock").name
    file = os.fdopen(Folder(journal.parent).open(name, os.O_RDWR | os.O_CREAT, allow_hard_links=True), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _release_lock(journal: Path, lock: IO[str]) -> None:
    """A lock outlives its journal by nothing, and never the other way: a journal without one would look left behind."""
    if not journal.exists():
        journal.with_suffix(".lock").unlink(missing_ok=True)
    lock.close()
