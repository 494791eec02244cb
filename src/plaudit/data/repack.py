"""A copy of a store with its frames stored in another way: `plaudit data repack`.

Episodes keep their ids, their times and the checksums of their original frames, so labels, drafts and judges that were
trained on them still refer to them. The copy is filled next to its final place and renamed when it is complete. If it
is interrupted, the same command continues it.
"""

from collections.abc import Iterable
from pathlib import Path

from plaudit.data.disk import Folder, disk_errors, sync
from plaudit.data.frame_codecs import StoreImages
from plaudit.data.ledger import Failures
from plaudit.data.settings import is_store
from plaudit.data.store import Store
from plaudit.data.transfer import check_new
from plaudit.errors import StoreError
from plaudit.types import ProgressFn

LABELS_AT_ONCE = 500
EXTRAS = ("label_requests.json", "drafts")  # of people who label


def repack(source: str | Path, target: str | Path, images: str, progress: ProgressFn = iter) -> Store:
    """Copy a store to a new folder; returns the copy. images: how its frames are stored; see data/frame_codecs.py"""
    wanted, target = StoreImages.parse(images), Path(target)
    store = Store.open(source)
    check_new(target, store.folder)
    partial = target.with_name(f".{target.name}.repack-{store.settings.id[:8]}")
    with _open(partial, store, wanted) as copy:
        _copy_episodes(store, copy, progress([i for i in store.ids if i >= copy.next_id]))
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


def _copy_episodes(store: Store, copy: Store, ids: Iterable[int]) -> None:
    for episode_id in ids:
        copy.skip_ids(episode_id)
        copy.extend([store.episode(episode_id)], evict=False, copied=[store.entry(episode_id).line])


def _copy_extra(source: Folder, target: Folder, name: str) -> None:
    """Copy a small file, or a folder of such."""
    if source.is_file(name):
        target.write(name, source.read(name))
    elif source.is_folder(name):
        if not target.exists(name):
            target.mkdir(name)
        for file in source.names(name):
            _copy_extra(source, target, f"{name}/{file}")
