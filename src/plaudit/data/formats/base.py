"""What all formats share: a data set as it is read, the options of reading and writing, and a folder of files."""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plaudit.errors import BadFile
from plaudit.files import Root
from plaudit.types import AnyArray, Episode, Labels, ProgressFn

# Limits on foreign data: a few bytes can stand for any amount of memory (equal values in a table, a black video, a
# length in a JSON file), so sizes are computed before anything is decoded.
MAX_EDGE = 16_384  # pixels of an image
MAX_PIXELS = 1 << 26  # of an image
MAX_WIDTH = 1 << 20  # numbers in one row of a column
MAX_ROWS = 1 << 26  # of a table
MAX_TEXT = 10_000  # characters of a task
GB = 1 << 30

UNREADABLE = "this cannot be read ({}); copy it again from its source"
TEXT = "text"  # in place of a dtype: a column of texts

# Bytes that any file may be decoded to, and beyond that how many times its own size. A camera that stands still gives
# 1,000 to 1; a black one gives more, but is one of several.
FREE = 256 << 20
RATIO = 2000
TABLE_RATIO = 200  # of numbers

FormatName = Literal["npy", "pkl", "lerobot", "hdf5", "zarr", "rlds", "roboreward", "rbm", "rosbag"]
RewardFrame = Literal["next", "same"]


@dataclass(frozen=True)
class Source:
    """One episode of a data set, not loaded yet."""

    index: int
    where: str  # the file it stands in, for messages
    digest: Callable[[], str]  # of its bytes without its labels; cheap next to loading
    load: Callable[[], tuple[Episode, Labels | None]]
    nbytes: Callable[[], int]  # of memory that reading it may take, told before it is read
    steps: int = 0  # actions, 0 where only loading it tells
    codecs: Callable[[], Mapping[str, str]] = dict  # LeRobot: of its videos, by feature
    has_labels: Callable[[], bool] = lambda: True  # found out without decoding images


@dataclass(frozen=True)
class Dataset:
    """A folder that was looked at and understood."""

    format: FormatName
    path: Path
    sources: Sequence[Source]
    metadata: Mapping[str, Any]  # for `plaudit data info`
    ignored: Sequence[str] = ()  # what the folder has and an episode has no place for
    problems: Sequence[str] = ()  # what has to be settled before its episodes can be read, a sentence each
    notes: Collection[str] = ()  # what to tell of the episodes read so far
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # camera -> (H, W), where that is known already
    cameras_chosen: bool = False  # the reader has applied the cameras and names of its options

    def store_bytes(self, max_episode_gb: float) -> int:
        """What the frames of the episodes within the limit take in a store; 0 where loading must tell."""
        frame = sum(height * width * 3 for height, width in self.sizes.values())
        episodes = ((source.steps + 1) * frame for source in self.sources if source.steps)
        return sum(nbytes for nbytes in episodes if nbytes <= max_episode_gb * GB)


@dataclass(frozen=True)
class ReadOptions:
    """Settings for reading that a data set does not specify."""

    reward_frame: RewardFrame | None = None  # LeRobot: which frame `next.reward` judges; None: as the folder says
    task: str = ""  # for layouts that keep none
    fps: float = 0.0
    state: Sequence[str] = ()  # columns to join as the state, ("none",) for none; (): by their names
    action: Sequence[str] = ()  # the same for the action; not LeRobot: ("next",) for the state that follows
    success: str = ""  # not LeRobot: column of success or reward; "": by its name, "none" for none
    cameras: Sequence[str] = ()  # () for all
    rename: Mapping[str, str] = field(default_factory=dict)  # camera -> what it is called in an episode
    resize: Sequence[int] | None = None  # (H, W) of all frames; None: as they are
    follow_links: bool = False  # symbolic links of the data set may lead out of it, to regular files
    max_episode_gb: float = 8.0  # that the frames of one episode may take in memory


@dataclass(frozen=True)
class WriteOptions:
    """Settings for writing; each format uses those that apply to it."""

    cameras: Sequence[str] = ()  # () for all
    video: bool = True  # LeRobot: videos, or PNG images in the tables
    codec: str = "av1"
    quality: int | None = None  # constant rate factor of the codec, lower is better
    reward_frame: RewardFrame = "next"
    fps: float = 0.0  # for episodes that do not know theirs


@dataclass(frozen=True)
class LabeledEpisode:
    """An episode with its labels, as a writer gets it."""

    id: int
    episode: Episode
    labels: Labels | None


@dataclass(frozen=True)
class EpisodeFile:
    """An episode as the bytes of one file."""

    success: bool
    data: bytes


@dataclass(frozen=True)
class FileLayout:
    """A layout of one file an episode, in a folder of successes and one of failures, or without these folders."""

    format: FormatName
    success_folder: str
    failure_folder: str
    file_name: str  # with a place for the number
    counts_each_folder: bool  # or the numbers go on over both
    load: Callable[[Root, ReadOptions, Path, int], tuple[Episode, Labels | None]]
    encode: Callable[[LabeledEpisode, WriteOptions], EpisodeFile | None]  # None: not all of it is labeled

    @property
    def folders(self) -> tuple[str, str]:
        return self.success_folder, self.failure_folder

    def detect(self, path: Path) -> bool:
        """Whether a folder has files of this layout."""
        return bool(self._files(path))

    def read(self, root: Root, options: ReadOptions) -> Dataset:
        """List the episodes of a folder."""

        def nbytes(file: Path) -> int:
            size = root.size(file)
            check_decoded_size(size, size, file, "this file", options.max_episode_gb * GB)
            return 8 * size  # bytes, then arrays, then images of them, floats on the way

        files = self._files(root.path)
        sources = [
            Source(
                i, str(f), partial(file_digest, root, f), partial(self.load, root, options, f, i), partial(nbytes, f)
            )
            for i, f in enumerate(files)
        ]
        counts = {kind: sum(file.parent.name == kind for file in files) for kind in self.folders}
        return Dataset(self.format, root.path, sources, metadata={"episodes": len(files), **counts})

    def _files(self, path: Path) -> list[Path]:
        """In the order of their numbers; successes first, where each folder has numbers of its own."""
        pattern = re.sub(r"{.*}", "*", self.file_name)
        files = [file for name in (*self.folders, ".") for file in sorted((path / name).glob(pattern))]
        return files if self.counts_each_folder else sorted(files, key=lambda file: (file.name, file.parent.name))

    def write(
        self, folder: Path, items: Sequence[LabeledEpisode], options: WriteOptions, progress: ProgressFn
    ) -> list[str]:
        """Fill an empty folder; see `Writer`."""
        left_out: list[str] = []
        counts = dict.fromkeys(self.folders, 0)
        for name in self.folders:
            (folder / name).mkdir()
        for item in progress(items):
            file = self.encode(item, options)
            if file is None:
                left_out.append(f"episode {item.id} was left out: not every frame of it is labeled")
                continue
            name = self.success_folder if file.success else self.failure_folder
            number = counts[name] if self.counts_each_folder else sum(counts.values())
            (folder / name / self.file_name.format(number)).write_bytes(file.data)
            counts[name] += 1
        return left_out


def size_text(nbytes: int) -> str:
    """A number of bytes as text: 1.2 GB."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.1f} MB"


def check_decoded_size(
    nbytes: int, compressed: int, where: Path, what: str, most: float, ratio: int = RATIO, source: str = "bytes on disk"
) -> None:
    """Refuse an episode that is too large, or much larger than the bytes that it is decoded from.

    nbytes: its size in memory
    compressed: the number of bytes that it is decoded from; source: what these are, for the message
    most: the limit in bytes
    """
    if nbytes > most:
        raise BadFile(
            where,
            f"{what} would take {nbytes / GB:,.1f} GB in memory, and {most / GB:,.1f} GB is the limit; "
            "give --max-episode-gb where this is no mistake",
        )
    if nbytes > max(FREE, ratio * compressed):
        raise BadFile(
            where,
            f"{what} would take {nbytes / GB:,.1f} GB in memory out of {compressed:,} {source}, more than any "
            "recording does; copy it again from its source",
        )


# Fills an empty folder; returns a sentence for each episode or part that the layout has no place for.
Writer = Callable[[Path, Sequence[LabeledEpisode], WriteOptions, ProgressFn], list[str]]


def which_columns(where: Path, missing: Mapping[str, str], free: Sequence[str]) -> str:
    """Ask for the columns of the state or the action, which go by many names.

    missing: the role and its usual name; free: columns that may be meant
    """
    lacking = " and no ".join(f"'{name}'" for name in missing.values())
    flags = " and ".join(f"--{role} KEY" for role in missing)
    return (
        f"{where}: this data set has no {lacking}; say with {flags} which columns to take (repeat the flag to join "
        f"several, or give 'none'), out of: {', '.join(free)}"
    )


def is_sparse(reward: AnyArray) -> bool:
    """Whether a reward only tells success (1) from no success (0). NaN: not labeled"""
    return bool(np.isin(reward[~np.isnan(reward)], (0, 1)).all())


def check_not_repeated(nbytes: int, size: int, file: Path) -> None:
    """Refuse images that take more memory than their file has bytes: a pickle may hold one array in many places."""
    if nbytes > max(FREE, 2 * size):
        raise BadFile(file, f"its images take {nbytes:,} bytes in a file of {size:,}; copy it again from its source")


def file_digest(root: Root, path: Path) -> str:
    """The digest of all bytes of a file."""
    try:
        with root.open(path) as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
