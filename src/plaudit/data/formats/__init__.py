"""Data set formats, read and written: LeRobot, `.npy` and `.pkl` folders. One file or folder a format.

A format is read as a `Dataset`: its metadata and a list of `Source`s, each of which loads one episode and fails alone.
It is written by a function that takes episodes one at a time. Reading opens files for reading and nothing else.
"""

from pathlib import Path

from plaudit.data.formats.base import Dataset, FormatName, Writer
from plaudit.data.formats.base import ReadOptions as ReadOptions
from plaudit.data.formats.base import WriteOptions as WriteOptions
from plaudit.errors import UnknownFormat
from plaudit.untrusted import Root


def open_dataset(path: str | Path, options: ReadOptions | None = None) -> Dataset:
    """Find out what a folder is, by what is in it, and list its episodes.

    What it decodes it decodes here; `plaudit.data.formats.worker` does the same in a process with limits.
    """
    from plaudit.data.formats import lerobot, npy, pkl
    from plaudit.data.formats.view import as_asked

    path, options = Path(path), options or ReadOptions()
    if not path.exists():
        raise UnknownFormat(f"{path} does not exist")
    if not path.is_dir():
        raise UnknownFormat(f"{path} is a file; name the folder of the data set")
    root = Root(path, options.follow_links)
    for module in (lerobot, npy, pkl):
        if module.detect(path):
            return as_asked(module.read(root, options), options)
    raise UnknownFormat(
        f"{path} is none of the layouts we read: LeRobot (meta/info.json), "
        "positive/ and negative/ folders of .npy, success/ and failure/ folders of .pkl"
    )


def writer(name: FormatName) -> Writer:
    from plaudit.data.formats import lerobot, npy, pkl

    writers: dict[FormatName, Writer] = {"npy": npy.LAYOUT.write, "pkl": pkl.LAYOUT.write, "lerobot": lerobot.write}
    return writers[name]
