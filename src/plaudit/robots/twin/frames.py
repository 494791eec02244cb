"""The camera images of a twin: bars for its joints on a background in the camera's own color.

The top rows encode the stamp, 64 bits in black and white blocks of 4x4 pixels, which survive JPEG. The rest is a
function of stamp and joints alone, so an image can be rendered again and compared.
"""

from functools import cache

import numpy as np

from plaudit.types import AnyArray, ByteArray, FloatArray

BLOCK = 4  # pixels
BITS = 64
BAR_COLOR = np.array([235, 200, 90], np.uint8)


def render_frame(camera: int, stamp: int, fractions: FloatArray, size: tuple[int, int]) -> ByteArray:
    """The image [H, W, 3] of a camera.

    camera: its index
    stamp: ns
    fractions: [J] where each joint is between its limits, 0 to 1
    size: H, W; at least 64 blocks
    """
    height, width = size
    bar_top = height * (1.0 - fractions.astype(np.float32))
    joint_of_column = np.arange(width) * len(fractions) // width
    in_bar = np.arange(height)[:, None] >= bar_top[joint_of_column]
    pixels = np.where(in_bar[..., None], BAR_COLOR, _background(camera, size))
    columns = width // BLOCK
    rows = -(-BITS // columns)
    bits = (np.uint64(stamp) >> np.arange(BITS, dtype=np.uint64)) & np.uint64(1)
    padded = np.zeros(rows * columns, np.uint8)
    padded[:BITS] = 255 * bits.astype(np.uint8)
    blocks = np.kron(padded.reshape(rows, columns), np.ones((BLOCK, BLOCK), np.uint8))
    pixels[: rows * BLOCK, : columns * BLOCK] = blocks[..., None]
    return pixels


def read_stamp(pixels: ByteArray) -> int:
    """The stamp that `render_frame` encoded in an image."""
    columns = pixels.shape[1] // BLOCK
    rows = -(-BITS // columns)
    blocks = pixels[: rows * BLOCK, : columns * BLOCK, 0].astype(np.float32)
    means: AnyArray = blocks.reshape(rows, BLOCK, columns, BLOCK).mean(axis=(1, 3)).reshape(-1)[:BITS]
    return sum(1 << n for n in np.flatnonzero(means > 127).tolist())


@cache
def _background(camera: int, size: tuple[int, int]) -> ByteArray:
    down = np.linspace(20, 90, size[0], dtype=np.float32)[:, None]
    across = np.linspace(0, 60, size[1], dtype=np.float32)[None]
    tint = np.array([[1.0, 0.4, 0.4], [0.4, 1.0, 0.4], [0.4, 0.4, 1.0]], np.float32)[camera % 3]
    return ((down + across)[..., None] * tint).astype(np.uint8)
