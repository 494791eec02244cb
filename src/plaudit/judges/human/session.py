"""A labeling session: the open episode, the cursor, and what each edit does. No Qt, no clock.

    session = Session.open("store", name="lab")
    while session.episode is not None:
        session.cursor.seek(53)
        session.success_from_here()     # on disk when it returns; session.undo() reverts it
        session.complete()              # adds one version to the ledger and opens the next episode

The window (window.py) draws a session and calls these methods. The store is opened for reading, so a robot can keep
recording into it. `poll` picks up what was added.

`ACTIONS` lists everything that a person can do, with its keys. The window, its help and key scripts use this table. A
key script is text: key names, and the cursor position where it was not reached by keys.

    =3 @0                      episode 3 is open, at its frame 0
    Shift+Right Right S Return

The window writes a script (`ActionLog`). `replay_actions` repeats it without a window. A script does not depend on
time: playing and dragging are recorded as the position they led to.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import DataError, EpisodeNotFound, StoreError, did_you_mean
from plaudit.judges.human.drafts import SOURCE, DraftStore, Edit, FrameAnnotation
from plaudit.judges.human.queue import Queue, QueueOrder
from plaudit.rule import threshold_of
from plaudit.types import Episode, FloatArray


@dataclass
class Cursor:
    """Where a person stands in an episode of `count` recorded frames, and the range they have marked."""

    count: int
    frame: int = 0
    mark: int | None = None  # one end of the range
    end: int | None = None  # the other; None: wherever one stands

    def seek(self, frame: int) -> None:
        self.frame = max(min(frame, self.count - 1), 0)

    def step(self, by: int) -> None:
        self.seek(self.frame + by)

    def start_selection(self) -> None:
        self.mark, self.end = self.frame, None

    def end_selection(self) -> None:
        """Without a start, the range is this frame."""
        self.mark, self.end = self.frame if self.mark is None else self.mark, self.frame

    def clear_selection(self) -> None:
        self.mark = self.end = None

    @property
    def selection(self) -> tuple[int, int] | None:
        """First and last frame of the marked range."""
        if self.mark is None:
            return None
        first, last = sorted((self.mark, self.frame if self.end is None else self.end))
        return first, last

    @property
    def selected_range(self) -> tuple[int, int]:
        """The frames that 0 and 1 label: the marked range, else the current frame."""
        return self.selection or (self.frame, self.frame)


@dataclass(frozen=True, eq=False)
class LabelTrace:
    """The newest label of one source."""

    source: str  # "classifier", "vlm", "human", ...
    annotation: FrameAnnotation
    curve: FloatArray | None  # [F] P(success) of each recorded frame; None where it gave none
    threshold: float | None
    time: float  # seconds since 1970
    note: str
    progress: FloatArray | None = None  # [F] how far each recorded frame is; None where it does not measure that


def load_existing_labels(ledger: Ledger, episode_id: int, episode: Episode) -> list[LabelTrace]:
    """The newest first."""
    newest = {version.source: version for version in ledger.history(episode_id)}
    found = []
    for version in sorted(newest.values(), key=lambda v: v.time, reverse=True):
        labels = version.labels()
        if labels.steps != episode.steps:  # not of this episode; `plaudit data check` says so
            continue
        curve = None if labels.scores is None else labels.frame_probs[episode.observed]
        if curve is not None and np.isnan(curve).all():
            curve = None
        annotation = FrameAnnotation.from_labels(episode, labels)
        measured = None if labels.scores is None else labels.scores.progress
        found.append(
            LabelTrace(
                labels.judge.source,
                annotation,
                curve,
                threshold_of(labels.judge),
                labels.time,
                labels.note,
                None if measured is None else measured[episode.observed],
            )
        )
    return found


class Session:
    """Open with `Session.open`; use as a context manager."""

    def __init__(self, store: Store, drafts: DraftStore, order: QueueOrder, name: str):
        """Not for users: see `open`."""
        self.store, self.drafts, self.name = store, drafts, name
        self.queue = Queue(store, order, drafts.history.drafts)
        self.episode_id: int | None = None  # what is open; None when nothing is left
        self.episode: Episode | None = None
        self.annotation = FrameAnnotation.unlabeled(0)
        self.cursor = Cursor(0)
        self.status = ""  # what the last act did, in words
        self.completed = 0  # in this session

    @classmethod
    def open(cls, folder: str | Path, *, order: QueueOrder = "unlabeled", name: str = "") -> Self:
        """
        order: which episodes come first (queue.py)
        name: who labels; it stands in the labels' notes, and finds one's own drafts again
        """
        store = Store.open(folder)
        session = cls(store, DraftStore.open(store.folder, name), order, name)
        session._find_drafts()
        return session

    def close(self) -> None:
        """Nothing is lost by not calling it; it keeps where one stands, and lets others have the episode."""
        if self.episode_id is not None:
            with suppress(StoreError):  # a full disk: one will stand where the last change was made
                self.drafts.at(self.episode_id, {self.episode_id: self.cursor.frame})
        self.drafts.close()
        self.episode_id = self.episode = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def label(self, success: bool) -> None:
        """0 or 1 for the marked range, else for the frame one stands at."""
        first, last = self.cursor.selected_range
        where = f"frame {first}" if first == last else f"frames {first} to {last}"
        self._edit(self.annotation.set_range(first, last, float(success)), f"{where}: {int(success)}")
        self.cursor.clear_selection()

    def success_from_here(self) -> None:
        """This frame and all later ones show success, those before do not."""
        frame = self.cursor.frame
        self._edit(self.annotation.success_from(frame), f"success from frame {frame}")

    def fail(self) -> None:
        self._edit(self.annotation.all_failure(), "no frame shows success")

    def exclude(self) -> None:
        """Nobody should learn from it: a broken camera, a person in the way."""
        self._edit(self.annotation.as_excluded(), "excluded")

    def clear(self) -> None:
        self._edit(FrameAnnotation.unlabeled(self.cursor.count), "cleared")

    def undo(self) -> None:
        """Take the last change back, in whichever episode it was made."""
        step = self.drafts.undo()
        if step is None:
            self.status = "there is nothing to undo"
            return
        again = f"episode {step.episode} is open again; its label counts until it is completed anew"
        self._show_change(step, again if step.after is None else f"undone: {step.what}")

    def redo(self) -> None:
        step = self.drafts.redo()
        if step is None:
            self.status = "there is nothing to redo"
            return
        self._show_change(step, f"done again: {step.what}")

    def complete(self) -> None:
        """Write the annotation to the ledger and go on to the next episode."""
        episode_id, episode = self._current()
        if self.annotation.num_unlabeled == self.cursor.count and not self.annotation.excluded:
            raise DataError(
                f"nothing is labeled in episode {episode_id} yet: mark where it succeeds (S), that it fails (F), or "
                "exclude it (X)"
            )
        self.poll()
        if self.episode_id != episode_id:  # evicted meanwhile, which the message says
            return
        self.store.ledger.append(episode_id, self.annotation.labels(episode, self.name))
        self.drafts.change(episode_id, self.cursor.frame, None, "completed")
        self.completed += 1
        self.queue.update()
        summary = self.annotation.summary
        self._open_next()
        self.status = f"episode {episode_id} is labeled: {summary}"

    def open_episode(self, episode_id: int, frame: int | None = None) -> None:
        """Open an episode, at a frame or where one stood in it last."""
        frames = self.drafts.history.frames
        episode = self.store.episode(episode_id)
        left = {} if self.episode_id is None else {self.episode_id: self.cursor.frame}
        moved = episode_id != self.episode_id
        self.cursor = Cursor(len(range(episode.steps + 1)[episode.observed]))
        self.cursor.seek(frames.get(episode_id, 0) if frame is None else frame)
        self.episode_id, self.episode = episode_id, episode
        self.annotation = self._annotation_of(episode_id, episode)
        self.status = ""
        if moved:
            self.drafts.at(episode_id, left | {episode_id: self.cursor.frame})

    def move(self, by: int) -> None:
        """To a neighbor in the queue, without completing; changes so far stay as a draft."""
        neighbor = self.queue.neighbor(self.episode_id, by)
        if neighbor is None:
            self.status = "this is the last episode" if by > 0 else "this is the first episode"
        else:
            self.open_episode(neighbor)

    def poll(self) -> bool:
        """See what came into the store and the ledger; False for nothing, which costs two reads of no bytes."""
        self.store.refresh()
        self.store.ledger.refresh()
        if not self.queue.update():
            return False
        gone = self.episode_id
        if gone is not None and gone not in self.queue.rows:
            self.drafts.forget(gone)
            self._open_next()
            self.status = f"episode {gone} was removed from the store while it was open, and its draft with it"
        elif gone is None:
            self._open_next()
            self.status = "a new episode has arrived" if self.episode_id is not None else ""
        return True

    def existing_labels(self) -> list[LabelTrace]:
        """The newest label of each source for the open episode."""
        if self.episode_id is None or self.episode is None:
            return []
        return load_existing_labels(self.store.ledger, self.episode_id, self.episode)

    def _edit(self, annotation: FrameAnnotation, what: str) -> None:
        episode_id, _ = self._current()
        self.drafts.change(episode_id, self.cursor.frame, annotation.rle, what)
        self.annotation = annotation
        self.status = what

    def _current(self) -> tuple[int, Episode]:
        if self.episode_id is None or self.episode is None:
            raise DataError("no episode is open; new ones appear here as they are recorded")
        return self.episode_id, self.episode

    def _open_next(self) -> None:
        """On to the next episode that is left, or to none."""
        following = self.queue.next_episode(self.episode_id, self.drafts.locked_by_others())
        self.episode_id = self.episode = None
        self.annotation, self.cursor = FrameAnnotation.unlabeled(0), Cursor(0)
        if following is not None:
            self.open_episode(following)

    def _show_change(self, step: Edit, message: str) -> None:
        try:
            self.open_episode(step.episode, step.frame)
            self.status = message
        except EpisodeNotFound:
            self.drafts.forget(step.episode)
            self.status = f"that was in episode {step.episode}, which is no longer in the store"

    def _annotation_of(self, episode_id: int, episode: Episode) -> FrameAnnotation:
        """The draft, else the human label, else nothing."""
        draft = self.drafts.history.drafts.get(episode_id)
        if draft is not None:
            return FrameAnnotation.from_rle(draft, self.cursor.count)
        labels = self.store.ledger.labels(episode_id, (SOURCE,))
        if labels is None or labels.steps != episode.steps:
            return FrameAnnotation.unlabeled(self.cursor.count)
        return FrameAnnotation.from_labels(episode, labels)

    def _find_drafts(self) -> None:
        """Begin where the last session ended. Drafts of episodes that are gone go too, and so do those that had become
        a label when a crash came before they were crossed out."""
        history = self.drafts.history
        for episode_id, text in list(history.drafts.items()):
            try:
                episode = self.store.episode(episode_id)
            except EpisodeNotFound:
                self.drafts.forget(episode_id)
                continue
            labels = self.store.ledger.labels(episode_id, (SOURCE,))
            if labels is not None and FrameAnnotation.from_labels(episode, labels).rle == text:
                self.drafts.change(episode_id, history.frames.get(episode_id, 0), None, "completed")
        found = len(history.drafts)
        if found:
            self.open_episode(history.last if history.last in history.drafts else next(reversed(history.drafts)))
            self.status = f"{found} drafts were found again" if found > 1 else "your draft was found again"
        else:
            self._open_next()


@dataclass(frozen=True)
class Action:
    """Something to do; the first of its keys is the one on its button."""

    name: str
    keys: tuple[str, ...]  # as Qt writes them, letters large
    description: str
    do: Callable[[Session], None] | None = None  # None: only a window can, it is about time or about the window itself
    repeats: bool = False  # goes on for as long as the key is held


NAVIGATE = (
    Action("back", ("Left",), "one frame back", lambda s: s.cursor.step(-1), repeats=True),
    Action("forward", ("Right",), "one frame on", lambda s: s.cursor.step(1), repeats=True),
    Action("back_10", ("Shift+Left",), "ten frames back", lambda s: s.cursor.step(-10), repeats=True),
    Action("forward_10", ("Shift+Right",), "ten frames on", lambda s: s.cursor.step(10), repeats=True),
    Action("first", ("Home",), "first frame", lambda s: s.cursor.seek(0)),
    Action("last", ("End",), "last frame", lambda s: s.cursor.seek(s.cursor.count - 1)),
    Action("play", ("Space",), "play, pause"),
    Action("slower", ("-",), "slower"),
    Action("faster", ("+", "="), "faster"),
)
LABEL = (
    Action("label_failure", ("0",), "no success: this frame, or the range", lambda s: s.label(False)),
    Action("label_success", ("1",), "success: this frame, or the range", lambda s: s.label(True)),
    Action("success_from_here", ("S",), "success from here on, none before", lambda s: s.success_from_here()),
    Action("start_selection", ("I", "["), "a range begins here", lambda s: s.cursor.start_selection()),
    Action("end_selection", ("O", "]"), "a range ends here", lambda s: s.cursor.end_selection()),
    Action("clear_selection", ("Esc",), "forget the range", lambda s: s.cursor.clear_selection()),
    Action("fail", ("F",), "the whole episode fails", lambda s: s.fail()),
    Action("exclude", ("X",), "exclude: nobody learns from it", lambda s: s.exclude()),
    Action("clear", ("C",), "clear: nothing is labeled", lambda s: s.clear()),
)
SESSION = (
    Action("complete", ("Return", "Enter"), "complete: write the label, go on", lambda s: s.complete()),
    Action("undo", ("Z", "Ctrl+Z"), "undo, a Complete too", lambda s: s.undo(), repeats=True),
    Action("redo", ("Y", "Ctrl+Y", "Ctrl+Shift+Z"), "redo", lambda s: s.redo(), repeats=True),
    Action("next", ("PgDown", "N"), "next in the queue, as a draft", lambda s: s.move(1)),
    Action("previous", ("PgUp", "P"), "previous in the queue", lambda s: s.move(-1)),
    Action("help", ("?", "F1"), "show or hide the keys"),
)
GROUPS = {"Navigate": NAVIGATE, "Label": LABEL, "Session": SESSION}
ACTIONS = {action.name: action for group in GROUPS.values() for action in group}
BY_KEY = {key: action for action in ACTIONS.values() for key in action.keys}


def replay_actions(session: Session, script: str) -> None:
    """Do what a script says."""
    for token in script.split():
        _action_of(token)(session)


def _action_of(token: str) -> Callable[[Session], None]:
    kind, number = token[0], token[1:]
    if kind == "@" and number.isdigit():
        return lambda session: session.cursor.seek(int(number))
    if kind == "=" and number.isdigit():
        return lambda session: session.open_episode(int(number))
    if token not in BY_KEY:
        raise DataError(f"the key script says '{token}', which no key is called; {did_you_mean(token, BY_KEY)}")
    return BY_KEY[token].do or _only_in_a_window


def _only_in_a_window(_: Session) -> None: ...


class ActionLog:
    """Writes a script of what is done to a session, key by key, and each is in the file when it has been done."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._left_at: tuple[int | None, int] | None = None  # where the last key led to

    @contextmanager
    def key(self, session: Session, action: Action) -> Iterator[None]:
        """Around the doing of it; what fails is not written."""
        if action.do is None or session.episode_id is None:
            yield
            return
        position = (session.episode_id, session.cursor.frame)
        place = ""
        if self._left_at is None or position[0] != self._left_at[0]:
            place = f"={position[0]} @{position[1]} "
        elif position != self._left_at:
            place = f"@{position[1]} "
        yield
        self._file.write(place + action.keys[0] + ("\n" if action.name == "complete" else " "))
        self._file.flush()
        self._left_at = (session.episode_id, session.cursor.frame)

    def close(self) -> None:
        self._file.close()
