"""Import of a data set into a store, export of a store into a new folder, and a copy of a store with other frame
codecs.

An import opens its source for reading only. A broken episode is reported and left out, and an episode that was imported
before is skipped, so the same command resumes an interrupted import. A store next to a data set has a `source.json`:
the options of the import and a fingerprint of the data set's files (names, sizes and times of change). While both are
the same, a command opens the store and reads nothing of the data set. The fingerprint is written last.

An export, and a copy (`plaudit data repack`), fills a folder next to the target and renames it when it is complete. In
a copy, episodes keep their ids, their times and the checksums of their original frames, so labels, drafts and judges
that were trained on them still refer to them. If it is interrupted, the same command continues it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from plaudit.data.disk import Folder, disk_errors, sync, write_atomic
from plaudit.data.formats import layout_of, writer
from plaudit.data.formats.base import Dataset, FormatName, LabeledEpisode, ReadOptions, WriteOptions, size_text
from plaudit.data.formats.decoder import open_in_worker
from plaudit.data.frame_codecs import StoreImages
from plaudit.data.ledger import Failures
from plaudit.data.store import Store, is_store
from plaudit.errors import BadFile, DataError, StoreError, StoreLocked, TargetNotEmpty, UnclearDataset, format_count
from plaudit.files import Root, parse_json, readable
from plaudit.types import ProgressFn

SOURCE_FILE = "source.json"
MAX_SOURCE_BYTES = 1 << 20


@dataclass(frozen=True)
class SourceRecord:
    """The last import of a data set into the store next to it."""

    options: ReadOptions
    fingerprint: str = ""  # of the data set's files; "" until all of its episodes were imported

    @classmethod
    def load(cls, store: Path) -> Self | None:
        """None if there is none; BadFile if it is not one."""
        path = store / SOURCE_FILE
        if not path.exists():
            return None
        with readable(path, "this is no record of a decoded data set ({}); remove it, then the data set is read again"):
            try:
                return TypeAdapter(cls).validate_python(parse_json(Root(store).read(path, MAX_SOURCE_BYTES)))
            except ValidationError as error:
                problem = f"{error.errors()[0]['msg']}; remove this file, then the data set is read again"
                raise BadFile(path, problem) from error

    def save(self, store: Path) -> None:
        """Replace the record."""
        write_atomic(store / SOURCE_FILE, json.dumps(asdict(self)).encode())


def fingerprint_files(path: Path) -> str:
    """A digest of names, sizes and times of change of all files below a folder, or of one file; no file is read."""
    digest = hashlib.blake2b(digest_size=16)
    for line in sorted(_lines(path, "") if path.is_dir() else [_line(path.stat(), "")]):
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _lines(folder: Path, above: str) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):  # of git, or of a download
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _lines(Path(entry), f"{above}{entry.name}/")
            elif entry.is_file():
                yield _line(entry.stat(), above + entry.name)


def _line(status: os.stat_result, name: str) -> str:
    return f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"


def plain_options(options: ReadOptions) -> dict[str, Any]:
    """By name, as they are in the record; equal options compare equal."""
    return json.loads(json.dumps(asdict(options)))


def describe_options(options: ReadOptions) -> str:
    """Those that are set, like `cameras=front`."""
    usual = plain_options(ReadOptions())
    changed = {name: value for name, value in plain_options(options).items() if value != usual[name]}
    texts = [f"{n}={','.join(map(str, v)) if isinstance(v, list) else v}" for n, v in changed.items()]
    return " ".join(texts) or "no options"


LARGE = 2_000_000_000  # bytes of a store from which on smaller frames are suggested


@dataclass
class ImportReport:
    """The result of an import."""

    ids: list[int] = field(default_factory=list)
    already_imported: int = 0
    failed: list[str] = field(default_factory=list)  # a message each
    labeled: int = 0
    nbytes: int = 0  # of the store
    raw_nbytes: int = 0  # if no frame was encoded
    ignored: Sequence[str] = ()  # features that are not imported
    notes: Sequence[str] = ()  # how the source was read where it is ambiguous


def import_dataset(
    source: str | Path,
    store_folder: str | Path,
    options: ReadOptions | None = None,
    progress: ProgressFn = iter,
    announce: Callable[[str], None] = lambda message: None,
    takes: Callable[[int], bool] = lambda number: True,
    images: str | None = None,
) -> ImportReport:
    """Add every episode of `source` to a store, which is created if it does not exist.

    images: how the frames of a new store are stored; None: raw
    takes: whether to import the episode of this number in the source
    announce: called with the disk space that it takes, before any is used
    """
    if is_store(source):
        raise DataError(f"{source} is a store already; open it as it is")
    new = not is_store(store_folder)
    with open_in_worker(source, options) as dataset:
        if dataset.problems:
            raise UnclearDataset("\n".join(dataset.problems))
        report = ImportReport(ignored=dataset.ignored)
        _check_space(dataset, options or ReadOptions(), Path(store_folder), new and images is None, announce)
        sources = [source for source in dataset.sources if takes(source.index)]
        with Store.open_or_create(store_folder, images=images) as store:
            record = SourceRecord(options or ReadOptions(), fingerprint_files(Path(source)))
            is_beside = store.folder.absolute() == store_beside(Path(source)).absolute()
            if is_beside:
                replace(record, fingerprint="").save(store.folder)
            _import_episodes(str(dataset.path), progress(sources), store, report)
            report.nbytes, report.raw_nbytes = store.nbytes, store.raw_nbytes
            if is_beside and not report.failed and len(sources) == len(dataset.sources):
                record.save(store.folder)
        report.notes = list(dataset.notes)
    if new and not report.ids:
        shutil.rmtree(store_folder, ignore_errors=True)  # a link to a folder stays
        why = report.failed[0] if report.failed else "it has no episodes"
        others = f" (and {len(report.failed) - 1} more like it)" if len(report.failed) > 1 else ""
        raise DataError(f"nothing was imported and no store was made: {why}{others}")
    return report


def open_or_import(
    path: Path,
    into: Path | None = None,
    progress: ProgressFn = iter,
    options: ReadOptions | None = None,
    announce: Callable[[str], None] = lambda message: None,
) -> tuple[Path, list[str]]:
    """The store that holds the episodes and labels of a folder, and notes for the user.

    A store is used as it is. A data set has no ledger and is never changed, so its episodes are imported into a store
    next to it, or `into`. That store is opened again as it is until the files of the data set change. New episodes are
    added then; episodes that changed are an error, because their labels may not fit.

    options: None, or the usual ones: those that the store was made with
    """
    if is_store(path):
        if into is not None and into != path:
            raise DataError(f"{path} is a store already, and its labels belong into it; leave out {into}")
        return path, []
    store = into or store_beside(path)
    record = SourceRecord.load(store) if is_store(store) else None
    removed = 0
    if record is not None:
        layout_of(path)
        options = _recorded_options(path, store, record, options)
        if record.fingerprint == fingerprint_files(path):
            return store, []
        removed = _check_unchanged(path, store, options) if record.fingerprint else 0
    try:
        report = import_dataset(path, store, options, progress, announce)
    except StoreLocked as error:
        raise DataError(f"{error}: it may be importing {path}; run this again when it has ended") from error
    except StoreError as error:
        raise DataError(
            f"the labels of {path} belong into a store, and none can be written there: {error}. Import it to a folder "
            f"that you may write to (plaudit data import {path} STORE) and name that store"
        ) from error
    count = format_count(len(report.ids) + report.already_imported, "episode")
    notes = [f"the labels of {path} are in the store {store}, which has its {count}; {path} is not changed"]
    if record is not None and record.fingerprint:
        gone = f", {removed} are no longer in it and stay in the store" if removed else ""
        new = f"{len(report.ids)} new episodes were added" if report.ids else "it has no new episodes"
        notes.append(f"files of {path} changed since it was imported: {new}{gone}; its labels are not imported again")
    return store, [*notes, *report.notes, *report.failed]


def _recorded_options(path: Path, store: Path, record: SourceRecord, options: ReadOptions | None) -> ReadOptions:
    """The options that the store was made with; an error if others are asked for."""
    asked = plain_options(options or ReadOptions())
    if asked not in (plain_options(ReadOptions()), plain_options(record.options)):
        raise DataError(
            f"{path} was imported into {store} with {describe_options(record.options)}; leave the options out, or "
            f"import it into another store with yours (plaudit data import {path} STORE) and name that store"
        )
    return record.options


def _check_unchanged(path: Path, store_folder: Path, options: ReadOptions) -> int:
    """Refuse a data set whose episodes are not those of its store; returns how many it no longer has."""
    imported: dict[int, set[str]] = {}
    store = Store.open(store_folder)
    for i in store.ids:
        if origin := store.entry(i).line["origin"]:
            imported.setdefault(origin["index"], set()).add(origin["digest"])
    changed: list[int] = []
    with open_in_worker(path, options) as dataset:
        for source in dataset.sources:
            with suppress(DataError):  # the import reports it
                if source.index in imported and source.digest() not in imported[source.index]:
                    changed.append(source.index)
        removed = len(imported.keys() - {source.index for source in dataset.sources})
    if changed:
        count = f"episode {changed[0]}" if len(changed) == 1 else f"{len(changed)} episodes (first {changed[0]})"
        raise DataError(
            f"{count} of {path} changed since it was imported into {store_folder}, so labels there may not fit. Move "
            f"{store_folder} away to import it anew, or name {store_folder} to use the old episodes"
        )
    return removed


def store_beside(path: Path) -> Path:
    """Where the store of a data set goes: `episodes.store` next to `episodes`."""
    path = path if path.name not in ("", "..") else path.resolve()
    return path.with_name(f"{path.name}.store")


def _check_space(
    dataset: Dataset, options: ReadOptions, store_folder: Path, new: bool, announce: Callable[[str], None]
) -> None:
    """Announce the size of a store of this data set; refuse a new one that does not fit on the disk."""
    nbytes = dataset.store_bytes(options.max_episode_gb)
    if not nbytes:
        return
    place = next(folder for folder in (store_folder, *store_folder.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    count = format_count(len(dataset.sources), "episode")
    takes = f"the frames of {count} take {size_text(nbytes)} in {store_folder} if stored raw"
    if new and nbytes > free:
        raise DataError(
            f"{takes}, and {size_text(free)} are free there; nothing was written: use 'plaudit data import' with "
            "--store-images jpeg:90, smaller frames (--resize 240x320) or fewer cameras (--camera NAME)"
        )
    smaller = "; --store-images jpeg:90 and --resize HxW make it less" if nbytes > LARGE else ""
    announce(f"{takes}; {size_text(free)} are free{smaller}")


def _import_episodes(path: str, sources: Iterable[Any], store: Store, report: ImportReport) -> None:
    """Import each episode in turn; one that fails is reported and skipped."""
    imported: dict[str, list[tuple[int, str, int]]] = {}  # digest -> id, path and index
    for i in store.ids:
        if origin := store.entry(i).line["origin"]:
            imported.setdefault(origin["digest"], []).append((i, origin["path"], origin["index"]))
    for source in sources:
        try:
            digest = source.digest()
            # Two episodes of one data set may be alike and are both imported; a copy of the data set is not.
            same = [i for i, where, index in imported.get(digest, ()) if where != path or index == source.index]
            report.already_imported += bool(same)
            if same and store.ledger.history(same[0]):
                continue
            episode, labels = source.load()  # also if a crash came between an episode and its labels
        except DataError as error:
            report.failed.append(f"episode {source.index} was left out: {error}")
            continue
        if same:
            episode_id = same[0]
        else:
            episode_id = store.append(episode)
            imported.setdefault(digest, []).append((episode_id, path, source.index))
            report.ids.append(episode_id)
            report.labeled += labels is not None
        if labels is not None:
            store.ledger.append(episode_id, labels)


def export_dataset(
    store: Store,
    target: str | Path,
    format: FormatName,
    options: WriteOptions | None = None,
    ids: Sequence[int] | None = None,
    progress: ProgressFn = iter,
) -> list[str]:
    """Write episodes, with the labels that count, into an empty or new folder.

    Returns messages about what the layout cannot hold.
    """
    chosen = store.ids if ids is None else ids
    items = [LabeledEpisode(i, store.episode(i), store.ledger.labels(i)) for i in chosen]
    if not items:
        raise DataError(f"{store.folder} has no episodes to export")
    check_new(Path(target), store.folder)
    with disk_errors(Path(target).parent, "the export was not written"), new_folder(target) as folder:
        return writer(format)(folder, items, options or WriteOptions(), progress)


def check_new(target: Path, *sources: Path, option: str = "") -> None:
    """Refuse a target that is not empty, or lies within one of `sources` or around it. option: that names the target"""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        how = f"name another with {option}" if option else "name a new folder"
        raise TargetNotEmpty(f"{target} holds something already; nothing was written, {how}")
    above = next(folder for folder in target.absolute().parents if folder.exists())
    if not above.is_dir():
        raise DataError(f"{target} cannot be made, since {above.name} is a file; nothing was written")
    place = Path(os.path.realpath(target))  # unlike resolve(), which fails at links that lead in a circle
    for source in sources:
        other = Path(os.path.realpath(source))
        if place.is_relative_to(other) or other.is_relative_to(place):
            raise DataError(f"{target} and {source} lie within each other; nothing was written, name another folder")


@contextmanager
def new_folder(target: str | Path) -> Iterator[Path]:
    """A folder to fill. It gets its name when the block succeeds, and is removed when it fails."""
    target = Path(target)
    check_new(target)
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an export that was killed
    if partial.exists() or partial.is_symlink():
        raise TargetNotEmpty(f"{partial} already exists (it holds an unfinished export); remove it first")
    new_parents = [folder for folder in partial.parents if not folder.exists()]  # the nearest first
    try:
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            target.rmdir()  # fails when something came into it meanwhile
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # they hold the target, or somebody else's
            for folder in new_parents:
                folder.rmdir()


LABELS_AT_ONCE = 500
EXTRAS = ("label_requests.json", "drafts")  # of people who label


def repack(source: str | Path, target: str | Path, images: str, progress: ProgressFn = iter) -> Store:
    """Copy a store to a new folder; returns the copy. images: how its frames are stored; see data/frame_codecs.py"""
    wanted, target = StoreImages.parse(images), Path(target)
    store = Store.open(source)
    check_new(target, store.folder)
    partial = target.with_name(f".{target.name}.repack-{store.settings.id[:8]}")
    with _open(partial, store, wanted) as copy:
        for episode_id in progress([i for i in store.ids if i >= copy.next_id]):
            copy.skip_ids(episode_id)
            copy.extend([store.episode(episode_id)], evict=False, copied=[store.entry(episode_id).line])
        versions = store.ledger.since(0)
        for start in range(len(copy.ledger), len(versions), LABELS_AT_ONCE):
            copy.ledger.copy(versions[start : start + LABELS_AT_ONCE])
        Failures(copy.ledger).copy(Failures(store.ledger).all())
        copy.skip_ids(store.next_id)
        copy.set_label_order(store.settings.label_order)
    with disk_errors(target.parent, "the copy was not completed"):
        for name in EXTRAS:
            _copy_extra(Folder(store.folder), Folder(partial), name)
        if target.exists():
            target.rmdir()  # it was empty
        partial.rename(target)
        sync(target.parent)
    return Store.open(target)


def _open(partial: Path, store: Store, images: StoreImages) -> Store:
    """The unfinished copy, new or of an earlier command."""
    if not is_store(partial):
        settings = store.settings
        capacity = {"capacity_episodes": settings.capacity_episodes, "capacity_bytes": settings.capacity_bytes}
        return Store.create(partial, **capacity, images=images, compress_old=str(settings.compress_old))
    copy = Store.open(partial, write=True)
    if copy.settings.images != images:
        copy.close()
        raise StoreError(
            f"{partial} is an unfinished copy with frames as {copy.settings.images}; continue it with "
            f"--images {copy.settings.images}, or remove that folder"
        )
    return copy


def _copy_extra(source: Folder, target: Folder, name: str) -> None:
    """Copy a small file, or a folder of such."""
    if source.is_file(name):
        target.write(name, source.read(name))
    elif source.is_folder(name):
        if not target.exists(name):
            target.mkdir(name)
        for file in source.names(name):
            _copy_extra(source, target, f"{name}/{file}")
