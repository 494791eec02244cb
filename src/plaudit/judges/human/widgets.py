"""The bars, buttons and key help around the images. Each button has its key on it.

The help covers the window until `?` is pressed again. Nothing waits for it: keys go on working under it.
"""

import time
from collections.abc import Callable
from html import escape

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from plaudit.errors import format_count
from plaudit.judges.human import palette
from plaudit.judges.human.camera_view import ASSUMED_FPS, Player
from plaudit.judges.human.session import ACTIONS, GROUPS, Session

SIGNS: dict[str, str] = {  # of keys, as people see them on a keyboard
    "Left": "←",
    "Right": "→",
    "Shift+Left": "⇧ ←",
    "Shift+Right": "⇧ →",
    "Return": "⏎",
    "PgDown": "Page ↓",
    "PgUp": "Page ↑",
    "-": "−",
}


ROWS = (
    ("label_failure", "label_success", "success_from_here", "fail", "exclude"),
    ("start_selection", "end_selection", "clear", "undo", "redo"),
)


class ActionButton(QPushButton):
    """Does an action when it is clicked. It never takes the keyboard focus from the window."""

    def __init__(self, name: str, act: Callable[[str], None], height: int = 42, *, show_title: bool = True):
        super().__init__()
        self.setObjectName(name)
        self.setToolTip(ACTIONS[name].description)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.title, key = QLabel(ACTIONS[name].title), QLabel(SIGNS.get(ACTIONS[name].keys[0], ACTIONS[name].keys[0]))
        self.title.setObjectName("title")
        key.setObjectName("key")
        row = self._row = QHBoxLayout(self)
        row.setContentsMargins(12, 4, 10, 4)
        row.setSpacing(10)
        row.addStretch()
        for label in (self.title, key):
            label.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
            row.addWidget(label, alignment=Qt.AlignmentFlag.AlignCenter)
        row.addStretch()
        self.title.setVisible(show_title)
        self.clicked.connect(lambda: act(name))

    def sizeHint(self) -> QSize:
        return self._row.sizeHint()


class ActionButtons(QWidget):
    """Buttons for all actions; `by_name` maps the name of an action to its button."""

    def __init__(self, act: Callable[[str], None]):
        super().__init__()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(8)
        self.by_name: dict[str, ActionButton] = {}
        for row, names in enumerate(ROWS):
            for column, name in enumerate(names):
                self.by_name[name] = ActionButton(name, act)
                grid.addWidget(self.by_name[name], row, column)
                grid.setColumnStretch(column, 3)
        self.by_name["complete"] = ActionButton("complete", act)
        grid.addWidget(self.by_name["complete"], 0, len(ROWS[0]), len(ROWS), 1)
        grid.setColumnStretch(len(ROWS[0]), 4)


def plain_label(name: str, words: str = "") -> QLabel:
    """A label that shows its text as it is: tasks and paths may look like markup."""
    label = QLabel(words)
    label.setObjectName(name)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label


def fill(layout: QBoxLayout, *parts: QWidget | QBoxLayout | int, spacing: int, stretch: object = None) -> QBoxLayout:
    """Add widgets, layouts and gaps in pixels to a layout without margins. stretch: the part that takes what is left"""
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(spacing)
    for part in parts:
        if isinstance(part, int):
            layout.addSpacing(part)
        elif isinstance(part, QWidget):
            layout.addWidget(part, stretch=int(part is stretch))
        else:
            layout.addLayout(part, stretch=int(part is stretch))
    return layout


class HeaderBar(QWidget):
    """The task, large; which episode this is; how many are left."""

    def __init__(self) -> None:
        super().__init__()
        self.task, self.facts, self.left = plain_label("task"), plain_label("facts"), plain_label("counter")
        self.task.setWordWrap(True)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(270)
        words = fill(QVBoxLayout(), self.task, self.facts, spacing=6)
        count = fill(QVBoxLayout(), self.left, self.progress, spacing=6)
        count.addStretch()
        fill(QHBoxLayout(self), words, count, spacing=24, stretch=words)

    def show_session(self, session: Session) -> None:
        episode, queue = session.episode, session.queue
        self.task.setText("" if episode is None else episode.task or "(this episode has no task text)")
        facts: list[str] = []
        if episode is not None:
            fps = f"{episode.fps:g} fps" if episode.fps else f"fps not known, {ASSUMED_FPS:g} assumed"
            facts = [f"episode {session.episode_id}", format_count(session.cursor.count, "frame"), fps, episode.robot]
        self.facts.setText("  ·  ".join(filter(None, facts)))
        total, left = len(queue.rows), len(queue)
        self.left.setText(f"{left} left of {total}")
        self.progress.setRange(0, max(total, 1))
        self.progress.setValue(total - left)


class PlaybackBar(QWidget):
    """Play, speed, the current frame, a summary of the labels."""

    def __init__(self, act: Callable[[str], None]):
        super().__init__()
        self.play, self.help = ActionButton("play", act, 34), ActionButton("help", act, 34)
        self.slower, self.faster = (ActionButton(name, act, 34, show_title=False) for name in ("slower", "faster"))
        self.speed, self.counter = plain_label("speed", "1×"), plain_label("counter")
        self.annotation = plain_label("annotation")
        self.speed.setFixedWidth(48)
        self.speed.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.annotation.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.annotation.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        for button in (self.play, self.slower, self.faster, self.help):
            button.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.play.setFixedWidth(150)
        parts = (self.play, self.slower, self.speed, self.faster, 18, self.counter, self.annotation, 12, self.help)
        fill(QHBoxLayout(self), *parts, spacing=6, stretch=self.annotation)

    def show_player(self, player: Player) -> None:
        self.play.title.setText("Pause" if player.playing else "Play")
        self.speed.setText(f"{player.speed:g}×")

    def show_place(self, session: Session) -> None:
        cursor, episode = session.cursor, session.episode
        counter = summary = ""
        if episode is not None:
            seconds = cursor.frame / (episode.fps or ASSUMED_FPS)
            counter, summary = f"{cursor.frame} / {cursor.count - 1}   {seconds:.2f} s", session.annotation.summary
        if cursor.selection is not None:
            summary = f"range {cursor.selection[0]} to {cursor.selection[1]} marked: 0 or 1?   {summary}"
        self.counter.setText(counter)
        self.annotation.setText(summary)


class StatusBar(QWidget):
    """The last action, and where it was saved."""

    def __init__(self, where: str):
        super().__init__()
        self.words, self.saved = plain_label("faint"), plain_label("faint")
        parts = (self.saved, 10, self.words, plain_label("faint", where))
        fill(QHBoxLayout(self), *parts, spacing=6, stretch=self.words)

    def tell(self, words: str, problem: bool = False) -> None:
        self.words.setText(words)
        self.words.setStyleSheet(f"color: {palette.WARNING if problem else palette.TEXT}")

    def show_saved(self, when: float | None) -> None:
        self.saved.setText("" if when is None else f"✓ saved {time.strftime('%H:%M:%S', time.localtime(when))}")


class HelpOverlay(QLabel):
    """The keys of all actions, over the whole of its parent."""

    def __init__(self, parent: QWidget):
        super().__init__(_key_table(), parent)
        self.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.setStyleSheet("background: rgba(10, 12, 14, 225)")
        self.hide()

    def mousePressEvent(self, ev: QMouseEvent) -> None:
        self.hide()


def _key_table() -> str:
    """A column for each group of actions, as rich text."""
    columns = []
    for title, actions in GROUPS.items():
        rows = [f"<tr><th colspan=2 align=left style='color: {palette.TEXT_MUTED}'>{title.upper()}</th></tr>"]
        for action in actions:
            signs = [SIGNS.get(key) or key for key in action.keys[:2]]
            box = f"<b style='background-color: {palette.SURFACE_RAISED}'>&nbsp;"
            keys = "&nbsp; ".join(f"{box}{escape(sign)}&nbsp;</b>" for sign in signs)
            rows.append(f"<tr><td>{keys}</td><td>{escape(action.description)}</td></tr>")
        columns.append(f"<td><table cellpadding=5>{''.join(rows)}</table></td>")
    return f"<table align=center cellpadding=14><tr>{''.join(columns)}</tr></table>"
