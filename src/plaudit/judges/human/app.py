"""Opens the labeling window on a folder, and explains why a window cannot be opened.

Without a screen or a system library, Qt ends the whole process (SIGABRT) or continues with a window that nobody sees.
So Qt is tried in another process first. Importing this module imports no Qt.

The window always has its own process, on the machine with the screen: inside a Ray actor it would block all of the
actor's methods while it is open.
"""

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from plaudit.data.formats import ReadOptions
from plaudit.data.transfer import open_or_import
from plaudit.errors import DisplayError, MissingExtra
from plaudit.judges.human.queue import QueueOrder
from plaudit.judges.human.session import Session
from plaudit.types import ProgressFn

LIBRARIES = "libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1"  # of Debian and Ubuntu: all of Qt
X_LIBRARIES = "libxcb-cursor0 libxkbcommon-x11-0 libxcb-icccm4 libxcb-keysyms1 libxcb-shape0"  # and to show on X


@dataclass(frozen=True)
class LabelingSummary:
    """Result of a labeling session."""

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
    progress: ProgressFn = iter,
    say: Callable[[str], None] = print,
    options: ReadOptions | None = None,
) -> LabelingSummary:
    """Open a window on a store, or on a data set of another layout, and return when it is closed.

    name: who labels; it stands in the labels' notes
    action_log: a file to write what is pressed to, for `plaudit.judges.human.session.replay_actions`
    options: how to read a data set of another layout
    """
    check_display()
    folder, messages = open_or_import(store_path, None, progress, options, say)
    for message in messages:
        say(message)
    with Session.open(folder, order=order, name=name) as session:
        _show_window(session, action_log)
        return LabelingSummary(folder, session.completed, len(session.queue), len(session.drafts.state.drafts))


def _show_window(session: Session, action_log: Path | None) -> None:
    """Until the window is closed, or Ctrl-C is pressed in the terminal."""
    from PySide6.QtCore import QTimer
    from PySide6.QtWidgets import QApplication

    from plaudit.judges.human.window import LabelWindow

    app = QApplication.instance() or QApplication([])
    window = LabelWindow(session, action_log=action_log)
    heartbeat = QTimer()  # Python handles signals between its own lines, of which Qt runs none while it waits
    heartbeat.timeout.connect(lambda: None)
    heartbeat.start(200)
    before = {
        number: signal.signal(number, lambda *_: QTimer.singleShot(0, window.close))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        window.show()
        app.exec()
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
            "there is no screen for a window (neither DISPLAY nor WAYLAND_DISPLAY is set). Run this on a desktop, "
            "over 'ssh -X', or with QT_QPA_PLATFORM=vnc; --window web labels in a browser"
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
