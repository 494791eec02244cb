"""The window: draws a session, and turns keys, clicks and time into acts on it.

Everything a person can do is an act (keys.py), whether by key or by button, and goes through `act`. The widgets show
what they are told and know nothing of the session's rules. No child takes the keyboard, so every key works wherever one
has clicked, and no dialog ever asks anything: what cannot be done is said in the status line.
"""

from contextlib import nullcontext
from pathlib import Path

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QCloseEvent, QKeyEvent, QKeySequence
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from plaudit.errors import PlauditError
from plaudit.judges.human import look
from plaudit.judges.human.annotation import FrameAnnotation
from plaudit.judges.human.bars import Header, Status, Transport
from plaudit.judges.human.cameras import Cameras
from plaudit.judges.human.controls import Controls
from plaudit.judges.human.help import Help
from plaudit.judges.human.keys import ACTS, BY_KEY, KeyLog
from plaudit.judges.human.player import Player
from plaudit.judges.human.session import Session
from plaudit.judges.human.side import Side
from plaudit.judges.human.strip import Slider, Strip

POLL_MS = 100
ALL_DONE = "Every episode is labelled.\n\nNew ones appear here as they are recorded."
NO_EPISODES = "There are no episodes yet.\n\nThey appear here as they are recorded."
NO_IMAGES = "This episode has no images to judge.\n\nExclude it (X), or go on to the next (Page ↓)."


class LabelWindow(QWidget):
    """Over a session, which it closes when it is closed."""

    def __init__(self, session: Session, *, poll: bool = True, keys_log: Path | None = None):
        super().__init__()
        self.session = session
        self.player = Player()
        self._log = None if keys_log is None else KeyLog(keys_log)
        self._build()
        self._connect()
        self._draw_episode()
        self.status.tell(session.message or "press ? for the keys")
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)
        if poll:
            self._timer.start()

    def act(self, name: str) -> None:
        """Do one of the acts of keys.py, and show what came of it."""
        act, session = ACTS[name], self.session
        before = session.episode_id, session.verdict
        session.message = ""
        try:
            with nullcontext() if self._log is None else self._log.key(session, act):
                if act.do is not None:
                    self.player.pause()
                    act.do(session)
                else:
                    self._act_on_window(name)
        except PlauditError as error:
            self.status.tell(str(error), problem=True)
        else:
            if session.message:
                self.status.tell(session.message)
        self._draw_changes(before)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        act = BY_KEY.get(key_name(event))
        if act is None:
            super().keyPressEvent(event)
        elif act.name == "unmark" and self.help.isVisible():
            self.help.hide()
        elif act.repeats or not event.isAutoRepeat():
            self.act(act.name)

    def closeEvent(self, event: QCloseEvent) -> None:
        self._timer.stop()
        self.player.pause()
        self.session.close()
        if self._log is not None:
            self._log.close()
        super().closeEvent(event)

    def _build(self) -> None:
        where = str(self.session.store.folder) + (f"  ·  {self.session.name}" if self.session.name else "")
        self.setWindowTitle(f"{self.session.store.folder.name} · Plaudit")
        self.setStyleSheet(look.STYLE)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.resize(1320, 900)
        self.header, self.cameras, self.side = Header(), Cameras(), Side(self.session)
        self.transport, self.slider, self.strip = Transport(self.act), Slider(), Strip()
        self.controls, self.status, self.help = Controls(self.act), Status(where), Help(self)
        middle, column = QHBoxLayout(), QVBoxLayout(self)
        middle.setSpacing(16)
        middle.addWidget(self.cameras, stretch=1)
        middle.addWidget(self.side)
        column.setContentsMargins(20, 16, 20, 12)
        column.setSpacing(10)
        column.addWidget(self.header)
        column.addLayout(middle, stretch=1)
        for widget in (self.transport, self.slider, self.strip, self.controls, self.status):
            column.addWidget(widget)
        self.help.raise_()

    def _connect(self) -> None:
        self.slider.valueChanged.connect(self._scrub)
        self.strip.scrubbed.connect(self._scrub)
        self.strip.marked.connect(self._mark)
        self.side.chosen.connect(self._choose)
        self.player.due.connect(self._show_frame)
        self.player.changed.connect(lambda: self.transport.show_player(self.player))

    def _act_on_window(self, name: str) -> None:
        cursor, episode = self.session.cursor, self.session.episode
        if name == "help":
            self.help.toggle()
        elif name == "slower":
            self.player.change_speed(-1)
        elif name == "faster":
            self.player.change_speed(1)
        elif self.player.playing:
            self.player.pause()
        elif episode is not None:
            self.player.play(cursor.frame, cursor.count - 1, episode.fps)

    def _scrub(self, frame: int) -> None:
        """By hand, which ends playing."""
        if frame != self.session.cursor.frame:
            self.player.pause()
            self._show_frame(frame)

    def _show_frame(self, frame: int) -> None:
        self.session.cursor.go(frame)
        self._draw_place()

    def _mark(self, start: int, end: int) -> None:
        self.session.cursor.mark, self.session.cursor.end = start, end
        self._draw_place()

    def _choose(self, episode_id: int) -> None:
        before = self.session.episode_id, self.session.verdict
        if episode_id == self.session.episode_id:
            return
        self.player.pause()
        try:
            self.session.show(episode_id)
        except PlauditError as error:
            self.status.tell(str(error), problem=True)
        self._draw_changes(before)

    def _poll(self) -> None:
        before = self.session.episode_id
        self.session.message = ""
        try:
            changed = self.session.poll()
        except PlauditError as error:
            self._timer.stop()
            self.status.tell(f"no longer looking for new episodes: {error}", problem=True)
            return
        if changed:
            if self.session.episode_id != before:
                self.player.pause()
            self._draw_episode()
            if self.session.message:
                self.status.tell(self.session.message)

    def _draw_changes(self, before: tuple[int | None, FrameAnnotation]) -> None:
        """Only what an act has changed: most move one frame."""
        episode_id, verdict = before
        if self.session.episode_id != episode_id:
            self._draw_episode()
        elif self.session.verdict is not verdict:
            self._draw_verdict()
        else:
            self._draw_place()

    def _draw_episode(self) -> None:
        session = self.session
        opinions = session.opinions()
        self.header.show_session(session)
        self.side.show_opinions(opinions)
        self.side.show_queue()
        self.strip.show_opinions(opinions)
        self.slider.blockSignals(True)
        self.slider.setRange(0, max(session.cursor.count - 1, 0))
        self.slider.blockSignals(False)
        self._draw_verdict()

    def _draw_verdict(self) -> None:
        self.strip.show_verdict(self.session.verdict)
        self.side.show_rows()
        self.status.show_saved(self.session.drafts.saved)
        self._draw_place()

    def _draw_place(self) -> None:
        session = self.session
        cursor, episode = session.cursor, session.episode
        self.slider.blockSignals(True)
        self.slider.setValue(cursor.frame)
        self.slider.blockSignals(False)
        self.strip.show_place(cursor.frame, cursor.selection)
        self.transport.show_place(session)
        if episode is None:
            self.cameras.show_words(ALL_DONE if session.queue.rows else NO_EPISODES)
        elif not episode.frames:
            self.cameras.show_words(NO_IMAGES)
        else:
            t = (episode.recorded.start or 0) + cursor.frame
            frames = {camera: images[t] for camera, images in episode.frames.items()}
            self.cameras.show_frames(frames, float(session.verdict.frames[cursor.frame]))


def key_name(event: QKeyEvent) -> str:
    """As keys.py has it: what is typed, whatever keys of whatever keyboard it takes; else Qt's name of the keys."""
    held = event.modifiers() & ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier)
    typed = event.text().upper()
    altgr = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier  # some systems call AltGr that
    if len(typed) == 1 and typed.isprintable() and typed != " " and held in (Qt.KeyboardModifier.NoModifier, altgr):
        return typed
    return QKeySequence(event.keyCombination()).toString().removeprefix("Num+")
