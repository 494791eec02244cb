"""Frames as Qt paints them.

Qt is handed a pointer to bytes: rows of interleaved channels without gaps. Anything else, a view with strides, channels
first, floats, is brought into that form here, and the picture owns a copy, so that no frame may be freed under it.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np
from PySide6.QtGui import QImage

from plaudit.errors import DataError
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
    pixels = _bytes(_channels_last(_array(frame), layout))
    height, width, channels = pixels.shape
    return QImage(pixels.data, width, height, width * channels, FORMATS[channels]).copy()


def _array(frame: "AnyArray | torch.Tensor") -> AnyArray:
    if isinstance(frame, np.ndarray):
        return frame
    import torch  # here: a window over a store has arrays only, and torch takes seconds to import

    if not isinstance(frame, torch.Tensor):
        raise DataError(f"a frame is an array or a tensor, not {type(frame).__name__}")
    known = frame.detach().cpu()
    return (known.float() if known.dtype == torch.bfloat16 else known).numpy()  # numpy has no bfloat16


def _channels_last(frame: AnyArray, layout: Layout | None) -> AnyArray:
    """[H, W, C], a view."""
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
    return frame


def _bytes(frame: AnyArray) -> ByteArray:
    """uint8, without gaps."""
    if frame.dtype == np.uint8:
        return np.ascontiguousarray(frame)
    if frame.dtype.kind != "f":
        raise DataError(f"the pixels of a frame are uint8 or floats in [0, 1], not {frame.dtype}")
    values = np.nan_to_num(frame.astype(np.promote_types(frame.dtype, np.float32)), nan=0, posinf=1, neginf=0)
    if values.max() > BRIGHTEST:
        raise DataError(f"a frame of floats lies in [0, 1] and this one reaches {values.max():g}; divide it by 255")
    return np.ascontiguousarray(np.rint(values.clip(0, 1) * 255).astype(np.uint8))
