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

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

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
    end: int | None = None  # the other; None: the current frame

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


@dataclass(frozen=True, eq=False)
class LabelTrace:
    """The newest label of one source."""

    source: str  # "classifier", "vlm", "human", ...
    annotation: FrameAnnotation
    curve: FloatArray | None  # [F] P(success) of each recorded frame; None where it gave none
    threshold: float | None
    time: float  # seconds since 1970
    remark: str  # for people
    progress: FloatArray | None = None  # [F] how far each recorded frame is; None where it does not measure that


@dataclass
class OpenEpisodes:
    """The episodes that the sessions of one process have open in a store.

    Two people who complete an episode at once get different ones, and no session reads the files of the others.
    """

    sessions: dict[str, int | None] = field(default_factory=dict)  # by the key of its drafts
    guard: threading.Lock = field(default_factory=threading.Lock)


class Session:
    """Open with `Session.open`; use as a context manager."""

    def __init__(self, store: Store, drafts: DraftStore, order: QueueOrder, name: str, beside: OpenEpisodes):
        """Not for users: see `open`."""
        self.store, self.drafts, self.name, self._beside = store, drafts, name, beside
        self.queue = Queue(store, order, lambda episode_id: episode_id in drafts.state.drafts, name)
        self.episode_id: int | None = None  # what is open; None when nothing is left
        self.episode: Episode | None = None
        self.annotation = FrameAnnotation.unlabeled(0)
        self.cursor = Cursor(0)
        self.status = ""  # what the last action did, for people
        self.completed = 0  # in this session

    @classmethod
    def open(
        cls,
        store: str | Path | Store,
        *,
        order: QueueOrder = "unlabeled",
        name: str = "",
        beside: OpenEpisodes | None = None,
    ) -> Self:
        """
        store: its folder; or an open store, which may be shared with other threads
        order: which episodes come first (queue.py)
        name: who labels; labels are kept with it, and drafts belong to it
        beside: shared by the sessions of this process on this store
        """
        opened = store if isinstance(store, Store) else Store.open(store)
        session = cls(opened, DraftStore.open(opened.folder, name), order, name, beside or OpenEpisodes())
        session._find_drafts()
        return session

    def close(self) -> None:
        """Save the cursor's position and release the episode for other sessions."""
        if self.episode_id is not None:
            with suppress(StoreError):  # on a full disk, the position of the last change stays
                self.drafts.at(self.episode_id, {self.episode_id: self.cursor.frame})
        self.drafts.close()
        self._beside.sessions.pop(self.drafts.key, None)
        self.episode_id = self.episode = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def repeats(self) -> bool:
        """Whether the person labels the open episode a second time; its earlier label is then hidden."""
        return self.queue.order == "repeat" and self.episode_id is not None and self.queue.needs_label(self.episode_id)

    def label(self, success: bool) -> None:
        """0 or 1 for the marked range, else for the current frame."""
        first, last = self.cursor.selection or (self.cursor.frame, self.cursor.frame)
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
        """No learner should use it: a broken camera, a person in the way."""
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
            advice = "mark where it succeeds (S), that it fails (F), or exclude it (X)"
            raise DataError(f"nothing is labeled in episode {episode_id} yet: {advice}")
        self.poll()
        if self.episode_id != episode_id:  # evicted meanwhile, which the message says
            return
        labels = self.annotation.labels(episode, self.name, repeat=self.repeats)
        self.store.ledger.append(episode_id, labels)
        summary = self.annotation.summary
        with self.drafts.written_once():
            self.drafts.change(episode_id, self.cursor.frame, None, "completed")
            self.completed += 1
            self._open_next()
        self.status = f"episode {episode_id} is labeled: {summary}"

    def open_episode(self, episode_id: int, frame: int | None = None) -> None:
        """Open an episode, at a frame or at its last position."""
        episode = self.store.episode(episode_id)
        left = {} if self.episode_id is None else {self.episode_id: self.cursor.frame}
        moved = episode_id != self.episode_id
        self.cursor = Cursor(len(range(episode.steps + 1)[episode.observed]))
        self.cursor.seek(self.drafts.state.frames.get(episode_id, 0) if frame is None else frame)
        self.episode_id, self.episode = episode_id, episode
        self._beside.sessions[self.drafts.key] = episode_id
        labels = self.store.ledger.labels(episode_id, (SOURCE,))
        if (draft := self.drafts.state.drafts.get(episode_id)) is not None:
            self.annotation = FrameAnnotation.from_rle(draft, self.cursor.count)
        elif labels is not None and labels.steps == episode.steps and not self.repeats:
            self.annotation = FrameAnnotation.from_labels(episode, labels)
        else:
            self.annotation = FrameAnnotation.unlabeled(self.cursor.count)
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
        """Pick up what was added to the store and the ledger; False if nothing was."""
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
        """The newest label of each source for the open episode, the newest first."""
        if self.episode_id is None or self.episode is None or self.repeats:
            return []
        observed = self.episode.observed
        newest = {version.source: version for version in self.store.ledger.history(self.episode_id)}
        traces = []
        for version in sorted(newest.values(), key=lambda v: v.time, reverse=True):
            labels = version.labels()
            if labels.steps != self.episode.steps:  # of another episode; `plaudit data check` reports it
                continue
            curve = progress = None
            if labels.scores is not None:
                curve, progress = labels.frame_probs[observed], labels.scores.progress
            trace = LabelTrace(
                source=labels.judge.source,
                annotation=FrameAnnotation.from_labels(self.episode, labels),
                curve=None if curve is None or np.isnan(curve).all() else curve,
                threshold=threshold_of(labels.judge),
                time=labels.time,
                remark=labels.remark,
                progress=None if progress is None else progress[observed],
            )
            traces.append(trace)
        return traces

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
        following = self._choose(lambda taken: self.queue.next_episode(self.episode_id, taken))
        self.episode_id = self.episode = None
        self.annotation, self.cursor = FrameAnnotation.unlabeled(0), Cursor(0)
        if following is not None:
            self.open_episode(following)

    def open_if_free(self, episode_id: int) -> None:
        """Open an episode unless another session has it open or it was evicted."""
        if self._choose(lambda taken: self.episode_id if episode_id in taken else episode_id) == episode_id:
            with suppress(EpisodeNotFound):
                self.open_episode(episode_id)

    def _choose(self, choose: Callable[[Collection[int]], int | None]) -> int | None:
        """Choose an episode, given those that other sessions have open, and reserve it."""
        key, sessions = self.drafts.key, self._beside.sessions
        elsewhere = self.drafts.locked_by_others(set(sessions))
        with self._beside.guard:
            self.queue.update()  # another session may have completed an episode just now
            taken = elsewhere | {i for other, i in sessions.items() if other != key and i is not None}
            sessions[key] = choose(taken)
            return sessions[key]

    def _show_change(self, step: Edit, message: str) -> None:
        try:
            self.open_episode(step.episode, step.frame)
            self.status = message
        except EpisodeNotFound:
            self.drafts.forget(step.episode)
            self.status = f"that was in episode {step.episode}, which is no longer in the store"

    def _find_drafts(self) -> None:
        """Continue where the last session ended. Drops drafts of episodes that are gone, and drafts that became a label
        right before a crash."""
        for episode_id, text in self.drafts.state.drafts.items():
            try:
                episode = self.store.episode(episode_id)
            except EpisodeNotFound:
                self.drafts.forget(episode_id)
                continue
            labels = self.store.ledger.labels(episode_id, (SOURCE,))
            if labels is None:
                continue
            is_newest = self.queue.order != "repeat" or (labels.labeler is not None and labels.labeler.repeat)
            if is_newest and FrameAnnotation.from_labels(episode, labels).rle == text:
                self.drafts.change(episode_id, self.drafts.state.frames.get(episode_id, 0), None, "completed")
        last, drafts = self.drafts.state.last, self.drafts.state.drafts
        if drafts:
            self.open_episode(last if last in drafts else next(reversed(drafts)))
            self.status = f"{len(drafts)} drafts were found again" if len(drafts) > 1 else "your draft was found again"
        else:
            self._open_next()


@dataclass(frozen=True)
class Action:
    """An action of the labeler; its button shows the first key."""

    name: str
    keys: tuple[str, ...]  # as Qt writes them, letters large
    description: str  # the part before a colon is the title of its button
    do: Callable[[Session], None] | None = None  # None: only a window can, it is about time or about the window itself
    repeats: bool = False  # goes on for as long as the key is held

    @property
    def title(self) -> str:
        """Text of the button."""
        return self.description.partition(":")[0].capitalize()


NAVIGATE = (
    Action("back", ("Left",), "one frame back", lambda s: s.cursor.step(-1), repeats=True),
    Action("forward", ("Right",), "one frame on", lambda s: s.cursor.step(1), repeats=True),
    Action("back_10", ("Shift+Left",), "ten frames back", lambda s: s.cursor.step(-10), repeats=True),
    Action("forward_10", ("Shift+Right",), "ten frames on", lambda s: s.cursor.step(10), repeats=True),
    Action("first", ("Home",), "first frame", lambda s: s.cursor.seek(0)),
    Action("last", ("End",), "last frame", lambda s: s.cursor.seek(s.cursor.count - 1)),
    Action("play", ("Space",), "play: or pause"),
    Action("slower", ("-",), "slower"),
    Action("faster", ("+", "="), "faster"),
)
LABEL = (
    Action("label_failure", ("0",), "mark failure: this frame, or the range", lambda s: s.label(False)),
    Action("label_success", ("1",), "mark success: this frame, or the range", lambda s: s.label(True)),
    Action("success_from_here", ("S",), "success from here: none before", lambda s: s.success_from_here()),
    Action("start_selection", ("I", "["), "range from: it begins here", lambda s: s.cursor.start_selection()),
    Action("end_selection", ("O", "]"), "range to: it ends here", lambda s: s.cursor.end_selection()),
    Action("clear_selection", ("Esc",), "forget the range", lambda s: s.cursor.clear_selection()),
    Action("fail", ("F",), "no success: in the whole episode", lambda s: s.fail()),
    Action("exclude", ("X",), "exclude: not used for training", lambda s: s.exclude()),
    Action("clear", ("C",), "clear: nothing is labeled", lambda s: s.clear()),
)
SESSION = (
    Action("complete", ("Return", "Enter"), "complete: write the label, go on", lambda s: s.complete()),
    Action("undo", ("Z", "Ctrl+Z"), "undo: a Complete too", lambda s: s.undo(), repeats=True),
    Action("redo", ("Y", "Ctrl+Y", "Ctrl+Shift+Z"), "redo", lambda s: s.redo(), repeats=True),
    Action("next", ("PgDown", "N"), "next in the queue, as a draft", lambda s: s.move(1)),
    Action("previous", ("PgUp", "P"), "previous in the queue", lambda s: s.move(-1)),
    Action("help", ("?", "F1"), "keys: show or hide them"),
)
GROUPS = {"Navigate": NAVIGATE, "Label": LABEL, "Session": SESSION}
ACTIONS = {action.name: action for group in GROUPS.values() for action in group}
BY_KEY = {key: action for action in ACTIONS.values() for key in action.keys}


def replay_actions(session: Session, script: str) -> None:
    """Repeat a key script. Keys that only a window has are skipped."""
    for token in script.split():
        kind, number = token[0], token[1:]
        if kind in "@=" and number.isdigit():
            (session.cursor.seek if kind == "@" else session.open_episode)(int(number))
        elif token not in BY_KEY:
            raise DataError(f"the key script says '{token}', which is not a key name; {did_you_mean(token, BY_KEY)}")
        elif (do := BY_KEY[token].do) is not None:
            do(session)


class ActionLog:
    """Does the actions of a session and writes them as a key script, each into the file as soon as it is done."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._left_at: tuple[int | None, int] = (None, 0)  # where the last key led to

    def do(self, session: Session, action: Action) -> None:
        """Do one action of a session. A failed one is not written."""
        assert action.do is not None
        position = (session.episode_id, session.cursor.frame)
        action.do(session)
        if position[0] is None:
            return
        place = ""
        if position[0] != self._left_at[0]:
            place = f"={position[0]} @{position[1]} "
        elif position != self._left_at:
            place = f"@{position[1]} "
        self._file.write(place + action.keys[0] + ("\n" if action.name == "complete" else " "))
        self._file.flush()
        self._left_at = (session.episode_id, session.cursor.frame)

    def close(self) -> None:
        self._file.close()
