"""Data set formats, read and written: LeRobot, `.npy` and `.pkl` folders. One file or folder a format.

A format is read as a `Dataset`: its metadata and a list of `Source`s, each of which loads one episode and fails alone.
It is written by a function that takes episodes one at a time.
"""

from pathlib import Path
from typing import Any

from plaudit.data.formats.base import Dataset, FormatName, Writer
from plaudit.data.formats.base import ReadOptions as ReadOptions
from plaudit.data.formats.base import WriteOptions as WriteOptions
from plaudit.errors import UnknownFormat
from plaudit.files import Root


def open_dataset(path: str | Path, options: ReadOptions | None = None) -> Dataset:
    """Detect the layout of a folder and list its episodes, which are decoded in this process."""
    from plaudit.data.formats.images import as_asked

    path, options = Path(path), options or ReadOptions()
    return as_asked(layout_of(path).read(Root(path, options.follow_links), options), options)


def layout_of(path: Path) -> Any:
    """What has the function `read` for a folder, by what is in it; nothing is decoded."""
    from plaudit.data.formats import lerobot, npy, pkl

    if not path.exists():
        raise UnknownFormat(f"{path} does not exist")
    if not path.is_dir():
        raise UnknownFormat(f"{path} is a file; name the folder of the data set")
    for layout in (lerobot, npy.LAYOUT, pkl.LAYOUT):
        if layout.detect(path):
            return layout
    raise UnknownFormat(
        f"{path} is not a store, nor one of the layouts that we read: LeRobot (meta/info.json), "
        "positive/ and negative/ folders of .npy, success/ and failure/ folders of .pkl"
    )


def writer(name: FormatName) -> Writer:
    from plaudit.data.formats import lerobot, npy, pkl

    writers: dict[FormatName, Writer] = {"npy": npy.LAYOUT.write, "pkl": pkl.LAYOUT.write, "lerobot": lerobot.write}
    return writers[name]
