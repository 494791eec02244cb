"""What the store's care costs: appends against the bare disk, opening, first reads, and years of eviction.

    python benchmarks/store.py                     # 100,000 episodes through a store of 1,000
    python benchmarks/store.py --quick             # 6,000 through one of 200, under a minute
    python benchmarks/store.py --plot docs/images/store.svg

The floor of an append is what any store would have to do that keeps its promise: write the same bytes into as many
files, sync each, write a line of the same length and sync that.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from bars import Bars
from plaudit.data.store import Store
from plaudit.report.plots import line_chart
from plaudit.types import Episode, Labels

LABELS = Labels.from_cutoff(steps=10, cutoff=8, source="simulator")


def small_episode() -> Episode:
    frames = np.random.default_rng(0).integers(0, 256, (11, 16, 16, 3), dtype=np.uint8)
    return Episode.of(frames={"front": frames}, actions=np.zeros((10, 4)))


def large_episode() -> Episode:
    rng = np.random.default_rng(0)
    frames = {c: rng.integers(0, 256, (51, 128, 128, 3), dtype=np.uint8) for c in ("front", "wrist")}
    return Episode.of(frames=frames, state=rng.normal(size=(51, 14)), actions=rng.normal(size=(50, 7)))


def append_ms(folder: Path, episode: Episode, repeats: int) -> tuple[float, float]:
    """An append and its floor, one after the other so that a busy machine slows both; medians."""
    with Store.create(folder / "store") as store:
        store.append(episode)
        sizes = [path.stat().st_size for path in folder.rglob("*.bin")]
        line = bytes(len((folder / "store/journal").read_bytes().splitlines()[-1]))
        bare = [(folder / f"bare-{i}").open("wb", buffering=0) for i in range(len(sizes) + 1)]
        parts = [*(bytes(size) for size in sizes), line]
        ours, floor = [], []
        for _ in range(repeats):
            start = time.perf_counter()
            store.append(episode)
            middle = time.perf_counter()
            for file, part in zip(bare, parts, strict=True):
                file.write(part)
            for file in bare:
                os.fdatasync(file.fileno())
            ours.append(middle - start)
            floor.append(time.perf_counter() - middle)
    for file in bare:
        file.close()
    return 1e3 * float(np.median(ours)), 1e3 * float(np.median(floor))


def reopen_seconds(folder: Path, episodes: int, images: str = "raw") -> tuple[float, float]:
    """CPU seconds to open a store, and an append to it as a multiple of an append to an empty one (CPU time)."""
    with Store.create(folder, images=images) as store:
        empty = append_cpu_ms(store)
        store.evict(store.ids)
        for start in range(0, episodes, 500):
            ids = store.extend([small_episode()] * min(500, episodes - start))
            store.ledger.extend((i, LABELS) for i in ids)
    start = time.process_time()  # as for the appends
    store = Store.open(folder, write=True)
    spent = time.process_time() - start
    assert len(store) == episodes
    full = append_cpu_ms(store)
    store.close()
    return spent, full / empty


def append_cpu_ms(store: Store) -> float:
    """The median of 200 appends; CPU time, since the disk is shared with other programs."""
    one, times = small_episode(), []
    for _ in range(200):
        start = time.process_time()
        store.append(one)
        times.append(time.process_time() - start)
    return 1e3 * float(np.median(times))


def first_read_gb_per_s(folder: Path, episodes: int) -> tuple[float, float]:
    """How fast bytes are verified, and what it costs to read an episode again (ms)."""
    with Store.create(folder) as store:
        store.extend([large_episode()] * episodes)
    store = Store.open(folder)
    start = time.perf_counter()
    for i in store.ids:
        store.episode(i)
    first = time.perf_counter() - start
    start = time.perf_counter()
    for i in store.ids:
        store.episode(i)
    return store.nbytes / first / 1e9, 1e3 * (time.perf_counter() - start) / episodes


def evict(folder: Path, episodes: int, capacity: int) -> list[tuple[int, float, float, int]]:
    """Twenty times: episodes so far, ms an append (median), CPU ms to open (median), bytes of the journal (most).

    Opened ten times on the way to each: the journal grows until it is written anew.
    """
    one, found = small_episode(), []
    store = Store.create(folder, capacity_episodes=capacity)
    for part in range(20):
        times, opened, size = [], [], 0
        for number in range(episodes // 20):
            start = time.perf_counter()
            store.append(one)
            times.append(time.perf_counter() - start)
            if number % (episodes // 200) == 0:
                start = time.process_time()  # its files are in memory: the rest of the time is other processes'
                assert len(Store.open(folder)) == len(store)
                opened.append(time.process_time() - start)
                size = max(size, (folder / "journal").stat().st_size)
        count = (part + 1) * (episodes // 20)
        found.append((count, 1e3 * float(np.median(times)), 1e3 * float(np.median(opened)), size))
        spent = f"append {found[-1][1]:.2f} ms, open {found[-1][2]:.1f} ms of CPU"
        print(f"{count:>8,} episodes: {spent}, journal at most {size:,} bytes", flush=True)
    store.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and repeats")
    parser.add_argument("--folder", type=Path, default=None, help="where to write; a temporary folder otherwise")
    parser.add_argument("--plot", type=Path, default=None, help="an SVG of the times over the episodes")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        run(root, options.quick, options.plot)
    finally:
        shutil.rmtree(root)


def run(root: Path, quick: bool, plot: Path | None) -> None:
    bars = Bars()
    for name, episode, repeats in (
        ("small", small_episode(), 200 if quick else 1000),
        ("large", large_episode(), 20 if quick else 100),
    ):
        (root / name).mkdir()
        ours, floor = append_ms(root / name, episode, repeats)
        print(f"append of a {name} episode: {ours:.2f} ms; the bare disk {floor:.2f} ms")
        bars.at_most(f"store_append_{name}_of_floor", ours / floor, 3 if name == "small" else 2)
    speed, again = first_read_gb_per_s(root / "read", 20 if quick else 100)
    print(f"first read of an episode: {speed:.2f} GB/s verified; every further one {again:.3f} ms")
    bars.at_least("store_verified_gb_per_s", speed, 0.5)
    bars.at_most("store_reopen_10000_seconds", reopen_seconds(root / "many", 10_000)[0], 1)
    if quick:
        bars.left_out("50,000 episodes with lossless frames")
    else:
        opened, growth = reopen_seconds(root / "more", 50_000, "lossless")
        bars.at_most("store_reopen_50000_seconds", opened, 2)
        bars.at_most("store_append_50000_of_empty", growth, 1.2)
    episodes, capacity = (6_000, 200) if quick else (100_000, 1_000)
    found = evict(root / "evicted", episodes, capacity)
    early, late = found[1:6], found[-5:]
    bars.at_most("store_append_late_of_early", _median(late, 1) / _median(early, 1), 1.2)
    bars.at_most("store_open_late_of_early", _median(late, 2) / _median(early, 2), 1.2)
    if plot is not None:
        draw(plot, found, capacity)
    bars.report()


def draw(plot: Path, found: list[tuple[int, float, float, int]], capacity: int) -> None:
    lines = {"100 appends": [[(f[0], 100 * f[1]) for f in found]], "open, CPU": [[(f[0], f[2]) for f in found]]}
    title = f"ms, {found[-1][0]:,} episodes through a store of {capacity:,}"
    top = 1.2 * max(max(100 * f[1], f[2]) for f in found)
    plot.write_text(line_chart(lines, title=title, x="episodes appended", y="", y_range=(0.0, top)))


def _median(found: list[tuple[int, float, float, int]], column: int) -> float:
    return float(np.median([row[column] for row in found]))


if __name__ == "__main__":
    main()
