"""Buttons, each with its key on it."""

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QWidget

from plaudit.judges.human.help import sign
from plaudit.judges.human.keys import ACTS

TITLES = {
    "zero": "No success",
    "one": "Success",
    "from_here": "Success from here",
    "fail": "All fail",
    "exclude": "Exclude",
    "mark_start": "Range from",
    "mark_end": "Range to",
    "clear": "Clear",
    "undo": "Undo",
    "redo": "Redo",
    "complete": "Complete",
    "play": "Play",
    "slower": "",
    "faster": "",
    "help": "Keys",
}
ROWS = (("zero", "one", "from_here", "fail", "exclude"), ("mark_start", "mark_end", "clear", "undo", "redo"))


class ActButton(QPushButton):
    """Does an act when it is clicked, and never takes the keys away from the window."""

    def __init__(self, name: str, act: Callable[[str], None], height: int = 42):
        super().__init__()
        self.setObjectName(name)
        self.setToolTip(ACTS[name].words)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setMinimumHeight(height)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.title, key = QLabel(TITLES[name]), QLabel(sign(ACTS[name].keys[0]))
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
        self.title.setVisible(bool(TITLES[name]))
        self.clicked.connect(lambda: act(name))

    def sizeHint(self) -> QSize:
        return self._row.sizeHint()


class Controls(QWidget):
    """All that a person can say of an episode; `buttons` has each by its act's name."""

    def __init__(self, act: Callable[[str], None]):
        super().__init__()
        grid = QGridLayout(self)
        grid.setContentsMargins(0, 0, 0, 0)
        grid.setSpacing(8)
        self.buttons: dict[str, ActButton] = {}
        for row, names in enumerate(ROWS):
            for column, name in enumerate(names):
                self.buttons[name] = ActButton(name, act)
                grid.addWidget(self.buttons[name], row, column)
        self.buttons["complete"] = ActButton("complete", act)
        grid.addWidget(self.buttons["complete"], 0, len(ROWS[0]), len(ROWS), 1)
        for column in range(len(ROWS[0])):
            grid.setColumnStretch(column, 3)
        grid.setColumnStretch(len(ROWS[0]), 4)
