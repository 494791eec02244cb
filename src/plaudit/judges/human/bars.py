"""The lines above and below the pictures: the task and what is left, the time, what was done last."""

import time
from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QProgressBar, QSizePolicy, QVBoxLayout, QWidget

from plaudit.judges.human import look
from plaudit.judges.human.controls import ActButton
from plaudit.judges.human.player import ASSUMED_FPS, Player
from plaudit.judges.human.session import Session


def _label(name: str, words: str = "") -> QLabel:
    label = QLabel(words)
    label.setObjectName(name)
    label.setTextFormat(Qt.TextFormat.PlainText)  # tasks and paths are shown as they are
    return label


class Header(QWidget):
    """The task, large; which episode this is; how many are left."""

    def __init__(self) -> None:
        super().__init__()
        self.task, self.facts = _label("task"), _label("facts")
        self.task.setWordWrap(True)
        self.left = _label("counter")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setFixedWidth(270)
        words, count, row = QVBoxLayout(), QVBoxLayout(), QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(24)
        for layout, widgets in ((words, (self.task, self.facts)), (count, (self.left, self.progress))):
            layout.setSpacing(6)
            for widget in widgets:
                layout.addWidget(widget)
        count.addStretch()
        row.addLayout(words, stretch=1)
        row.addLayout(count)

    def show_session(self, session: Session) -> None:
        episode, queue = session.episode, session.queue
        self.task.setText("" if episode is None else episode.task or "(this episode has no task text)")
        self.facts.setText("")
        if episode is not None:
            fps = f"{episode.fps:g} fps" if episode.fps else f"fps not known, {ASSUMED_FPS:g} assumed"
            facts = [f"episode {session.episode_id}", f"{session.cursor.count} frames", fps]
            self.facts.setText("  ·  ".join([*facts, episode.robot] if episode.robot else facts))
        total, left = len(queue.rows), len(queue)
        self.left.setText(f"{left} left of {total}")
        self.progress.setRange(0, max(total, 1))
        self.progress.setValue(total - left)


class Transport(QWidget):
    """Play, speed, where one stands, what is said of the episode."""

    def __init__(self, act: Callable[[str], None]):
        super().__init__()
        self.play, self.help = ActButton("play", act, 34), ActButton("help", act, 34)
        self.slower, self.faster = ActButton("slower", act, 34), ActButton("faster", act, 34)
        self.speed, self.counter, self.verdict = _label("speed", "1×"), _label("counter"), _label("verdict")
        self.speed.setFixedWidth(48)
        self.speed.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.verdict.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.verdict.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        for button in (self.play, self.slower, self.faster, self.help):
            button.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        self.play.setFixedWidth(150)
        for widget in (self.play, self.slower, self.speed, self.faster):
            row.addWidget(widget)
        row.addSpacing(18)
        row.addWidget(self.counter)
        row.addWidget(self.verdict, stretch=1)
        row.addSpacing(12)
        row.addWidget(self.help)

    def show_player(self, player: Player) -> None:
        self.play.title.setText("Pause" if player.playing else "Play")
        self.speed.setText(f"{player.speed:g}×")

    def show_place(self, session: Session) -> None:
        cursor, episode = session.cursor, session.episode
        if episode is None:
            self.counter.setText("")
            self.verdict.setText("")
            return
        seconds = f"   {cursor.frame / (episode.fps or ASSUMED_FPS):.2f} s"
        self.counter.setText(f"{cursor.frame} / {cursor.count - 1}{seconds}")
        chosen = cursor.selection
        marked = "" if chosen is None else f"range {chosen[0]} to {chosen[1]} marked: 0 or 1?   "
        self.verdict.setText(marked + session.verdict.words)


class Status(QWidget):
    """What was done last, that it is saved, and where."""

    def __init__(self, where: str):
        super().__init__()
        self.words, self.saved = _label("faint"), _label("faint")
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.saved)
        row.addSpacing(10)
        row.addWidget(self.words, stretch=1)
        row.addWidget(_label("faint", where))

    def tell(self, words: str, problem: bool = False) -> None:
        self.words.setText(words)
        self.words.setStyleSheet(f"color: {look.WARNING if problem else look.INK}")

    def show_saved(self, when: float | None) -> None:
        self.saved.setText("" if when is None else f"✓ saved {time.strftime('%H:%M:%S', time.localtime(when))}")
