"""The window's process with somebody at the keys: each episode fails, and after two the window is closed."""

from multiprocessing.connection import Connection
from pathlib import Path

from plaudit.judges.human.queue import QueueOrder
from plaudit.training.workers import labelers

UNTIL = 2


def window(connection: Connection, store: Path, order: QueueOrder, name: str) -> None:
    from PySide6.QtCore import QTimer

    from plaudit.judges.human import window as shown

    class Pressed(shown.LabelWindow):
        def showEvent(self, event) -> None:
            self._hand = QTimer(self)
            self._hand.timeout.connect(self.press)
            self._hand.start(20)

        def press(self) -> None:
            if self.session.episode_id is not None:
                self.act("fail")
                self.act("complete")
            if self.session.completed == UNTIL:
                self.close()

    shown.LabelWindow = Pressed
    labelers.window(connection, store, order, name)
