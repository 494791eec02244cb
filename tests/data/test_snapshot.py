"""Snapshots of journal and ledger: they make opening faster, and never decide what a store holds."""

import json
import zlib

import numpy as np
import pytest

from plaudit.data import journal
from plaudit.data.check import check
from plaudit.data.journal import Snapshot
from plaudit.data.store import Store
from plaudit.errors import PlauditError, StoreDamaged
from plaudit.types import Episode, Labels

FILES = ("journal.snapshot", "labels.snapshot")


def recording(seed):
    frames = np.random.default_rng(seed).integers(0, 256, (6, 16, 16, 3), np.uint8)
    return Episode.of(frames={"front": frames, "wrist": frames}, actions=np.zeros((5, 2)))


def labels(cutoff):
    return Labels.from_cutoff(steps=5, cutoff=cutoff, source="simulator")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A store with snapshots of some of its lines, and lines after them."""
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", (2, 3))
    with Store.create(tmp_path / "s", images="jpeg:90,wrist=raw") as store:
        for number in range(7):
            episode_id = store.append(recording(number))
            store.ledger.append(episode_id, labels(number % 5))
        store.ledger.restore(1, 1)
        store.evict([0, 6])
        store.write_off([3])
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", (1000, 8))
    return tmp_path / "s"


def contents(folder, **how):
    with Store.open(folder, **how) as store:
        entries = {i: (store.entry(i), store.nbytes_of(i)) for i in store.ids}
        places = {i: (e.id, e.segment, e.row, e.steps, e.line, size) for i, (e, size) in entries.items()}
        versions = [(v.episode, v.number, v.source, v.time, v.restored_from) for v in store.ledger.since(0)]
        counting = {i: store.ledger.labels(i).success.tolist() for i in store.ids}
        ends = [(s.name, s.nbytes) for s in store.segments]
        return places, versions, counting, ends, store.next_id, store.nbytes, store.ids


@pytest.mark.parametrize("write", [False, True])
def test_a_store_reads_the_same_with_and_without_snapshots(folder, write):
    assert all((folder / name).exists() for name in FILES)
    assert contents(folder, write=write) == contents(folder, snapshots=False)
    assert check(folder).ok


def test_lines_that_a_snapshot_stands_for_are_not_parsed(folder, monkeypatch):
    parsed = []
    decode = journal.decode
    monkeypatch.setattr(journal, "decode", lambda text: parsed.append(text) or decode(text))
    Store.open(folder)
    lines = sum((folder / name).read_bytes().count(b"\n") for name in ("journal", "labels"))
    assert len(parsed) < lines


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "missing", "link", "older", "version"])
def test_a_snapshot_that_is_damaged_missing_or_of_other_lines_is_ignored(folder, tmp_path, name, damage):
    before, path = contents(folder, snapshots=False), folder / name
    data = path.read_bytes()
    match damage:
        case "bit":
            path.write_bytes(bytes([*data[:200], data[200] ^ 4, *data[201:]]))
        case "cut":
            path.write_bytes(data[:-9])
        case "empty":
            path.write_bytes(b"")
        case "missing":
            path.unlink()
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "older":
            path.write_bytes(changed(data, crc=1))
        case "version":
            path.write_bytes(changed(data, format=9))
    assert contents(folder) == before
    with Store.open(folder, write=True) as store:
        assert store.append(recording(7)) == 7


@pytest.mark.parametrize("name", ["journal", "labels"])
def test_damage_of_lines_under_a_snapshot_is_noticed(folder, name):
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 2
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match="fails its checksum"):
        Store.open(folder)
    assert check(folder, repair=True).ok
    assert check(folder).ok


@pytest.mark.parametrize("name", ["journal", "labels"])
def test_lines_that_are_lost_are_noticed_at_the_place_of_a_snapshot_and_before_it(folder, name):
    path = folder / name
    whole, size = path.read_bytes(), Snapshot.decode((folder / f"{name}.snapshot").read_bytes()).size
    for kept in (size, whole[: size - 1].rindex(b"\n") + 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(StoreDamaged, match="acknowledged line"):
            Store.open(folder)


LIES = {
    "an episode is left out": lambda state: state["episodes"].pop(),
    "an episode is elsewhere": lambda state: state["episodes"][1].__setitem__(2, 0),
    "a number is given again": lambda state: state.update(next=[1, 1]),
    "an episode has another line": lambda state: state["episodes"][1].__setitem__(4, state["episodes"][0][4]),
    "an episode appears twice": lambda state: state["episodes"].append(state["episodes"][0]),
    "a number is none": lambda state: state["episodes"][0].__setitem__(3, "5"),
    "a segment is missing": lambda state: state["segments"].clear(),
    "a segment is too long": lambda state: state["files"].update(extents=[[0, 1 << 40, 1 << 50]]),
    "nothing": lambda state: state.clear(),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_snapshot_that_lies_is_noticed_by_a_check_and_removed_by_a_repair(folder, lie):
    before, path = contents(folder, snapshots=False), folder / "journal.snapshot"
    state = Snapshot.decode(path.read_bytes()).state
    LIES[lie](state)
    path.write_bytes(changed(path.read_bytes(), state=state))
    if lie != "a segment is too long":  # that alone hides nothing: the next episode goes into a new segment
        assert "journal" in check(folder).problems[0]
    assert check(folder, repair=True).ok
    assert not path.exists() and contents(folder) == before


@pytest.mark.parametrize(
    "lie",
    [
        lambda state: state["labels"].pop(),
        lambda state: state["labels"][0].__setitem__(0, 2),
        lambda state: state["labels"][0].__setitem__(1, 9),
        lambda state: state["labels"][0].__setitem__(2, "NaN"),
        lambda state: state["labels"][0].__setitem__(4, 1 << 50),
    ],
)
def test_a_ledger_s_snapshot_that_lies_is_noticed(folder, lie):
    path = folder / "labels.snapshot"
    state = Snapshot.decode(path.read_bytes()).state
    lie(state)
    path.write_bytes(changed(path.read_bytes(), state=state))
    assert "labels" in check(folder).problems[0]
    assert check(folder, repair=True).ok


def test_labels_that_a_lying_snapshot_moves_are_not_served(folder):
    path = folder / "labels.snapshot"
    state = Snapshot.decode(path.read_bytes()).state
    first, second = state["labels"][:2]
    first[4:], second[4:] = second[4:], first[4:]
    path.write_bytes(changed(path.read_bytes(), state=state))
    with pytest.raises(PlauditError, match="other labels stand"):
        Store.open(folder).ledger.version(first[0], 1).labels()


def test_a_snapshot_survives_eviction_of_most_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", (2, 3))
    monkeypatch.setattr("plaudit.data.store.COMPACT_AFTER", (5, 2))
    with Store.create(tmp_path / "s", capacity_episodes=3) as store:
        for number in range(20):
            store.ledger.append(store.append(recording(number)), labels(2))
            assert contents(tmp_path / "s") == contents(tmp_path / "s", snapshots=False)
    assert check(tmp_path / "s").ok


def changed(data, **values):
    text = json.dumps({**json.loads(data[9:]), **values}).encode()
    return b"%08x %s" % (zlib.crc32(text), text)
