"""Damage of every kind: nothing wrong is served, nothing good is deleted, and what is lost is named."""

import json
import shutil
from pathlib import Path

import pytest

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.check import check, empty_quarantine
from plaudit.data.ledger import Ledger
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store, is_store
from plaudit.errors import StoreDamaged, StoreError
from plaudit.types import Labels
from processes import Forked


@pytest.fixture
def folder(tmp_path):
    episodes = [counting_episode(4, first=10 * i) for i in range(5)]
    labeled_store(tmp_path / "s", *episodes, cutoff=2, capacity_episodes=500).close()
    return tmp_path / "s"


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def whole(folder):
    store = Store.open(folder)
    return store.ids == [0, 1, 2, 3, 4] and all(
        same_episode(store.episode(i), counting_episode(4, first=10 * i)) and store.ledger.labels(i).success_once
        for i in range(5)
    )


def test_a_check_tells_of_bytes_that_no_line_speaks_of_and_leaves_them_where_they_are(folder):
    file = folder / "segments/000000/steps.bin"
    file.write_bytes(file.read_bytes() + b"more")
    report = check(folder)
    assert report.ok and [sentence.partition(": ")[2][:7] for sentence in report.unexplained] == ["4 bytes"]
    assert file.read_bytes().endswith(b"more")
    assert check(folder, repair=True).unexplained == [] == check(folder).unexplained


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_flipped_bit_of_the_settings_is_believed_and_each_is_put_right(folder, every):
    path = folder / "store.json"
    sound = path.read_bytes()
    for position in range(0, len(sound), every):
        flip(path, position, bit=position % 7)
        try:
            assert whole(folder) and Store.open(folder).settings.capacity_episodes == 500  # a space, or a letter's case
        except StoreError:
            assert check(folder).problems
            with pytest.raises(StoreError):
                Store.open(folder, write=True)
            assert check(folder, repair=True).ok
        assert json.loads(path.read_bytes()) == json.loads(sound)
        path.write_bytes(sound)
    assert whole(folder)


def test_no_flipped_bit_of_a_schema_changes_what_is_served(folder):
    path = folder / "segments/000000/schema.json"
    sound = path.read_bytes()
    for position in range(0, len(sound), 5):
        flip(path, position, bit=position % 7)
        assert whole(folder)
        with Store.open(folder, write=True) as store:
            assert store.repaired == []
        if json.loads(sound) != _parsed(path):
            assert "schema.json" in check(folder).problems[0]
        assert check(folder, repair=True).ok
        assert json.loads(path.read_bytes()) == json.loads(sound)


def _parsed(path):
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_settings_that_are_gone_come_back_from_the_journal(folder):
    (folder / "store.json").unlink()
    assert not is_store(folder)
    with pytest.raises(StoreError, match=r"a store without its store.json; 'plaudit data check"):
        Store.create(folder)
    assert "store.json" in check(folder).problems[0]
    report = check(folder, repair=True)
    assert report.ok and "it was missing, and was written again from the journal" in report.repaired[0]
    assert whole(folder) and Store.open(folder).settings.capacity_episodes == 500


def test_a_journal_that_lost_its_end_stops_every_writer_and_the_arrays_are_kept(folder):
    lines = (folder / "journal").read_bytes().splitlines(keepends=True)
    (folder / "journal").write_bytes(b"".join(lines[:-2]))
    for write in (False, True):
        with pytest.raises(StoreDamaged, match=r"last 2 acknowledged line\(s\) are missing"):
            Store.open(folder, write=write)
    report = check(folder, repair=True)
    assert "lost: the last 2 acknowledged line(s) are missing; what they said is gone" in report.repaired[0]
    (aside,) = (folder / "quarantine").glob("*segment-000000-tail")
    frames = (aside / "segments-000000-camera.front.bin.from-3600").read_bytes()
    assert frames == b"".join(counting_episode(4, first=i).frames["front"].tobytes() for i in (30, 40))
    assert "from byte 3600 on" in (aside / "ABOUT.txt").read_text()
    with Store.open(folder, write=True) as store:
        assert store.append(counting_episode(4)) >= 5, "the labels of a lost episode would be another's"


def test_a_line_missing_in_the_middle_is_named_and_the_others_stay(folder):
    lines = (folder / "journal").read_bytes().splitlines(keepends=True)
    (folder / "journal").write_bytes(b"".join(lines[:3] + lines[4:]))
    assert "line 4 is missing" in check(folder).problems[0]
    assert "line 4 is missing" in check(folder, repair=True).repaired[0]
    store = Store.open(folder)
    assert store.ids == [0, 2, 3, 4] and same_episode(store.episode(2), counting_episode(4, first=20))
    assert check(folder).ok


def test_a_lost_description_of_a_segment_is_read_from_the_copy_in_its_folder(folder):
    lines = (folder / "journal").read_bytes().splitlines(keepends=True)
    assert b'"segment"' in lines[1]
    (folder / "journal").write_bytes(b"".join(lines[:1] + lines[2:]))
    assert check(folder, repair=True).ok
    assert whole(folder) and check(folder).ok


def test_a_journal_that_is_gone_leaves_its_segments_in_the_quarantine(folder):
    (folder / "journal").unlink()
    with pytest.raises(StoreDamaged, match="journal is missing; restore it from a backup"):
        Store.open(folder)
    report = check(folder, repair=True)
    assert "journal was missing, and with it 7 lines" in report.repaired[0]
    (kept,) = (folder / "quarantine").glob("*/000000")
    assert (kept / "camera.front.bin").stat().st_size == 5 * 5 * 240
    with Store.open(folder, write=True) as store:
        assert store.append(counting_episode(4)) >= 5


def test_bytes_that_rotted_are_never_served(folder):
    flip(folder / "segments/000000/camera.front.bin", 5 * 240 + 100)  # frame 0 of episode 1
    store = Store.open(folder)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"episode 1 is damaged \(.*camera.front.bin fails its checksum\)"):
            store.episode(1)
    assert same_episode(store.episode(2), counting_episode(4, first=20))
    with pytest.raises(StoreDamaged, match="episode 1 is damaged"):
        ReplaySampler(store, seed=0).sample(100)
    assert len(ReplaySampler(store, cameras=(), seed=0).sample(100).reward) == 100  # its states are sound


def test_a_column_that_somebody_deleted_is_missed(folder):
    (folder / "segments/000000/camera.front.bin").unlink()
    with pytest.raises(StoreDamaged, match=r"front.bin is missing or cut short"):
        Store.open(folder).episode(0)
    with Store.open(folder, write=True) as store:
        new = store.append(counting_episode(4, first=90))
        assert same_episode(store.episode(new), counting_episode(4, first=90))
    assert check(folder, repair=True).ok
    assert Store.open(folder).ids == [5]


@pytest.mark.parametrize("where", ["export", "segments/export", "segments/2024", "segments/000001", "segments/7.gone"])
def test_an_export_inside_of_a_store_is_left_alone(folder, where):
    (folder / where).mkdir()
    (folder / where / "data.parquet").write_bytes(b"work")
    with Store.open(folder, write=True) as store:
        assert store.repaired == []
        store.append(counting_episode(4, size=(4, 4)))
    assert (folder / where / "data.parquet").read_bytes() == b"work"
    assert check(folder, repair=True).ok and len(Store.open(folder)) == 6


def test_the_quarantine_is_emptied_only_when_somebody_says_so(folder):
    (folder / "segments/000007").mkdir()
    (folder / "segments/000007/steps.bin").write_bytes(b"arrays")
    Store.open(folder, write=True).close()
    (sentence,) = check(folder).aside
    assert "segments/000007: no line speaks of it" in sentence
    assert [path.read_bytes() for path in folder.rglob("quarantine/*/000007/steps.bin")] == [b"arrays"]
    assert empty_quarantine(folder) == [sentence]
    assert check(folder).aside == [] and list((folder / "quarantine").iterdir()) == []


def label_forty_times(path: Path) -> None:
    """In a child process."""
    ledger = Ledger(path)
    print("ready", flush=True)
    for i in range(40):
        ledger.append(0, Labels.from_cutoff(steps=4, cutoff=3, source="vlm", note=str(i)))


def test_no_label_is_lost_to_a_repair_that_runs_beside(folder):
    with Forked(label_forty_times, folder / "labels") as job:
        assert job.readline() == "ready\n"
        ours, n = Store.open(folder).ledger, 0
        while job.poll() is None:
            (folder / "labels.head").unlink(missing_ok=True)
            check(folder, repair=True)
            ours.append(1, Labels.from_cutoff(steps=4, cutoff=3, source="human", note=str(n)))
            n += 1
        assert job.wait() == 0
    ledger = Store.open(folder).ledger
    assert [v.line["note"] for v in ledger.history(0) if v.source == "vlm"] == [str(i) for i in range(40)]
    assert [v.line["note"] for v in ledger.history(1)[1:]] == [str(i) for i in range(n)]
    assert any(folder.glob("quarantine/*/labels")), "no repair ever replaced the file"


def test_a_check_looks_at_a_store_that_is_being_written(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=3)
    for n in range(3):
        store.append(counting_episode(4, first=n))

    def while_checking(ids):
        for i in ids:
            store.extend([counting_episode(4, first=i), counting_episode(4, size=(4, 4))])
            yield i

    report = check(store.folder, progress=while_checking)
    assert report.ok and report.lines == 8
    store.close()
    shutil.rmtree(store.folder)
