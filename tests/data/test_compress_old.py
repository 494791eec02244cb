"""Old episodes are compressed before any is evicted: ids, labels and readers stay, at any crash too."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import as_stored, counting_episode, same_episode
from plaudit.data.check import check
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.training.trainer import RunEpisodes
from plaudit.types import Episode, Labels

EPISODE_BYTES = 5 * (48 * 64 * 3 + 20)


def nth_episode(n: int, height: int = 48) -> Episode:
    rows = np.arange(height)[:, None, None] * 3 + np.arange(64)[:, None] + np.arange(5)[:, None, None, None] + n
    frames = np.broadcast_to(rows, (5, height, 64, 3)).astype(np.uint8)
    return Episode.of(frames={"front": frames}, state=np.full((5, 2), n), actions=np.full((4, 2), n), meta={"n": n})


def make_store(folder, capacity: float = 4.5, episodes: int = 0, codec: str = "jpeg:50") -> Store:
    """A store for so many raw episodes."""
    store = Store.create(folder, capacity_bytes=int(capacity * EPISODE_BYTES), compress_old=codec)
    for n in range(episodes):
        add(store, n)
    return store


def add(store: Store, n: int, height: int = 48) -> None:
    store.ledger.append(store.append(nth_episode(n, height)), Labels.from_cutoff(steps=4, cutoff=2, source="human"))


def verify(store: Store) -> int:
    """Check that the old episodes are compressed and the others raw; returns how many are compressed."""
    ids = store.ids
    assert ids == sorted(ids) and store.nbytes <= (store.settings.capacity_bytes or 0)
    compressed = [bool(store.segment(store.entry(i).segment).schema.images) for i in ids]
    assert compressed == sorted(compressed, reverse=True) and not compressed[-1]
    for i, is_compressed in zip(ids, compressed):
        assert same_episode(store.episode(i), as_stored(nth_episode(i), "jpeg:50" if is_compressed else "raw"))
        assert store.ledger.labels(i).success_once
    return sum(compressed)


def test_old_episodes_are_compressed_first_and_evicted_last(tmp_path):
    store = make_store(tmp_path / "s", capacity=2.5, episodes=2)
    assert verify(store) == 0
    for n in (2, 3):
        add(store, n)
        assert (len(store), verify(store)) == (n + 1, n - 1)  # the newest two stay raw
    for n in range(4, 24):
        add(store, n)
    assert verify(store) == len(store) - 1 and store.ids[0] > 0  # only then are the oldest evicted
    on_disk = sum(path.stat().st_size for path in (tmp_path / "s/segments").rglob("*.bin"))
    assert on_disk <= 1.5 * (store.settings.capacity_bytes or 0)
    store.close()
    assert verify(Store.open(tmp_path / "s")) == verify(store) and check(tmp_path / "s").ok


def test_frames_that_do_not_shrink_stay_as_they_are_in_one_session_as_in_many(tmp_path):
    rng = np.random.default_rng(0)
    one, many = (make_store(tmp_path / name, codec="lossless") for name in ("one", "many"))
    for n in range(8):
        episode = nth_episode(n)
        if n in (1, 4, 6):
            noise = rng.integers(0, 256, (5, 48, 64, 3), dtype=np.uint8)
            episode = replace(episode, frames={"front": noise})
        for store in (one, many):
            store.append(episode)
        many.close()
        many = Store.open(tmp_path / "many", write=True)
        sizes = [{i: store.nbytes_of(i) for i in store.ids} for store in (one, many)]
        assert sizes[0] == sizes[1]
    assert sizes[0][6] == EPISODE_BYTES and sizes[0][5] < EPISODE_BYTES / 2  # noise stays raw, the others shrink


def test_the_newest_episode_stays_raw_after_newer_ones_were_evicted(tmp_path):
    store = Store.create(tmp_path / "s", capacity_bytes=EPISODE_BYTES, compress_old="jpeg:50")
    store.extend([nth_episode(n) for n in range(6)], evict=False)
    store.evict([4, 5])
    store.compress_surplus()
    assert [bool(store.segment(store.entry(i).segment).schema.images) for i in store.ids] == [True, True, True, False]


def test_readers_and_replay_follow_episodes_that_are_compressed(tmp_path):
    store = make_store(tmp_path / "s", episodes=4)
    reader = Store.open(tmp_path / "s")
    held, replay = reader.episode(0), ReplaySampler(reader, seed=0)
    replay.sample(16)
    for n in range(4, 9):
        add(store, n)
        replay.refresh()
        batch = replay.sample(64)
        assert set(batch.episode.tolist()) == set(store.ids)
        for i, step, frame in zip(batch.episode.tolist(), batch.step.tolist(), batch.images["front"]):
            assert np.array_equal(frame, store.episode(i).frames["front"][step])
    reader.ledger.refresh()
    assert verify(reader) == verify(store) > 0
    assert same_episode(held, nth_episode(0))


def test_a_new_replay_samples_as_one_that_followed_the_compression(tmp_path):
    store = make_store(tmp_path / "s", episodes=4)
    old = ReplaySampler(store, seed=0)
    for n in range(4, 9):
        add(store, n)
        old.refresh()
    new = ReplaySampler(store, seed=0)  # as in a run that is resumed
    assert verify(store) > 0
    one, other = old.sample(64), new.sample(64)
    assert one.episode.tolist() == other.episode.tolist() and one.step.tolist() == other.step.tolist()


def test_a_journal_that_is_rewritten_keeps_the_order_and_the_places(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.data.store.COMPACT_AFTER", (10, 2))
    store = make_store(tmp_path / "s", capacity=2.5, episodes=12)
    reader = Store.open(tmp_path / "s")
    for n in range(12, 24):
        add(store, n)
        reader.refresh()
        assert reader.ids == store.ids
    reader.ledger.refresh()
    verify(reader)
    store.close()
    with Store.open(tmp_path / "s", write=True) as again:
        add(again, 24)
        assert verify(again)


@pytest.mark.parametrize("nth", [pytest.param(nth, marks=[pytest.mark.slow] * (nth % 2)) for nth in range(24)])
def test_death_at_every_call_of_an_append_that_compresses(tmp_path, nth):
    make_store(tmp_path / "s", episodes=4).close()
    child = os.fork()
    if child == 0:
        calls = 0

        def deadly(real):
            def call(*args, **kwargs):
                nonlocal calls
                calls += 1
                if calls > nth:
                    if real is os_pwrite:
                        real(args[0], args[1][: len(args[1]) // 2], args[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)

            return call

        os_pwrite = os.pwrite
        for name in ("pwrite", "fdatasync", "fsync", "replace", "rmdir"):
            setattr(os, name, deadly(getattr(os, name)))
        try:
            with Store.open(tmp_path / "s", write=True) as store:
                for n in range(4, 10):
                    store.append(nth_episode(n))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    for write in (False, True):
        with Store.open(tmp_path / "s", write=write) as store:
            assert store.ids[:4] == [0, 1, 2, 3]
            for i in store.ids:
                found = store.episode(i)
                assert any(same_episode(found, as_stored(nth_episode(i), how)) for how in ("raw", "jpeg:50"))
    with Store.open(tmp_path / "s", write=True) as store:
        for n in range(len(store), 8):
            store.append(nth_episode(n))
        for i in range(4, 8):
            store.ledger.append(i, Labels.from_cutoff(steps=4, cutoff=2, source="human"))
        assert verify(store) >= 3
    assert check(tmp_path / "s").ok


def test_what_cannot_be_compressed_is_evicted_in_its_turn(tmp_path):
    store = make_store(tmp_path / "s", codec="video")
    for n in range(12):
        store.append(nth_episode(n, height=47))  # H.264 needs even sizes
    assert store.ids == list(range(12 - len(store), 12)) and len(store) >= 4
    assert store.nbytes <= (store.settings.capacity_bytes or 0)


def test_a_damaged_episode_is_left_alone_while_others_are_compressed(tmp_path):
    make_store(tmp_path / "s", episodes=4).close()
    path = tmp_path / "s/segments/000000/camera.front.bin"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with Store.open(tmp_path / "s", write=True) as store:
        add(store, 4)
        add(store, 5)
        schemas = [store.segment(store.entry(i).segment).schema.images for i in store.ids]
        assert store.ids == [0, 1, 2, 3, 4, 5] and not schemas[0] and schemas[1] and schemas[2]
    assert [problem.split(":")[0] for problem in check(tmp_path / "s").problems] == ["episode 0"]


def test_a_codec_for_old_episodes_is_checked(tmp_path):
    with pytest.raises(DataError, match="'webp' is not a codec of frames"):
        Store.create(tmp_path / "s", capacity_bytes=10_000, compress_old="webp")
    store = Store.create(tmp_path / "s", capacity_episodes=2, compress_old="jpeg")
    for n in range(4):
        store.append(counting_episode(steps=2, first=n))
    assert store.ids == [2, 3] and not store.segments[0].schema.images  # a capacity in episodes is no matter of bytes


def test_a_training_run_compresses_at_checkpoints_and_drops_only_what_is_left(tmp_path):
    run = SimpleNamespace(capacity_gb=2.5e-9 * EPISODE_BYTES, store_images="raw", compress_old="jpeg:50")
    folder = SimpleNamespace(episodes=tmp_path / "s", config=SimpleNamespace(run=run), newest_state=lambda: None)
    judge = SimpleNamespace(
        episodes=lambda n: [(nth_episode(n), Labels.from_cutoff(steps=4, cutoff=2, source="human"))]
    )
    episodes = RunEpisodes(folder, judge)
    first = []
    for n in range(24):
        episodes.add(n)
        raw = [
            i for i in episodes.store.ids if not episodes.store.segment(episodes.store.entry(i).segment).schema.images
        ]
        assert n in raw and len(raw) <= 3  # the newest is raw until a checkpoint
        episodes.drop_surplus()
        episodes.evict()  # after a checkpoint
        first.append(episodes.store.ids[0])
        assert episodes.store.ids == list(range(episodes.first, n + 1))
    assert first[:8] == [0] * 8 and first[-1] > 0
    assert episodes.store.nbytes <= 1.2 * (episodes.store.settings.capacity_bytes or 0)
    episodes.store.close()
    assert check(tmp_path / "s").ok
