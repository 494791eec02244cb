"""Beside the pictures: who judged this episode before, and the queue.

The queue is a model that answers for the rows on the screen only: a store may hold a hundred thousand episodes.
"""

import time
from html import escape
from itertools import cycle
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor
from PySide6.QtWidgets import QAbstractItemView, QFrame, QLabel, QListView, QVBoxLayout

from plaudit.judges.human import look
from plaudit.judges.human.annotation import SOURCE, FrameAnnotation
from plaudit.judges.human.opinions import LabelTrace
from plaudit.judges.human.session import Session

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
        if role == Qt.ItemDataRole.ForegroundRole and not queue.is_left(episode_id):
            return QColor(look.FAINT)
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
        if not session.queue.is_left(episode_id):
            labels = session.store.ledger.labels(episode_id, (SOURCE,))
            assert labels is not None
            return f"✓ {episode_id}   {FrameAnnotation.of_labels(session.store.episode(episode_id), labels).words}"
        apart, place = session.queue.score(episode_id), session.store.entry(episode_id)
        frames = place.rows - (place.line["repeated"] != "none")
        return f"    {episode_id}   " + (f"judges {apart:.2f} apart" if apart else f"{frames} frames")


class Side(QFrame):
    """The panel."""

    chosen = Signal(int)  # an episode, by its id

    def __init__(self, session: Session):
        super().__init__()
        self.setObjectName("side")
        self.setFixedWidth(270)
        self._session, self._model = session, QueueModel(session)
        self.opinions = QLabel()
        self.opinions.setWordWrap(True)
        self.opinions.setTextFormat(Qt.TextFormat.RichText)
        order = "UNLABELLED FIRST" if session.queue.order == "unlabelled" else "MOST DISPUTED FIRST"
        self.count = QLabel(f"QUEUE · {order}")
        self.count.setObjectName("heading")
        self.rows = QListView()
        self.rows.setModel(self._model)
        self.rows.setUniformItemSizes(True)
        self.rows.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.rows.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.rows.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.rows.clicked.connect(lambda index: self.chosen.emit(session.queue.rows[index.row()]))
        heading = QLabel("JUDGED BEFORE")
        heading.setObjectName("heading")
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 16, 10, 12)
        column.setSpacing(8)
        for widget in (heading, self.opinions, self.count):
            column.addWidget(widget)
        column.insertSpacing(2, 14)
        column.addWidget(self.rows, stretch=1)

    def show_opinions(self, opinions: list[LabelTrace]) -> None:
        colours = {id(o): colour for o, colour in zip([o for o in opinions if o.curve is not None], cycle(look.CURVES))}
        lines = [_paragraph(opinion, colours.get(id(opinion))) for opinion in opinions]
        self.opinions.setText("".join(lines) or f"<span style='color:{look.FAINT}'>by nobody</span>")

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


def _paragraph(opinion: LabelTrace, colour: str | None) -> str:
    """`classifier: success from frame 53`; sources and notes come from files, so no markup of theirs counts."""
    curve = f"<span style='color:{colour}'>▬</span> " if colour else ""
    note = f", {escape(opinion.note)}" if opinion.note else ""
    return (
        f"<p style='margin: 0 0 7px 0'>{curve}<b>{escape(opinion.source)}</b>: {opinion.verdict.words}<br>"
        f"<span style='color:{look.FAINT}'>{ago(time.time() - opinion.time)}{note}</span></p>"
    )


def ago(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            count = int(seconds / length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
