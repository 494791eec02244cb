"""Years of eviction: the journal stays short, numbers are never used again, readers follow."""

import pytest

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.check import check
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound
from plaudit.types import Labels


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr("plaudit.data.store.COMPACT_AFTER", (10, 2))


def lines_of(folder):
    return len((folder / "journal").read_bytes().splitlines())


def test_the_journal_is_as_long_as_what_is_alive(tmp_path, short):
    store = Store.create(tmp_path / "s", capacity_episodes=5)
    for n in range(200):
        assert store.append(counting_episode(2, first=n % 200)) == n
        assert lines_of(store.folder) <= 10 + 2 * 5 + 6
    store.close()
    assert check(store.folder).ok
    with Store.open(store.folder, write=True) as again:
        assert again.ids == [195, 196, 197, 198, 199]
        assert same_episode(again.episode(197), counting_episode(2, first=197))
        assert again.append(counting_episode(2)) == 200


def test_numbers_go_on_after_a_journal_was_shortened_to_nothing_alive(tmp_path, short):
    store = Store.create(tmp_path / "s")
    for n in range(20):
        store.append(counting_episode(2, first=n))
    store.evict(range(20))
    assert store.append(counting_episode(2)) == 20
    store.close()
    segments = {place.name for place in (store.folder / "segments").iterdir()}
    with Store.open(store.folder, write=True) as again:
        assert again.append(counting_episode(2, size=(4, 4))) == 21
    assert "000000" not in segments, "a number of a segment was used again"


def test_a_reader_follows_over_a_journal_that_was_written_anew(tmp_path, short):
    store = Store.create(tmp_path / "s", capacity_episodes=5)
    store.append(counting_episode(2))
    reader, before = Store.open(store.folder), 0
    for n in range(1, 100):
        store.append(counting_episode(2, first=n))
        if n % 7 == 0:
            reader.refresh()
            assert reader.ids == store.ids and reader.revision > before
            assert same_episode(reader.episode(n), counting_episode(2, first=n))
            before = reader.revision
    with pytest.raises(EpisodeNotFound):
        reader.episode(0)


def test_replay_samples_on_while_the_journal_is_written_anew(tmp_path, short):
    store = Store.create(tmp_path / "s", capacity_episodes=4)
    replay = None
    for n in range(60):
        labels = Labels.from_cutoff(steps=3, cutoff=2, source="human")
        store.ledger.append(store.append(counting_episode(3, first=n)), labels)
        replay = replay or ReplaySampler(Store.open(store.folder), seed=0)
        replay.refresh()
        batch = replay.sample(20)
        assert set(batch.episode.tolist()) <= set(store.ids)
        assert (batch.images["front"][:, 0, 0, 0] == batch.episode + batch.step).all()


def test_what_is_written_off_as_damaged_is_kept_and_what_is_evicted_goes(tmp_path):
    folder = tmp_path / "s"
    store = labeled_store(folder, counting_episode(4), counting_episode(4, size=(4, 4)))
    store.write_off([0])
    store.evict([1])
    store.close()
    assert not (folder / "segments/000001").exists()
    with Store.open(folder, write=True) as again:
        assert "no line speaks of it; it was set aside in" in again.repaired[0]
    (kept,) = (folder / "quarantine").glob("*/000000")
    assert (kept / "camera.front.bin").read_bytes()[:240] == bytes(240)


def test_a_segment_that_was_evicted_and_half_removed_goes_with_the_next_writer(tmp_path):
    folder = tmp_path / "s"
    labeled_store(folder, counting_episode(4)).close()
    with Store.open(folder, write=True) as store:
        store.append(counting_episode(4, size=(4, 4)))
        (folder / "segments/000000").rename(folder / "segments/000000.gone")
        store.evict([0])
        (folder / "segments/000000.gone").mkdir(exist_ok=True)
    with Store.open(folder, write=True) as store:
        assert "removed, its episodes were evicted" in store.repaired[0]
    assert [path.name for path in (folder / "segments").iterdir()] == ["000001"]
