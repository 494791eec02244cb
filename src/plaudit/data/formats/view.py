"""A data set as it was asked for: cameras under other names, frames of another size.

Frames are resized where they are decoded, so that no more than is kept leaves the process that reads the data set.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image

from plaudit.data.formats.base import Dataset, ReadOptions, Source
from plaudit.data.formats.images import choose
from plaudit.data.formats.lerobot.features import IMAGES
from plaudit.data.formats.limits import GB, MAX_EDGE, check_decoded_size
from plaudit.errors import DataError
from plaudit.types import ByteArray, Episode, Labels


def as_asked(dataset: Dataset, options: ReadOptions) -> Dataset:
    """The same data set with the cameras, the names and the size of `options`."""
    if not (options.cameras or options.resize):
        return dataset
    names = _names(options)
    taken = list(names.values())
    twice = next((name for name in taken if taken.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two cameras would be called '{twice}'; give each a name of its own (--camera OLD=NEW)")
    if options.resize is not None and not all(1 <= edge <= MAX_EDGE for edge in options.resize):
        size = "x".join(map(str, options.resize))
        raise DataError(f"frames of {size} are not possible; 1 to {MAX_EDGE:,} pixels are")
    sizes = {names.get(camera, camera): options.resize or size for camera, size in dataset.sizes.items()}
    sources = [
        replace(source, load=partial(_load, source, options), nbytes=_nbytes(source, dataset, options))
        for source in dataset.sources
    ]
    return replace(dataset, sources=sources, sizes=sizes)


def _names(options: ReadOptions) -> dict[str, str]:
    """Cameras that were asked for, and what they are called from here on."""
    return {
        camera.removeprefix(IMAGES): options.rename.get(camera, camera.removeprefix(IMAGES))
        for camera in options.cameras
    }


def _nbytes(source: Source, dataset: Dataset, options: ReadOptions) -> Callable[[], int]:
    """With what the resized frames take beside the others."""

    def nbytes() -> int:
        before = source.nbytes()
        if options.resize is None:
            return before
        height, width = options.resize
        extra = (source.steps + 1) * height * width * 3 * max(1, len(dataset.sizes))
        most = options.max_episode_gb * GB
        check_decoded_size(extra, extra, dataset.path, f"episode {source.index} at {height}x{width}", most)
        return before + 2 * extra

    return nbytes


def _load(source: Source, options: ReadOptions) -> tuple[Episode, Labels | None]:
    episode, labels = source.load()
    names = _names(options)
    chosen = choose(list(names), list(episode.frames), source.where)
    frames = {name: episode.frames[camera] for name, camera in zip(names.values() or chosen, chosen, strict=True)}
    if options.resize is not None:
        height, width = options.resize
        frames = {camera: resize(images, height, width) for camera, images in frames.items()}
    return replace(episode, frames=frames), labels


def resize(frames: ByteArray, height: int, width: int) -> ByteArray:
    """uint8 [T, H, W, 3] to another size, bilinear with antialiasing, as reward models resize what they see."""
    if frames.shape[1:3] == (height, width):
        return frames
    out = np.empty((len(frames), height, width, 3), np.uint8)
    for image, target in zip(frames, out):
        target[:] = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    return out
