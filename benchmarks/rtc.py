"""Real-time chunking: how punctual control stays while a policy thinks, and what thinking costs on a moving target.

    python benchmarks/rtc.py [--quick] [--policy FOLDER]     # 25 minutes on two cores, a policy is trained first

One core is kept busy by another process throughout. A flow policy follows a target that does not wait (rtc_task.py),
with inference slowed to 0, 50, 100, 200 and 300 ms, driven at 50 Hz by `Sequential` and by `Rtc` with blended and with
guided chunks: success, mean squared jerk, and every tick's lateness. Then the time that our own code takes of a tick
with three 240x320 cameras, and starts and stops of everything, a third of them by SIGKILL.
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bars import Bars, line_charts
from plaudit.data.normalize import Normalizer
from plaudit.errors import RolloutError
from plaudit.learners.bc import train_flow
from plaudit.policies.loader import PolicySpec, load_policy, save_policy
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.recording import LatencyStats
from plaudit.rollout.rtc import Rtc
from plaudit.types import Observation
from rtc_task import (
    STEPS,
    ChaseConfig,
    GalleryConfig,
    SlowedConfig,
    StaringConfig,
    TrackingTask,
    chunks_of,
    flow_config,
)

DELAYS = (0, 50, 100, 200, 300)  # ms
WAYS = ("sequential", "blended", "guided", "prefix")
GUIDANCE = {"sequential": "vjp", "blended": "blend", "guided": "vjp", "prefix": "prefix"}
EXECUTE = 16  # steps of a chunk before the next
TICK = 20.0  # ms
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "rtc.svg"
bars = Bars()


@dataclass(frozen=True)
class Cell:
    """One way of driving, at one delay."""

    success: float  # share of episodes
    jerk: float  # m^2/s^6, mean of episodes
    timing: LatencyStats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one delay, one episode each, a policy that hardly learned"
    )
    parser.add_argument("--policy", type=Path, help="where the trained policy is, or is put")
    parser.add_argument("--episodes", type=int, default=30, help="of each way at each delay")
    parser.add_argument("--figure", action="store_true", help=f"draw {FIGURE.name} anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, one_busy_core():
        policy = trained(options.policy or Path(folder), *((2_000, 30) if options.quick else (20_000, 2000)))
        delays, episodes = ((100,), 1) if options.quick else (DELAYS, options.episodes)
        try:
            cells = {(way, delay): drive(policy, way, delay, episodes) for delay in delays for way in WAYS}
        except RolloutError as error:
            sys.exit(f"this machine is too busy for it: {error}")
        judge(cells, success=not options.quick)
        if options.figure:
            FIGURE.write_text(figure(cells))
        print_floor(150 if options.quick else 3000)
        measure_tick(100 if options.quick else 1000)
        start_and_stop(2 if options.quick else 200, Path(folder))
    bars.report()


@contextmanager
def one_busy_core() -> Iterator[None]:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def trained(folder: Path, moments: int, steps: int) -> PolicySpec:
    """A policy that was fitted to the expert's chunks at so many moments, with so many updates."""
    if not (folder / "policy.yaml").exists():
        begun, rng = time.monotonic(), np.random.default_rng(0)
        task = TrackingTask.anywhere(moments, rng)
        seen, chunks = task.state, chunks_of(task, rng)
        normalizer, policy = Normalizer.of(seen, chunks), flow_config().build()
        trainer = train_flow(policy, Observation({}, seen), chunks, normalizer, steps=steps, random_shift_pad=0)
        save_policy(folder, policy.config, trainer.weights(), normalizer)
        print(f"policy trained in {time.monotonic() - begun:.0f} s")
    return load_policy(folder / "policy.yaml")


def drive(policy: PolicySpec, way: str, delay: int, episodes: int) -> Cell:
    config = InferenceConfig(max_episode_steps=STEPS, execution_horizon=EXECUTE, normalizer=policy.normalizer)
    slowed = SlowedConfig(policy=policy, seconds=delay / 1e3, guidance=GUIDANCE[way])
    with (Sequential if way == "sequential" else Rtc)(ChaseConfig(), slowed, config) as engine:
        ends = [{n: v[-1] for n, v in e.privileged.items()} for e in engine.episodes(episodes, seed=1000)]
        cell = Cell(
            success=float(np.mean([end["success"] for end in ends])),
            jerk=float(np.mean([end["jerk"] for end in ends])),
            timing=engine.latency,
        )
    late, took = 1e3 * cell.timing.late, 1e3 * cell.timing.took
    print(
        f"{way:10} {delay:3} ms: success {cell.success:4.0%}, squared jerk {cell.jerk:8,.0f} m2/s6, "
        f"missed {cell.timing.missed.sum():4.0f} of {len(late):,} ticks, held {cell.timing.held.sum():3.0f}, "
        f"late p99.9 {np.percentile(late, 99.9):6.2f} ms, inference {np.median(took):3.0f} ms begun late by at most "
        f"{1e3 * cell.timing.start_late.max():5.2f} ms, delay {np.median(cell.timing.delay):2.0f} steps",
        flush=True,
    )
    return cell


def judge(cells: dict[tuple[str, int], Cell], success: bool) -> None:
    live = LatencyStats.concatenate(
        [cell.timing for (way, delay), cell in cells.items() if way != "sequential" and delay]
    )
    print(f"lateness of {live.ticks:,} ticks: " + ", ".join(f"{n} {c:,}" for n, c in live.histogram() if c))
    bars.at_most("rtc_missed_ticks", float(live.missed.sum()), 0)
    bars.at_most("rtc_jitter_p999_ms", float(np.percentile(1e3 * live.late, 99.9)), 2.0)
    bars.at_most("rtc_inference_begun_late_ms", float(1e3 * live.start_late.max()), TICK)
    if success:
        whole = cells["guided", 0].success
        lost = max(whole - cell.success for (way, delay), cell in cells.items() if way == "guided" and delay <= 200)
        bars.at_most("rtc_guided_points_lost_at_200ms", 100 * lost, 5)


def figure(cells: dict[tuple[str, int], Cell]) -> str:
    def panel(title: str, y: str, value: Callable[[Cell], float], top: float) -> dict[str, object]:
        lines = {w: [[(d, value(c)) for (way, d), c in sorted(cells.items()) if way == w]] for w in WAYS}
        return {"title": title, "lines": lines, "x": "inference, ms", "y": y, "y_range": (0, top)}

    most = max(cell.jerk for cell in cells.values()) / 1e3
    success = panel("Success", "%", lambda cell: 100 * cell.success, 100)
    jerk = panel("Squared jerk", "1000", lambda cell: cell.jerk / 1e3, 1.05 * most)
    return line_charts([success, jerk], size=(620, 300))


BARE = """
import sys
import numpy as np
from plaudit.robots.limits import Rate
from plaudit.processes import set_realtime_priority

set_realtime_priority()
clock = Rate(50, first_now=True)
late, missed = np.array([clock.wait() for _ in range(int(sys.argv[1]))]).T
print(f"late p99.9 {1e3 * np.percentile(late, 99.9):.3f} ms, most {1e3 * late.max():.3f} ms, missed {missed.sum():.0f}")
"""


def print_floor(ticks: int) -> None:
    """What no program can be better than here: where a virtual machine is stopped for a while, so is every process."""
    words = [sys.executable, "-c", BARE, str(ticks)]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env=environment()).stdout.strip()
    print(f"a loop of the same priority that does nothing at all, {ticks:,} ticks: {said}", flush=True)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def measure_tick(steps: int) -> None:
    """Three cameras of 240x320 at 50 Hz, and a policy that refuses frames which are not where control put them."""
    with Rtc(GalleryConfig(), StaringConfig(), InferenceConfig(max_episode_steps=steps)) as engine:
        (episode,) = engine.episodes(1)
        timing = engine.latency
    assert episode.steps == steps, episode.meta
    spent = 1e3 * timing.overhead
    frames = sum(f.nbytes for f in episode.frames.values()) / (steps + 1) / 1e6
    print(
        f"our code a tick, three 240x320 cameras ({frames:.2f} MB): {np.median(spent):.3f} ms, p99 "
        f"{np.percentile(spent, 99):.3f} ms; frames reach the policy without a copy"
    )
    bars.at_most("rtc_tick_ms", float(np.median(spent)), 0.3)
    bars.at_most("rtc_tick_p99_ms", float(np.percentile(spent, 99)), 0.3)


PROGRAM = """
import sys
from pathlib import Path
from rtc_task import GalleryConfig, StaringConfig

from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.rtc import Rtc
with Rtc(GalleryConfig(log=Path(sys.argv[1])), StaringConfig(), InferenceConfig(max_episode_steps=100)) as engine:
    print(*engine.pids.values(), flush=True)
    for _ in engine.episodes(int(sys.argv[2])):
        pass
"""


def start_and_stop(times: int, folder: Path) -> None:
    """Each in a session of its own, so that whoever is left can be found."""
    rng, left, unheld, blocks = random.Random(0), 0, 0, 0
    names: set[str] = set()
    begun = time.monotonic()
    for number in range(times):
        log, killed = folder / f"log{number}", number % 3 == 0
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(log), "1000" if killed else "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        )
        if killed:
            kill_somebody(program, rng)
        while program.poll() is None:
            names.update(*map(shared_names, session(program.pid)))
            time.sleep(0.05)
        until = time.monotonic() + 15
        while session(program.pid) and time.monotonic() < until:
            time.sleep(0.05)
        left += len(session(program.pid))
        blocks += sum(map(shared_blocks, session(program.pid)))
        told = log.read_text().split() if log.exists() else []
        unheld += bool(told) and told[-1] != "hold"
    segments = blocks + sum(Path(name).exists() for name in names)
    print(
        f"{times} starts and stops in {time.monotonic() - begun:.0f} s, {-(-times // 3)} of them killed: "
        f"{left} processes and {segments} pieces of memory left, {unheld} robots not told to hold"
    )
    bars.exactly("rtc_processes_left", left, 0)
    bars.exactly("rtc_segments_left", segments, 0)
    bars.exactly("rtc_robots_not_held", unheld, 0)


def kill_somebody(program: "subprocess.Popen[bytes]", rng: random.Random) -> None:
    """The program itself, or one of its children, at any moment from its start to the middle of an episode."""
    who = rng.choice(["program", "control", "inference"])
    if who == "program":
        time.sleep(rng.uniform(0, 3))
        program.kill()
        return
    assert program.stdout is not None
    control, inference = map(int, program.stdout.readline().split())
    time.sleep(rng.uniform(0, 1.5))
    os.kill(control if who == "control" else inference, signal.SIGKILL)


def session(leader: int) -> list[int]:
    """Processes that are alive in it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:
            continue
        if int(number) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


# Only what belongs to the programs started here: other processes of the machine come and go as well.
def shared_names(process: int) -> list[str]:
    """Files of shared memory that it has mapped and that have a name."""
    return re.findall(r"/dev/shm/\S+$", readable(Path(f"/proc/{process}/maps")), re.MULTILINE)


def shared_blocks(process: int) -> int:
    """Blocks of ours that it has mapped."""
    return readable(Path(f"/proc/{process}/maps")).count("memfd:plaudit")


def readable(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # of a process that has ended, or of somebody else
        return ""


if __name__ == "__main__":
    main()
