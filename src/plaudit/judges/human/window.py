"""The window: draws a session, and turns keys, clicks and time into actions.

Every key and button is an action (session.py) and goes through `act`. Widgets only draw. No widget takes the keyboard,
so every key works everywhere. There are no dialogs: the status bar says what cannot be done. The list of episodes
loads only the rows on the screen, because a store can hold 100,000 episodes.
"""

import time
from collections.abc import Callable
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QColor, QKeyEvent, QKeySequence, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QFrame, QHBoxLayout, QLabel, QListView, QVBoxLayout, QWidget

from plaudit.errors import PlauditError, StoreError, format_count
from plaudit.judges.human import palette
from plaudit.judges.human.camera_view import CameraView, Player
from plaudit.judges.human.drafts import SOURCE, FrameAnnotation
from plaudit.judges.human.session import ACTIONS, BY_KEY, ActionLog, LabelTrace, Session
from plaudit.judges.human.timeline import Slider, Timeline
from plaudit.judges.human.widgets import (
    ActionButtons,
    HeaderBar,
    HelpOverlay,
    PlaybackBar,
    StatusBar,
    fill,
    plain_label,
)

Index = QModelIndex | QPersistentModelIndex


class QueueModel(QAbstractListModel):
    """A row an episode: its number, and a draft, a label or how far its judges are apart."""

    def __init__(self, session: Session):
        super().__init__()
        self._session = session
        self._count = len(session.queue.rows)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return self._count

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        queue = self._session.queue
        if not index.isValid() or index.row() >= len(queue.rows):
            return None
        episode_id = queue.rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(episode_id)
        muted = role == Qt.ItemDataRole.ForegroundRole and not queue.needs_label(episode_id)
        return QColor(palette.TEXT_MUTED) if muted else None

    def refresh(self) -> None:
        """Reset the model if the number of rows changed: Qt then lays out all of them again."""
        if self._count != len(self._session.queue.rows):
            self.beginResetModel()
            self._count = len(self._session.queue.rows)
            self.endResetModel()

    def _text(self, episode_id: int) -> str:
        session = self._session
        if episode_id in session.drafts.state.drafts:
            return f"✎ {episode_id}   draft"
        if not session.queue.needs_label(episode_id):
            labels = session.store.ledger.labels(episode_id, (SOURCE,))
            assert labels is not None
            return f"✓ {episode_id}   {FrameAnnotation.from_labels(session.store.episode(episode_id), labels).summary}"
        apart = session.queue.score(episode_id)
        return f"    {episode_id}   " + (f"judges {apart:.2f} apart" if apart else self._length(episode_id))

    def _length(self, episode_id: int) -> str:
        place = self._session.store.entry(episode_id)
        try:
            repeated = place.line["repeated"] != "none"
        except StoreError:  # Qt calls this whenever it paints; the status line tells what is wrong with the store
            return ""
        return format_count(place.rows - repeated, "frame")


class Sidebar(QFrame):
    """Existing labels of the open episode, and the queue below."""

    chosen = Signal(int)  # an episode, by its id

    def __init__(self, session: Session):
        super().__init__()
        self.setObjectName("sidebar")
        self.setFixedWidth(270)
        self._session, self._model = session, QueueModel(session)
        self.traces = QLabel()
        self.traces.setWordWrap(True)
        self.traces.setTextFormat(Qt.TextFormat.RichText)
        order = ORDERS.get(session.queue.order, "UNLABELED FIRST")
        self.rows = QListView()
        self.rows.setModel(self._model)
        self.rows.setUniformItemSizes(True)
        self.rows.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.rows.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.rows.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.rows.clicked.connect(lambda index: self.chosen.emit(session.queue.rows[index.row()]))
        existing, queue = plain_label("heading", "EXISTING LABELS"), plain_label("heading", f"QUEUE · {order}")
        column = fill(QVBoxLayout(self), existing, self.traces, 14, queue, self.rows, spacing=8, stretch=self.rows)
        column.setContentsMargins(16, 16, 10, 12)

    def show_traces(self, traces: list[LabelTrace]) -> None:
        colors = {id(o): color for o, color in zip([o for o in traces if o.curve is not None], cycle(palette.CURVES))}
        lines = [_paragraph(trace, colors.get(id(trace))) for trace in traces]
        self.traces.setText("".join(lines) or f"<span style='color:{palette.TEXT_MUTED}'>none</span>")

    def show_queue(self) -> None:
        """Show the rows of the queue and mark the open one."""
        self._model.refresh()
        if self._session.episode_id is not None:
            self.rows.setCurrentIndex(self._model.index(self._session.queue.rows.index(self._session.episode_id)))
        else:
            self.rows.clearSelection()


def _paragraph(trace: LabelTrace, color: str | None) -> str:
    """`classifier: success from frame 53`; sources and remarks come from files, so no markup of theirs counts."""
    curve = f"<span style='color:{color}'>▬</span> " if color else ""
    remark = f", {escape(trace.remark)}" if trace.remark else ""
    return (
        f"<p style='margin: 0 0 7px 0'>{curve}<b>{escape(trace.source)}</b>: {trace.annotation.summary}<br>"
        f"<span style='color:{palette.TEXT_MUTED}'>{ago(time.time() - trace.time)}{remark}</span></p>"
    )


def ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{format_count(count, unit)} ago"
    return "just now"


POLL_MS = 100
ORDERS = {"disagreement": "LARGEST DISAGREEMENT FIRST", "uncertain": "LEAST CERTAIN FIRST", "repeat": "A SECOND TIME"}
ALL_DONE = "Every episode is labeled.\n\nNew ones appear here as they are recorded."
NO_EPISODES = "There are no episodes yet.\n\nNew episodes appear here."
NO_IMAGES = "This episode has no images to label.\n\nExclude it (X), or go on to the next (Page ↓)."


class LabelWindow(QWidget):
    """The labeling window. Closing it also closes its session."""

    def __init__(self, session: Session, *, poll: bool = True, action_log: Path | None = None):
        super().__init__()
        self.session = session
        self.player = Player()
        self._log = None if action_log is None else ActionLog(action_log)
        self._build()
        self.slider.valueChanged.connect(self._scrub)
        self.timeline.scrubbed.connect(self._scrub)
        self.timeline.marked.connect(self._mark)
        self.sidebar.chosen.connect(self._choose)
        self.player.due.connect(self._show_frame)
        self.player.changed.connect(lambda: self.playback.show_player(self.player))
        self._draw_episode()
        self.status.tell(session.status or "press ? for the keys")
        self._timer = QTimer(self)
        self._timer.setInterval(POLL_MS)
        self._timer.timeout.connect(self._poll)
        if poll:
            self._timer.start()

    def act(self, name: str) -> None:
        """Do one of the actions, and show the result."""
        action = ACTIONS[name]
        if action.do is None:
            self._change(lambda: self._act_on_window(name))
            return
        self.player.pause()
        log, do = self._log, action.do
        self._change(lambda: do(self.session) if log is None else log.do(self.session, action))

    def _change(self, change: Callable[[], None]) -> None:
        """Change the session and draw only what has changed: most actions move one frame."""
        session = self.session
        before, annotation = session.episode_id, session.annotation
        session.status = ""
        try:
            change()
        except PlauditError as error:
            self.status.tell(str(error), problem=True)
        else:
            if session.status:
                self.status.tell(session.status)
        if session.episode_id != before:
            self._draw_episode()
        elif session.annotation is not annotation:
            self._draw_annotation()
        else:
            self._draw_place()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        action = BY_KEY.get(key_name(event))
        if action is None:
            super().keyPressEvent(event)
        elif action.name == "clear_selection" and self.help.isVisible():
            self.help.hide()
        elif action.repeats or not event.isAutoRepeat():
            self.act(action.name)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self.help.setGeometry(self.rect())

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
        self.setStyleSheet(palette.STYLE)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.resize(1320, 900)
        self.header, self.cameras, self.sidebar = HeaderBar(), CameraView(), Sidebar(self.session)
        self.playback, self.slider, self.timeline = PlaybackBar(self.act), Slider(), Timeline()
        self.buttons, self.status, self.help = ActionButtons(self.act), StatusBar(where), HelpOverlay(self)
        middle = fill(QHBoxLayout(), self.cameras, self.sidebar, spacing=16, stretch=self.cameras)
        parts = (self.header, middle, self.playback, self.slider, self.timeline, self.buttons, self.status)
        fill(QVBoxLayout(self), *parts, spacing=10, stretch=middle).setContentsMargins(20, 16, 20, 12)
        self.help.raise_()

    def _act_on_window(self, name: str) -> None:
        cursor, episode = self.session.cursor, self.session.episode
        if name == "help":
            self.help.setVisible(not self.help.isVisible())
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
        self.session.cursor.seek(frame)
        self._draw_place()

    def _mark(self, start: int, end: int) -> None:
        self.session.cursor.mark, self.session.cursor.end = start, end
        self._draw_place()

    def _choose(self, episode_id: int) -> None:
        if episode_id != self.session.episode_id:
            self.player.pause()
            self._change(lambda: self.session.open_episode(episode_id))

    def _poll(self) -> None:
        before = self.session.episode_id
        self.session.status = ""
        try:
            changed = self.session.poll()
        except PlauditError as error:
            self._timer.stop()
            self.status.tell(f"no longer looking for new episodes: {error}", problem=True)
            return
        if not changed:
            return
        if self.session.episode_id != before:
            self.player.pause()
        self._draw_episode()
        if self.session.status:
            self.status.tell(self.session.status)

    def _draw_episode(self) -> None:
        session = self.session
        traces = session.existing_labels()
        self.header.show_session(session)
        self.sidebar.show_traces(traces)
        self.sidebar.show_queue()
        self.timeline.show_traces(traces)
        self.slider.blockSignals(True)
        self.slider.setRange(0, max(session.cursor.count - 1, 0))
        self.slider.blockSignals(False)
        self._draw_annotation()

    def _draw_annotation(self) -> None:
        self.timeline.show_annotation(self.session.annotation)
        self.sidebar.rows.viewport().update()
        self.status.show_saved(self.session.drafts.saved)
        self._draw_place()

    def _draw_place(self) -> None:
        session = self.session
        cursor, episode = session.cursor, session.episode
        self.slider.blockSignals(True)
        self.slider.setValue(cursor.frame)
        self.slider.blockSignals(False)
        self.timeline.show_place(cursor.frame, cursor.selection)
        self.playback.show_place(session)
        if episode is None:
            self.cameras.show_text(ALL_DONE if session.queue.rows else NO_EPISODES)
        elif not episode.frames:
            self.cameras.show_text(NO_IMAGES)
        else:
            t = (episode.observed.start or 0) + cursor.frame
            frames = {camera: images[t] for camera, images in episode.frames.items()}
            self.cameras.show_frames(frames, float(session.annotation.frames[cursor.frame]))


def key_name(event: QKeyEvent) -> str:
    """The key as human/session.py names it: the typed character on any keyboard layout, else Qt's key name."""
    held = event.modifiers() & ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier)
    typed = event.text().upper()
    altgr = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier  # AltGr on some systems
    if len(typed) == 1 and typed.isprintable() and typed != " " and held in (Qt.KeyboardModifier.NoModifier, altgr):
        return typed
    return QKeySequence(event.keyCombination()).toString().removeprefix("Num+")
