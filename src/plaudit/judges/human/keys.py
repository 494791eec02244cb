"""What a person can do, with the keys for it: one table for the window, its help, and scripts. No Qt.

A key script is text: keys by the names below, and where one stood when that was not reached by keys.

    =3 @0                      episode 3 is open, at its frame 0
    Shift+Right Right S Return

The window writes one (`KeyLog`) and `replay` does the same again without a window: a labelling that can be repeated and
looked into. Playing, dragging and choosing from the list leave no keys but the place they led to, so a script does
not depend on anyone's clock.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from plaudit.errors import DataError, did_you_mean
from plaudit.judges.human.session import Session


@dataclass(frozen=True)
class Act:
    """Something to do. The first of its keys is the one on its button."""

    name: str
    keys: tuple[str, ...]  # as Qt writes them, letters large
    words: str
    do: Callable[[Session], None] | None = None  # None: only a window can, it is about time or about the window itself
    repeats: bool = False  # goes on for as long as the key is held


LOOK = (
    Act("back", ("Left",), "one frame back", lambda s: s.cursor.step(-1), repeats=True),
    Act("forward", ("Right",), "one frame on", lambda s: s.cursor.step(1), repeats=True),
    Act("back_ten", ("Shift+Left",), "ten frames back", lambda s: s.cursor.step(-10), repeats=True),
    Act("forward_ten", ("Shift+Right",), "ten frames on", lambda s: s.cursor.step(10), repeats=True),
    Act("first", ("Home",), "first frame", lambda s: s.cursor.go(0)),
    Act("last", ("End",), "last frame", lambda s: s.cursor.go(s.cursor.count - 1)),
    Act("play", ("Space",), "play, pause"),
    Act("slower", ("-",), "slower"),
    Act("faster", ("+", "="), "faster"),
)
JUDGE = (
    Act("zero", ("0",), "no success: this frame, or the range", lambda s: s.judge(False)),
    Act("one", ("1",), "success: this frame, or the range", lambda s: s.judge(True)),
    Act("from_here", ("S",), "success from here on, none before", lambda s: s.success_from_here()),
    Act("mark_start", ("I", "["), "a range begins here", lambda s: s.cursor.mark_start()),
    Act("mark_end", ("O", "]"), "a range ends here", lambda s: s.cursor.mark_end()),
    Act("unmark", ("Esc",), "forget the range", lambda s: s.cursor.unmark()),
    Act("fail", ("F",), "the whole episode fails", lambda s: s.fail()),
    Act("exclude", ("X",), "exclude: nobody learns from it", lambda s: s.exclude()),
    Act("clear", ("C",), "clear: nothing is judged", lambda s: s.clear()),
)
GO_ON = (
    Act("complete", ("Return", "Enter"), "complete: write the label, go on", lambda s: s.complete()),
    Act("undo", ("Z", "Ctrl+Z"), "undo, a Complete too", lambda s: s.undo(), repeats=True),
    Act("redo", ("Y", "Ctrl+Y", "Ctrl+Shift+Z"), "redo", lambda s: s.redo(), repeats=True),
    Act("next", ("PgDown", "N"), "next in the queue, as a draft", lambda s: s.turn(1)),
    Act("previous", ("PgUp", "P"), "previous in the queue", lambda s: s.turn(-1)),
    Act("help", ("?", "F1"), "show or hide the keys"),
)
GROUPS = {"Look": LOOK, "Judge": JUDGE, "Go on": GO_ON}
ACTS = {act.name: act for acts in GROUPS.values() for act in acts}
BY_KEY = {key: act for act in ACTS.values() for key in act.keys}


def replay(session: Session, script: str) -> None:
    """Do what a script says."""
    for token in script.split():
        _act_of(token)(session)


def _act_of(token: str) -> Callable[[Session], None]:
    kind, number = token[0], token[1:]
    if kind == "@" and number.isdigit():
        return lambda session: session.cursor.go(int(number))
    if kind == "=" and number.isdigit():
        return lambda session: session.show(int(number))
    if token not in BY_KEY:
        raise DataError(f"the key script says '{token}', which no key is called; {did_you_mean(token, BY_KEY)}")
    return BY_KEY[token].do or _only_in_a_window


def _only_in_a_window(_: Session) -> None: ...


class KeyLog:
    """Writes a script of what is done to a session, key by key, and each is in the file when it has been done."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")
        self._left_at: tuple[int | None, int] | None = None  # where the last key led to

    @contextmanager
    def key(self, session: Session, act: Act) -> Iterator[None]:
        """Around the doing of it; what fails is not written."""
        if act.do is None or session.episode_id is None:
            yield
            return
        here = (session.episode_id, session.cursor.frame)
        place = ""
        if self._left_at is None or here[0] != self._left_at[0]:
            place = f"={here[0]} @{here[1]} "
        elif here != self._left_at:
            place = f"@{here[1]} "
        yield
        self._file.write(place + act.keys[0] + ("\n" if act.name == "complete" else " "))
        self._file.flush()
        self._left_at = (session.episode_id, session.cursor.frame)

    def close(self) -> None:
        self._file.close()
