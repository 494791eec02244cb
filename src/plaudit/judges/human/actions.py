"""What a person can do, with the keys for it: one table for the window, its help, and scripts. No Qt.

A key script is text: keys by the names below, and where one stood when that was not reached by keys.

    =3 @0                      episode 3 is open, at its frame 0
    Shift+Right Right S Return

The window writes one (`ActionLog`) and `replay_actions` does the same again without a window: labeling that can be
repeated and looked into. Playing, dragging and choosing from the list leave no keys but the place they led to, so a
script does not depend on anyone's clock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plaudit.errors import DataError, did_you_mean
from plaudit.judges.human.session import Session


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
