"""A LeRobot data set with the labels of a store, or of a label file, in a folder of its own.

    labels = labels_of_store(store, source)                          # or labels_of_file(source, cutoffs)
    write_labeled_copy(source, "labeled", labels, reward_frame="same")

The data set is opened for reading only, by a process with limits: a table may be made to take any amount of memory. The
copy is filled next to its place and renamed when it is complete, and nothing is overwritten: tools that edit labels in
place have cost people their recordings.
"""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from plaudit.data.cutoffs import After, frame_labels
from plaudit.data.disk import disk_errors
from plaudit.data.formats.base import ReadOptions, RewardFrame
from plaudit.data.formats.decoder import WorkerProcess, open_in_worker
from plaudit.data.formats.lerobot.relabel import CopyReport, EpisodeLabels
from plaudit.data.store import Store
from plaudit.data.transfer import check_new, new_folder
from plaudit.errors import DataError
from plaudit.types import ProgressFn

MAX_LABELED_ROWS = 1 << 25  # by a label file, whose labels are all in memory at once


def source_of_store(store: Store) -> Path:
    """The LeRobot data set that a store was imported from."""
    paths = sorted({origin["path"] for origin in _lerobot_origins(store).values()})
    if not paths:
        raise DataError(f"{store.folder} was not imported from a LeRobot data set; use 'plaudit data export'")
    if len(paths) > 1:
        several = "was imported from several data sets; say with --source which to copy"
        raise DataError(f"{store.folder} {several}: {', '.join(paths)}")
    return Path(paths[0])


def labels_of_store(store: Store, source: Path) -> dict[int, EpisodeLabels]:
    """The labels that count now, by the episode numbers of the data set that the store was imported from.

    source: that data set; it may have been renamed if the store has episodes of a single one
    """
    labeled: dict[int, EpisodeLabels] = {}
    for episode_id, origin in lerobot_episodes(
        store, source
    ).items():  # of two with one number, the one that was imported last
        episode = store.episode(episode_id)
        labels = store.ledger.labels(episode_id)
        labeled[origin["index"]] = EpisodeLabels(labels, episode_id, episode.terminated, episode.actions)
    if not any(one.labels for one in labeled.values()):
        raise DataError(f"no episode of {source} has labels in {store.folder}; label some first")
    return labeled


def lerobot_episodes(store: Store, source: Path) -> dict[int, Any]:
    """Id -> origin of the episodes of a LeRobot data set, which may have been renamed if the store has no others."""
    origins = _lerobot_origins(store)
    if len({origin["path"] for origin in origins.values()}) > 1:
        origins = {i: o for i, o in origins.items() if Path(o["path"]).resolve() == source.resolve()}
    if not origins:
        raise DataError(f"{store.folder} has no episode of {source}; import it first")
    return origins


def _lerobot_origins(store: Store) -> dict[int, Any]:
    origins = {i: store.entry(i).line["origin"] for i in store.ids}
    return {i: origin for i, origin in origins.items() if origin and origin["format"] == "lerobot"}


def labels_of_file(
    source: Path, cutoffs: Mapping[int, Any], *, after: After = "failure", follow_links: bool = False
) -> dict[int, EpisodeLabels]:
    """Labels of a label file for a data set that was not imported; its images are not read."""
    with open_in_worker(source, tables_alone(follow_links)) as dataset:
        if dataset.format != "lerobot":
            raise DataError(f"{source} has .{dataset.format} files; only a LeRobot data set can be copied with labels")
        steps = {entry.index: entry.steps for entry in dataset.sources}
    total = sum(steps.get(number, 0) for number in cutoffs)
    if total > MAX_LABELED_ROWS:
        raise DataError(f"{source}: its meta/ lists {total:,} rows of these; the limit is {MAX_LABELED_ROWS:,}")
    labeled: dict[int, EpisodeLabels] = {}
    for number, value in cutoffs.items():
        if number not in steps:
            raise DataError(f"{source} has no episode {number}; it has {len(steps)}. Nothing was written")
        try:
            labels = frame_labels(steps[number], value, after)
        except DataError as error:
            raise DataError(f"episode {number}: {error}. Nothing was written") from error
        labeled[number] = EpisodeLabels(labels)
    return labeled


def check_copy(source: Path, target: Path, *stores: Path) -> None:
    """Refuse a source that is no LeRobot data set, and a target that is not empty or within it or these stores."""
    if not (source / "meta/info.json").is_file():
        what = "is no LeRobot data set (it has no meta/info.json); name the folder of one with --source"
        raise DataError(f"{source} {what}")
    check_new(target, source, *stores)


def write_labeled_copy(
    source: Path,
    target: Path,
    labels: Mapping[int, EpisodeLabels],
    *,
    reward_frame: RewardFrame = "next",
    hard_links: bool = False,
    follow_links: bool = False,
    progress: ProgressFn = iter,
) -> CopyReport:
    """Write a copy of a LeRobot data set with these labels into an empty or new folder."""
    check_copy(source, target)
    codecs: Mapping[str, str] = {}  # of the first episode whose videos can be read: info.json has one for all
    with open_in_worker(source, tables_alone(follow_links)) as dataset:
        for entry in dataset.sources:
            with suppress(DataError):
                codecs = entry.codecs()
                break
    with disk_errors(target.parent, "the copy was not written"), new_folder(target) as folder:
        message = {
            "op": "copy",
            "path": str(source),
            "folder": str(folder),
            "cwd": str(Path.cwd()),
            "reward_frame": reward_frame,
            "hard_links": hard_links,
            "follow_links": follow_links,
            "codecs": dict(codecs),
            "labels": {number: one.pack() for number, one in labels.items()},
        }
        with closing(WorkerProcess(most=0)) as process:
            process.start()
            where = str(source)
            begun = process.ask(message, where)
            for _ in progress(range(begun["files"])):
                where = process.hear(where)["file"]
            return CopyReport(**process.hear(where)["report"])


def tables_alone(follow_links: bool = False) -> ReadOptions:
    """Options to read a data set without choosing its state and action columns."""
    return ReadOptions(state=("none",), action=("none",), follow_links=follow_links)
