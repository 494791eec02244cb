"""Replay against torchrl, on the same episodes, in the same run; how fast a large store reopens; and codecs of frames.

    python benchmarks/replay.py                  # 500 episodes, the figures of docs/results.md
    python benchmarks/replay.py --quick          # 100 episodes, under a minute
    python benchmarks/replay.py --only codecs    # raw, lossless, JPEG and video stores of g1_bottle

Both sides hand out 256 transitions of two 128x128 cameras and a state: observation, action, reward, done and next
observation. torchrl's side is its own recommended way: TensorDicts with a `next` in a LazyMemmapStorage, sampled by a
TensorDictReplayBuffer with its RandomSampler, both on all cores and both on one. The floor is the time
to copy a batch's bytes from one array to another.

The codecs are measured on real episodes (`--data`): bytes per frame, and the time of a batch of 256 observations and
next observations at random, next to a Zarr array with a chunk per frame and to lerobot's data set with the same frames
as video. What is not installed is left out.
"""

import argparse
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from bars import Bars
from plaudit.data.formats import WriteOptions
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset, repack
from plaudit.types import Episode, Labels

CAMERAS, SIZE, STEPS, STATE, ACTION, BATCH = ("front", "wrist"), 128, 50, 14, 7, 256
DATA = Path(__file__).parents[2] / "shared/data/g1_bottle"
CODECS = ("raw", "lossless", "jpeg:90", "video:18")
RAW_ROW = len(CAMERAS) * SIZE * SIZE * 3 + 4 * (STATE + ACTION)  # bytes of one transition, stored once


def episode(rng: np.random.Generator) -> Episode:
    return Episode.of(
        frames={c: rng.integers(0, 256, (STEPS + 1, SIZE, SIZE, 3), dtype=np.uint8) for c in CAMERAS},
        state=rng.normal(size=(STEPS + 1, STATE)),
        actions=rng.normal(size=(STEPS, ACTION)),
        fps=20.0,
    )


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """After as many calls again: the first ones map pages that later ones find mapped."""
    times = []
    for _ in range(2 * repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times[repeats:]))


def fill_store(folder: Path, episodes: int) -> tuple[Store, float]:
    rng = np.random.default_rng(0)
    labels = Labels.from_cutoff(steps=STEPS, cutoff=STEPS - 5, source="simulator")
    store, spent = Store.create(folder), 0.0
    for _ in range(episodes):
        one = episode(rng)
        start = time.perf_counter()
        store.ledger.append(store.append(one), labels)
        spent += time.perf_counter() - start
    return store, 1e3 * spent / episodes


def fill_torchrl(folder: Path, episodes: int):
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer  # pyright: ignore[reportMissingImports]
    from torchrl.data.replay_buffers.samplers import RandomSampler  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(0)
    storage = LazyMemmapStorage(episodes * STEPS, scratch_dir=str(folder))
    buffer = TensorDictReplayBuffer(storage=storage, sampler=RandomSampler(), batch_size=BATCH)
    spent = 0.0
    for _ in range(episodes):
        one = episode(rng)
        frames = {c: torch.from_numpy(np.array(f)) for c, f in one.frames.items()}
        state = torch.from_numpy(one.state)
        done = torch.zeros(STEPS, 1, dtype=torch.bool)
        tree = {
            "observation": {**{c: f[:-1] for c, f in frames.items()}, "state": state[:-1]},
            "action": torch.from_numpy(one.actions),
            "next": {
                "observation": {**{c: f[1:] for c, f in frames.items()}, "state": state[1:]},
                "reward": torch.zeros(STEPS, 1),
                "done": done,
                "terminated": done,
            },
        }
        start = time.perf_counter()
        buffer.extend(TensorDict(tree, batch_size=[STEPS]))
        spent += time.perf_counter() - start
    return buffer, 1e3 * spent / episodes


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def reopen_seconds(folder: Path, episodes: int) -> tuple[float, float]:
    """Open a store of small episodes, and build a replay over it."""
    rng = np.random.default_rng(0)
    one = Episode.of(frames={"front": rng.integers(0, 256, (11, 16, 16, 3), dtype=np.uint8)}, actions=np.zeros((10, 4)))
    labels = Labels.from_cutoff(steps=10, cutoff=8, source="simulator")
    with Store.create(folder) as store:
        for start in range(0, episodes, 500):
            ids = store.extend([one] * min(500, episodes - start))
            store.ledger.extend((i, labels) for i in ids)
    start = time.perf_counter()
    store = Store.open(folder, write=True)
    opened = time.perf_counter() - start
    assert len(store) == episodes
    ReplaySampler(store)
    store.close()
    return opened, time.perf_counter() - start - opened


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer episodes and repeats")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to write (a few GB); a temporary folder otherwise"
    )
    parser.add_argument("--only", choices=("torchrl", "codecs"), help="one part; both when not given")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of g1_bottle")
    options = parser.parse_args()
    episodes, repeats = (100, 20) if options.quick else (500, 100)
    root = Path(tempfile.mkdtemp(dir=options.folder))
    bars = Bars()
    try:
        if options.only != "codecs":
            run(bars, root, episodes, repeats)
        if options.only != "torchrl" and not options.data.is_dir():
            bars.left_out(f"codecs on g1_bottle, which is not at {options.data}; name it with --data")
        elif options.only != "torchrl":
            compare_codecs(bars, root, options.data, 3 if options.quick else 30, 5 if options.quick else 25)
    finally:
        shutil.rmtree(root)
    bars.report()


def compare_codecs(bars: Bars, root: Path, data: Path, episodes: int, repeats: int) -> None:
    """Bytes per frame and the time of a batch, for each codec, Zarr and lerobot."""
    import_dataset(data, root / "raw", takes=lambda number: number < episodes)
    with Store.open(root / "raw", write=True) as raw:
        raw.ledger.extend(
            (i, Labels.from_cutoff(steps=raw.entry(i).steps, cutoff=None, source="human")) for i in raw.ids
        )
    frames = np.concatenate([episode.frames[camera] for _, episode in raw for camera in sorted(episode.frames)])
    sizes: dict[str, float] = {}
    psnr: dict[str, float] = {}
    calls: dict[str, Callable[[], object]] = {}
    for images in CODECS:
        store = raw if images == "raw" else repack(root / "raw", root / images.replace(":", "_"), images)
        decoded = next(iter(store.episode(store.ids[0]).frames.values()))
        error = np.square(decoded.astype(float) - frames[: len(decoded)]).mean()
        psnr[images] = 10 * np.log10(255**2 / error) if error else np.inf
        sizes[images] = sum(path.stat().st_size for path in store.folder.rglob("camera.*.bin")) / len(frames)
        replay = ReplaySampler(store, seed=0)
        calls[images] = lambda replay=replay: replay.sample(BATCH)
    if importlib.util.find_spec("zarr") is None:
        bars.left_out("Zarr, where it is installed (plaudit[zarr])")
    else:
        sizes["zarr"], calls["zarr"] = zarr_array(root / "zarr", frames)
    if importlib.util.find_spec("lerobot") is None:
        bars.left_out("lerobot, where it is installed (make interop)")
    else:
        sizes["lerobot"], calls["lerobot"] = lerobot_dataset(root / "lerobot", raw, len(frames))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # in turn, so that a busy machine slows all of them
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    ms = {name: 1e3 * float(np.median(spent[1:])) for name, spent in times.items()}
    print(f"{episodes} episodes of {data.name}, {len(frames):,} frames, batches of {BATCH}")
    print(f"{'':12}{'bytes/frame':>12}{'of raw':>8}{'PSNR, dB':>10}{'batch, ms':>11}")
    for name in calls:
        shares = f"{sizes[name]:12,.0f}{sizes[name] / frames[0].nbytes:8.4f}"
        print(f"{name:12}{shares}{psnr.get(name, np.nan):10.1f}{ms[name]:11.1f}")
    bars.at_most("jpeg_bytes_of_raw", sizes["jpeg:90"] / frames[0].nbytes, 0.1)
    bars.at_least("jpeg_psnr_db", psnr["jpeg:90"], 40)
    for name, goal in (("zarr", 1), ("lerobot", 20)):
        if name in ms:
            bars.at_least(f"jpeg_replay_speedup_of_{name}", ms[name] / ms["jpeg:90"], goal)


def zarr_array(folder: Path, frames: np.ndarray) -> tuple[float, Callable[[], object]]:
    """Bytes per frame of an array with a chunk per frame, and what reads a batch of frames and the next ones."""
    import zarr  # pyright: ignore[reportMissingImports]

    options = {"shape": frames.shape, "chunks": (1, *frames.shape[1:]), "dtype": frames.dtype}
    array, rng = zarr.create_array(str(folder), **options), np.random.default_rng(0)
    array[:] = frames

    def sample() -> None:
        rows = rng.integers(len(frames) - 1, size=BATCH)
        _ = array.oindex[rows], array.oindex[rows + 1]

    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / len(frames), sample


def lerobot_dataset(folder: Path, store: Store, count: int) -> tuple[float, Callable[[], object]]:
    """The same of lerobot's data set as video: each item has an observation and the next one."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    export_dataset(store, folder, "lerobot", WriteOptions())
    episode, rng = store.episode(store.ids[0]), np.random.default_rng(0)
    shown = {f"observation.images.{camera}": [0.0, 1 / episode.fps] for camera in episode.frames}
    data = LeRobotDataset("plaudit/replay", root=folder, delta_timestamps=shown)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*.mp4"))
    return nbytes / count, lambda: [data[int(i)] for i in rng.integers(len(data), size=BATCH)]


def run(bars: Bars, root: Path, episodes: int, repeats: int) -> None:
    print(f"{episodes} episodes of {STEPS} steps, {len(CAMERAS)} cameras of {SIZE}x{SIZE}, batches of {BATCH}")
    store, write_ms = fill_store(root / "plaudit", episodes)
    peer, peer_write_ms = fill_torchrl(root / "torchrl", episodes)
    replay = ReplaySampler(store, seed=0)
    source = np.ones(replay.sample(BATCH).images["front"].nbytes * 2 * len(CAMERAS), np.uint8)
    target = np.zeros_like(source)
    floor = median_ms(lambda: np.copyto(target, source), repeats)
    alone = ReplaySampler(store, seed=0, threads=1)
    ours_one = median_ms(lambda: alone.sample(BATCH), repeats)
    ours = median_ms(lambda: replay.sample(BATCH), repeats)
    cores = torch.get_num_threads()
    theirs = median_ms(lambda: peer.sample(), max(5, repeats // 4))
    torch.set_num_threads(1)
    theirs_one = median_ms(lambda: peer.sample(), max(5, repeats // 4))
    batches = replay.batches(BATCH, form="torch")
    ahead = median_ms(lambda: next(batches), repeats)
    batches.close()
    per_transition = disk_bytes(root / "plaudit") / (episodes * STEPS)
    peer_per_transition = disk_bytes(root / "torchrl") / (episodes * STEPS)
    opened, indexed = reopen_seconds(root / "many", 10_000)

    print(f"{'':34}{'plaudit':>12}{'torchrl':>12}")
    print(f"{'sample 256 transitions, ms':34}{ours:12.2f}{theirs:12.2f}   (both on {cores} cores)")
    print(f"{'  on one core, ms':34}{ours_one:12.2f}{theirs_one:12.2f}")
    print(f"{'  with the background thread, ms':34}{ahead:12.2f}{'-':>12}")
    print(f"{'  floor: one copy of its bytes, ms':34}{floor:12.2f}{floor:12.2f}")
    print(f"{'write an episode, ms':34}{write_ms:12.2f}{peer_write_ms:12.2f}   (ours synced, labeled and checksummed)")
    print(f"{'bytes a transition, of raw':34}{per_transition / RAW_ROW:12.3f}{peer_per_transition / RAW_ROW:12.3f}")
    print(f"{'reopen 10,000 episodes, s':34}{opened:12.3f}{'-':>12}")
    print(f"{'  and index their labels, s':34}{indexed:12.3f}{'-':>12}")
    bars.at_least("replay_speedup", theirs / ours, 10)
    bars.at_least("replay_speedup_one_core", theirs_one / ours_one, 10)
    bars.at_most("bytes_per_transition", per_transition / RAW_ROW, 1.1)
    bars.at_most("reopen_10000_seconds", opened, 1)


if __name__ == "__main__":
    main()
