"""All cameras of one frame, as large as they fit, with a border in the color of its label."""

from collections.abc import Mapping

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from plaudit.judges.human import style
from plaudit.judges.human.frames import torch_frame_to_qimage
from plaudit.types import ByteArray

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
        found, y = {}, (self.height() - sum(heights) - ROOM * (len(rows) - 1)) // 2
        for row, height in zip(rows, heights):
            x = (self.width() - sum(fitted[camera][0] for camera in row) - ROOM * (len(row) - 1)) // 2
            for camera in row:
                w, h = fitted[camera]
                found[camera] = QRect(x, y + (height - h) // 2, w, h)
                x += w + ROOM
            y += height + ROOM
        return found

    def _fit(self, sizes: Mapping[str, tuple[int, int]], columns: int) -> dict[str, tuple[int, int]]:
        """Width and height of each picture when there are so many columns."""
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
            painter.setPen(QColor(style.TEXT_MUTED))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self._text_shown)
        for camera, place in self.places().items():
            image = torch_frame_to_qimage(self._frames[camera], "HWC")
            smooth = place.width() < SHARP_FROM * image.width()
            painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, smooth)
            painter.drawImage(place, image)
            self._decorate(painter, camera, place)

    def _decorate(self, painter: QPainter, camera: str, place: QRect) -> None:
        """The colored frame outside the picture, and its name in a corner."""
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        pen = QPen(QColor(style.label_color(self._annotation)), EDGE)
        pen.setJoinStyle(Qt.PenJoinStyle.MiterJoin)
        painter.setPen(pen)
        half = EDGE / 2
        painter.drawRect(QRectF(place).adjusted(-half, -half, half, half))
        if len(self._frames) > 1:
            name = painter.fontMetrics().boundingRect(camera).adjusted(-7, -3, 7, 3)
            name.moveTopLeft(place.topLeft())
            painter.fillRect(name, QColor(0, 0, 0, 150))
            painter.setPen(QColor(style.TEXT))
            painter.drawText(name, Qt.AlignmentFlag.AlignCenter, camera)
