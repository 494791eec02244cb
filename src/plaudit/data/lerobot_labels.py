"""Labels and scores of a LeRobot data set: a copy of it with other labels, and a judge's scores as frame signals.

    labels = labels_of_store(store, source)                          # or labels_of_file(source, cutoffs)
    write_labeled_copy(source, "labeled", labels, reward_frame="same")
    write_frame_signals(store, source, judge.id, ids, path, meanings, provenance)     # one row per row of the data set
    label_by_signals(store, read_frame_signals(path), "reward.robometer.progress", 0.9)

The data set is opened for reading only, by a process with limits: a table may be made to take any amount of memory. The
copy is filled next to its place and renamed when it is complete, and nothing is overwritten: tools that edit labels in
place have cost people their recordings.

The table of frame signals has `reward.JUDGE.success_prob`, perhaps `reward.JUDGE.progress`, and the two columns
`next.reward` and `next.success` of a labeled data set, which are about the frame after the row's own. Labels from a
file have the source `signals`. They rank like a judge's labels, because a judge may have written `next.success`.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plaudit import __version__
from plaudit.data.cutoffs import After, Numbering, frame_labels, numbering
from plaudit.data.disk import disk_errors, write_atomic
from plaudit.data.formats.base import ReadOptions, RewardFrame, file_digest
from plaudit.data.formats.decoder import WorkerProcess, decode_file, open_in_worker
from plaudit.data.formats.lerobot.features import REWARD, SUCCESS, reward_columns
from plaudit.data.formats.lerobot.relabel import CopyReport, EpisodeLabels
from plaudit.data.formats.lerobot.signals import ROWS, Meaning, encode_signals
from plaudit.data.store import Store
from plaudit.data.transfer import check_new, new_folder
from plaudit.errors import BadFile, DataError, TargetNotEmpty, did_you_mean, format_count
from plaudit.files import Root, brief, understood
from plaudit.types import AnyArray, FloatArray, JudgeId, Labels, ProgressFn

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


SOURCE = "signals"  # of labels from a file
SCORES = ("success_prob", "progress")  # the arrays of `Scores`
_NEXT = {
    REWARD: Meaning("1 if the next frame shows success, 0 if not", direction="higher", bounds=(0, 1)),
    SUCCESS: Meaning("whether the next frame shows success; false where it is not labeled", direction="higher"),
}


def check_signals_path(path: Path) -> None:
    """Refuse a file that exists, or that cannot be made."""
    if path.suffix != ".parquet":
        raise DataError(f"{path} must end in .parquet; nothing was labeled")
    if path.exists() or path.is_symlink():
        raise TargetNotEmpty(f"{path} exists already; nothing was labeled, name a new file")
    if not path.parent.is_dir():
        raise DataError(f"{path.parent} is not a folder; nothing was labeled, create it first")


def write_frame_signals(
    store: Store,
    source: Path,
    judge: JudgeId,
    ids: Sequence[int],
    path: Path,
    meanings: Mapping[str, Meaning],
    provenance: Mapping[str, Any],
) -> int:
    """Write the scores and labels of one judge; returns the number of rows.

    source: the LeRobot data set that the store was imported from
    meanings: array of `Scores` -> what it means
    """
    check_signals_path(path)
    lengths = _lengths(source)
    starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))  # first row of each episode
    episodes = {o["index"]: (i, o["digest"]) for i, o in lerobot_episodes(store, source).items() if i in ids}
    parts: dict[str, list[AnyArray]] = {}
    for number, (episode_id, _) in sorted(episodes.items()):
        version = store.ledger.newest(episode_id, {judge.source})
        if version is None or version.judge != judge:
            raise DataError(f"episode {episode_id} has no scores of this judge; {path} was not written")
        entry, labels = store.entry(episode_id), version.labels()
        if lengths.get(number) != entry.steps:
            rows = f"{lengths[number]} rows" if number in lengths else "no rows"
            raise BadFile(source, f"episode {number} has {rows} here and {entry.steps} in the store; import it again")
        frames = np.arange(entry.steps)
        values = {"index": starts[number] + frames, "episode_index": np.full(entry.steps, number)}
        values |= {"frame_index": frames, **_signals(labels, entry.line["repeated"], judge.source)}
        for name, array in values.items():
            parts.setdefault(name, []).append(array)
    if not parts:
        raise DataError(f"{store.folder} has no episode of {source} to write; import it first")
    columns = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    rows = {name: columns.pop(name) for name in ROWS}
    signals = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    prefix, unnamed = f"reward.{judge.source}.", Meaning(f"values of judge '{judge.source}'", direction="higher")
    known = _NEXT | {f"{prefix}{name}": meanings.get(name, unnamed) for name in SCORES}
    dataset = {"name": source.name, "total_episodes": len(lengths), "total_frames": sum(lengths.values())}
    dataset["digests"] = {str(number): digest for number, (_, digest) in sorted(episodes.items())}
    described = {**provenance, "plaudit_version": __version__, "dataset": dataset}
    with disk_errors(path.parent, f"{path} was not written"):
        write_atomic(path, encode_signals(rows, signals, known, described))
    return len(rows["index"])


def _lengths(source: Path) -> dict[int, int]:
    """Rows of each episode of a LeRobot data set, in order."""
    with open_in_worker(source, tables_alone()) as dataset:
        if dataset.format != "lerobot":
            raise DataError(f"{source} is not a LeRobot data set; no signals were written")
        return {one.index: one.steps for one in sorted(dataset.sources, key=lambda one: one.index)}


def _signals(labels: Labels, padded: str | None, source: str) -> dict[str, AnyArray]:
    """[T] columns of one episode: a judge's arrays about the row's own frame, labels about the next one."""
    steps, scores = labels.steps, labels.scores
    columns: dict[str, AnyArray] = {}
    for name in SCORES:
        values = None if scores is None else getattr(scores, name)
        columns[f"reward.{source}.{name}"] = np.full(steps, np.nan, np.float32) if values is None else values[:steps]
    if padded == "last":  # the last frame is a copy, and has no label of its own
        labels = Labels.from_targets(np.append(labels.targets[:-1], labels.targets[-2]), source)
    return columns | reward_columns(labels, steps, "next")


@dataclass(frozen=True, eq=False)
class SignalFile:
    """A file of frame signals whose values were checked."""

    path: Path
    digest: str  # of its bytes
    episodes: AnyArray  # int64 [N], numbers of the data set
    frames: AnyArray  # int64 [N]
    signals: Mapping[str, FloatArray]  # [N] each; NaN where a frame has none
    directions: Mapping[str, str]  # higher, lower, none; of the signals that say so
    digests: Mapping[str, str]  # number of an episode -> digest of its recording; empty in files of others
    total_episodes: int | None  # of the data set, if the file says so


def read_frame_signals(path: Path) -> SignalFile:
    """Read and check a file, in the process that decodes files."""
    root = Root.of_named_file(path)
    tree = decode_file("signals", path, root)
    with understood(path):  # the answer of that process, too, may be made up
        episodes, frames = tree["episodes"], tree["frames"]
        signals, described = tree["signals"], tree["descriptors"]
        for array in (episodes, frames, *signals.values()):
            if array.ndim != 1 or array.shape != episodes.shape or array.dtype.kind not in "if":
                raise BadFile(path, "its columns differ in length; write the file again")
        if not len(episodes) or not signals:
            raise BadFile(path, "it has no rows or no signals; write the file again")
        _check_rows(path, episodes, frames, tree["listed"])
        for name, values in signals.items():
            _check_values(path, name, values, described.get(name, {}))
        dataset = tree["provenance"].get("dataset", {})
        total, digests = dataset.get("total_episodes"), dataset.get("digests", {})
        if not (total is None or type(total) is int) or not isinstance(digests, dict):
            raise BadFile(path, "its provenance does not describe a data set; write the file again")
        directions = {name: str(one.get("direction")) for name, one in described.items()}
    return SignalFile(path, file_digest(root, path), episodes, frames, signals, directions, digests, total)


def _check_rows(path: Path, episodes: AnyArray, frames: AnyArray, listed: Any) -> None:
    """Refuse rows that occur twice, lie before an episode, or contradict the list of episodes."""
    bad = np.flatnonzero((episodes < 0) | (frames < 0))
    if len(bad):
        raise BadFile(path, f"row {bad[0]} has a negative episode or frame; write the file again")
    order = np.lexsort((frames, episodes))
    same = np.flatnonzero((np.diff(episodes[order]) == 0) & (np.diff(frames[order]) == 0))
    if len(same):
        row = order[same[0]]
        raise BadFile(path, f"frame {frames[row]} of episode {episodes[row]} occurs twice; write the file again")
    if listed is not None and sorted(listed) != np.unique(episodes).tolist():
        raise BadFile(
            path,
            f"it lists {len(listed)} episodes and has rows of {len(np.unique(episodes))}, or of others; write it again",
        )


def _check_values(path: Path, name: str, values: FloatArray, described: Mapping[str, Any]) -> None:
    """Refuse values that the file itself rules out, and infinite ones."""
    if np.isinf(values).any():
        raise BadFile(path, f"{brief(name)} is infinite in row {np.isinf(values).argmax()}; write the file again")
    missing = np.isnan(values)
    if missing.all():
        raise BadFile(path, f"{brief(name)} is NaN in every row; nothing can be labeled by this file")
    if missing.any() and (described.get("missing_values") == "forbidden" or described.get("allow_nan") is False):
        raise BadFile(path, f"{brief(name)} is NaN in row {missing.argmax()}, which its description rules out")
    if (bounds := described.get("bounds")) is not None:
        low, high = map(np.float32, bounds)
        outside = ~missing & ((values < low) | (values > high))
        if outside.any():
            row = outside.argmax()
            raise BadFile(path, f"{brief(name)} is {values[row]:.6g} in row {row}, outside of [{low:g}, {high:g}]")


def label_by_signals(
    store: Store,
    file: SignalFile,
    signal: str | None = None,
    threshold: float | None = None,
    *,
    by: Numbering | None = None,
    reward_frame: RewardFrame = "next",
    note: str = "",
) -> list[int]:
    """Append labels of each episode of the file to the ledger, all or none; returns the ids of the episodes.

    signal: success is that this one reaches the threshold; None: success is `next.success`
    by: None: as the data set counts, for episodes that were imported
    reward_frame: the frame that `next.success` is about: the one after the row, or the row's own
    """
    name, success = _decide(file, signal, threshold)
    ahead = 1 if name == SUCCESS and reward_frame == "next" else 0
    ids = numbering(store, by or ("source" if any(store.entry(i).line["origin"] for i in store.ids) else "id"))
    what = name if threshold is None else f"{name} at {threshold:g}"
    judge = JudgeId(SOURCE, f"{file.digest[:16]} {what}")
    labeled: list[tuple[int, Labels]] = []
    for number in np.unique(file.episodes).tolist():
        rows = file.episodes == number
        entry = _entry(store, ids, number, file)
        if file.frames[rows].max() >= entry.steps:
            raise BadFile(
                file.path,
                f"episode {number} has frame {file.frames[rows].max()} here and {entry.steps} frames in "
                f"{store.folder}: another recording. Nothing was labeled",
            )
        targets = np.full(entry.steps + 1, np.nan, np.float32)
        targets[file.frames[rows] + ahead] = success[rows]
        if not ahead and entry.line["repeated"] == "last":
            targets[-1] = targets[-2]
        labels = Labels(targets == 1, ~np.isnan(targets), judge, note=note or f"{file.path.name}: {what}")
        labeled.append((entry.id, labels))
    store.ledger.extend(labeled)
    return [episode_id for episode_id, _ in labeled]


def _decide(file: SignalFile, signal: str | None, threshold: float | None) -> tuple[str, FloatArray]:
    """The signal's full name, and [N] 1, 0 or NaN of each row."""
    others = [name for name in file.signals if name not in (REWARD, SUCCESS)]
    if signal is None:
        if SUCCESS not in file.signals:
            raise BadFile(file.path, f"it has no {SUCCESS}; choose with --signal and --threshold: {', '.join(others)}")
        labeled = ~np.isnan(file.signals.get(REWARD, file.signals[SUCCESS]))
        return SUCCESS, np.where(labeled, file.signals[SUCCESS] >= 0.5, np.nan)
    names = [name for name in file.signals if name == signal or name.endswith(f".{signal}")]
    if len(names) != 1:
        which = f"which of {', '.join(names)}?" if names else did_you_mean(signal, file.signals)
        raise BadFile(file.path, f"it has no single signal {signal!r}; {which}")
    if threshold is None:
        raise DataError("--signal needs --threshold, the value that shows success")
    values, value = file.signals[names[0]], np.float32(threshold)
    reached = values <= value if file.directions.get(names[0]) == "lower" else values >= value
    return names[0], np.where(np.isnan(values), np.nan, reached)


def _entry(store: Store, ids: Mapping[int, int], number: int, file: SignalFile) -> Any:
    """The episode of a number of the file; an error if it is another recording."""
    if file.total_episodes is not None and max(ids, default=0) >= file.total_episodes:
        raise BadFile(
            file.path,
            f"it is about a data set of {format_count(file.total_episodes, 'episode')}, and {store.folder} has "
            f"episode {max(ids)}. Nothing was labeled",
        )
    if number not in ids:
        raise BadFile(file.path, f"it has episode {number}, and {store.folder} has not. Nothing was labeled")
    entry = store.entry(ids[number])
    origin, digest = entry.line["origin"], file.digests.get(str(number))
    if origin and digest is not None and origin["digest"] != digest:
        raise BadFile(
            file.path,
            f"episode {number} is another recording in {store.folder}, or was imported with other cameras or columns. "
            "Nothing was labeled",
        )
    return entry
