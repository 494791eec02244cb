"""The slider and, under it, the strip: every frame's annotation, with what other judges thought drawn over it.

Both put frame i at the same x, so that the handle, the playhead and the strip's cells stand one below the other. The
cells are drawn once per annotation and the curves once per episode: only the playhead moves while one scrubs.
"""

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QBrush, QColor, QFontMetrics, QMouseEvent, QPainter, QPaintEvent, QPen, QPixmap, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QSlider, QWidget

from plaudit.judges.human import palette
from plaudit.judges.human.drafts import FrameAnnotation
from plaudit.judges.human.session import LabelTrace
from plaudit.types import FloatArray

INSET = 12.0  # from the edge to the middle of the first frame's cell, when frames are narrow
CELLS, LEGEND = 72, 24  # heights


def x_of(frame: float, count: int, width: int) -> float:
    """The middle of a frame's cell."""
    return INSET + frame * (width - 2 * INSET) / max(count - 1, 1)


def frame_at(x: float, count: int, width: int) -> int:
    frame = round((x - INSET) / (width - 2 * INSET) * (count - 1))
    return min(max(frame, 0), count - 1)


class Slider(QSlider):
    """A slider that goes where it is clicked."""

    def __init__(self) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.setFixedHeight(24)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def mousePressEvent(self, ev: QMouseEvent) -> None:
        self.mouseMoveEvent(ev)

    def mouseMoveEvent(self, ev: QMouseEvent) -> None:
        if ev.buttons() & Qt.MouseButton.LeftButton:
            self.setValue(frame_at(ev.position().x(), self.maximum() + 1, self.width()))

    def paintEvent(self, ev: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        middle, x = self.height() / 2, x_of(self.value(), self.maximum() + 1, self.width())
        groove = QRectF(INSET, middle - 3, self.width() - 2 * INSET, 6)
        painter.setBrush(QColor(palette.SURFACE_RAISED))
        painter.drawRoundedRect(groove, 3, 3)
        painter.setBrush(QColor(palette.TEXT_MUTED))
        painter.drawRoundedRect(QRectF(groove.left(), groove.top(), x - groove.left(), 6), 3, 3)
        painter.setBrush(QColor(palette.TEXT_STRONG))
        painter.drawEllipse(QPointF(x, middle), 9, 9)


class Timeline(QWidget):
    """Click to go there; drag with Shift to mark a range."""

    scrubbed = Signal(int)  # to this frame
    marked = Signal(int, int)  # from a frame to another, in the order they were dragged

    def __init__(self) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self._annotation, self._traces = FrameAnnotation.unlabeled(0), list[LabelTrace]()
        self._frame, self._selection = 0, None
        self._dragged_from: int | None = None
        self._cells_drawn: QPixmap | None = None
        self._curves_drawn: QPixmap | None = None

    def sizeHint(self) -> QSize:
        return QSize(600, CELLS + LEGEND)

    def show_traces(self, traces: Sequence[LabelTrace]) -> None:
        self._traces = [o for o in traces if o.curve is not None]
        self._curves_drawn = None
        self.update()

    def show_annotation(self, annotation: FrameAnnotation) -> None:
        self._annotation = annotation
        self._cells_drawn = None
        self.update()

    def show_place(self, frame: int, selection: tuple[int, int] | None) -> None:
        self._frame, self._selection = frame, selection
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        shift = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        self._dragged_from = self._frame_of(event) if shift and self._count else None
        self.mouseMoveEvent(event)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if not self._count or not event.buttons() & Qt.MouseButton.LeftButton:
            return
        frame = self._frame_of(event)
        self.scrubbed.emit(frame)
        if self._dragged_from is not None:
            self.marked.emit(self._dragged_from, frame)

    def resizeEvent(self, event: object) -> None:
        self._cells_drawn = self._curves_drawn = None

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._count:
            return
        self._cells_drawn = self._cells_drawn or self._draw_layer(self._draw_cells)
        self._curves_drawn = self._curves_drawn or self._draw_layer(self._draw_curves)
        painter = QPainter(self)
        painter.drawPixmap(0, 0, self._cells_drawn)
        painter.drawPixmap(0, 0, self._curves_drawn)
        if self._selection is not None:
            cells = self._cells(*self._selection).adjusted(1, 1, -1, -1)
            painter.fillRect(cells, QColor(255, 255, 255, 60))
            painter.setPen(QPen(QColor(palette.TEXT_STRONG), 2, Qt.PenStyle.DashLine))
            painter.drawRect(cells)
        x = x_of(self._frame, self._count, self.width())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for color, width in ((palette.BACKGROUND, 4), (palette.TEXT_STRONG, 2)):  # the playhead, with a dark edge
            painter.setPen(QPen(QColor(color), width))
            painter.drawLine(QPointF(x, 0), QPointF(x, CELLS))

    @property
    def _count(self) -> int:
        return len(self._annotation.frames)

    def _frame_of(self, event: QMouseEvent) -> int:
        return frame_at(event.position().x(), self._count, self.width())

    def _cells(self, first: int, last: int) -> QRectF:
        """Of a range of frames, to the middle between its ends and their neighbors."""
        left = x_of(first - 0.5, self._count, self.width()) if first else 0.0
        right = x_of(last + 0.5, self._count, self.width()) if last < self._count - 1 else float(self.width())
        return QRectF(left, 0, right - left, CELLS)

    def _draw_layer(self, draw: Callable[[QPainter], None]) -> QPixmap:
        """A layer that stays while one scrubs."""
        ratio = self.devicePixelRatioF()
        canvas = QPixmap(self.size() * ratio)
        canvas.setDevicePixelRatio(ratio)
        canvas.fill(Qt.GlobalColor.transparent)
        painter = QPainter(canvas)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        draw(painter)
        painter.end()
        return canvas

    def _draw_cells(self, painter: QPainter) -> None:
        for first, last, value in self._annotation.runs:
            color = palette.label_color(value, palette.TIMELINE_SUCCESS, palette.TIMELINE_FAILURE)
            painter.fillRect(self._cells(first, last), QColor(color))
            if value != value and self._annotation.excluded:
                painter.fillRect(self._cells(first, last), QBrush(palette.TEXT_MUTED, Qt.BrushStyle.DiagCrossPattern))
            elif value != value:
                painter.fillRect(self._cells(first, last), QBrush(palette.BORDER, Qt.BrushStyle.BDiagPattern))
        if cutoff := self._annotation.cutoff:  # a line with two arrowheads where success begins
            x = self._cells(cutoff, cutoff).left()
            painter.setPen(QPen(QColor(palette.TEXT_STRONG), 1))
            painter.drawLine(QPointF(x, 0), QPointF(x, CELLS))
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(palette.TEXT_STRONG))
            for edge, tip in ((0, 8), (CELLS, CELLS - 8)):
                painter.drawPolygon(QPolygonF([QPointF(x - 6, edge), QPointF(x + 6, edge), QPointF(x, tip)]))
        self._draw_legend(painter)

    def _draw_curves(self, painter: QPainter) -> None:
        for trace, color in zip(self._traces, map(QColor, cycle(palette.CURVES))):
            assert trace.curve is not None
            if trace.threshold is not None:
                y = _y(trace.threshold)
                painter.setPen(QPen(color, 1, Qt.PenStyle.DashLine))
                painter.drawLine(QPointF(0, y), QPointF(self.width(), y))
            for pen in (QPen(QColor(0, 0, 0, 150), 4), QPen(color, 1.8)):
                pen.setJoinStyle(Qt.PenJoinStyle.RoundJoin)
                painter.setPen(pen)
                painter.drawPolyline(self._points(trace.curve))
            if trace.progress is not None:
                painter.setPen(QPen(color, 1.8, Qt.PenStyle.DotLine))
                painter.drawPolyline(self._points(trace.progress))

    def _points(self, curve: FloatArray) -> QPolygonF:
        return QPolygonF(
            [QPointF(x_of(i, self._count, self.width()), _y(p)) for i, p in enumerate(curve) if not np.isnan(p)]
        )

    def _draw_legend(self, painter: QPainter) -> None:
        entries = [("success", palette.TIMELINE_SUCCESS), ("no success", palette.TIMELINE_FAILURE)]
        unlabeled = "excluded" if self._annotation.excluded else "not labeled"
        entries += [(unlabeled, palette.UNLABELED)] if self._annotation.num_unlabeled else []
        for trace, color in zip(self._traces, cycle(palette.CURVES)):
            at = "" if trace.threshold is None else f", threshold {trace.threshold:.2g}"
            dotted = "" if trace.progress is None else ", progress dotted"
            entries.append((f"P of {trace.source}{at}{dotted}", color))
        font = painter.font()
        font.setPixelSize(12)
        painter.setFont(font)
        metrics, x, middle = QFontMetrics(font), 2.0, CELLS + LEGEND / 2 + 2
        for number, (words, color) in enumerate(entries):
            curve = number >= len(entries) - len(self._traces)
            painter.fillRect(QRectF(x, middle - (1.5 if curve else 5), 16 if curve else 10, 3 if curve else 10), color)
            x += 22 if curve else 16
            painter.setPen(QColor(palette.TEXT_MUTED))
            painter.drawText(QPointF(x, middle + metrics.ascent() / 2 - 1), words)
            x += metrics.horizontalAdvance(words) + 20


def _y(probability: float) -> float:
    return 4 + (CELLS - 8) * (1 - probability)
