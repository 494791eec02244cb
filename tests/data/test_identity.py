"""Which store is this? Folders moved and swapped, locks deleted, files of another store: nobody else's is touched."""

import os
import shutil

import pytest

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.check import check
from plaudit.data.store import Store
from plaudit.errors import StoreDamaged, StoreError, StoreLocked
from plaudit.types import Labels

LABELS = Labels.from_cutoff(steps=4, cutoff=2, source="human")


def filled(folder, first=0, count=3):
    store = labeled_store(folder, *(counting_episode(4, first=first + 10 * i) for i in range(count)), cutoff=2)
    store.close()
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("what", ["another store", "a copy", "an empty folder", "nothing"])
def test_a_writer_whose_folder_was_swapped_refuses_and_touches_nothing(tmp_path, what):
    here, away = filled(tmp_path / "s"), tmp_path / "away"
    writer = Store.open(here, write=True)
    here.rename(away)
    if what == "another store":
        filled(here, first=100, count=5)
    elif what == "a copy":
        shutil.copytree(away, here)
    elif what == "an empty folder":
        here.mkdir()
    before = contents(here), contents(away)
    for attempt in (
        lambda: writer.append(counting_episode(4)),
        lambda: writer.ledger.append(0, LABELS),
        lambda: writer.write_off([0]),
    ):
        with pytest.raises(StoreError, match=r"nothing was written, open (it where it is now|the one that is meant)"):
            attempt()
    assert (contents(here), contents(away)) == before
    assert same_episode(writer.episode(2), counting_episode(4, first=20))  # what it holds can still be read
    writer.close()
    assert check(away).ok


@pytest.mark.parametrize("again", [False, True])
def test_a_lock_that_is_deleted_while_it_is_held_lets_nobody_in(tmp_path, again):
    folder = filled(tmp_path / "s")
    with Store.open(folder, write=True) as writer:
        (folder / "writer.lock").unlink()
        if again:
            (folder / "writer.lock").write_text("")
        with pytest.raises(StoreLocked):
            Store.open(folder, write=True)
        with pytest.raises(StoreLocked):
            check(folder, repair=True)
        assert writer.append(counting_episode(4)) == 3
    with Store.open(folder, write=True) as writer:
        assert writer.append(counting_episode(4)) == 4


def test_a_store_that_was_moved_is_locked_where_it_is_now(tmp_path):
    writer = Store.open(filled(tmp_path / "s"), write=True)
    (tmp_path / "s").rename(tmp_path / "t")
    with pytest.raises(StoreLocked, match=f"being written by process {os.getpid()}"):
        Store.open(tmp_path / "t", write=True)
    writer.close()
    Store.open(tmp_path / "t", write=True).close()


def test_a_process_may_change_its_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "s")
    with Store.open("s", write=True) as writer:
        monkeypatch.chdir("/")
        assert writer.append(counting_episode(4)) == 3
        assert writer.ledger.append(3, LABELS) == 1


@pytest.mark.parametrize("name", ["journal", "labels"])
def test_a_file_of_another_store_is_not_taken_for_ones_own(tmp_path, name):
    mine, other = filled(tmp_path / "mine"), filled(tmp_path / "other", first=100)
    for file in (name, f"{name}.head"):
        shutil.copy(other / file, mine / file)
    with pytest.raises(StoreDamaged, match=f"{name} does not belong to the store that"):
        Store.open(mine)
    assert not check(mine).ok


def test_a_second_writer_that_ignores_locks_is_noticed_before_anything_is_written(tmp_path):
    """As an earlier version on a network disk would: it appended, and this writer does not know of it."""
    folder = filled(tmp_path / "s")
    with Store.open(folder, write=True) as writer:
        shutil.copytree(folder, tmp_path / "copy")
        with Store.open(tmp_path / "copy", write=True) as other:
            other.append(counting_episode(4, first=77))
        for name in ("journal", "journal.head", "segments/000000/steps.bin", "segments/000000/camera.front.bin"):
            with (folder / name).open("r+b") as file:
                file.write((tmp_path / "copy" / name).read_bytes())
        with pytest.raises(StoreError, match="nothing was written, open the store again"):
            writer.append(counting_episode(4, first=99))
    assert same_episode(Store.open(folder).episode(3), counting_episode(4, first=77))
    assert check(folder).ok


def test_a_disk_that_fails_during_a_repair_is_told_in_a_sentence(tmp_path, monkeypatch):
    folder = filled(tmp_path / "s")
    data = bytearray((folder / "labels").read_bytes())
    data[100] ^= 1
    (folder / "labels").write_bytes(data)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match=r"the disk of .* is full .*labels could not be mended"):
            check(folder, repair=True)
    assert (folder / "labels").read_bytes() == bytes(data)
    assert check(folder, repair=True).ok


@pytest.mark.parametrize("name", ["segments/000000/steps.bin", "segments/000000"])
def test_a_writer_follows_a_file_that_was_replaced_by_a_copy(tmp_path, name):
    folder = filled(tmp_path / "s")
    with Store.open(folder, write=True) as writer:
        writer.append(counting_episode(4, first=30))  # its files are open from here on
        (folder / name).rename(tmp_path / "old")
        copy = shutil.copytree if (tmp_path / "old").is_dir() else shutil.copy
        copy(tmp_path / "old", folder / name)
        assert writer.append(counting_episode(4, first=40)) == 4
    assert same_episode(Store.open(folder).episode(4), counting_episode(4, first=40))
    assert check(folder).ok


def test_a_forked_process_locks_the_ledger_anew(tmp_path):
    """A fork inherits the descriptors of its parent, and with them the parent's locks."""
    folder = filled(tmp_path / "s", count=1)
    ledger = Store.open(folder).ledger
    ledger.append(0, LABELS)
    child = os.fork()
    try:
        for _ in range(100):
            ledger.append(0, LABELS)
    finally:
        if child == 0:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(Store.open(folder).ledger) == 202


def restore(backup, folder):
    """As `cp -r` does: into the files that are there."""
    for path in (path for path in backup.rglob("*") if path.is_file()):
        (folder / path.relative_to(backup)).parent.mkdir(exist_ok=True)
        (folder / path.relative_to(backup)).write_bytes(path.read_bytes())


@pytest.mark.parametrize("of_another_store", [False, True])
def test_a_backup_restored_over_an_open_store_is_not_written_to(tmp_path, monkeypatch, of_another_store):
    folder = tmp_path / "s"
    backup = Store.create(tmp_path / "other" if of_another_store else folder, capacity_episodes=4)
    backup.extend([counting_episode(4, first=i) for i in range(6)])
    backup.close()
    shutil.copytree(backup.folder, tmp_path / "backup")
    monkeypatch.setattr("plaudit.data.store.COMPACT_AFTER", (1, 0))  # the writer's journal is shorter
    writer = Store.create(folder, capacity_episodes=4) if of_another_store else Store.open(folder, write=True)
    writer.append(counting_episode(4, first=60))
    restore(tmp_path / "backup", folder)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"replaced while it was open, .*; nothing was written"):
            writer.append(counting_episode(4, first=99))
    writer.close()
    assert check(folder).ok and [e.frames["front"][0, 0, 0, 0] for _, e in Store.open(folder)] == [2, 3, 4, 5]


def test_a_backup_restored_in_the_middle_of_an_append_is_not_cut_back(tmp_path, monkeypatch):
    folder, backup = filled(tmp_path / "s"), filled(tmp_path / "backup", first=100)
    with Store.open(backup, write=True) as store:
        store.append(counting_episode(4, first=200))
    monkeypatch.setattr("plaudit.data.segments.Segment.sync", lambda segment: restore(backup, folder))
    with Store.open(folder, write=True) as writer, pytest.raises(StoreError, match="nothing was written"):
        writer.append(counting_episode(4, first=50))
    assert same_episode(Store.open(folder).episode(3), counting_episode(4, first=200))
    assert check(folder).ok


def test_labels_do_not_go_to_another_store_that_was_restored_in_place(tmp_path):
    folder, other = filled(tmp_path / "s"), filled(tmp_path / "other", first=100)
    ledger = Store.open(folder).ledger
    restore(other, folder)
    for _ in range(2):
        with pytest.raises(StoreError, match="replaced by the labels of another store"):
            ledger.append(0, LABELS)
    assert (folder / "labels").read_bytes() == (other / "labels").read_bytes()
