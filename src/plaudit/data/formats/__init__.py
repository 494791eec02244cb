"""Data set formats, read and written: LeRobot, HDF5, Zarr, RLDS, RoboReward, RBM, bags, `.npy`, `.pkl`. One file each.

A format is read as a `Dataset`: its metadata and a list of `Source`s, each of which loads one episode and fails alone.
It is written by a function that takes episodes one at a time.
"""

from pathlib import Path
from typing import Any

from plaudit.data.formats.base import Dataset, FormatName, Writer
from plaudit.data.formats.base import ReadOptions as ReadOptions
from plaudit.data.formats.base import WriteOptions as WriteOptions
from plaudit.errors import DataError, UnknownFormat
from plaudit.files import Root


def open_dataset(path: str | Path, options: ReadOptions | None = None) -> Dataset:
    """Detect the layout of a folder and list its episodes, which are decoded in this process."""
    from plaudit.data.formats.columns import ColumnLayout
    from plaudit.data.formats.images import as_asked

    path, options = Path(path), options or ReadOptions()
    layout = layout_of(path)
    if isinstance(layout, ColumnLayout):
        return as_asked(layout.read(path, options), options)
    if options.success:
        raise DataError(f"--success names a column of HDF5, Zarr, RLDS or a bag; {path} has another format")
    return as_asked(layout.read(Root(path, options.follow_links), options), options)


def layout_of(path: Path) -> Any:
    """What has the function `read` for a file or folder, by what is in it; nothing is decoded."""
    from plaudit.data.formats import lerobot, npy, pkl, rbm

    if not path.exists():
        raise UnknownFormat(f"{path} does not exist")
    if rbm.LAYOUT.find(path):  # of which one form has a meta/info.json, too
        return rbm.LAYOUT
    for layout in (lerobot, npy.LAYOUT, pkl.LAYOUT) if path.is_dir() else ():
        if layout.detect(path):
            return layout
    if (columns := column_layout(path)) is not None:
        return columns
    if not path.is_dir():
        raise UnknownFormat(
            f"{path} is not a data set that we read; name the folder of the data set, or an .hdf5, .zarr.zip, .mcap or "
            ".db3 file"
        )
    raise UnknownFormat(
        f"{path} is not a store, nor one of the layouts that we read: LeRobot (meta/info.json), "
        "positive/ and negative/ folders of .npy, success/ and failure/ folders of .pkl. "
        "It is no .hdf5 file, Zarr (meta/episode_ends), RLDS (features.json), RoboReward (metadata.jsonl), RBM "
        "(processed_dataset/state.json, train/metadata.parquet) or ROS 2 bag (.mcap, .db3) either"
    )


def column_layout(path: Path) -> Any:
    """The `ColumnLayout` of a file or folder, None if it has none; imports no decoder."""
    from plaudit.data.formats import hdf5, rbm, rlds, roboreward, rosbag, zarr

    layouts = (zarr.LAYOUT, rlds.LAYOUT, roboreward.LAYOUT, rbm.LAYOUT, rosbag.LAYOUT, hdf5.LAYOUT)
    return next((layout for layout in layouts if layout.find(path)), None)


def writer(name: FormatName) -> Writer:
    """The function that writes a format."""
    from plaudit.data.formats import hdf5, lerobot, npy, pkl

    writers: dict[FormatName, Writer] = {
        "npy": npy.LAYOUT.write,
        "pkl": pkl.LAYOUT.write,
        "lerobot": lerobot.write,
        "hdf5": hdf5.write,
    }
    return writers[name]
