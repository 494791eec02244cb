"""Beside the images: the existing labels of this episode, and the queue.

The queue is a model that answers for the rows on the screen only: a store may hold a hundred thousand episodes.
"""

import time
from html import escape
from itertools import cycle
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QFrame, QLabel, QListView, QVBoxLayout

from plaudit.judges.human import style
from plaudit.judges.human.annotation import SOURCE, FrameAnnotation
from plaudit.judges.human.session import LabelTrace, Session

Index = QModelIndex | QPersistentModelIndex


class QueueModel(QAbstractListModel):
    """A row an episode: its number, and a draft, a label or how far its judges are apart."""

    def __init__(self, session: Session):
        super().__init__()
        self._session = session
        self._known = len(session.queue.rows)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return self._known

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        queue = self._session.queue
        if not index.isValid() or index.row() >= len(queue.rows):
            return None
        episode_id = queue.rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return self._text(episode_id)
        if role == Qt.ItemDataRole.ForegroundRole and not queue.needs_label(episode_id):
            return QColor(style.TEXT_MUTED)
        return None

    def refresh(self) -> None:
        """Qt lays all rows out anew for this, so it is for when there are more or fewer of them."""
        if self._known != len(self._session.queue.rows):
            self.beginResetModel()
            self._known = len(self._session.queue.rows)
            self.endResetModel()

    def _text(self, episode_id: int) -> str:
        session = self._session
        if episode_id in session.drafts.history.drafts:
            return f"✎ {episode_id}   draft"
        if not session.queue.needs_label(episode_id):
            labels = session.store.ledger.labels(episode_id, (SOURCE,))
            assert labels is not None
            return f"✓ {episode_id}   {FrameAnnotation.from_labels(session.store.episode(episode_id), labels).summary}"
        apart, place = session.queue.score(episode_id), session.store.entry(episode_id)
        frames = place.rows - (place.line["repeated"] != "none")
        return f"    {episode_id}   " + (f"judges {apart:.2f} apart" if apart else f"{frames} frames")


class Sidebar(QFrame):
    """The panel."""

    chosen = Signal(int)  # an episode, by its id

    def __init__(self, session: Session):
        super().__init__()
        self.setObjectName("sidebar")
        self.setFixedWidth(270)
        self._session, self._model = session, QueueModel(session)
        self.traces = QLabel()
        self.traces.setWordWrap(True)
        self.traces.setTextFormat(Qt.TextFormat.RichText)
        order = "UNLABELED FIRST" if session.queue.order != "disagreement" else "LARGEST DISAGREEMENT FIRST"
        self.count = QLabel(f"QUEUE · {order}")
        self.count.setObjectName("heading")
        self.rows = QListView()
        self.rows.setModel(self._model)
        self.rows.setUniformItemSizes(True)
        self.rows.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.rows.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.rows.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.rows.clicked.connect(lambda index: self.chosen.emit(session.queue.rows[index.row()]))
        heading = QLabel("EXISTING LABELS")
        heading.setObjectName("heading")
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 10, 12)
        column.setSpacing(8)
        for widget in (heading, self.traces, self.count):
            column.addWidget(widget)
        column.insertSpacing(2, 14)
        column.addWidget(self.rows, stretch=1)

    def show_traces(self, traces: list[LabelTrace]) -> None:
        colors = {id(o): color for o, color in zip([o for o in traces if o.curve is not None], cycle(style.CURVES))}
        lines = [_paragraph(trace, colors.get(id(trace))) for trace in traces]
        self.traces.setText("".join(lines) or f"<span style='color:{style.TEXT_MUTED}'>none</span>")

    def show_queue(self) -> None:
        """Which rows there are, and which is open."""
        self._model.refresh()
        if self._session.episode_id is not None:
            self.rows.setCurrentIndex(self._model.index(self._session.queue.rows.index(self._session.episode_id)))
        else:
            self.rows.clearSelection()
        self.show_rows()

    def show_rows(self) -> None:
        """What they say."""
        self.rows.viewport().update()


def _paragraph(trace: LabelTrace, color: str | None) -> str:
    """`classifier: success from frame 53`; sources and notes come from files, so no markup of theirs counts."""
    curve = f"<span style='color:{color}'>▬</span> " if color else ""
    note = f", {escape(trace.note)}" if trace.note else ""
    return (
        f"<p style='margin: 0 0 7px 0'>{curve}<b>{escape(trace.source)}</b>: {trace.annotation.summary}<br>"
        f"<span style='color:{style.TEXT_MUTED}'>{ago(time.time() - trace.time)}{note}</span></p>"
    )


def ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
