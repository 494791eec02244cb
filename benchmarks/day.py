"""A day at two robots in minutes: `plaudit online` on the twins of IGRIS-B and IGRIS-C, with an operator, a person who
labels, and everything that can go wrong going wrong.

    sudo python benchmarks/day.py                   # 300 episodes, three of each fault: about 25 minutes
    sudo python benchmarks/day.py --episodes 60 --times 1
    sudo python benchmarks/day.py --quick           # 10 episodes, both robots at once, quick faults: a minute

Three Ray nodes in network namespaces (`hosts.py`): training, robot, labeling. In the morning IGRIS-B acts with what is
learned, in the afternoon IGRIS-C with a policy behind an openpi server; with `--quick` IGRIS-C is driven in one
process, while the nodes start and IGRIS-B is driven on them. Control is RTC at 20 Hz. A scripted operator starts every
episode and marks, ends, discards and pauses some; a scripted person labels on the labeling machine.

    camera   the twin's head camera sends nothing for two seconds
    freeze   the twin sends nothing at all for two seconds
    twin     the twin is killed and started again
    server   the policy server is killed and started again two seconds later (IGRIS-C)
    judge    the process that shows the person the episodes is killed
    learner  the learner's process is killed
    link     the robot's or the person's machine is cut off for five seconds
    head     all processes of the training machine are killed, the run among them; what a supervisor does then (the
             nodes and the same command are started again, see docs/cluster.md) is part of the recovery

A recovery is the time from when a fault began to when all goes on: an episode that began after it, a label of the
person and weights that are newer. Everything is counted in the end from what is on disk: the run's folder, the twin's
own log, what the operator said, and what the person labeled. Motion of less than 1.2 s counts as a reset and not as an
episode, and ticks count from an episode's second command on: before the first, the robot waits for its first chunk.
A tick without a command while a core stood still (`stalls.py`), as those of a virtual machine do, is said but not
counted: a robot's machine is its own.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import day_check as check  # noqa: E402
from bars import Bars  # noqa: E402
from day_lab import Bench, Machines, Operator, Person, PolicyServer, kill  # noqa: E402
from hosts import three_hosts  # noqa: E402
from plaudit.data.store import Store, is_store  # noqa: E402
from plaudit.types import EnvSpec  # noqa: E402
from stalls import StallWatch  # noqa: E402

KINDS = ("camera", "freeze", "twin", "server", "judge", "learner", "link", "head")
# Episodes and faults of the quick form: none that starts a process of Ray again, most in the run that needs no node.
QUICK = {"igris_b": (4, ["link"]), "igris_c": (6, ["camera", "server"])}
BOUND_S = 60.0  # within which all goes on
PATIENCE_S = 240.0  # after which this gives up waiting for it


@dataclass(frozen=True)
class Mark:
    """How far a run is, by its folder."""

    begun: int  # ns; when its newest episode began
    labels: int  # of the person
    weights: float  # when they were written

    def beyond(self, other: "Mark", fault: int) -> bool:
        """Whether everything has gone on since a fault at that time, in ns."""
        return self.begun > fault and self.labels > other.labels and self.weights > other.weights


@dataclass
class Fault:
    kind: str
    begin: int  # ns
    end: int = 0  # when everything had gone on

    @property
    def seconds(self) -> float:
        return 1e-9 * (self.end - self.begin)


@dataclass
class RobotDay:
    """What one robot does in a day, and which faults it meets."""

    bench: Bench
    episodes: int
    plan: list[str]
    machines: Machines | None  # None: in one process
    rng: random.Random
    faults: list[Fault] = field(default_factory=list)
    restarts: int = 0  # of the command by the supervisor, other than after the head was lost
    said: list[tuple[int, str]] = field(default_factory=list)
    given: int = 0  # labels by the person
    _stored: int = 0
    _journal: int = 0  # bytes, when these were counted

    def run(self) -> None:
        """To the end."""
        with ExitStack() as stack:
            stack.enter_context(self.bench)
            if self.bench.served:
                where = list if self.machines is None else self.machines.robot.command
                self.server = PolicyServer(where, self.bench.params.start_pose)
                stack.callback(self.server.stop)
            stack.callback(lambda: self.process.kill())
            self._start()
            operator = Operator(self.bench, random.Random(self.rng.random()))
            stack.callback(operator.leave)
            person = Person(self.labeled_store, random.Random(self.rng.random()))
            stack.callback(person.leave)
            # The last episodes are without: a fault has passed when more was done after it.
            after = sorted(self.rng.sample(range(1, self.episodes - 2), len(self.plan)))
            for kind, episodes in zip(self.plan, after, strict=True):
                self._wait(lambda episodes=episodes: self.stored() >= episodes)
                time.sleep(self.rng.uniform(0, 2))
                self._inject(kind)
            self._wait(lambda: self.process.poll() == 0)
            self.said, self.given = operator.said, person.given

    def labeled_store(self) -> Path | None:
        """Where the person finds the episodes."""
        if self.machines is None:
            return self.bench.run / "episodes"
        return self.machines.mirror(self.bench.run)

    def stored(self) -> int:
        """Episodes of the run; looked at often, so the store is opened only where something was added."""
        folder = self.bench.run / "episodes"
        if is_store(folder) and self._journal != (size := (folder / "journal").stat().st_size):
            self._stored, self._journal = len(Store.open(folder)), size
        return self._stored

    def _start(self) -> None:
        words = [sys.executable, "-m", "plaudit", "online", *self.bench.words(self.episodes)]
        out = (self.bench.folder / "online.log").open("a")
        how = {"stdout": out, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        if self.machines is None:
            self.process = subprocess.Popen(words, **how)
        else:
            self.process = self.machines.head.spawn(*words, "--ray", self.machines.address, **how)

    def _wait(self, done: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Until then; the command is started again if it fails, as a supervisor does."""
        stored, until = self.stored(), time.monotonic() + seconds
        while not done():
            if self.process.poll() not in (None, 0):
                self.restarts += 1
                print(f"  plaudit online ended with {self.process.returncode}; started again", flush=True)
                self._start()
            if self.process.poll() == 0 and self.stored() >= self.episodes:
                return
            if stored != (stored := self.stored()):
                until = time.monotonic() + seconds
            if time.monotonic() > until:
                raise RuntimeError(f"{self.bench.name}: nothing has happened for {seconds:.0f} s")
            time.sleep(0.2)

    def _mark(self) -> Mark:
        store = Store.open(self.bench.run / "episodes")
        weights = (self.bench.run / "policy/model.safetensors").stat().st_mtime
        newest = check.stored_episodes_in(store, store.ids[-1:])
        labels = sum(label.source == "human" for label in store.ledger.since(0))  # a mark says nothing of the judge
        return Mark(newest[-1].first if newest else 0, labels, weights)

    def _inject(self, kind: str) -> None:
        before, fault = self._mark(), Fault(kind, time.time_ns())
        getattr(self, f"_{kind}")()
        self._wait(lambda: self._mark().beyond(before, fault.begin))
        fault.end = time.time_ns()
        if not self._mark().beyond(before, fault.begin):
            print(f"WRONG: {self.bench.name}: the run was over before all went on after {kind}")
            return
        self.faults.append(fault)
        print(f"  {self.bench.name}: {kind:8} went on after {fault.seconds:5.1f} s", flush=True)

    def _camera(self) -> None:
        self._silence("freeze=head")

    def _freeze(self) -> None:
        self._silence("freeze")

    def _silence(self, fault: str) -> None:
        self.bench.twin.inject(fault)
        time.sleep(2)
        self.bench.twin.inject("none")

    def _twin(self) -> None:
        self.bench.restart_twin()

    def _server(self) -> None:
        self.server.stop()
        time.sleep(2)
        self.server.start()

    def _judge(self) -> None:
        assert self.machines is not None
        kill(self.machines.processes(self.machines.person, "ManualRewardLabelerActor"))

    def _learner(self) -> None:
        assert self.machines is not None
        kill(self.machines.processes(self.machines.head, "LearnerActor"))

    def _link(self) -> None:
        assert self.machines is not None
        host = self.rng.choice((self.machines.robot, self.machines.person))
        host.cut()
        time.sleep(5)
        host.restore()

    def _head(self) -> None:
        assert self.machines is not None
        kill(self.machines.processes(self.machines.head))
        self.process.wait()
        self.machines.restart()
        self._start()


def tell(bars: Bars, days: Sequence[RobotDay], figures: Sequence[dict[str, float]]) -> None:
    """Compare what there is with what there should be."""
    total = {name: sum(each[name] for each in figures) for name in figures[0]}
    bars.at_least("day_episodes", total["episodes"], sum(day.episodes for day in days))
    bars.exactly("day_episodes_lost", total["episodes_lost"], 0)
    bars.exactly("day_labels_lost", total["labels_lost"], 0)
    bars.exactly("day_commands_outside_limits", total["violations"], 0)
    bars.exactly("day_ticks_without_command", total["idle_ticks"], 0)
    bars.at_most("day_held_fraction", max(each["held_fraction"] for each in figures), 0.01)
    faults = [fault for day in days for fault in day.faults]
    bars.exactly("day_faults_survived", len(faults), sum(len(day.plan) for day in days))
    for kind in KINDS:
        took = [fault.seconds for fault in faults if fault.kind == kind]
        if took:
            bars.at_most(f"day_{kind}_goes_on_s", max(took), BOUND_S)
    bars.exactly("day_newest_policy_on_disk", total["newest_policy"], len(days))
    bars.exactly("day_unplanned_restarts", sum(day.restarts for day in days), 0)


def _figures(day: RobotDay, stalls: Sequence[tuple[int, int]]) -> dict[str, float]:
    bench = day.bench
    episodes, moved = check.stored_episodes(bench.run), check.motion(bench.logs())
    mirror = None if day.machines is None else day.machines.mirror(bench.run)
    lost, marks = check.lost_episodes(episodes, moved), check.lost_marks(episodes, day.said)
    labels = check.wrong_labels(bench.run, mirror)
    for span in lost:
        print(f"WRONG: {bench.name} moved for {1e-9 * (span[1] - span[0]):.1f} s at {span[0]} and no episode has it")
    for sentence in [*marks, *labels, *moved.violated]:
        print(f"WRONG: {bench.name}: {sentence}")
    spec = EnvSpec(bench.params.proprio_state_dim, bench.params.action_dim, {"head": bench.params.camera_size})
    spans = [(fault.begin, fault.end) for fault in day.faults]
    steps = sum(episode.steps for episode in episodes)
    idle = [span for episode in episodes for span in moved.idle_ticks(episode, bench.params.HZ)]
    ours = [span for span in idle if not check.overlaps(span, stalls)]
    print(
        f"{bench.name}: {len(episodes)} episodes, {sum(e.discarded for e in episodes)} of them discarded, "
        f"{steps} steps, {moved.commands} commands, {len(day.said)} words of the operator, "
        f"{day.given} labels by the person; {len(idle)} ticks without a command, {len(idle) - len(ours)} of them while "
        "a core stood still"
    )
    return {
        "episodes": sum(not episode.discarded for episode in episodes),
        "episodes_lost": len(lost) + len(marks),
        "labels_lost": len(labels),
        "violations": moved.violations,
        "idle_ticks": len(ours),
        "held_fraction": check.held_fraction(episodes, spans),
        "newest_policy": check.is_newest_policy(bench.run, spec),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 episodes, faults that take seconds")
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--times", type=int, default=3, help="of each fault")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for the runs, the twins' logs and the output")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the hosts are taken down
    if os.geteuid() != 0:
        print("nothing was measured: network namespaces need root")
        return
    rng, bars, begun = random.Random(asked.seed), Bars(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="day-", dir="/tmp") as temporary, three_hosts() as hosts:
        folder = asked.keep or Path(temporary)
        machines = Machines(hosts, folder)
        days = make_days(asked, machines, folder, rng)
        with StallWatch() as watch:
            tell(bars, days, work_through(days, machines, watch, at_once=asked.quick))
            stalls = [1e-9 * (end - begin) for begin, end in watch.spans()]
    print(
        f"{time.monotonic() - begun:.0f} s; a core stood still {len(stalls)} times, for {sum(stalls):.1f} s in all and "
        f"{max(stalls, default=0):.2f} s at the longest"
    )
    if asked.quick:
        bars.left_out(
            "IGRIS-C on the cluster, a frozen or restarted twin, restarts of the judge, the learner and the head"
        )
    bars.report()


def work_through(
    days: Sequence[RobotDay], machines: Machines, watch: StallWatch, *, at_once: bool
) -> list[dict[str, float]]:
    """All days, one after the other or at once; returns their figures. What needs no node begins while they start."""
    starting = threading.Thread(target=machines.start)
    starting.start()

    def work(day: RobotDay) -> dict[str, float]:
        if day.machines is not None:
            starting.join()
        print(f"{day.bench.name}: {day.episodes} episodes; {' '.join(day.plan)}", flush=True)
        day.run()
        return _figures(day, watch.spans())

    if not at_once:
        return [work(day) for day in days]
    with ThreadPoolExecutor() as pool:
        return list(pool.map(work, days))


def make_days(asked: argparse.Namespace, machines: Machines, folder: Path, rng: random.Random) -> list[RobotDay]:
    """The morning and the afternoon, with their faults in a random order."""
    days = []
    kinds = [kind for kind in asked.kinds.split(",") for _ in range(asked.times)]
    plans: dict[str, list[str]] = {"igris_b": [], "igris_c": []}
    for kind in kinds:
        plans["igris_c" if kind == "server" else rng.choice(list(plans))].append(kind)
    for name in plans:
        served = name == "igris_c"
        bench = Bench(name, folder / name, served=served)
        episodes, plan = QUICK[name] if asked.quick else (asked.episodes // 2, plans[name])
        rng.shuffle(plan)
        (bench.folder / "runs").mkdir()
        machines.hidden.append(bench.folder / "runs")
        where = None if asked.quick and served else machines
        days.append(RobotDay(bench, episodes, plan, where, random.Random(rng.random())))
    return days


if __name__ == "__main__":
    main()
