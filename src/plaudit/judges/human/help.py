"""The keys, over the window, until `?` is pressed again. Nothing waits for it: keys go on working under it."""

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QHBoxLayout, QLabel, QWidget

from plaudit.judges.human import look
from plaudit.judges.human.keys import GROUPS, Act

SIGNS = {
    "Left": "←",
    "Right": "→",
    "Shift+Left": "⇧ ←",
    "Shift+Right": "⇧ →",
    "Return": "⏎",
    "PgDown": "Page ↓",
    "PgUp": "Page ↑",
    "-": "−",
}


def sign(key: str) -> str:
    """A key as people see it on a keyboard."""
    return SIGNS.get(key, key)


class Help(QWidget):
    """Covers its parent, whatever size that takes."""

    def __init__(self, parent: QWidget):
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground, False)
        card = QFrame(self)
        card.setObjectName("card")
        card.setStyleSheet(
            f"QFrame#card {{ background: {look.PANEL}; border: 1px solid {look.LINE}; border-radius: 12px; }}"
        )
        columns = QHBoxLayout(card)
        columns.setContentsMargins(28, 24, 28, 24)
        columns.setSpacing(30)
        for title, acts in GROUPS.items():
            columns.addLayout(_column(title, acts))
        middle = QHBoxLayout(self)
        middle.addStretch()
        middle.addWidget(card, alignment=Qt.AlignmentFlag.AlignVCenter)
        middle.addStretch()
        self.hide()
        self._covered = parent
        parent.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Resize:
            self.setGeometry(self._covered.rect())
        return False

    def toggle(self) -> None:
        self.setGeometry(self._covered.rect())
        self.setVisible(not self.isVisible())
        self.raise_()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(self.rect(), QColor(10, 12, 14, 190))


def _column(title: str, acts: tuple[Act, ...]) -> QGridLayout:
    grid, heading = QGridLayout(), QLabel(title.upper())
    heading.setObjectName("heading")
    grid.addWidget(heading, 0, 0, 1, 2)
    grid.setHorizontalSpacing(12)
    grid.setVerticalSpacing(9)
    for row, act in enumerate(acts, start=1):
        keys = QHBoxLayout()
        keys.setSpacing(4)
        for key in act.keys[:2]:
            label = QLabel(sign(key))
            label.setObjectName("key")
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
            keys.addWidget(label)
        keys.addStretch()
        grid.addLayout(keys, row, 0)
        grid.addWidget(QLabel(act.words), row, 1)
    grid.setRowStretch(len(acts) + 1, 1)
    return grid
