import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from conftest import counting_episode, labeled_store, same_episode
from plaudit.data.check import check
from plaudit.data.disk import encode_checked
from plaudit.data.ledger import Failures
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.errors import PlauditError, StoreDamaged, StoreError, StoreFull, StoreLocked
from plaudit.types import Episode, Origin
from processes import Forked


def rich_episode(seed: int = 0, steps: int = 6) -> Episode:
    rng = np.random.default_rng(seed)
    return Episode.of(
        frames={
            "front": rng.integers(0, 256, (steps + 1, 12, 16, 3), dtype=np.uint8),
            "wrist/left": rng.integers(0, 256, (steps + 1, 6, 5, 3), dtype=np.uint8),
        },
        state=rng.normal(size=(steps + 1, 3)),
        actions=rng.normal(size=(steps, 2)),
        control_mode=rng.integers(0, 2, steps),
        privileged={"success": rng.random(steps) > 0.5, "force": rng.normal(size=(steps, 3))},
        task="pick up the bottle",
        fps=20.0,
        robot="panda",
        terminated=True,
        padded="last",
        origin=Origin("lerobot", "somewhere", 7, "ab12"),
        meta={"seed": seed},
    )


def test_every_field_of_an_episode_comes_back_bit_for_bit(store):
    episode = rich_episode()
    store.append(episode)
    found = Store.open(store.folder).episode(0)
    assert same_episode(found, episode)
    assert vars(found.origin) == vars(episode.origin)
    assert found.meta == {"seed": 0}


def test_episodes_of_other_cameras_and_sizes_live_side_by_side(store):
    episodes = [rich_episode(0), counting_episode(3), rich_episode(1), counting_episode(2, size=(4, 4))]
    ids = [store.append(episode) for episode in episodes]
    again = Store.open(store.folder)
    assert all(same_episode(again.episode(i), episode) for i, episode in zip(ids, episodes))
    assert len(list((store.folder / "segments").iterdir())) == 3  # one a schema, not one an episode


def test_frames_are_stored_once(store):
    for _ in range(10):
        store.append(counting_episode(steps=50, size=(32, 32)))
    on_disk = sum(path.stat().st_size for path in store.folder.rglob("*") if path.is_file())
    one_copy = 10 * 51 * (32 * 32 * 3 + 3 * 4)
    assert on_disk < 1.05 * one_copy


def test_a_reader_sees_new_episodes_when_it_refreshes(store):
    reader = Store.open(store.folder)
    store.append(counting_episode(2))
    assert len(reader) == 0
    reader.refresh()
    assert reader.episode(0).actions.tolist() == [[0], [1]]
    store.append(counting_episode(3))
    reader.refresh()
    assert reader.episode(1).steps == 3


def read_forty(folder: Path) -> None:
    """In a child process."""
    store, seen, deadline = Store.open(folder), 0, time.monotonic() + 300
    print("ready", flush=True)
    while seen < 40 and time.monotonic() < deadline:
        store.refresh()
        for episode_id in store.ids[seen:]:
            assert (store.episode(episode_id).frames["front"] == episode_id).all()
            seen += 1
        time.sleep(0.001)
    print("saw", seen)


def test_several_processes_read_while_one_writes(store):
    with Forked(read_forty, store.folder) as one, Forked(read_forty, store.folder) as other:
        assert [one.readline(), other.readline()] == ["ready\n"] * 2
        for i in range(40):
            frames = np.full((6, 16, 16, 3), i, np.uint8)
            store.append(Episode.of(frames={"front": frames}, actions=np.zeros((5, 1))))
        assert [one.read(), other.read()] == ["saw 40\n"] * 2


def test_a_second_writer_is_told_who_writes(store):
    with pytest.raises(StoreLocked, match=f"being written by process {os.getpid()} since"):
        Store.open(store.folder, write=True)
    store.close()
    Store.open(store.folder, write=True).close()


def test_a_store_open_for_reading_takes_no_episode(store):
    with pytest.raises(StoreError, match="write=True"):
        Store.open(store.folder).append(counting_episode())


def test_beyond_its_capacity_the_oldest_go(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=3)
    for first in range(8):
        store.append(counting_episode(steps=2, first=first))
    assert store.ids == [5, 6, 7]
    again = Store.open(store.folder)
    assert again.ids == [5, 6, 7]
    assert again.episode(6).frames["front"][0, 0, 0, 0] == 6
    with pytest.raises(StoreError, match=r"episode 2 is no longer in .*, which has episodes 5 to 7"):
        again.episode(2)


def test_a_capacity_in_bytes_bounds_the_disk(tmp_path):
    one = counting_episode(steps=20, size=(64, 64))
    size = 21 * (64 * 64 * 3 + 16)
    store = Store.create(tmp_path / "s", capacity_bytes=20 * size)
    for _ in range(100):
        store.append(one)
    on_disk = sum(path.stat().st_size for path in (store.folder / "segments").rglob("*.bin"))
    assert 19 <= len(store) <= 20
    assert store.nbytes <= 20 * size
    assert on_disk <= 20 * size * (1 + 2 / 16)  # whole segments go, each a sixteenth


def test_an_evicted_episode_stays_readable_for_who_holds_it(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=1)
    store.append(counting_episode(steps=2, first=7))
    held = Store.open(store.folder).episode(0)
    store.append(counting_episode(steps=2))
    assert not (store.folder / "segments/000000").exists()
    assert held.frames["front"][0, 0, 0, 0] == 7


def test_numbers_are_never_used_again(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=1)
    wide, narrow = counting_episode(2, size=(4, 8)), counting_episode(2, size=(4, 4))
    for episode in (wide, narrow, wide, narrow, wide):
        store.append(episode)
        store.close()
        store = Store.open(store.folder, write=True)
    assert store.ids == [4]
    assert same_episode(store.episode(4), wide)


def test_the_newest_episode_stays_even_when_it_alone_is_too_large(tmp_path):
    store = Store.create(tmp_path / "s", capacity_bytes=10)
    store.append(counting_episode())
    assert len(store) == 1


def test_several_episodes_are_acknowledged_together(store):
    assert store.extend([counting_episode(2), rich_episode(), counting_episode(3)]) == [0, 1, 2]
    assert len(Store.open(store.folder)) == 3


def test_a_bad_episode_among_several_leaves_none_of_them(store):
    store.append(counting_episode(2))
    good, bad = counting_episode(2), counting_episode(3)
    object.__setattr__(bad, "frames", {"front": "not an array"})  # as a bug of the caller's would
    with pytest.raises(AttributeError):
        store.extend([good, bad])
    assert store.ids == [0]
    store.append(good)
    assert Store.open(store.folder).ids == [0, 1]
    assert same_episode(Store.open(store.folder).episode(1), good)


@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize("call", ["pwrite", "fdatasync", "fsync", "write", "mkdir"])
def test_a_disk_that_fails_at_any_call_loses_nothing(tmp_path, monkeypatch, call, nth):
    store = Store.create(tmp_path / "s")
    store.append(rich_episode(0))
    calls = 0

    def failing(real, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls > nth:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        if call == "write":
            import plaudit.data.journal as journal

            real_write = journal.write_at
            patch.setattr(journal, "write_at", lambda *a: failing(real_write, *a))
        elif call == "mkdir":
            real_mkdir = os.mkdir
            patch.setattr(os, "mkdir", lambda *a, **k: failing(real_mkdir, *a, **k))
        else:
            real = getattr(os, call)
            patch.setattr(os, call, lambda *a: failing(real, *a))
        stored = [0]
        for episode in (rich_episode(1), counting_episode(2), rich_episode(2)):
            try:
                stored.append(store.append(episode))
            except StoreFull as error:
                assert "is full" in str(error) and "all earlier ones are intact" in str(error)
    on_disk = sum(path.stat().st_size for path in store.folder.rglob("*.bin"))
    assert on_disk == store.nbytes, "a failed append left bytes behind"
    store.append(rich_episode(9))  # there is room again
    found = Store.open(store.folder)
    assert found.ids == [*stored, store.ids[-1]]
    assert same_episode(found.episode(0), rich_episode(0))
    assert same_episode(found.episode(found.ids[-1]), rich_episode(9))


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 2 MB, which only root may mount."""
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"only root may mount a disk ({mount.stderr.strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_small_disk_that_fills_up_gives_a_clear_error_and_loses_nothing(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        store = Store.create(disk / "store")
        stored: dict[int, Episode] = {}
        with pytest.raises(StoreFull, match=r"is full .*this episode was not stored, all earlier ones are intact"):
            for seed in range(1000):
                episode = counting_episode(steps=20, first=seed % 200, size=(40, 40))
                stored[store.append(episode)] = episode
        assert len(stored) > 10
        assert all(same_episode(Store.open(store.folder).episode(i), e) for i, e in stored.items())
        store.close()
        assert Store.open(store.folder, write=True).ids == list(stored)


def test_a_store_on_a_read_only_disk_can_be_read_and_checked_and_says_what_it_cannot(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        labeled_store(disk / "store", counting_episode(4), counting_episode(4, first=9), cutoff=2).close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        store = Store.open(disk / "store")
        assert same_episode(store.episode(1), counting_episode(4, first=9))
        assert len(ReplaySampler(store).sample(8).reward) == 8
        assert check(disk / "store").ok
        assert Failures(store.ledger).unresolved() == []
        for attempt in (
            lambda: Store.open(disk / "store", write=True),
            lambda: check(disk / "store", repair=True),
            lambda: store.ledger.restore(0, 1),
            lambda: Store.create(disk / "another"),
        ):
            with pytest.raises(StoreError, match="read-only file system"):
                attempt()


def test_a_file_without_permission_is_named_and_nothing_is_written_off(tmp_path, monkeypatch):
    labeled_store(tmp_path / "s", counting_episode(4), cutoff=2).close()
    store, real = Store.open(tmp_path / "s"), os.open

    def forbidden(path, *args, **kwargs):
        if path == "steps.bin":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", forbidden)
    for attempt in (lambda: store.episode(0), lambda: ReplaySampler(store), lambda: check(tmp_path / "s", repair=True)):
        with pytest.raises(StoreError, match=r"steps.bin cannot be read: permission denied"):
            attempt()
    monkeypatch.undo()
    assert check(tmp_path / "s").episodes == 1


class Interrupted(Exception):
    pass


def append_interrupted(store: Store, episode: Episode, number: signal.Signals, moment: int) -> int:
    """Append, with a signal at the `moment`th line of Python that runs; returns how many lines did."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        lines += 1
        if lines == moment:
            os.kill(os.getpid(), number)
        return trace

    sys.settrace(trace)
    try:
        store.append(episode)
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    return lines


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGALRM, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_moment_of_an_append_leaves_memory_and_disk_agreed(tmp_path, number, every):
    """Ctrl-C, and a signal whose handler raises: at lines of the second half of an append, where it commits."""

    def interrupt(*_):
        raise Interrupted

    store = Store.create(tmp_path / "s")
    store.append(counting_episode(2, size=(4, 4)))
    store.append(counting_episode(2, size=(4, 5)))
    reader = Store.open(store.folder)
    before = signal.signal(number, interrupt)
    try:
        total = append_interrupted(store, counting_episode(2, size=(4, 4)), number, moment=0)
        for moment in range(total // 2, total + 1, every):
            append_interrupted(store, counting_episode(2, size=(4, 4 + moment % 2)), number, moment)
            reader.refresh()
            assert reader.ids == store.ids
            assert reader.episode(reader.ids[-1]).steps == 2
    finally:
        signal.signal(number, before)
    store.close()
    again = Store.open(store.folder, write=True)
    assert again.ids == list(range(len(again))) and len(again) > 5
    assert again.repaired == []


def test_a_column_file_that_was_cut_short_is_named(store):
    store.append(counting_episode(4))
    file = store.folder / "segments/000000/camera.front.bin"
    os.truncate(file, 10)
    with pytest.raises(StoreDamaged, match=r"episode 0 is damaged \(.*front.bin is missing or cut short\); .*--repair"):
        Store.open(store.folder).episode(0)


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no store"),
        (lambda path: (path.mkdir(), (path / "store.json").write_text("{")), "does not describe a store"),
        (
            lambda path: (
                path.mkdir(),
                (path / "store.json").write_bytes(encode_checked({"version": 99})),
            ),
            "has version 99, this plaudit reads 3; upgrade plaudit",
        ),
    ],
)
def test_a_folder_that_is_no_store_is_named(tmp_path, prepare, sentence):
    prepare(tmp_path / "s")
    with pytest.raises(StoreError, match=sentence):
        Store.open(tmp_path / "s")


def test_a_store_is_not_made_over_something(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not empty; name a new folder"):
        Store.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_import_that_found_the_disk_full_while_it_made_its_store_goes_on(tmp_path, monkeypatch):
    with labeled_store(tmp_path / "s", counting_episode(4), cutoff=2) as store:
        export_dataset(store, tmp_path / "data", "npy")
    real = os.pwrite

    def full(file, data, offset):
        if bytes(data[9:13]) == b"1 1 ":  # the first line of a journal
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreFull, match="no store can be made there"):
            import_dataset(tmp_path / "data", tmp_path / "new")
    assert (tmp_path / "new/journal").exists()
    assert import_dataset(tmp_path / "data", tmp_path / "new").ids == [0]


def test_a_journal_of_the_users_own_is_not_taken_for_a_store_that_was_left_half_made(tmp_path):
    (tmp_path / "journal").write_text("dear diary\n")
    with pytest.raises(StoreError, match="is a store without its"):
        Store.create(tmp_path)
    assert (tmp_path / "journal").read_text() == "dear diary\n"


def test_one_thread_samples_while_another_appends(store):
    store.append(counting_episode(steps=3))
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while len(store) < 50:
                for i in store.ids:
                    assert store.episode(i).state[1, 0] == 10
        except (AssertionError, PlauditError, OSError, LookupError, RuntimeError) as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(49):
        store.append(counting_episode(steps=3))
    for thread in threads:
        thread.join()
    assert not failures
