"""Playing an episode at its own speed, or others."""

from PySide6.QtCore import QElapsedTimer, QObject, Qt, QTimer, Signal

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ASSUMED_FPS = 10.0  # of an episode that does not know its own
TICK_MS = 15


class Player(QObject):
    """Tells which frame it is time for. Late ticks skip frames and keep the speed."""

    due = Signal(int)
    changed = Signal()  # started, stopped, another speed

    def __init__(self) -> None:
        super().__init__()
        self.speed = 1.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(self._tick)
        self._clock = QElapsedTimer()
        self._fps, self._start, self._last = ASSUMED_FPS, 0, 0

    @property
    def playing(self) -> bool:
        return self._timer.isActive()

    def play(self, frame: int, last: int, fps: float) -> None:
        """From a frame to the last one; from the first, when that is where one stands."""
        self._start, self._last, self._fps = (0 if frame >= last else frame), last, fps or ASSUMED_FPS
        self._clock.start()
        self._timer.start()
        self.changed.emit()

    def pause(self) -> None:
        if self.playing:
            self._timer.stop()
            self.changed.emit()

    def change_speed(self, by: int) -> None:
        """One notch up or down; goes on from the frame it has come to."""
        self._start = self._frame()
        self._clock.restart()
        self.speed = SPEEDS[min(max(SPEEDS.index(self.speed) + by, 0), len(SPEEDS) - 1)]
        self.changed.emit()

    def _frame(self) -> int:
        elapsed = self._clock.elapsed() / 1000 if self.playing else 0.0
        return min(self._start + int(elapsed * self._fps * self.speed), self._last)

    def _tick(self) -> None:
        frame = self._frame()
        self.due.emit(frame)
        if frame >= self._last:
            self.pause()
