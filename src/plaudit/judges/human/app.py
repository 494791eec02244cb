"""From a folder to a window: the way in for the command line, and the sentences for when there can be no window.

Where Qt finds no screen or misses a system library, it ends the whole process (SIGABRT) or, worse, goes on with a
window that nobody sees. So that is found out before, in a process of its own. Importing this module imports no Qt.

Where episodes come from a cluster, this is still a process of its own on the machine with the screen, watching the
store: a window inside a Ray actor would block the actor's other methods for as long as it is open.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from plaudit.data.formats import ReadOptions
from plaudit.data.transfer import open_or_import
from plaudit.errors import DisplayError, MissingExtra
from plaudit.judges.human.queue import QueueOrder
from plaudit.judges.human.session import Session
from plaudit.types import ProgressFn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from PySide6.QtWidgets import QWidget

LIBRARIES = "libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1"  # of Debian and Ubuntu: all of Qt
X_LIBRARIES = "libxcb-cursor0 libxkbcommon-x11-0 libxcb-icccm4 libxcb-keysyms1 libxcb-shape0"  # and to show on X


@dataclass(frozen=True)
class LabelingSummary:
    """What came of a session."""

    store: Path
    count: int  # episodes completed in it
    left: int  # episodes that still wait for a person
    drafts: int  # begun and not completed; they are found again


def run_labeling_app(
    store_path: Path,
    *,
    order: QueueOrder = "unlabeled",
    name: str = "",
    action_log: Path | None = None,
    poll: bool = True,
    into: Path | None = None,
    progress: ProgressFn = iter,
    say: Callable[[str], None] = print,
    options: ReadOptions | None = None,
) -> LabelingSummary:
    """Open a window on a store, or on a data set of another layout, and return when it is closed.

    name: who labels; it stands in the labels' notes
    action_log: a file to write what is pressed to, for `plaudit.judges.human.session.replay`
    poll: show episodes that arrive meanwhile
    into: where the store of a data set goes; None: beside it
    options: how to read a data set of another layout
    """
    check_display()
    folder, messages = open_or_import(Path(store_path), into, progress, options, say)
    for message in messages:
        say(message)
    with Session.open(folder, order=order, name=name) as session:
        _show(session, poll, action_log)
        return LabelingSummary(folder, session.completed, len(session.queue), len(session.drafts.history.drafts))


def _show(session: Session, poll: bool, action_log: Path | None) -> None:
    """Until its window is closed, or Ctrl-C is pressed in the terminal."""
    from PySide6.QtWidgets import QApplication

    from plaudit.judges.human.window import LabelWindow

    app = QApplication.instance() or QApplication([])
    window = LabelWindow(session, poll=poll, action_log=action_log)
    with _close_on_signals(window):
        window.show()
        app.exec()


@contextmanager
def _close_on_signals(window: "QWidget") -> "Iterator[None]":
    """Python runs handlers between its own lines, and while Qt waits there are none; a timer makes some."""
    from PySide6.QtCore import QTimer

    heartbeat = QTimer()
    heartbeat.timeout.connect(lambda: None)
    heartbeat.start(200)
    before = {
        number: signal.signal(number, lambda *_: QTimer.singleShot(0, window.close))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        heartbeat.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def has_display() -> bool:
    """Whether this process was started with a screen to open windows on."""
    names = ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in names)


def check_display() -> None:
    """Raise, with a sentence, when a window could not be opened; where Qt would end the process instead."""
    if importlib.util.find_spec("PySide6") is None:
        raise MissingExtra("PySide6", "gui")
    if not has_display():
        raise DisplayError(
            "there is no screen for a window (neither DISPLAY nor WAYLAND_DISPLAY is set); run this on a desktop, "
            "over 'ssh -X', or with QT_QPA_PLATFORM=vnc; 'plaudit data label' needs no screen"
        )
    reason = _probe_qt()
    if reason is not None:
        raise DisplayError(_message(reason))


def _probe_qt() -> str | None:
    """Why Qt cannot start, or would draw into memory only without being asked to; None when it can."""
    program = "from PySide6.QtWidgets import QApplication; print(QApplication([]).platformName())"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer from the screen within a minute"
    unseen = done.stdout.strip() in ("offscreen", "minimal") and "QT_QPA_PLATFORM" not in os.environ
    return done.stderr.strip() if done.returncode or unseen else None


def _message(reason: str) -> str:
    lines = reason.splitlines() or ["it did not say why"]
    if "cannot open shared object file" in reason:
        library = next(line for line in lines if "cannot open shared object file" in line)
        return f"Qt misses a system library ({library.split(': ', 1)[-1]}); run: apt-get install {LIBRARIES}"
    if "xcb-cursor0" in reason:
        return f"Qt misses a system library to show a window on X; run: apt-get install {X_LIBRARIES}"
    if "could not connect to display" in reason:
        display = os.environ.get("DISPLAY", "")
        return f"the screen DISPLAY={display} does not answer; is the desktop, or 'ssh -X', still there?"
    return f"Qt cannot open a window: {lines[0]}"
