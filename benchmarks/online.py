"""An online run on three Ray nodes of this machine: whether the policy becomes good, and what the way through costs.

    python benchmarks/online.py                       # SAC, then Q-chunking: from demonstrations to 90%; then the costs
    python benchmarks/online.py --learners qchunk --seeds 0,1,2
    python benchmarks/online.py --quick               # a lamp instead of the arm, and some of the costs in small

Learning: 20 scripted demonstrations of `lift`, a judge that has learned from the images of other scripted episodes, and
the loop as `plaudit online` runs it; the learner never hears what the simulator knows. True success of the first and of
the last policy is counted on 100 test seeds.

Costs, on a lamp to turn up whose episodes take 15 ms, so that what is left is the way: from a push of weights to the
first action with them; from an episode's end to when a learner can sample it; batches of 256 pairs of frames as the
learner gets them, from the disk (local) and through the replay buffer (remote), with one learner and with two; and the
same loop in this process, one call after the other, with whose episodes a second those of the cluster are compared.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plaudit.rule import DecisionRule
from plaudit.types import JudgeId

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402

import glow  # noqa: E402 - of the tests: the lamp
from bars import Bars  # noqa: E402
from plaudit.cluster.connect import workers_for  # noqa: E402
from plaudit.data.store import Store  # noqa: E402
from plaudit.envs.panda import PandaConfig  # noqa: E402
from plaudit.rollout.scripted import record_demos  # noqa: E402
from plaudit.training.config_file import load_training_config  # noqa: E402
from plaudit.training.demo import Demo, DemoConfig, DemoDisplay  # noqa: E402
from plaudit.training.evaluation import evaluate_run  # noqa: E402
from plaudit.training.online import OnlineState, OnlineTrainer  # noqa: E402
from plaudit.training.replay_buffer import (  # noqa: E402
    EpisodeRef,
    RemoteSampler,
    ReplayBuffer,
    SampleOptions,
    make_sampler,
)
from plaudit.training.run_folder import RunFolder  # noqa: E402
from plaudit.training.workers.env import EpisodeInfo  # noqa: E402
from plaudit.types import Episode, Labels  # noqa: E402
from three_nodes import three_nodes  # noqa: E402

BEFORE, AFTER = 0.4, 0.9  # true success
TEST_EPISODES = 100
LIFT = (
    *("env=lift", "env.obs=both", "env.cameras=[front,side]", "policy.cameras=[]"),
    *("judge=classifier", "judge.rule.decode=k_of_n", "judge.retrain=null", "run.max_episodes=800"),
    *("evaluation.episodes=100", "evaluation.freq=1000", "evaluation.stop_success_rate=0.95"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a lamp instead of the arm, and some of the costs in small"
    )
    parser.add_argument("--learners", default="sac,qchunk")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--no-costs", action="store_true")
    parser.add_argument("--keep", type=Path, help="a folder for the runs and their reports")
    asked = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as temporary, three_nodes() as nodes:
        os.environ |= nodes.environment
        root = asked.keep or Path(temporary)
        if asked.quick:
            learn_lamp(bars, root, nodes.head)
        else:
            for seed in map(int, asked.seeds.split(",")):
                for learner in asked.learners.split(","):
                    learn_lift(bars, root, nodes.head, learner, seed)
        if not asked.no_costs:
            costs(bars, root, nodes.head, *((1,), 2) if asked.quick else ((1, 2), 30))
            if not asked.quick:
                sampling(bars, root / "sampling", nodes.head, (1, 2), 30)
    if asked.quick:
        bars.left_out(
            "how soon the arm learns to lift, by SAC and by Q-chunking, and the costs of sampling and of two learners"
        )
    bars.report()


def learn_lift(bars: Bars, root: Path, head: str, learner: str, seed: int) -> None:
    made = root / f"made_{seed}"
    demos, judge = prepare(made, seed)
    words = [*LIFT, f"learner={learner}", f"run.seed={seed}", f"judge.model={judge}", f"demos.store={demos}"]
    learn(bars, root / f"lift_{learner}_{seed}", head, words, f"online_{learner}_{seed}")


def learn_lamp(bars: Bars, root: Path, head: str) -> None:
    judge = glow.saved(glow.bright_model(glow.WITHIN_REACH), root / "lamp_judge")
    more = ["env=glow:GlowConfig", "learner.temperature_init=0.1", "learner.utd_ratio=2"]
    more += [f"env.goal={glow.WITHIN_REACH}", "run.max_episodes=60", "run.max_pending_episodes=2"]
    more += ["evaluation.freq=240", "evaluation.stop_success_rate=0.95"]
    words = [*glow.online(judge), *more]
    learn(bars, root / "lamp", head, words, "online_lamp")


def prepare(folder: Path, seed: int) -> tuple[Path, Path]:
    """Demonstrations, and a judge that has learned from images."""
    from contextlib import nullcontext

    progress = lambda *_: nullcontext((lambda _: True, lambda: False))  # noqa: E731
    display = DemoDisplay(Console(quiet=True), lambda _: iter, progress, progress)
    demo = Demo(folder / "judge", display, DemoConfig(), seed)
    demos = folder / "demos"
    if not demos.exists():
        env = PandaConfig(type="lift", obs="both", cameras=demo.config.cameras)
        with Store.create(demos) as store:
            record_demos(env, store, episodes=20, seed=2_000_000_000 + seed * 1000, steps_after_success=10)
        demo.collect_episodes()
        print(f"judge: {demo.train_judge()}", flush=True)
    return demos, demo.judge


def learn(bars: Bars, folder: Path, head: str, words: list[str], name: str) -> None:
    """By the command, as a user would."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "plaudit", "online", *words, f"run.name={folder.name}"]
    where = ["--folder", str(folder.parent), "--ray", head]
    done = subprocess.run([*command, *where], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    print(done.stdout.splitlines()[-1] if done.stdout else "nothing was said", flush=True)
    if done.returncode:
        sys.exit(f"{name}: plaudit online ended with {done.returncode}")
    run = RunFolder.reopen(folder, "online")
    evaluations = [line for line in run.metrics() if "eval/success_once" in line]
    curve = [(line["rollout/episodes"], line["eval/success_once"]) for line in evaluations]
    after = evaluate_run(run, TEST_EPISODES).success_rate
    print(f"{name}: {time.monotonic() - begun:.0f} s; eval seeds: " + ", ".join(f"{n} {s:.0%}" for n, s in curve))
    bars.at_most(f"{name}_before", curve[0][1], BEFORE)
    bars.at_least(f"{name}_after", after, AFTER)


# What the way through costs


class Timed(OnlineTrainer):
    """Notes when weights were published, when they were first acted with, and when episodes ended."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.ended: dict[int, float] = {}  # episode -> when
        self.reached: list[float] = []  # s from a push to the first action
        self._published: dict[int, float] = {}
        self._acted = 0

    def on_episode(self, info: EpisodeInfo | None) -> None:
        super().on_episode(info)
        if info is None:
            return
        self.ended[info.id] = info.began + info.seconds
        if info.version > self._acted and info.version in self._published:
            self.reached.append(info.began - self._published[info.version])
            self._acted = info.version

    def refresh(self, audit: bool = False) -> None:
        super().refresh(audit)
        self._published.setdefault(self.state.policy.version, self.state.policy.published)


def costs(bars: Bars, root: Path, head: str, learners: Sequence[int], seconds: float) -> None:
    """In one process, and on the cluster with so many learners."""
    rates: dict[int, float] = {}
    _, _, alone = run_lamp(root / "cost_process", None, 1, seconds)
    print(f"one process: {alone:.0f} episodes/s with their labels and updates")
    for count in learners:
        timed, waits, rates[count] = run_lamp(root / f"cost_cluster_{count}", head, count, seconds)
        push, sampled = statistics.median(timed.reached), statistics.median(waits)
        print(
            f"{count} learner(s): {rates[count]:.1f} episodes/s; push to first action {1000 * push:.0f} ms, "
            f"episode's end to trainable {1000 * sampled:.0f} ms (medians of {len(timed.reached)} and {len(waits)})"
        )
        bars.at_most(f"online_push_to_action_s_{count}", push, 1)
        bars.at_most(f"online_end_to_trainable_s_{count}", sampled, 1)
    bars.at_least("online_cluster_over_process", rates[1] / alone, 0.5)


def run_lamp(folder: Path, head: str | None, learners: int, seconds: float) -> tuple[Timed, list[float], float]:
    """What was noted, seconds from each episode's end until it could be sampled, and episodes a second.

    head: of the cluster; None: in this process, one call after the other
    """
    judge = glow.saved(glow.bright_model(0.8), folder / "judge")
    words = [*glow.online(judge), "env=glow:GlowConfig", "run.max_episodes=1000000", "evaluation.freq=1000000"]
    more = ["run.publish_freq=10", "audit.fraction=0", f"cluster.num_learners={learners}"]
    config = load_training_config("online", None, [*words, *more])
    record = RunFolder.open(folder / "run", config)
    with workers_for(record, head, serial=head is None) as workers:
        timed = Timed(record, workers)
        reader = Reader(folder / "run")
        marks: list[tuple[float, int]] = []

        def callback(progress: OnlineState) -> bool:
            if progress.updates >= 20 and not marks:
                reader.start()
                marks.append((time.monotonic(), progress.episodes))
            elif marks:
                marks[1:] = [(time.monotonic(), progress.episodes)]
            return not marks or time.monotonic() - marks[0][0] < seconds

        timed.run(callback)
        reader.stop()
    record.close()
    (begun, first), (ended, last) = marks
    waits = [found - timed.ended[i] for i, found in reader.seen.items() if i in timed.ended]
    return timed, waits, (last - first) / (ended - begun)


class Reader:
    """A learner's view of the store, from a thread: when each episode can first be sampled."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.seen: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        store = Store.open(self._folder / "episodes")
        known = set(store.ids)
        while not self._stop.wait(0.005):
            store.refresh()
            store.ledger.refresh()
            for episode_id in [i for i in store.ids if i not in known]:
                if store.ledger.newest(episode_id, {"classifier"}) is not None:
                    known.add(episode_id)
                    self.seen[episode_id] = time.time()


class Sampling:
    """A learner that does nothing but sample."""

    def run(self, replay: Any, options: SampleOptions, local: bool, seconds: float) -> float:
        """Frames a second."""
        where = replay.call(ReplayBuffer.location)
        source: Any = make_sampler(where, options) if local else RemoteSampler(replay, options)
        begun, batches = time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            batch = source.sample(256)
            batches += len(batch.reward) == 256
        return 2 * 256 * batches / (time.monotonic() - begun)


def sampling(bars: Bars, folder: Path, head: str, learners: Sequence[int], seconds: float) -> None:
    """Of episodes of 50 frames, 64x64, by so many learners at once."""
    fill(folder)
    from plaudit.cluster.connect import connected
    from plaudit.training.config import ClusterConfig

    options = SampleOptions(source="classifier", gamma=0.95, cameras=("front",))
    rates: dict[tuple[str, int], float] = {}
    with connected(head, ClusterConfig(num_learners=2)) as placement:
        import ray as typed  # it reads the environment that `connected` has set

        from plaudit.cluster.ray_workers import RayHandle, ReplayBufferActor

        ray: Any = typed
        place = placement.options
        keeper = ray.remote(ReplayBufferActor).options(**place("replay"), name="sampling").remote(folder)
        handle: Any = RayHandle("replay buffer", "sampling", 30.0)
        here = Sampling().run(handle, options, True, seconds / 2)
        for count in learners:
            actors = [ray.remote(Sampling).options(**place("learner", rank)).remote() for rank in range(count)]
            for how in ("local", "remote"):
                calls = [actor.run.remote(handle, options, how == "local", seconds / 2) for actor in actors]
                rates[how, count] = sum(ray.get(calls))
            for actor in actors:
                ray.kill(actor)
        ray.kill(keeper)
    print(
        f"frames/s of 64x64: {here:,.0f} in this process; "
        + ", ".join(f"{how} with {count} learner(s) {rate:,.0f}" for (how, count), rate in rates.items())
    )
    for (how, count), rate in rates.items():
        bars.at_least(f"online_sampler_{how}_{count}_of_process", rate / here, 0.8 if how == "local" else 0.1)


def fill(folder: Path) -> None:
    rng = np.random.default_rng(0)
    replay = ReplayBuffer(folder)
    judge = JudgeId("classifier", "m", DecisionRule().key())
    for number in range(200):
        frames = rng.integers(0, 255, (51, 64, 64, 3), dtype=np.uint8)
        episode = Episode.of(frames={"front": frames}, actions=np.zeros((50, 4)), state=np.zeros((51, 8)))
        item = EpisodeRef("episodes", replay.add(episode, str(number)))
        labels = Labels(np.zeros(51, bool), np.ones(51, bool), judge)
        replay.add_labels({item: labels}, {}, judge)
    replay.close()


if __name__ == "__main__":
    main()
