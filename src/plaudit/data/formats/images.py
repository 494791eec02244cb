"""Images of other layouts as uint8 [H, W, 3], with checks; the cameras, names and sizes that an import asks for."""

import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from plaudit.data.formats.base import GB, MAX_EDGE, Dataset, ReadOptions, Source, check_decoded_size
from plaudit.errors import BadFile, DataError
from plaudit.types import AnyArray, ByteArray, Episode, Labels, name_of_camera

# Pillow reads fifty formats, and for one of them starts Ghostscript, which runs what the file says.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
MAX_IMAGE = 256 << 20  # bytes of a file
LEROBOT_IMAGES = "observation.images."  # how LeRobot's names of cameras begin


class BadImage(ValueError):
    """Bytes that are no image of the size they should have."""


def decode_image(data: bytes, camera: str, height: int, width: int) -> ByteArray:
    """uint8 [H, W, 3] of an encoded image. Its size is compared before a pixel is decoded."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.size != (width, height):
            size = f"{image.size[1]}x{image.size[0]}"
            raise BadImage(f"camera '{camera}' has {size} frames, not {height}x{width}; correct one of them")
        return np.asarray(image.convert("RGB"))
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        kinds = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise BadImage(f"an image of camera '{camera}' cannot be read: it is no {kinds}") from error
    except Exception as error:  # Pillow's readers raise whatever a damaged file leads them to
        reason = str(error)[:100] or type(error).__name__
        raise BadImage(f"an image of camera '{camera}' cannot be read ({reason})") from error


def to_frames(images: AnyArray, where: str | Path, camera: str) -> ByteArray:
    """[T, H, W, 3] uint8 from uint8 or floats in [0, 1], channels first or last.

    Floats beyond 1 are refused, not clamped: a 0-255 image would become white.
    """
    if images.ndim != 4 or 3 not in (images.shape[1], images.shape[3]):
        raise BadFile(where, f"camera '{camera}' must be [T, 3, H, W] or [T, H, W, 3], got {list(images.shape)}")
    if images.shape[3] != 3:
        images = images.transpose(0, 2, 3, 1)
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images)
    if images.dtype.kind != "f":
        raise BadFile(where, f"camera '{camera}' must be uint8 or float, got {images.dtype}")
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if not (low >= 0 and high <= 1):  # also False for NaN
        raise BadFile(where, f"camera '{camera}' has floats from {low:g} to {high:g}; this layout holds [0, 1]")
    return np.rint(images * 255).astype(np.uint8)


def choose(cameras: Sequence[str], available: Sequence[str], where: str) -> list[str]:
    """The available cameras that were asked for, all of them when none were; any other is an error."""
    chosen = [name_of_camera(camera, available, cameras) for camera in cameras]
    for camera, name in zip(cameras, chosen, strict=True):
        if name not in available:
            raise DataError(f"camera '{camera}' is not in {where}; it has: {', '.join(available) or 'none'}")
    return chosen or list(available)


def check_names_differ(names: Sequence[str]) -> None:
    """Refuse a name that two cameras would have."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two cameras would be called '{twice}'; give each a name of its own (--camera OLD=NEW)")


def as_asked(dataset: Dataset, options: ReadOptions) -> Dataset:
    """The data set with the cameras, names and image size of `options`."""
    if not (options.cameras or options.resize):
        return dataset
    asked = () if dataset.cameras_chosen else options.cameras
    cameras = [camera.removeprefix(LEROBOT_IMAGES) for camera in asked]
    names = {name: options.rename.get(camera, name) for name, camera in zip(cameras, asked)}
    check_names_differ(list(names.values()))
    if options.resize is not None and not all(1 <= edge <= MAX_EDGE for edge in options.resize):
        size = "x".join(map(str, options.resize))
        raise DataError(f"frames of {size} are not possible; 1 to {MAX_EDGE:,} pixels are")

    def nbytes(source: Source) -> int:
        """Memory of the episode, including its resized frames."""
        before = source.nbytes()
        if options.resize is None:
            return before
        height, width = options.resize
        extra = (source.steps + 1) * height * width * 3 * max(1, len(dataset.sizes))
        most = options.max_episode_gb * GB
        check_decoded_size(extra, extra, dataset.path, f"episode {source.index} at {height}x{width}", most)
        return before + 2 * extra

    def load(source: Source) -> tuple[Episode, Labels | None]:
        episode, labels = source.load()
        chosen = choose(list(names), list(episode.frames), source.where)
        frames = {name: episode.frames[camera] for name, camera in zip(names.values() or chosen, chosen, strict=True)}
        if options.resize is not None:
            height, width = options.resize
            frames = {camera: resize(images, height, width) for camera, images in frames.items()}
        return replace(episode, frames=frames), labels

    sizes = {names.get(camera, camera): options.resize or size for camera, size in dataset.sizes.items()}
    sources = [replace(one, load=partial(load, one), nbytes=partial(nbytes, one)) for one in dataset.sources]
    return replace(dataset, sources=sources, sizes=sizes)


def resize(frames: ByteArray, height: int, width: int) -> ByteArray:
    """uint8 [T, H, W, 3] to another size, bilinear with antialiasing, as reward models resize what they see."""
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, 3), np.uint8)
    for image, target in zip(frames, out):
        target[:] = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    return out
