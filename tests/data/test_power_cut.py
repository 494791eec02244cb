"""A power cut at any call of a run, what was not synced dropped, torn or reordered: nothing acknowledged is lost."""

import os
import random
from pathlib import Path

import pytest

from conftest import counting_episode, same_episode
from plaudit.data import journal
from plaudit.data.check import check
from plaudit.data.store import Store, is_store
from plaudit.errors import StoreDamaged
from plaudit.types import Episode, Labels
from recorded_disk import RecordedDisk, clear

states = pytest.mark.parametrize("states", [40, pytest.param(200, marks=pytest.mark.slow)])
Known = tuple[int, list[int], list[int]]  # calls so far; episodes and labels that were acknowledged by then


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    """Written after two lines, so that every run has some."""
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", (2, 4))


def nth(n: int) -> Episode:
    return counting_episode(steps=2 + n % 3, first=n, size=(4, 4 + n % 2), meta={"n": n})


def make_labels(n: int) -> Labels:
    return Labels.from_cutoff(steps=nth(n).steps, cutoff=1, source="human", note=str(n))


def recorded_run(folder: Path, capacity: int | None = None) -> tuple[RecordedDisk, list[Known]]:
    """A run with appends, batches, labels, a second opening; and what was acknowledged after how many calls."""
    folder.mkdir()
    said: list[Known] = []
    episodes: list[int] = []
    labels: list[int] = []
    with RecordedDisk(folder) as disk:
        store = Store.create(folder / "store", capacity_episodes=capacity)
        for batch in ([0], [1, 2, 3], [4], [5, 6], [7]):
            episodes += store.extend([nth(n) for n in batch])
            said.append((len(disk.calls), list(episodes), list(labels)))
            for n in batch:
                store.ledger.append(n, make_labels(n))
                labels.append(n)
                said.append((len(disk.calls), list(episodes), list(labels)))
            if batch == [4]:
                store.close()
                store = Store.open(folder / "store", write=True)
        store.close()
    return disk, said


@states
def test_a_power_cut_at_any_call_loses_nothing_that_was_acknowledged(tmp_path, states):
    disk, said = recorded_run(tmp_path / "disk")
    began, rng = said[0][0], random.Random(0)
    for _ in range(states):
        until = rng.randrange(began, len(disk.calls) + 1)
        _, episodes, labels = [known for known in said if known[0] <= until][-1]
        disk.lay_out(clear(tmp_path / "found"), until, rng)
        folder = tmp_path / "found/store"
        for write in (False, True):
            with Store.open(folder, write=write) as store:
                assert set(episodes) <= set(store.ids)
                assert all(same_episode(found, nth(i)) for i, found in store)
                assert all(store.ledger.labels(i).note == str(i) for i in labels)
        with Store.open(folder, write=True) as store:
            assert store.append(nth(8)) == max([*episodes, *store.ids[:-1]]) + 1
        assert check(folder).ok


class Kept(random.Random):
    """Loses nothing, as a killed process on a machine that stays up."""

    def random(self) -> float:
        return 1.0


@pytest.mark.parametrize("power", [False, True])
def test_a_store_whose_creation_was_interrupted_at_any_call_is_created_by_the_same_command(tmp_path, power):
    (tmp_path / "disk").mkdir()
    with RecordedDisk(tmp_path / "disk") as disk:
        Store.create(tmp_path / "disk/store").close()
    unfinished, rng = 0, random.Random(0)
    for until in [*range(len(disk.calls))] * (5 if power else 1):
        disk.lay_out(clear(tmp_path / "found"), until, rng if power else Kept())
        folder = tmp_path / "found/store"
        unfinished += folder.exists() and not is_store(folder)
        with Store.open(folder, write=True) if is_store(folder) else Store.create(folder) as store:
            assert store.append(nth(0)) == 0
        assert check(folder).ok
    assert unfinished > 10


@states
def test_a_power_cut_during_eviction_and_compaction_leaves_the_newest(tmp_path, monkeypatch, states):
    monkeypatch.setattr("plaudit.data.store.COMPACT_AFTER", (2, 1))
    disk, said = recorded_run(tmp_path / "disk", capacity=2)
    began, rng = said[0][0], random.Random(1)
    for _ in range(states // 2):
        until = rng.randrange(began, len(disk.calls) + 1)
        _, episodes, _ = [known for known in said if known[0] <= until][-1]
        disk.lay_out(clear(tmp_path / "found"), until, rng)
        with Store.open(tmp_path / "found/store", write=True) as store:
            assert episodes[-1] in store.ids or store.ids[-1] > episodes[-1]
            assert all(same_episode(found, nth(i)) for i, found in store)
        assert check(tmp_path / "found/store").ok


def test_a_store_that_forgets_to_sync_its_arrays_is_found_out(tmp_path, monkeypatch):
    """The recorder does lose what was not synced: the same run without one kind of sync serves or names damage."""
    monkeypatch.setattr("plaudit.data.segments.sync_file", lambda descriptor: None)
    disk, _ = recorded_run(tmp_path / "disk")
    rng, damaged = random.Random(2), 0
    for _ in range(30):
        disk.lay_out(clear(tmp_path / "found"), len(disk.calls), rng)
        try:
            store = Store.open(tmp_path / "found/store")
            damaged += any(not same_episode(found, nth(i)) for i, found in store)
        except StoreDamaged:
            damaged += 1
    assert damaged > 10


def test_the_recorder_lays_out_what_was_synced_and_may_lose_the_rest(tmp_path):
    (tmp_path / "disk").mkdir()
    with RecordedDisk(tmp_path / "disk") as disk:
        file = os.open(tmp_path / "disk/file", os.O_WRONLY | os.O_CREAT)
        os.pwrite(file, b"safe", 0)
        os.fsync(file)
        folder = os.open(tmp_path / "disk", os.O_RDONLY)
        os.fsync(folder)
        os.pwrite(file, b" gone", 4)
    found = set()
    for seed in range(30):
        disk.lay_out(clear(tmp_path / "found"), len(disk.calls), random.Random(seed))
        found.add((tmp_path / "found/file").read_bytes())
    assert b"safe" in found and b"safe gone" in found and all(data.startswith(b"safe") for data in found)
