"""Other people's layouts, both ways. One file or folder a format; the folder itself says which it is.

A format is read as a `Dataset`: a handful of facts and a list of `Source`s, each of which loads one episode and fails
alone. It is written by a function that takes episodes one at a time. Reading opens files for reading and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from plaudit.data.formats.bounds import check_unfolded
from plaudit.errors import UnknownFormat
from plaudit.types import Episode, Labels
from plaudit.untrusted import Root

FormatName = Literal["npy", "pkl", "lerobot"]
RewardFrame = Literal["next", "same"]


@dataclass(frozen=True)
class Source:
    """One episode of a data set, not loaded yet."""

    index: int
    where: str  # the file it stands in, for messages
    digest: Callable[[], str]  # of its bytes without its labels; cheap next to loading
    load: Callable[[], tuple[Episode, Labels | None]]
    nbytes: Callable[[], int]  # of memory that reading it may take, told before it is read


@dataclass(frozen=True)
class Dataset:
    """A folder that was looked at and understood."""

    format: FormatName
    path: Path
    sources: Sequence[Source]
    facts: Mapping[str, Any]  # for `plaudit data info`
    ignored: Sequence[str] = field(default_factory=list)  # what the folder has and an episode has no place for
    problems: Sequence[str] = ()  # what has to be settled before its episodes can be read, a sentence each
    notes: Sequence[str] = field(default_factory=list)  # what to tell of the episodes read so far


@dataclass(frozen=True)
class ReadOptions:
    """What a data set leaves open."""

    reward_frame: RewardFrame | None = None  # LeRobot: which frame `next.reward` judges; None: as the folder says
    task: str = ""  # for layouts that keep none
    fps: float = 0.0
    state: Sequence[str] = ()  # LeRobot: columns to join as the state, ("none",) for none; (): observation.state
    action: Sequence[str] = ()  # the same for the action
    cameras: Sequence[str] = ()  # LeRobot: () for all
    follow_links: bool = False  # symbolic links of the data set may lead out of it, to regular files
    max_episode_gb: float = 8.0  # that the frames of one episode may take in memory


@dataclass(frozen=True)
class WriteOptions:
    """How to write; each format uses what concerns it."""

    cameras: Sequence[str] = ()  # () for all
    video: bool = True  # LeRobot: videos, or PNG images in the tables
    codec: str = "av1"
    quality: int | None = None  # constant rate factor of the codec, lower is better
    reward_frame: RewardFrame = "next"
    fps: float = 0.0  # for episodes that do not know theirs


@dataclass(frozen=True)
class Item:
    """What a writer is given."""

    id: int
    episode: Episode
    labels: Labels | None


Track = Callable[[Sequence[Item]], Iterable[Item]]  # goes through items, showing progress


class Writer(Protocol):
    def __call__(self, folder: Path, items: Sequence[Item], options: WriteOptions, track: Track) -> list[str]:
        """Fill an empty folder; returns a sentence for each episode or part that the layout has no place for."""
        ...


def folder_of_files(
    format: FormatName,
    root: Root,
    files: Sequence[Path],
    kinds: Sequence[str],
    load: Callable[[Path, int], tuple[Episode, Labels | None]],
    most: float,
) -> Dataset:
    """A data set of one file an episode, sorted into a folder a kind.

    most: bytes that a file may have
    """
    from plaudit.data.formats.images import file_digest

    def nbytes(file: Path) -> int:
        size = root.size(file)
        check_unfolded(size, size, file, "this file", most)
        return 8 * size  # bytes, then arrays, then images of them, floats on the way

    sources = [
        Source(i, str(f), partial(file_digest, root, f), partial(load, f, i), partial(nbytes, f))
        for i, f in enumerate(files)
    ]
    counts = {kind: sum(file.parent.name == kind for file in files) for kind in kinds}
    return Dataset(format, root.path, sources, facts={"episodes": len(files), **counts})


def open_dataset(path: str | Path, options: ReadOptions | None = None) -> Dataset:
    """Find out what a folder is, by what is in it, and list its episodes.

    What it decodes it decodes here; `plaudit.data.formats.worker` does the same in a process with limits.
    """
    from plaudit.data.formats import lerobot, npy, pkl

    path, options = Path(path), options or ReadOptions()
    if not path.exists():
        raise UnknownFormat(f"{path} does not exist")
    if not path.is_dir():
        raise UnknownFormat(f"{path} is a file; name the folder of the data set")
    root = Root(path, options.follow_links)
    for module in (lerobot, npy, pkl):
        if module.detect(path):
            return module.read(root, options)
    raise UnknownFormat(
        f"{path} is none of the layouts we read: LeRobot (meta/info.json), "
        "positive/ and negative/ folders of .npy, success/ and failure/ folders of .pkl"
    )


def writer(name: FormatName) -> Writer:
    from plaudit.data.formats import lerobot, npy, pkl

    writers: dict[FormatName, Writer] = {"npy": npy.write, "pkl": pkl.write, "lerobot": lerobot.write}
    return writers[name]
