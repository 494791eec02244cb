"""What an online run does when its workers die: three Ray nodes on this machine, a fault at a random moment, again and
again.

    python benchmarks/faults.py                 # ten of each kind, about forty minutes
    python benchmarks/faults.py --quick         # one each of two kinds that take seconds, with one learner
    python benchmarks/faults.py --kinds env,replay --times 3

    env, judge, replay, state, learner    SIGKILL of that actor's process; of the learners, one of two
    node        all processes of the inference or the labeling machine are killed, and it is started again
    hang        the judge's process stands still for a minute
    disk        the disk of the run's folder is full for ten seconds (needs root: a small file system is mounted)
    link        the link of one machine is cut (`benchmarks/hosts.py --loop` makes machines that have one)

A fault is over when there is a new episode, a new label, new updates and a newer version of the weights, and that has
to be the case within a minute after its cause is gone. All the while: what was acknowledged must be there at the end,
and versions never go back. The task is a lamp to turn up, so that little else takes time.
"""

import argparse
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]


import glow  # noqa: E402 - of the tests: the lamp
from bars import Bars  # noqa: E402
from plaudit.cluster.connect import workers_for  # noqa: E402
from plaudit.data.store import Store  # noqa: E402
from plaudit.training.config import TrainingConfig  # noqa: E402
from plaudit.training.config_file import load_training_config  # noqa: E402
from plaudit.training.online import OnlineState, OnlineTrainer  # noqa: E402
from plaudit.training.run_folder import RunFolder  # noqa: E402
from plaudit.training.workers.env import EpisodeInfo  # noqa: E402
from plaudit.training.workers.labelers import LabelReport  # noqa: E402
from three_nodes import ROLES, Nodes, kill, three_nodes  # noqa: E402

KILLED = ("env", "judge", "replay", "state", "learner")
KINDS: tuple[str, ...] = (*KILLED, "node", "hang", "disk")
SWIFT = ("env", "replay")  # over in seconds
BOUND = 60.0  # s within which the loop goes on by itself


class Witness(OnlineTrainer):
    """Remembers what was acknowledged."""

    def __init__(self, *arguments: object):
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.episodes: list[int] = []
        self.labels = 0

    def on_episode(self, info: EpisodeInfo | None) -> None:
        if info is not None:
            self.episodes.append(info.id)
        super().on_episode(info)

    def on_labels(self, report: LabelReport) -> None:
        self.labels += report.done
        super().on_labels(report)


@dataclass(frozen=True)
class Mark:
    """How far a run is."""

    episodes: int
    labeled: int
    updates: int
    version: int

    @classmethod
    def of(cls, progress: OnlineState) -> "Mark":
        counts = progress.replay
        return cls(counts.episodes, counts.episodes - counts.unlabeled, progress.updates, progress.policy.version)

    def beyond(self, other: "Mark") -> bool:
        """Everything has gone on."""
        return all(mine > theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))


@dataclass
class Fault:
    kind: str
    seconds: float  # from when its cause was gone to when everything went on
    lasted: float  # s that the cause was there


@dataclass
class Chaos:
    """Injects faults from a thread of its own, one after the other."""

    nodes: Nodes | None  # those of somebody else are left alone
    workers: object
    folder: Path
    plan: list[str]
    hang: float
    rng: random.Random
    mark: Mark = Mark(0, 0, 0, 0)
    versions: list[int] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    error: str | None = None
    failing: set[str] = field(default_factory=set)  # workers

    def callback(self, progress: OnlineState) -> bool:
        """Note how things stand; whether there is more to come."""
        self.mark = Mark.of(progress)
        if progress.errors.keys() != self.failing:
            self.failing = set(progress.errors)
            print(f"    {time.strftime('%H:%M:%S')} failing: {', '.join(sorted(self.failing)) or 'none'}", flush=True)
        self.versions.append(progress.policy.version)
        return self._thread.is_alive()

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._wait(Mark(0, 0, 0, 0), 300)
            for kind in self.plan:
                time.sleep(self.rng.uniform(1, 5))
                self.faults.append(self._inject(kind))
                fault = self.faults[-1]
                print(f"  {kind:8} {fault.lasted:5.1f} s of it, went on {fault.seconds:5.1f} s later", flush=True)
        except Exception as error:  # noqa: BLE001 - told at the end
            self.error = f"{type(error).__name__}: {error}"

    def _inject(self, kind: str) -> Fault:
        causes: dict[str, Callable[[], None]] = {
            "node": self._node,
            "hang": self._hang,
            "disk": self._disk,
            "link": self._link,
        }
        begun = time.monotonic()
        if kind in KILLED:
            gone = self._kill_part(kind)
        else:
            causes[kind]()
            gone = time.monotonic()
        self._wait(self.mark, 4 * BOUND)
        return Fault(kind, time.monotonic() - gone, gone - begun)

    def _wait(self, before: Mark, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.mark.beyond(before):
            if time.monotonic() > until:
                raise RuntimeError(f"still at {self.mark} after {seconds:.0f} s, was at {before}")
            time.sleep(0.1)

    def _kill_part(self, kind: str) -> float:
        """Returns when, once there is another process in its place: what was under way may still come in before."""
        victim = self.rng.choice(self._pids(kind))
        kill(victim)
        gone = time.monotonic()
        while victim in self._pids(kind):
            time.sleep(0.1)
        return gone

    def _pids(self, kind: str) -> list[int]:
        """Of a part; asked again while it is away."""
        while True:
            try:
                return self.workers.pids()[kind]  # type: ignore[attr-defined]
            except _ray_error():
                time.sleep(0.1)

    def _node(self) -> None:
        assert self.nodes is not None
        role = self.rng.choice(ROLES[1:])
        self.nodes.kill(role)
        time.sleep(self.rng.uniform(0, 5))
        self.nodes.start(role)

    def _hang(self) -> None:
        (pid,) = self.workers.pids()["judge"]  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(self.hang)
        os.kill(pid, signal.SIGCONT)

    def _link(self) -> None:
        name = self.rng.choice(os.environ["PLAUDIT_HOSTS"].split(","))
        link = ["ip", "-n", name, "link", "set", "eth0"]
        subprocess.run([*link, "down"], check=True)
        time.sleep(self.hang)
        subprocess.run([*link, "up"], check=True)

    def _disk(self) -> None:
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                pass
        time.sleep(10)
        filler.unlink()


@contextmanager
def small_disk(wanted: bool) -> Iterator[Path]:
    """A folder on a file system of its own, if one is to be filled."""
    folder = Path(tempfile.mkdtemp(prefix="plf-run-"))
    if wanted:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        if wanted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def config_for(folder: Path, learners: int, *more: str) -> TrainingConfig:
    judge = glow.saved(glow.bright_model(0.8), folder / "judge")
    words = [
        *glow.online(judge),
        "env=glow:GlowConfig",
        "learner.temperature_init=0.1",
        "evaluation.freq=1000000",
        "run.max_episodes=10000000",
        "run.publish_freq=10",
        "run.checkpoint_freq=100",
        "audit.on_alarm=warn",
        "run.worker_timeout_s=240",
        f"cluster.num_learners={learners}",
        *more,
    ]
    return load_training_config("online", None, words)


@contextmanager
def cluster(head: str | None) -> Iterator[tuple[str, Nodes | None]]:
    """One that is running, or three nodes for this."""
    if head is not None:
        yield head, None
        return
    with three_nodes() as nodes:
        os.environ |= nodes.environment
        yield nodes.head, nodes


def run(
    kinds: list[str], times: int, learners: int, hang: float, seed: int, head: str | None, words: list[str]
) -> tuple[Chaos, Witness, list[str]]:
    """A run with all these faults; and what was lost, a sentence each."""
    rng = random.Random(seed)
    plan = [kind for kind in kinds for _ in range(times)]
    rng.shuffle(plan)
    with small_disk("disk" in kinds) as folder, cluster(head) as (address, nodes):
        record = RunFolder.open(folder / "run", config_for(folder, learners, *words))
        with workers_for(record, address) as workers:
            chaos = Chaos(nodes, workers, folder, plan, hang, rng)
            witness = Witness(record, workers)
            chaos.begin()
            witness.run(chaos.callback)
        record.close()
        lost = _lost(folder / "run", witness, chaos)
    return chaos, witness, lost


def _lost(folder: Path, witness: Witness, chaos: Chaos) -> list[str]:
    store, wrong = Store.open(folder / "episodes"), []
    missing = set(witness.episodes) - set(store.ids)
    if missing:
        wrong.append(f"{len(missing)} acknowledged episodes are gone")
    if len(set(witness.episodes)) != len(witness.episodes):
        wrong.append("an episode was acknowledged twice")
    for episode_id, episode in store:
        whole = episode.steps == 12 or episode.meta["ended"] == "stopped"
        if not whole or not (episode.frames["front"][0] > 0).all():
            wrong.append(f"episode {episode_id} is not what was recorded")
    labeled = sum(store.ledger.newest(i, {"classifier"}) is not None for i in store.ids)
    if labeled < witness.labels:
        wrong.append(f"{witness.labels} labels were acknowledged, {labeled} are there")
    if chaos.versions != sorted(chaos.versions):
        wrong.append("a version of the weights went back")
    used = [store.entry(i).line["meta"]["weights"] for i in store.ids]
    if used != sorted(used):
        wrong.append("the robot went back to older weights")
    return wrong


def _ray_error() -> type[Exception]:
    """Imported late: Ray reads the environment that joining a cluster sets."""
    from ray.exceptions import RayError

    return RayError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one each of two kinds that take seconds, with one learner"
    )
    parser.add_argument("--kinds", default="")
    parser.add_argument("--times", type=int, default=0)
    parser.add_argument("--hang", type=float, default=60.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--head", help="of a cluster that is running, which keeps its nodes")
    parser.add_argument("words", nargs="*", metavar="KEY=VALUE", help="further settings of the run")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",") if asked.kinds else list(SWIFT if asked.quick else KINDS)
    if os.geteuid() != 0 and "disk" in kinds:
        kinds.remove("disk")
        print("no disk is filled: that needs root")
    times = asked.times or (1 if asked.quick else 10)
    begun = time.monotonic()
    learners = 1 if asked.quick else 2
    chaos, witness, lost = run(kinds, times, learners, asked.hang, asked.seed, asked.head, asked.words)
    print(
        f"\n{len(chaos.faults)} faults, {len(witness.episodes)} episodes, {witness.labels} labels in "
        f"{time.monotonic() - begun:.0f} s"
    )
    for kind in kinds:
        took = [fault.seconds for fault in chaos.faults if fault.kind == kind]
        if took:
            print(f"{kind:8} {len(took)} times, went on after {statistics.median(took):.1f} s, {max(took):.1f} at most")
    for sentence in [*lost, *([chaos.error] if chaos.error else [])]:
        print(f"WRONG: {sentence}")
    print(json.dumps([vars(fault) for fault in chaos.faults]))
    bars = Bars()
    for kind in kinds:
        took = [fault.seconds for fault in chaos.faults if fault.kind == kind]
        bars.exactly(f"faults_{kind}_survived", len(took), times)
        bars.at_most(f"faults_{kind}_goes_on_s", max(took, default=math.inf), BOUND)
    bars.exactly("faults_lost", len(lost), 0)
    bars.exactly("faults_errors", int(bool(chaos.error)), 0)
    bars.report()


if __name__ == "__main__":
    main()
