import os
import shutil

import pytest

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.check import check
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.errors import StoreDamaged, StoreError, StoreLocked
from plaudit.types import Labels


@pytest.fixture
def folder(tmp_path):
    labeled_store(tmp_path / "s", *(counting_episode(4, first=10 * i) for i in range(5)), cutoff=2).close()
    return tmp_path / "s"


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def test_a_sound_store_is_said_to_be_sound_and_is_not_touched(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    report = check(folder)
    assert report.ok and (report.episodes, report.labels, report.repaired) == (5, 5, [])
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["journal", "labels"])
def test_a_flipped_bit_in_a_journal_is_found_and_mended(folder, name):
    path = folder / name
    flip(path, path.read_bytes().index(b"\n") + 30)
    with pytest.raises(
        StoreDamaged, match=rf"{name}: line 2 fails its checksum; run 'plaudit data check .*s --repair'"
    ):
        Store.open(folder)
    report = check(folder)
    assert report.problems == [f"{path}: line 2 fails its checksum"]
    report = check(folder, repair=True)
    assert report.ok
    assert f"{path}: line 2: one flipped bit was put right" in report.repaired
    store = Store.open(folder)
    assert len(store) == 5 and all(store.ledger.labels(i).success_once for i in range(5))


def test_a_damaged_episode_is_found_written_off_and_the_others_stay(folder):
    flip(folder / "segments/000000/camera.front.bin", 5 * 240 + 100)  # frame 0 of episode 1
    report = check(folder)
    assert len(report.problems) == 1
    assert (
        "episode 1: its part of" in report.problems[0] and "camera.front.bin fails its checksum" in report.problems[0]
    )
    assert Store.open(folder).ids == [0, 1, 2, 3, 4]
    report = check(folder, repair=True)
    assert report.ok and "the episode is written off" in report.repaired[0]
    store = Store.open(folder)
    assert store.ids == [0, 2, 3, 4]
    assert same_episode(store.episode(2), counting_episode(4, first=20))
    assert check(folder).ok


def test_files_cut_short_are_found_and_what_is_whole_stays(folder):
    os.truncate(folder / "segments/000000/steps.bin", 5 * 16 * 3 + 1)
    assert len(check(folder).problems) == 2  # episodes 3 and 4
    assert check(folder, repair=True).ok
    assert Store.open(folder).ids == [0, 1, 2]
    with Store.open(folder, write=True) as store:
        assert same_episode(store.episode(store.append(counting_episode(4, first=77))), counting_episode(4, first=77))


@pytest.mark.parametrize("repaired", [False, True])
def test_a_truncated_column_file_costs_only_the_episodes_whose_rows_are_lost(folder, tmp_path, repaired):
    file = folder / "segments/000000/camera.front.bin"
    os.truncate(file, file.stat().st_size // 2 + 1)  # episode 2 loses its last rows
    if repaired:
        report = check(folder, repair=True)
        assert [line.split(":")[0] for line in report.repaired] == ["episode 2", "episode 3", "episode 4"]
    store = Store.open(folder)
    assert all(same_episode(store.episode(i), counting_episode(4, first=10 * i)) for i in (0, 1))
    export_dataset(store, tmp_path / "out", "npy", ids=[0, 1])
    if repaired:
        assert {*ReplaySampler(store, seed=0).sample(32).episode.tolist()} == {0, 1}
    else:
        with pytest.raises(StoreDamaged, match="episode 2 is damaged"):
            store.episode(2)


def test_a_reader_of_a_file_that_is_truncated_meanwhile_keeps_the_episodes_before_the_cut(folder):
    store = Store.open(folder)
    assert store.episode(4).steps == 4  # verified and mapped
    file = folder / "segments/000000/camera.front.bin"
    os.truncate(file, file.stat().st_size // 2)
    assert same_episode(store.episode(1), counting_episode(4, first=10))
    with pytest.raises(StoreDamaged, match=r"has 12 complete rows, row 25 is missing; run 'plaudit data check"):
        store.episode(4)


def test_a_segment_that_somebody_deleted_is_missed_and_what_is_left_stays(tmp_path):
    folder = tmp_path / "s"
    store = labeled_store(folder, counting_episode(4), counting_episode(4, size=(4, 4)), counting_episode(4, first=30))
    store.close()
    shutil.rmtree(folder / "segments/000000")
    sentence = r"segments/000000 is missing, and with it 2 episodes from 0 on; restore it .*or run 'plaudit data check"
    for write in (False, True):
        with pytest.raises(StoreDamaged, match=sentence):
            Store.open(folder, write=write)
    assert len(check(folder).problems) == 1
    report = check(folder, repair=True)
    assert report.ok and "missing; its episodes are written off" in report.repaired[0]
    assert Store.open(folder).ids == [1]
    with Store.open(folder, write=True) as store:
        assert store.append(counting_episode(4)) == 3
    assert check(folder).ok


def test_a_torn_tail_is_named_and_set_aside(folder):
    with (folder / "journal").open("ab") as file:
        file.write(b"12345678 {half a li")
    assert "the count next to it does not include it; the next writer sets it aside" in check(folder).problems[0]
    report = check(folder, repair=True)
    assert report.ok and "an unfinished last line was set aside" in report.repaired[0]


def test_bytes_of_an_unfinished_episode_are_set_aside(folder):
    with (folder / "segments/000000/camera.front.bin").open("ab") as file:
        file.write(b"x" * 500)
    assert check(folder).ok  # no reader ever looks there
    assert "500 bytes that no line speaks of, of an unfinished episode" in check(folder, repair=True).repaired[0]
    (aside,) = (folder / "quarantine").iterdir()
    assert (aside / "segments-000000-camera.front.bin.from-6000").read_bytes() == b"x" * 500
    assert check(folder).aside[0].startswith(str(aside))


def test_labels_that_do_not_fit_are_named(folder):
    Store.open(folder).ledger.append(2, Labels.from_cutoff(steps=9, cutoff=1, source="human"))
    assert "episode 2: version 2 of its labels covers 9 steps, it has 4" in check(folder).problems[0]


def test_nothing_is_repaired_under_a_writers_feet(folder):
    with Store.open(folder, write=True), pytest.raises(StoreLocked):
        check(folder, repair=True)


def test_a_folder_that_is_no_store_is_named(tmp_path):
    with pytest.raises(StoreError, match="holds no store"):
        check(tmp_path)
