"""The labels of one episode while a person edits them, saved after every change.

    store/drafts/1a2b3c4d.json    the drafts and the undo history of one session, replaced as a whole by every change
    store/drafts/1a2b3c4d.lock    locked while that session is open

`FrameAnnotation` has 0, 1 or nothing for each recorded frame. Padded observations (types.py) are neither shown nor
labeled by hand.

A change is on disk before the screen shows it. After a closed window, a crash or a power cut, the next session of the
same person continues with its drafts and its undo history. Drafts are not labels: only Complete writes a label to the
ledger. A session that ends without drafts removes its file.

Each session has its own file, so two people cannot overwrite each other's drafts. A held lock means that a session is
open, and its episode is not offered to anybody else.
"""

import fcntl
import os
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Self

import numpy as np
from pydantic import Field, ValidationError

from plaudit.config import Config, NonNegativeInt
from plaudit.data.cutoffs import over_all_frames
from plaudit.data.disk import Folder, defer_signals, disk_errors
from plaudit.data.journal import MAX_ID
from plaudit.errors import DataError, ForeignFile, StoreDamaged, StoreError, without_prefix
from plaudit.types import Episode, FloatArray, Labeler, Labels

SOURCE = "human"
EXCLUDED = "excluded"  # the text of an episode that is left out, and the word for it in a label's note
MAX_BYTES = 64 << 20  # of a session's file; 100,000 changes have 20 MB
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
            return cls.unlabeled(count).as_excluded()
        runs = [run.split("x") for run in text.split()]
        frames = np.concatenate([np.full(int(length), _SIGNS[sign], np.float32) for sign, length in runs])
        if len(frames) != count:
            raise DataError(f"the draft '{text}' covers {len(frames)} frames, the episode has {count}")
        return cls(frames)

    @property
    def rle(self) -> str:
        """Run-length encoding, `0x53 1x47`: text that a person can read."""
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
        """A short text like `success from frame 53`."""
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

    def labels(self, episode: Episode, name: str = "", *, repeat: bool = False) -> Labels:
        """As the ledger takes it. repeat: the person with this name has labeled the episode before"""
        labels = Labels.from_targets(over_all_frames(episode, self.frames), SOURCE)
        note = EXCLUDED if self.excluded else ""
        return replace(labels, note=note, labeler=Labeler(name, repeat) if name else None)


EpisodeId = Annotated[int, Field(ge=0, lt=MAX_ID)]
Rle = Annotated[str, Field(pattern=rf"^({EXCLUDED}|[01?]x\d{{1,9}}( [01?]x\d{{1,9}})*)$")]  # `FrameAnnotation.rle`


class Edit(Config):
    """One change, with what is needed to undo and redo it."""

    episode: EpisodeId
    frame: NonNegativeInt  # the cursor's position
    before: Rle | None  # the draft; None: there was none
    after: Rle | None  # None: completed, the draft has become a label
    what: str  # for people


class DraftState(Config):
    """The contents of a session's file."""

    by: str  # who labels
    last: EpisodeId | None = None  # the episode that is open
    frames: dict[EpisodeId, NonNegativeInt] = Field(default_factory=dict)  # episode -> the cursor's position
    drafts: dict[EpisodeId, Rle] = Field(default_factory=dict)
    done: tuple[Edit, ...] = ()
    undone: tuple[Edit, ...] = ()


class DraftStore:
    """One session's drafts, on disk. Open with `DraftStore.open`."""

    def __init__(self, folder: Folder, key: str, lock: IO[str], state: DraftState):
        """Not for users: see `open`."""
        self.path = folder.path / f"{key}.json"
        self.state = state
        self.saved: float | None = None  # when a change was last written, seconds since 1970
        self.key = key  # of this session among those of the store
        self._folder, self._lock = folder, lock
        self._defers = False

    @classmethod
    def open(cls, store: Path, name: str = "") -> Self:
        """Continue with the drafts that this person left in a store, or start without any."""
        with disk_errors(store, "drafts cannot be kept there"):
            with suppress(FileExistsError):
                Folder(store).mkdir("drafts")
            if not Folder(store).is_folder("drafts"):  # drafts stay inside the store
                raise ForeignFile(
                    f"{store / 'drafts'} is not a folder of this store (it may be a link); remove it to label here"
                )
            folder = Folder(store / "drafts")
            earlier: list[Self] = []
            for key in _keys(folder.path):
                lock = _try_lock(folder, key)
                if lock is None:  # open elsewhere
                    continue
                state = _read(folder, key)
                if state is not None and state.by == name:
                    earlier.append(cls(folder, key, lock, state))
                else:
                    _release_lock(folder, key, lock)
            if not earlier:
                key = uuid.uuid4().hex[:8]
                lock = _try_lock(folder, key)
                assert lock is not None  # the key is new
                drafts = cls(folder, key, lock, DraftState(by=name))
                drafts._save(drafts.state)
                return drafts
        *others, newest = sorted(earlier, key=lambda drafts: drafts.path.stat().st_mtime)
        for other in others:
            newest._merge(other)
        return newest

    def change(self, episode: int, frame: int, after: str | None, what: str) -> None:
        """Set an episode's draft. after: None: it was completed"""
        before = self.state.drafts.get(episode)
        edit = Edit(episode=episode, frame=frame, before=before, after=after, what=what)
        self._put(edit, after, (*self.state.done, edit), ())

    def undo(self) -> Edit | None:
        """Undo the last change; None if there is none."""
        if not self.state.done:
            return None
        *done, edit = self.state.done
        return self._put(edit, edit.before, tuple(done), (*self.state.undone, edit))

    def redo(self) -> Edit | None:
        """Redo the last undone change; None if there is none."""
        if not self.state.undone:
            return None
        *undone, edit = self.state.undone
        return self._put(edit, edit.after, (*self.state.done, edit), tuple(undone))

    def at(self, episode: int, frames: dict[int, int]) -> None:
        """Which episode is open, and the cursor's position in it and in the one before."""
        self._save(self.state.model_copy(update={"last": episode, "frames": self.state.frames | frames}))

    def forget(self, episode: int) -> None:
        """Drop the draft and the history of an episode that is no longer in the store."""
        state = self.state
        update = {
            "drafts": {i: draft for i, draft in state.drafts.items() if i != episode},
            "done": tuple(edit for edit in state.done if edit.episode != episode),
            "undone": tuple(edit for edit in state.undone if edit.episode != episode),
        }
        self._save(state.model_copy(update=update))

    def locked_by_others(self, known: Collection[str] = ()) -> set[int]:
        """The episodes that other sessions on this store have open now, except sessions with these keys."""
        taken = set()
        for key in _live_keys(self._folder, {self.key, *known}):
            with suppress(StoreError):  # damaged: its owner gets the error
                state = _read(self._folder, key)
                if state is not None and state.last is not None:
                    taken.add(state.last)
        return taken

    def close(self) -> None:
        """Close the file; remove it if it has no drafts."""
        if self._lock.closed:
            return
        if not self.state.drafts:
            self.path.unlink(missing_ok=True)
        _release_lock(self._folder, self.key, self._lock)

    @contextmanager
    def written_once(self) -> Iterator[None]:
        """Several changes with one write, at the end. If it fails, none of them was made."""
        before, self._defers = self.state, True
        try:
            yield
        finally:
            self._defers, changed = False, self.state
            self.state = before
            if changed is not before:
                self._save(changed)

    def _put(self, edit: Edit, text: str | None, done: tuple[Edit, ...], undone: tuple[Edit, ...]) -> Edit:
        drafts = {i: draft for i, draft in self.state.drafts.items() if i != edit.episode}
        if text is not None:
            drafts[edit.episode] = text
        frames = self.state.frames | {edit.episode: edit.frame}
        update = {"drafts": drafts, "frames": frames, "done": done, "undone": undone}
        self._save(self.state.model_copy(update=update))
        self.saved = time.time()
        return edit

    def _save(self, state: DraftState) -> None:
        if self._defers:
            self.state = state
            return
        with defer_signals(), disk_errors(self.path.parent, "this change was not saved and not made"):
            self._folder.write(self.path.name, state.model_dump_json().encode())
            self.state = state

    def _merge(self, other: Self) -> None:
        """Add the drafts of another session. If both have one of an episode, ours counts; undo gives theirs."""
        for episode, theirs in other.state.drafts.items():
            ours = self.state.drafts.get(episode)
            for text in (theirs,) if ours is None else (theirs, ours):
                self.change(episode, other.state.frames.get(episode, 0), text, "a draft of an earlier session")
        other.path.unlink()
        other.close()


def is_being_labeled(store: Path) -> bool:
    """Whether a session is open on a store, in any process of this machine."""
    folder = store / "drafts"
    return folder.is_dir() and any(True for _ in _live_keys(Folder(folder)))


def _keys(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.json"))


def _live_keys(folder: Folder, known: Collection[str] = ()) -> Iterator[str]:
    """The sessions that are open now, except those with these keys."""
    for key in (key for key in _keys(folder.path) if key not in known):
        lock = _try_lock(folder, key)
        if lock is None:
            yield key
        else:
            _release_lock(folder, key, lock)


def _read(folder: Folder, key: str) -> DraftState | None:
    """None: the session has just ended and removed its file."""
    try:
        return DraftState.model_validate_json(folder.read(f"{key}.json", MAX_BYTES), strict=True)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        reason = without_prefix(error.errors()[0]["msg"])
        raise StoreDamaged(
            f"{folder.path / key}.json is not a draft ({reason}); move the file away and go on"
        ) from error


def _try_lock(folder: Folder, key: str) -> IO[str] | None:
    file = os.fdopen(folder.open(f"{key}.lock", os.O_RDWR | os.O_CREAT), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _release_lock(folder: Folder, key: str, lock: IO[str]) -> None:
    """A lock is removed after its drafts: drafts without a lock would look abandoned."""
    if not (folder.path / f"{key}.json").exists():
        (folder.path / f"{key}.lock").unlink(missing_ok=True)
    lock.close()
