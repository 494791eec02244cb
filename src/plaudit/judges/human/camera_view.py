"""The camera images of one frame, how they become Qt images, and the player that advances them.

Qt reads a pointer to bytes: rows of interleaved channels without gaps. `torch_frame_to_qimage` converts every other
layout to that form and copies it, so that the image stays valid when the frame is freed.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from PySide6.QtCore import QElapsedTimer, QObject, QRect, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QImage, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from plaudit.errors import DataError
from plaudit.judges.human import palette
from plaudit.types import AnyArray, ByteArray

if TYPE_CHECKING:
    import torch

Layout = Literal["HWC", "CHW"]

FORMATS = {1: QImage.Format.Format_Grayscale8, 3: QImage.Format.Format_RGB888, 4: QImage.Format.Format_RGBA8888}
BRIGHTEST = 2.0  # a float beyond 1 is an overshoot of some resampling; one beyond this was never meant as [0, 1]


def torch_frame_to_qimage(frame: "AnyArray | torch.Tensor", layout: Layout | None = None) -> QImage:
    """A frame as a picture: a tensor on any device or an array, uint8 or float in [0, 1], HWC, CHW or HW.

    Floats are clipped, NaN is black. The channels are the axis of 1, 3 or 4, first or last; where both are, as in
    [3, 3, 3], they are taken to be last, as episodes have them, unless `layout` says otherwise.
    """
    if not isinstance(frame, np.ndarray):
        import torch  # slow, and a window over a store has arrays only

        if not isinstance(frame, torch.Tensor):
            raise DataError(f"a frame is an array or a tensor, not {type(frame).__name__}")
        tensor = frame.detach().cpu()
        frame = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # numpy has no bfloat16
    # To [H, W, C].
    shape = list(frame.shape)
    if frame.ndim == 2 and layout is None:
        frame = frame[:, :, None]
    elif frame.ndim != 3:
        raise DataError(f"one frame is [H, W, C], [C, H, W] or [H, W], this one is {shape}")
    elif layout == "CHW" or (layout is None and shape[2] not in FORMATS and shape[0] in FORMATS):
        frame = frame.transpose(1, 2, 0)
    if frame.shape[2] not in FORMATS:
        raise DataError(f"a frame has 1, 3 or 4 channels, first or last; this one is {shape}")
    if 0 in shape:
        raise DataError(f"a frame of {shape} has no pixels")
    # To bytes without gaps.
    if frame.dtype.kind == "f":
        values = np.nan_to_num(frame.astype(np.promote_types(frame.dtype, np.float32)), nan=0, posinf=1, neginf=0)
        if values.max() > BRIGHTEST:
            raise DataError(f"a frame of floats lies in [0, 1] and this one reaches {values.max():g}; divide it by 255")
        frame = np.rint(values.clip(0, 1) * 255).astype(np.uint8)
    elif frame.dtype != np.uint8:
        raise DataError(f"the pixels of a frame are uint8 or floats in [0, 1], not {frame.dtype}")
    pixels = np.ascontiguousarray(frame)
    height, width, channels = pixels.shape
    return QImage(pixels.data, width, height, width * channels, FORMATS[channels]).copy()


SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ASSUMED_FPS = 10.0  # of an episode that does not know its own
TICK_MS = 15


class Player(QObject):
    """Emits which frame to show. Late ticks skip frames and keep the speed."""

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
        """From a frame to the last one; at the last frame, from the first."""
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


EDGE = 3  # of the colored frame
ROOM = 2 * EDGE + 8  # between pictures, edges included
SHARP_FROM = 3.0  # enlarged at least so much, pixels are shown as squares; below, the squares would be uneven


class CameraView(QWidget):
    """Pictures are made when Qt paints, so that scrubbing faster than the screen costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.setMinimumSize(320, 200)
        self._frames: Mapping[str, ByteArray] = {}
        self._annotation = float("nan")
        self._text_shown = ""

    def show_frames(self, frames: Mapping[str, ByteArray], annotation: float) -> None:
        """camera -> uint8 [H, W, 3]"""
        self._frames, self._annotation, self._text_shown = frames, annotation, ""
        self.update()

    def show_text(self, words: str) -> None:
        self._frames, self._text_shown = {}, words
        self.update()

    def places(self) -> dict[str, QRect]:
        """Where each camera's picture is: in rows, side by side, with as many columns as make them largest."""
        sizes = {camera: (frame.shape[1], frame.shape[0]) for camera, frame in self._frames.items()}
        if not sizes:
            return {}
        columns = max(range(1, len(sizes) + 1), key=lambda n: sum(w * h for w, h in self._fit(sizes, n).values()))
        fitted = self._fit(sizes, columns)
        names = list(fitted)
        rows = [names[n : n + columns] for n in range(0, len(names), columns)]
        heights = [max(fitted[camera][1] for camera in row) for row in rows]
        places, y = {}, (self.height() - sum(heights) - ROOM * (len(rows) - 1)) // 2
        for row, height in zip(rows, heights):
            x = (self.width() - sum(fitted[camera][0] for camera in row) - ROOM * (len(row) - 1)) // 2
            for camera in row:
                w, h = fitted[camera]
                places[camera] = QRect(x, y + (height - h) // 2, w, h)
                x += w + ROOM
            y += height + ROOM
        return places

    def _fit(self, sizes: Mapping[str, tuple[int, int]], columns: int) -> dict[str, tuple[int, int]]:
        """Width and height of each picture for a number of columns."""
        rows = -(-len(sizes) // columns)
        width, height = self.width() / columns - ROOM, self.height() / rows - ROOM
        scales = {camera: min(width / w, height / h) for camera, (w, h) in sizes.items()}
        return {c: (max(round(w * scales[c]), 1), max(round(h * scales[c]), 1)) for c, (w, h) in sizes.items()}

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self._text_shown:
            font = painter.font()
            font.setPixelSize(20)
            painter.setFont(font)
            painter.setPen(QColor(palette.TEXT_MUTED))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self._text_shown)
        for camera, place in self.places().items():
            image = torch_frame_to_qimage(self._frames[camera], "HWC")
            smooth = place.width() < SHARP_FROM * image.width()
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, smooth)
            painter.drawImage(place, image)
            # The colored frame outside the picture, and the camera's name in a corner.
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            pen = QPen(QColor(palette.label_color(self._annotation)), EDGE)
            pen.setJoinStyle(Qt.PenJoinStyle.MiterJoin)
            painter.setPen(pen)
            half = EDGE / 2
            painter.drawRect(QRectF(place).adjusted(-half, -half, half, half))
            if len(self._frames) > 1:
                name = painter.fontMetrics().boundingRect(camera).adjusted(-7, -3, 7, 3)
                name.moveTopLeft(place.topLeft())
                painter.fillRect(name, QColor(0, 0, 0, 150))
                painter.setPen(QColor(palette.TEXT))
                painter.drawText(name, Qt.AlignmentFlag.AlignCenter, camera)
