"""A LeRobot data set with the labels of a store, or of a label file, in a folder of its own.

    labels = labels_of_store(store, source)                          # or labels_of_file(source, cutoffs)
    write_labeled_copy(source, "labeled", labels, reward_frame="same")

The data set itself is opened for reading only, by a process that may be lost: a table may be made to take any amount of
memory. The copy is filled beside its place and renamed when it is whole, and what is in the way is never written over:
tools that edit labels in place, or fetch a data set by its name, have cost people their recordings.
"""

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from plaudit.data.cutoffs import After, frame_labels
from plaudit.data.disk import disk_errors
from plaudit.data.formats.base import ReadOptions, RewardFrame
from plaudit.data.formats.decoder import WorkerProcess, open_in_worker
from plaudit.data.formats.lerobot.relabel import CopyReport, EpisodeLabels, pack_labels
from plaudit.data.store import Store
from plaudit.data.transfer import check_new, new_folder
from plaudit.errors import DataError
from plaudit.types import ProgressFn

MAX_LABELED_ROWS = 1 << 25  # by a label file, whose labels are all in memory at once


def source_of_store(store: Store) -> Path:
    """The LeRobot data set that a store was imported from."""
    origins = [store.entry(i).line["origin"] for i in store.ids]
    paths = sorted({origin["path"] for origin in origins if origin and origin["format"] == "lerobot"})
    if not paths:
        raise DataError(
            f"{store.folder} was not imported from a LeRobot data set; 'plaudit data export' writes it as one"
        )
    if len(paths) > 1:
        raise DataError(
            f"{store.folder} was imported from several data sets; say with --source which to copy: {', '.join(paths)}"
        )
    return Path(paths[0])


def labels_of_store(store: Store, source: Path) -> dict[int, EpisodeLabels]:
    """The labels that count now, by the episode numbers of the data set that the store was imported from.

    source: that data set; its name may have changed where the store knows one only
    """
    origins = {i: store.entry(i).line["origin"] for i in store.ids}
    imported = {i: origin for i, origin in origins.items() if origin and origin["format"] == "lerobot"}
    if len({origin["path"] for origin in imported.values()}) > 1:
        imported = {i: o for i, o in imported.items() if Path(o["path"]).resolve() == source.resolve()}
    if not imported:
        raise DataError(f"{store.folder} has no episode of {source}; import it first")
    found: dict[int, EpisodeLabels] = {}
    for episode_id, origin in imported.items():  # of two with one number, the one that was imported last
        episode = store.episode(episode_id)
        labels = store.ledger.labels(episode_id)
        found[origin["index"]] = EpisodeLabels(labels, episode_id, episode.terminated, episode.actions)
    if not any(one.labels for one in found.values()):
        raise DataError(f"no episode of {source} has labels in {store.folder}; label some first")
    return found


def labels_of_file(
    source: Path, cutoffs: Mapping[int, Any], *, after: After = "failure", follow_links: bool = False
) -> dict[int, EpisodeLabels]:
    """Labels of a label file for a data set that was not imported; nothing of its images is read."""
    with open_in_worker(source, _tables_alone(follow_links)) as dataset:
        if dataset.format != "lerobot":
            raise DataError(
                f"{source} is a folder of .{dataset.format} files; a LeRobot data set can be copied with labels"
            )
        steps = {entry.index: entry.steps for entry in dataset.sources}
    total = sum(steps.get(number, 0) for number in cutoffs)
    if total > MAX_LABELED_ROWS:
        raise DataError(
            f"{source}: its meta/ says {total:,} rows of these, and {MAX_LABELED_ROWS:,} are read; correct it"
        )
    found: dict[int, EpisodeLabels] = {}
    for number, value in cutoffs.items():
        if number not in steps:
            raise DataError(f"{source} has no episode {number}; it has {len(steps)}. Nothing was written")
        try:
            labels = frame_labels(steps[number], value, after)
        except DataError as error:
            raise DataError(f"episode {number}: {error}. Nothing was written") from error
        found[number] = EpisodeLabels(labels)
    return found


def check_copy(source: Path, target: Path, *stores: Path) -> None:
    """Refuse what is no LeRobot data set, and a place for its copy that is taken or within it or these stores."""
    if not (source / "meta/info.json").is_file():
        raise DataError(
            f"{source} is no LeRobot data set (it has no meta/info.json); name the folder of one with --source"
        )
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
    """Write a copy of a LeRobot data set with these labels into a folder that must not hold anything yet."""
    check_copy(source, target)
    how: dict[str, Any] = {"reward_frame": reward_frame, "hard_links": hard_links, "follow_links": follow_links}
    how["codecs"] = _codecs(source, follow_links)
    with disk_errors(target.parent, "the copy was not written"), new_folder(target) as folder:
        return _copy(source, folder, labels, how, progress)


def _copy(
    source: Path, folder: Path, labels: Mapping[int, EpisodeLabels], how: Mapping[str, Any], progress: ProgressFn
) -> CopyReport:
    described, arrays = pack_labels(labels)
    place = {"path": str(source), "folder": str(folder), "cwd": str(Path.cwd())}
    with closing(WorkerProcess(most=0)) as process:
        process.start()
        where = str(source)
        begun, _ = process.ask({"op": "copy", **place, **how, "labels": described}, where, arrays)
        for _ in progress(range(begun["files"])):
            where = process.hear(where)[0]["file"]
        return CopyReport(**process.hear(where)[0]["report"])


def _codecs(source: Path, follow_links: bool) -> Mapping[str, str]:
    """Of the videos, by feature: those of the first episode whose videos can be read, as info.json has one for all."""
    with open_in_worker(source, _tables_alone(follow_links)) as dataset:
        for entry in dataset.sources:
            with suppress(DataError):
                return entry.codecs()
    return {}


def _tables_alone(follow_links: bool) -> ReadOptions:
    """To look at a data set without saying which of its columns are state and action."""
    return ReadOptions(state=("none",), action=("none",), follow_links=follow_links)
