"""Pictures pixel by pixel: every layout, dtype and memory order."""

import gc

import numpy as np
import pytest
import torch
from PySide6.QtGui import QImage

from plaudit.errors import DataError
from plaudit.judges.human.camera_view import torch_frame_to_qimage

UINT8, FLOATS = ["uint8"], ["float16", "float32", "float64", "bfloat16"]


def pixels(image: QImage) -> np.ndarray:
    """[H, W, 4] what Qt says that each pixel is."""
    colors = [[image.pixelColor(x, y) for x in range(image.width())] for y in range(image.height())]
    return np.array([[(c.red(), c.green(), c.blue(), c.alpha()) for c in row] for row in colors])


def counting(channels: int, height: int = 5, width: int = 7) -> np.ndarray:
    """uint8 [H, W, C], no two bytes alike until they wrap; a width that leaves rows unaligned to four bytes."""
    return (np.arange(height * width * channels) * 7 % 256).astype(np.uint8).reshape(height, width, channels)


def expected(frame: np.ndarray) -> np.ndarray:
    """[H, W, 4] of a [H, W, C]."""
    if frame.shape[2] == 4:
        return frame
    color = np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame
    return np.concatenate([color, np.full((*frame.shape[:2], 1), 255, np.uint8)], axis=2)


@pytest.mark.parametrize("memory", ["contiguous", "strided", "flipped"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("layout", ["HWC", "CHW"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", UINT8 + FLOATS)
def test_every_pixel_is_where_it_was(dtype, kind, layout, channels, memory):
    if (dtype, kind) == ("bfloat16", "numpy"):
        return  # numpy has no such thing
    truth = counting(channels)
    frame = torch.from_numpy(truth.copy())
    if layout == "CHW":
        frame = frame.permute(2, 0, 1)
    if memory == "contiguous":
        frame = frame.contiguous()
    elif memory == "strided":
        wide = torch.zeros([2 * n for n in frame.shape], dtype=torch.uint8)
        wide[::2, ::2, ::2] = frame
        frame = wide[::2, ::2, ::2]
    if dtype != "uint8":
        frame = (frame.double() / 255).to(getattr(torch, dtype))
    if kind == "numpy":
        frame = frame.numpy()
        if memory == "flipped":
            frame = np.ascontiguousarray(frame[::-1])[::-1]  # negative strides, which torch has not
    seen = pixels(torch_frame_to_qimage(frame))
    assert np.abs(seen - expected(truth).astype(int)).max() <= (1 if dtype == "bfloat16" else 0)


def test_a_grey_frame_may_leave_its_channel_out():
    assert np.array_equal(pixels(torch_frame_to_qimage(counting(1)[:, :, 0])), expected(counting(1)))


def test_floats_are_clipped_and_what_is_no_number_is_black():
    row = np.array([[-0.5, 0.0, 0.5, 1.0, 1.2, np.nan, np.inf, -np.inf]], np.float32)
    assert pixels(torch_frame_to_qimage(row))[0, :, 0].tolist() == [0, 0, 128, 255, 255, 0, 255, 0]


def test_channels_are_last_where_they_could_be_first_too_unless_one_says():
    cube = counting(3, 3, 3)
    assert np.array_equal(pixels(torch_frame_to_qimage(cube)), expected(cube))
    assert np.array_equal(pixels(torch_frame_to_qimage(cube, "CHW")), expected(cube.transpose(1, 2, 0)))


def test_a_picture_outlives_the_frame_it_was_made_of():
    frame = counting(3)
    image = torch_frame_to_qimage(frame)
    frame[:] = 0
    del frame
    gc.collect()
    assert np.array_equal(pixels(image), expected(counting(3)))


def test_a_tensor_that_learns_is_a_picture_too():
    frame = torch.full((3, 5, 7), 0.5, requires_grad=True)
    assert (pixels(torch_frame_to_qimage(frame))[:, :, :3] == 128).all()


@pytest.mark.parametrize(
    "frame, sentence",
    [
        (np.zeros((2, 5, 7, 3), np.uint8), r"one frame is \[H, W, C\], .* this one is \[2, 5, 7, 3\]"),
        (np.zeros(5, np.uint8), r"this one is \[5\]"),
        (np.zeros((5, 7, 2), np.uint8), r"has 1, 3 or 4 channels, first or last; this one is \[5, 7, 2\]"),
        (np.zeros((0, 7, 3), np.uint8), r"a frame of \[0, 7, 3\] has no pixels"),
        (np.zeros((5, 7, 3), np.int32), "uint8 or floats in .*, not int32"),
        (np.zeros((5, 7, 3), bool), "not bool"),
        (np.full((5, 7, 3), 200.0), "this one reaches 200; divide it by 255"),
        ([[0]], "an array or a tensor, not list"),
    ],
)
def test_what_is_no_frame_is_refused_in_one_sentence(frame, sentence):
    with pytest.raises(DataError, match=sentence):
        torch_frame_to_qimage(frame)
