"""Kill -9 at any moment, and a power cut at any moment: every acknowledged episode is there, and never half of one."""

import os
import random
import shutil
import signal
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from conftest import as_stored, same_episode
from plaudit.data import journal
from plaudit.data.store import Store
from plaudit.types import Episode, Labels


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    """Written after two lines, so that every run has some."""
    monkeypatch.setattr(journal, "SNAPSHOT_AFTER", (2, 4))


def nth_episode(n: int) -> Episode:
    """Known from its number alone, in one of three schemas."""
    rng = np.random.default_rng(n)
    steps, size = 3 + n % 20, (16 + 8 * (n % 3), 20)
    return Episode.of(
        frames={"front": rng.integers(0, 256, (steps + 1, *size, 3), dtype=np.uint8)},
        state=rng.normal(size=(steps + 1, 4)),
        actions=rng.normal(size=(steps, 2)),
        meta={"n": n},
    )


def nth_labels(n: int) -> Labels:
    return Labels.from_cutoff(steps=nth_episode(n).steps, cutoff=1, source="human", note=str(n))


@cache
def stored_episode(n: int, images: str) -> Episode:
    return as_stored(nth_episode(n), images)


def verify(folder: Path, acknowledged: list[int], labeled: list[int], first: int = 0) -> int:
    """Check a store after a crash, its episodes from `first` on; returns the next number to write."""
    store = Store.open(folder)
    assert store.ids == list(range(len(store)))
    assert set(acknowledged) <= set(store.ids)
    for episode_id in store.ids[first:]:
        expected = stored_episode(episode_id, str(store.settings.images))
        assert same_episode(store.episode(episode_id), expected), f"episode {episode_id} is torn"
    for episode_id in labeled:
        labels = store.ledger.labels(episode_id)
        assert labels is not None and labels.note == str(episode_id) and labels.steps == nth_episode(episode_id).steps
    return len(store)


def write_for_ever(folder: Path, pipe: int, several: bool) -> None:
    """In a child process: append, label, and report each only when the call has returned."""
    with Store.open(folder, write=True) as store:
        n = len(store)
        while True:
            count = 1 + n % 3 if several else 1
            ids = store.extend([nth_episode(n + i) for i in range(count)])
            os.write(pipe, b"".join(b"E%d\n" % i for i in ids))
            for i in ids:
                store.ledger.append(i, nth_labels(i))
                os.write(pipe, b"L%d\n" % i)
            n += count


def run_and_kill(folder: Path, seconds: float, several: bool) -> tuple[list[int], list[int]]:
    """What a writer had acknowledged when it was killed `seconds` after its first append."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(receive)
            write_for_ever(folder, send, several)
        finally:
            os._exit(1)
    os.close(send)
    said = os.read(receive, 1 << 16)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    while chunk := os.read(receive, 1 << 16):
        said += chunk
    os.close(receive)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the writer ended by itself"
    words = said.decode().split()
    return [int(w[1:]) for w in words if w[0] == "E"], [int(w[1:]) for w in words if w[0] == "L"]


@pytest.mark.parametrize("kills", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_sigkill_at_random_moments_loses_no_acknowledged_episode_and_tears_none(tmp_path, kills):
    folder = tmp_path / "store"
    Store.create(folder).close()
    moments = random.Random(0)
    acknowledged: list[int] = []
    labeled: list[int] = []
    repaired = written = 0
    for kill in range(kills):
        new, judged = run_and_kill(folder, moments.uniform(0, 0.04), several=kill % 2 == 1)
        acknowledged += new
        labeled += judged
        written = verify(folder, new, judged, first=written)
        with Store.open(folder, write=True) as store:
            repaired += len(store.repaired)
    verify(folder, acknowledged, labeled)
    assert len(acknowledged) >= kills
    assert repaired > 0 or kills < 60, "no kill ever hit a write: the test does not test what it says"


CALLS = [*(("raw", nth) for nth in range(40)), *((i, n) for i in ("lossless", "jpeg", "video") for n in range(10))]
TWO_APPENDS = 19  # calls, the first with a new schema; later appends make the same ones


@pytest.mark.parametrize(
    ("images", "nth"),
    [
        pytest.param(images, nth, marks=[pytest.mark.slow] * (images not in ("raw", "video") or nth >= TWO_APPENDS))
        for images, nth in CALLS
    ],
)
def test_death_at_every_system_call_of_an_append(tmp_path, images, nth):
    """The nth call that touches the disk does half its work and the process dies in it."""
    folder = tmp_path / "store"
    with Store.create(folder, images=images) as store:
        store.extend([nth_episode(0), nth_episode(1)])
    child = os.fork()
    if child == 0:
        calls = 0

        def deadly(real):
            def call(*args):
                nonlocal calls
                calls += 1
                if calls > nth:
                    if real is os_pwrite:
                        real(args[0], args[1][: len(args[1]) // 2], args[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            return call

        os_pwrite = os.pwrite
        for name in ("pwrite", "fdatasync", "fsync"):
            setattr(os, name, deadly(getattr(os, name)))
        try:
            with Store.open(folder, write=True) as store:
                for n in range(2, 20):
                    store.append(nth_episode(n))
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    n = verify(folder, [0, 1], [])
    with Store.open(folder, write=True) as store:
        store.append(nth_episode(n))
    verify(folder, [n], [])


class PowerCut:
    """A disk that forgets what was not synced: files as of their last fsync, names as of their folder's last fsync."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root = root
        self.files: dict[int, bytes] = {}  # inode -> content that is safe
        self.names: dict[Path, dict[str, int]] = {}  # folder -> name -> inode, as it is safe
        for name in ("fsync", "fdatasync"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda fd, real=real: (real(fd), self._synced(fd))[0])

    def _synced(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self.names[path] = {entry.name: entry.stat().st_ino for entry in path.iterdir()}
            for entry in path.iterdir():
                self.files.setdefault(entry.stat().st_ino, b"")
        else:
            self.files[path.stat().st_ino] = path.read_bytes()

    def survivors(self, target: Path, folder: Path | None = None) -> None:
        """Lay out what a machine would find after the cut: only what synced folders lead to."""
        folder = folder or self.root
        target.mkdir()
        for name, inode in self.names.get(folder, {}).items():
            if folder / name in self.names:
                self.survivors(target / name, folder / name)
            elif inode in self.files:
                (target / name).write_bytes(self.files[inode])


def test_a_power_cut_after_any_acknowledgement_loses_nothing(tmp_path, monkeypatch):
    disk = tmp_path / "disk"
    disk.mkdir()
    cut = PowerCut(disk, monkeypatch)
    store = Store.create(disk / "deep" / "store")
    for n in range(9):
        store.append(nth_episode(n))
        store.ledger.append(n, nth_labels(n))
        found = tmp_path / f"found-{n}"
        cut.survivors(found)
        assert verify(found / "deep" / "store", list(range(n + 1)), list(range(n + 1))) == n + 1
        with Store.open(found / "deep" / "store", write=True) as again:
            again.append(nth_episode(n + 1))
        shutil.rmtree(found)


def test_the_simulated_power_cut_does_forget_what_was_not_synced(tmp_path, monkeypatch):
    cut = PowerCut(tmp_path, monkeypatch)
    with (tmp_path / "file").open("wb", buffering=0) as file:
        file.write(b"safe")
        os.fsync(file.fileno())
        file.write(b" gone")
    os.fsync(os.open(tmp_path, os.O_RDONLY))
    cut.survivors(tmp_path / "found", tmp_path)
    assert (tmp_path / "found/file").read_bytes() == b"safe"
