"""Whether an online run that goes on for weeks needs more memory with every episode.

    python benchmarks/growth.py                  # 20,000 episodes through a store of less than 200; half an hour
    python benchmarks/growth.py --episodes 3000  # the least that tells growth from filling up
    python benchmarks/growth.py --quick          # 300 episodes
    python benchmarks/growth.py --trace          # and which lines of code keep what was added

A lamp to turn up, 12 steps an episode, through the loop of `plaudit online --serial`: labeled, learned from,
evicted. The memory of the process is read as it goes on; what it grows by an episode is the slope of a line through the
second half, after everything has been allocated that is kept.
"""

import argparse
import gc
import sys
import tempfile
import tracemalloc
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import numpy as np  # noqa: E402

import glow  # noqa: E402 - of the tests: the lamp
from bars import Bars  # noqa: E402
from plaudit.training.config_file import load_training_config  # noqa: E402
from plaudit.training.online import OnlineState, OnlineTrainer  # noqa: E402
from plaudit.training.run_folder import RunFolder  # noqa: E402
from plaudit.training.workers.group import LocalWorkerGroup  # noqa: E402

FULL, QUICK = 20_000, 300  # episodes
STEPS = 12  # of an episode
FLAT = 1.0  # KB an episode: 20 MB over the full form, which is what a torch process varies by
CAPACITY = 0.0005  # GB, of less than two hundred episodes: what is bounded has grown to its bound after some 1,500
LOOKS = 60  # at the memory
KEPT = 12  # lines of --trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} episodes")
    parser.add_argument("--episodes", type=int, help=f"{FULL:,} unless given")
    parser.add_argument("--trace", action="store_true", help="say which lines of code keep what was added")
    options = parser.parse_args()
    episodes = options.episodes or (QUICK if options.quick else FULL)
    with tempfile.TemporaryDirectory() as folder:
        points = run(Path(folder), episodes, options.trace)
    bars = Bars()
    if options.quick:
        bars.left_out(f"{FULL:,} episodes, and whether the memory stays flat over them")
    else:
        half = points[len(points) // 2 :]
        slope = np.polyfit(half[:, 0], half[:, 1], 1)[0]
        bars.at_most("online_growth_kb_per_episode", float(slope) / 1e3, FLAT)
    bars.exactly("online_growth_episodes", points[-1, 0], episodes)
    bars.report()


def run(folder: Path, episodes: int, trace: bool) -> np.ndarray:
    """[N, 2] episodes and bytes of memory, as it went on."""
    points: list[tuple[int, int]] = []
    before: list[tracemalloc.Snapshot] = []

    def callback(progress: OnlineState) -> bool:
        done = progress.episodes
        if done >= (len(points) + 1) * episodes / LOOKS:
            points.append((done, resident()))
            print(f"{done:,} episodes: {points[-1][1] / 1e6:.1f} MB", flush=True)
        if trace and not before and done >= episodes / 3:
            tracemalloc.start(8)
            before.append(tracemalloc.take_snapshot())
        return True

    glow.saved(glow.bright_model(0.8), folder / "judge")
    words = [*glow.online(folder / "judge"), f"run.max_episodes={episodes}", f"run.capacity_gb={CAPACITY}"]
    words += ["learner.utd_ratio=0.02", f"evaluation.freq={STEPS * episodes}", "evaluation.episodes=1"]
    opened = RunFolder.open(folder / "run", load_training_config("online", None, words))
    workers = LocalWorkerGroup(opened, serial=True)
    try:
        OnlineTrainer(opened, workers).run(callback)
        if before:
            gc.collect()
            tell_kept(before[0], tracemalloc.take_snapshot(), 2 * episodes / 3)
    finally:
        workers.close()
        opened.close()
    return np.array([*points, (episodes, resident())], np.float64)


def tell_kept(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot, episodes: float) -> None:
    for kept in after.compare_to(before, "traceback")[:KEPT]:
        print(f"{kept.size_diff / episodes:,.0f} bytes an episode, {kept.count_diff / episodes:.2f} pieces:")
        for line in kept.traceback.format()[-8:]:
            print(f"    {line.strip()}")


def resident() -> int:
    """Bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
