"""Stores made by hand by somebody else, whose checksums all fit: refused in a sentence, and they reach nothing else."""

import base64
import errno
import fcntl
import os
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from conftest import counting_episode, labeled_store
from plaudit.data.check import check, empty_quarantine
from plaudit.data.disk import Folder, decode_checked, encode_checked
from plaudit.data.journal import HEADER_KEY, MAX_LINE_BYTES, decode, encode_lines, replace_head
from plaudit.data.ledger import Failures
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.errors import DataError, ForeignFile, InvalidEpisode, StoreDamaged, StoreError, StoreFull, TargetNotEmpty
from plaudit.types import Labels

FILES = ["store.json", "journal", "journal.head", "labels", "labels.head", "writer.lock"]
ARRAYS = ["segments/000000/steps.bin", "segments/000000/camera.front.bin"]
PRECIOUS = b"the only copy of somebody's thesis"


@pytest.fixture
def folder(tmp_path):
    episodes = [counting_episode(4, first=10 * i) for i in range(3)]
    labeled_store(tmp_path / "s", *episodes, cutoff=2).close()
    return tmp_path / "s"


@pytest.fixture
def precious(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/thesis").write_bytes(PRECIOUS)
    return tmp_path / "elsewhere/thesis"


def use(folder):
    """All that a user may do with it; each may refuse."""
    said = []
    for step in (
        lambda: [episode for _, episode in Store.open(folder)],
        lambda: check(folder).problems,
        lambda: Store.open(folder).ledger.append(0, Labels.from_cutoff(steps=4, cutoff=1, source="human")),
        lambda: append(folder),
        lambda: check(folder, repair=True).problems,
        lambda: append(folder),
        lambda: empty_quarantine(folder),
    ):
        try:
            said.append(step())
        except DataError as error:
            said.append(str(error))
    return said


def append(folder):
    with Store.open(folder, write=True) as store:
        return store.append(counting_episode(4, first=70))


def rewrite(folder, change, name="journal"):
    """Change a file's records; numbers, checksums and count are made to fit again."""
    lines = [decode(line) for line in (folder / name).read_bytes().splitlines()]
    records = [line.record for line in lines]
    records = change(records) or records
    lines = encode_lines(records, 1, 0)
    (folder / name).write_bytes(b"".join(lines))
    chain = 0
    for line in lines:
        chain = zlib.crc32(line[:-1], chain)
    replace_head(Folder(folder), name, len(lines), chain)


def first_episode(records):
    return next(record for record in records if record.get("op") == "episode")


@pytest.mark.parametrize("name", [*FILES, *ARRAYS, "store.json.tmp", "journal.head.tmp"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_place_of_a_file_leads_no_writer_elsewhere(folder, precious, name, link):
    (folder / name).unlink(missing_ok=True)
    link(precious, folder / name)
    use(folder)
    assert precious.read_bytes() == PRECIOUS


@pytest.mark.parametrize("name", ["segments", "segments/000000", "quarantine"])
def test_a_link_in_place_of_a_folder_is_not_followed(folder, tmp_path, name):
    away = tmp_path / "away"
    if (folder / name).exists():
        (folder / name).rename(away)
    else:
        away.mkdir()
    before = {path: path.read_bytes() for path in away.rglob("*.bin")}
    (folder / name).symlink_to(away)
    (folder / "journal").open("ab").write(b"torn")  # for the quarantine
    said = use(folder)
    assert any("is reached through something that is not a folder" in str(s) for s in said)
    assert before == {path: path.read_bytes() for path in away.rglob("*.bin")}
    assert name != "quarantine" or not list(away.iterdir())


@pytest.mark.parametrize("name", [*FILES, *ARRAYS, "labels.failures"])
def test_a_pipe_in_place_of_a_file_is_told_and_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    use(folder)
    if name not in ("store.json", "writer.lock", "journal.head", "labels.head"):
        assert any("is a pipe and not a file" in problem for problem in check(folder).problems)


def test_a_copy_made_of_hard_links_is_read_and_a_writer_changes_neither(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy", copy_function=os.link)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ForeignFile, match="has a second name somewhere"):
        append(tmp_path / "copy")
    assert check(tmp_path / "copy").ok
    with pytest.raises(ForeignFile, match=r"copy the folder \(cp -r\) and use the copy"):
        Store.open(tmp_path / "copy").ledger.append(0, Labels.from_cutoff(steps=4, cutoff=1, source="human"))
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shutil.copytree(tmp_path / "copy", tmp_path / "real copy")
    assert append(tmp_path / "real copy") == 3


@pytest.mark.parametrize(
    "change",
    [
        {"id": -1},
        {"id": 1 << 63},
        {"id": 1},  # which another has
        {"id": 0.0},
        {"row": -5},
        {"row": 5, "id": 9},  # rows of the next one
        {"steps": 0},
        {"steps": -1},
        {"steps": 1 << 62},
        {"segment": 1 << 40},
        {"segment": "../../elsewhere"},
        {"crc": [1]},
        {"time": float("nan")},
        {"time": 1e300},
        {"time": 10**400},
        {"fps": float("inf")},
        {"fps": -(10**400)},
        {"fps": "fast"},
        {"task": 5},
        {"task": "\ud800"},
        {"robot": None},
        {"terminated": "no"},
        {"repeated": "sometimes"},
        {"origin": {"format": "npy"}},
        {"origin": {"format": "npy", "path": "x", "index": 10**300, "digest": "x"}},
        {"meta": [1]},
        {"meta": {"a": [[]] * 70}},
        {"op": "explode"},
        {"op": ["episode"]},
    ],
)
def test_a_senseless_line_is_refused_in_a_sentence(folder, change):
    nested = change.get("meta")
    if isinstance(nested, dict):
        for _ in range(100):
            nested["a"] = [nested["a"]]
    arrays = [(folder / name).read_bytes() for name in ARRAYS]
    rewrite(folder, lambda records: first_episode(records).update(change))
    said = use(folder)
    assert all(isinstance(sentence, str | list) for sentence in said[:2]) and said[1]
    assert [(folder / name).read_bytes()[: len(kept)] for name, kept in zip(ARRAYS, arrays)] == arrays


def test_a_line_that_promises_more_rows_than_the_file_has_costs_no_memory(folder):
    rewrite(folder, lambda records: first_episode(records[::-1]).update(steps=1 << 40))
    with pytest.raises(StoreDamaged, match=r"steps of .* are too many|is damaged"):
        Store.open(folder).episode(2)


@pytest.mark.parametrize(
    "change",
    [
        {"cameras": [["front", 1 << 20, 8]]},
        {"cameras": [["front", 60000, 60000]]},
        {"cameras": [["front", 8, 10], ["front", 8, 10]]},
        {"cameras": [[f"c{i}", 8, 10] for i in range(5000)]},
        {"cameras": [["x" * 300, 8, 10]]},
        {"cameras": [["\ud800", 8, 10]]},
        {"cameras": "front"},
        {"state_dim": -1},
        {"state_dim": True},
        {"state_dim": 1 << 40},
        {"privileged": [["a", "|O", []]]},
        {"privileged": [["a", "f4,f4", []]]},
        {"privileged": [["a", "<f8", [1] * 40]]},
        {"privileged": [["a", "<f8", [1 << 20, 1 << 20]]]},
        {"privileged": [[f"p{i}", "<f8", [1 << 24]] for i in range(20)]},
        {"privileged": [["a", "<f8", []], ["a", "<f8", []]]},
    ],
)
def test_a_schema_that_no_segment_can_have_is_refused_in_a_sentence(folder, change):
    def bend(records):
        next(r for r in records if r.get("op") == "segment")["schema"].update(change)

    rewrite(folder, bend)
    with pytest.raises(StoreDamaged):
        Store.open(folder)
    assert check(folder).problems
    use(folder)


@pytest.mark.parametrize("change", [{"next_id": 1 << 63}, {"next_id": 0.5}, {"next_segment": -1}, {"next_id": "9"}])
def test_a_count_that_is_none_is_refused(folder, change):
    summary = {"op": "summary", "next_id": 3, "next_segment": 1} | change
    rewrite(folder, lambda records: records.append(summary))
    with pytest.raises(StoreDamaged, match="makes no sense"):
        append(folder)


def test_two_descriptions_of_one_segment_are_refused(folder):
    def add(records):
        second = dict(next(r for r in records if r.get("op") == "segment"))
        records.append(second | {"schema": {**second["schema"], "state_dim": 1}})

    rewrite(folder, add)
    with pytest.raises(StoreDamaged, match="is described twice"):
        Store.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 0},
        {"version": -3},
        {"version": 99},
        {"version": True},
        {"capacity_episodes": 0},
        {"capacity_episodes": -4},
        {"capacity_bytes": 1e400},
        {"capacity_bytes": 1 << 70},
        {"id": "../../etc"},
        {"format": "x" * 100_000},
    ],
)
def test_settings_that_no_store_has_are_refused_in_a_short_sentence(folder, change):
    (folder / "store.json").write_bytes(encode_checked(decode_checked((folder / "store.json").read_bytes()) | change))
    with pytest.raises(StoreError) as caught:
        Store.open(folder, write=True)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "change",
    [
        {"steps": -1},
        {"steps": 1 << 40},
        {"steps": 5},
        {"steps": "4"},
        {"data": "?"},
        {"data": 5},
        {"data": "eJwDAAAAAAE="},
        {"note": ["x"]},
        {"scores": 3},
        {"scores": "1"},
        {"format": 9},
        {"format": 1},
        {"time": 1e300},
        {"time": 10**400},
        {"time": None},
        {"rule": 5},
    ],
)
def test_labels_that_make_no_sense_are_named_by_a_check_and_never_served(folder, change):
    rewrite(folder, lambda records: records[1].update(change), "labels")
    with pytest.raises(DataError):
        Store.open(folder).ledger.labels(0)
    assert check(folder).problems


def test_labels_of_a_few_bytes_unfold_into_no_gigabytes(folder):
    data = zlib.compress(bytes(1 << 28))
    line = {"steps": (1 << 28) // 5, "data": base64.b64encode(data).decode()}
    rewrite(folder, lambda records: records[1].update(line), "labels")
    with pytest.raises(StoreDamaged, match="holds no labels"):
        Store.open(folder)


@pytest.mark.parametrize("line", [{"episode": 0}, {"episode": 0, "more": 1}, {}])
def test_a_failure_that_is_none_is_refused_in_a_sentence(folder, line):
    store = Store.open(folder)
    Failures(store.ledger).append([(0, "no answer")], "vlm", "m")
    rewrite(folder, lambda records: records.append(line), "labels.failures")
    with pytest.raises(StoreDamaged, match="does not describe a failure of a judge"):
        Failures(Store.open(folder).ledger).all()


@pytest.mark.parametrize("name", ["journal", "labels", "store.json", "segments/000000/schema.json"])
def test_a_file_that_claims_terabytes_is_not_read_into_memory(folder, name):
    os.truncate(folder / name, 1 << 36)
    said = use(folder)
    assert said[1]


def test_a_tail_of_terabytes_that_take_no_room_is_set_aside_without_filling_the_disk(folder):
    os.truncate(folder / ARRAYS[0], 1 << 36)
    assert append(folder) == 3
    (kept,) = (folder / "quarantine").glob("*/*steps.bin*")
    assert kept.stat().st_size > 1 << 35 and kept.stat().st_blocks < 10_000


def test_an_older_journal_that_is_put_back_gives_no_id_a_second_time(folder, tmp_path):
    old = {name: (folder / name).read_bytes() for name in ("journal", "journal.head")}
    with Store.open(folder, write=True) as store:
        assert store.append(counting_episode(4, first=30)) == 3
        store.ledger.append(3, Labels.from_cutoff(steps=4, cutoff=1, source="human"))
    for name, data in old.items():
        (folder / name).write_bytes(data)
    assert any("an older journal was put back" in problem for problem in check(folder).problems)
    with Store.open(folder, write=True) as store:
        assert any("ids go on from 4" in sentence for sentence in store.repaired)
        assert store.append(counting_episode(4, first=40)) == 4
    assert store.ledger.labels(4) is None
    with Store.open(folder, write=True) as store:
        assert store.repaired == []


def test_a_file_of_somebodys_own_in_a_segments_folder_outlives_the_segment(tmp_path):
    store = labeled_store(tmp_path / "s", capacity_episodes=16)
    store.append(counting_episode(4))
    (tmp_path / "s/segments/000000/notes.txt").write_bytes(PRECIOUS)
    (tmp_path / "s/segments/000000/camera.mine.bin").mkdir()
    (tmp_path / "s/segments/000000/camera.mine.bin/notes.txt").write_bytes(PRECIOUS)
    for i in range(40):
        store.append(counting_episode(4, first=i))
    store.close()
    Store.open(tmp_path / "s", write=True).close()
    assert [path.read_bytes() for path in (tmp_path / "s").rglob("notes.txt")] == [PRECIOUS, PRECIOUS]
    assert not list((tmp_path / "s").rglob("000000*/steps.bin"))


def test_a_quarantine_made_by_hand_is_told_of_in_short_and_emptied_without_reaching_further(folder, precious):
    for name in ("a", "b", "c"):
        (folder / "quarantine" / name).mkdir(parents=True)
    os.mkfifo(folder / "quarantine/a/ABOUT.txt")
    (folder / "quarantine/b/ABOUT.txt").symlink_to(precious)
    (folder / "quarantine/c/ABOUT.txt").write_text("x" * 100_000)
    (folder / "quarantine/d").symlink_to(precious.parent)
    report = check(folder)
    assert report.ok and len(report.aside) == 4 and max(map(len, report.aside)) < 1000
    assert not any(PRECIOUS.decode() in sentence for sentence in report.aside)
    assert len(empty_quarantine(folder)) == 4 and precious.read_bytes() == PRECIOUS


def test_a_second_repair_finds_a_name_for_its_backup(folder):
    for _ in range(3):
        (folder / "journal.head").unlink()
        assert check(folder, repair=True).ok
    assert len(list(folder.glob("quarantine/*/journal"))) == 3


def test_a_journal_in_which_every_other_line_is_bad_keeps_no_check_busy(folder):
    bad = b"\n".join(b"x" * 30_000 for _ in range(200))
    (folder / "journal").write_bytes((folder / "journal").read_bytes() + bad + b"\n")
    assert check(folder).problems


@pytest.mark.parametrize(
    "facts",
    [
        {"task": "\ud800"},
        {"meta": {"long": "x" * MAX_LINE_BYTES}},
        {"fps": float("nan")},
    ],
)
def test_an_episode_that_could_not_be_read_back_is_not_stored(folder, facts):
    with Store.open(folder, write=True) as store:
        with pytest.raises(DataError):
            store.append(counting_episode(4, **facts))
        assert store.append(counting_episode(4, first=30)) == 3
    assert check(folder).ok


def test_an_episode_whose_columns_have_no_names_for_files_is_not_stored(folder):
    frames = {"x" * 300: np.zeros((3, 4, 4, 3), np.uint8)}
    with Store.open(folder, write=True) as store, pytest.raises(InvalidEpisode, match="too long for a file"):
        store.append(type(counting_episode()).of(frames=frames, actions=np.zeros((2, 1))))
    assert check(folder).ok


def test_a_first_line_that_says_nothing_of_its_owner_is_refused(folder):
    rewrite(folder, lambda records: [{HEADER_KEY: [1, 2]}, *records[1:]])
    with pytest.raises(StoreError):
        Store.open(folder)


def test_a_segment_that_is_evicted_during_a_check_is_no_problem(tmp_path):
    with labeled_store(tmp_path / "s", counting_episode(4), counting_episode(4, size=(4, 4))) as writer:
        seen_before = Store.open(tmp_path / "s").segments
        writer.evict([0])
        assert [segment.schema_problem() for segment in seen_before] == ["", ""]


def test_files_of_another_segment_are_not_cut_to_the_length_of_this_one(tmp_path):
    labeled_store(tmp_path / "s", counting_episode(2), counting_episode(9, size=(4, 4))).close()
    for old, new in (("000000", "x"), ("000001", "000000"), ("x", "000001")):
        (tmp_path / "s/segments" / old).rename(tmp_path / "s/segments" / new)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "s").rglob("*.bin"))]
    with Store.open(tmp_path / "s", write=True) as store:
        assert store.append(counting_episode(2)) == 2
    assert [path.stat().st_size for path in sorted((tmp_path / "s").rglob("00000[01]/*.bin"))] == sizes
    for old, new in (("000000", "x"), ("000001", "000000"), ("x", "000001")):  # put right, all is there
        (tmp_path / "s/segments" / old).rename(tmp_path / "s/segments" / new)
    assert check(tmp_path / "s").ok


def test_a_folder_that_is_in_the_way_of_an_eviction_stays_and_the_space_is_given_back(tmp_path):
    with labeled_store(tmp_path / "s", counting_episode(4), counting_episode(4, size=(4, 4))) as store:
        (tmp_path / "s/segments/000000.gone").mkdir()
        (tmp_path / "s/segments/000000.gone/notes").write_bytes(PRECIOUS)
        store.evict([0])
    assert (tmp_path / "s/segments/000000.gone/notes").read_bytes() == PRECIOUS
    assert not (tmp_path / "s/segments/000000").exists()


def test_an_export_does_not_go_through_a_link_that_is_in_its_way(folder, tmp_path):
    (tmp_path / "away").mkdir()
    (tmp_path / ".out.partial").symlink_to(tmp_path / "away")
    with pytest.raises(TargetNotEmpty, match="already exists"):
        export_dataset(Store.open(folder), tmp_path / "out", "npy")
    assert not list((tmp_path / "away").iterdir())


def test_a_batch_that_no_memory_holds_is_told_in_a_sentence(folder):
    def no_memory(shape, dtype):
        raise MemoryError

    with pytest.raises(DataError, match="a batch of 64 takes more memory than there is"):
        ReplaySampler(Store.open(folder), allocate=no_memory).sample(64)


def test_a_label_waits_for_a_repair_and_goes_to_the_new_ledger(folder):
    ledger = Store.open(folder).ledger
    with (folder / "labels").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a repair does
        labels = Labels.from_cutoff(steps=4, cutoff=1, source="human")
        with ThreadPoolExecutor() as pool:
            number = pool.submit(ledger.append, 0, labels)
            wait_until_somebody_waits_for(held, number)
            shutil.copy(folder / "labels", folder / "labels.tmp")
            (folder / "labels.tmp").replace(folder / "labels")
            fcntl.flock(held, fcntl.LOCK_UN)
            assert number.result() == 2
    assert len(Store.open(folder).ledger.history(0)) == 2


def wait_until_somebody_waits_for(file, future):
    """Linux lists who waits for a lock with an arrow. One that does not wait is done at once."""
    inode = f":{os.fstat(file.fileno()).st_ino} "
    waits = False
    while not waits and not future.done():
        waits = any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_an_export_to_a_full_disk_is_told_in_a_sentence(folder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("numpy.save", full)
    with pytest.raises(StoreFull, match="the export was not written"):
        export_dataset(Store.open(folder), tmp_path / "out", "npy")
    assert not (tmp_path / "out").exists()
