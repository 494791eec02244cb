"""A cascade and a scripted person: how much of the person's time does a run need, and what does it cost in success?

    python benchmarks/cascade.py [--seeds N] [--episodes N] [--seconds S] [--keep FOLDER] [--quick]

1. The person labels episodes of `lift`: some to train a small classifier on, others to prove what each model may decide
   alone (at most 15% of the failures called a success, and of the successes a failure, 90% confidence).
2. A new store is labeled by a cascade of that classifier, a model that is wrong about 1% of the episodes in place of a
   vision-language model, and the person, who answers what they are asked.
3. SAC learns online from that cascade, and from a person who labels everything, on the same seeds.

The person knows the truth and takes 30 s an episode. All that they look at counts: the episodes of step 1 too, which
whoever labels everything does not need. What is true is read nowhere else but by the stand-in and for measuring.
--quick does 1 and 3 with a lamp to turn up in place of the robot.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import glow  # noqa: E402 - of the tests: the lamp
from bars import Bars  # noqa: E402
from plaudit.config import parse  # noqa: E402
from plaudit.data.store import Store  # noqa: E402
from plaudit.encoders import SmallConfig  # noqa: E402
from plaudit.envs.panda import PandaConfig  # noqa: E402
from plaudit.judges.cascade import CascadeConfig  # noqa: E402
from plaudit.judges.classifier.config import ClassifierJudgeConfig, RewardTrainConfig  # noqa: E402
from plaudit.judges.config import HUMAN, JudgeConfig  # noqa: E402
from plaudit.judges.evaluation import load_reference_labels, score_episodes  # noqa: E402
from plaudit.judges.guarantee import prove_rights  # noqa: E402
from plaudit.judges.human.queue import REQUESTS  # noqa: E402
from plaudit.judges.labeling import LabelRunner, StoreQueue, SuccessDetector  # noqa: E402
from plaudit.judges.simulator import NoisyJudgeConfig, SimulatorJudge  # noqa: E402
from plaudit.registry import JUDGE_REGISTRY  # noqa: E402
from plaudit.rollout.collector import EpisodeTargets  # noqa: E402
from plaudit.rollout.scripted import collect_scripted  # noqa: E402
from plaudit.rollout.vector import collect_rollout  # noqa: E402
from plaudit.training.audit import CascadeLedger  # noqa: E402
from plaudit.training.config_file import load_training_config  # noqa: E402
from plaudit.training.online import OnlineState, OnlineTrainer  # noqa: E402
from plaudit.training.reward_model import train_and_save  # noqa: E402
from plaudit.training.run_folder import RunFolder  # noqa: E402
from plaudit.training.setup import open_demos  # noqa: E402
from plaudit.training.workers.group import LocalWorkerGroup  # noqa: E402
from plaudit.types import Labels  # noqa: E402

ENV = PandaConfig(type="lift", obs="both", image_size=(48, 48), cameras=("front", "side"))
LAMP = glow.GlowConfig(goal=glow.WITHIN_REACH)
SECOND = NoisyJudgeConfig(false_positives=0.01, misses=0.01, cost_s=5.0)  # stands in for a vision-language model
MAX_ERROR, CONFIDENCE = 0.15, 0.9
PERSON_S = 30.0  # that an episode takes the person
BUDGET = 4.0  # minutes of the person an hour: 8 episodes at first, and few more in the minutes that a run takes here
CHECK = 0.005  # of the episodes, that go to the person by lot
NEW = 120  # episodes of a store to be labeled by the cascade


def collect_lift(store: Store, episodes: int, seed: int) -> None:
    """Scripted ones, of which half succeed."""
    collect_scripted(ENV, store, EpisodeTargets(episodes // 2, episodes // 2), seed=seed)


def collect_lamps(store: Store, episodes: int, seed: int) -> None:
    """Lamps that are turned up or down at random, of which half succeed."""
    wanted, number = {True: episodes // 2, False: episodes // 2}, 64
    env, judge = LAMP.build(number), SimulatorJudge()
    for first in range(seed, seed + 100 * number, number):
        rng = np.random.default_rng(first)
        drift = rng.uniform(-0.3, 0.5, (number, 1))
        played = collect_rollout(
            env,
            lambda _, rng=rng, drift=drift: (drift + rng.normal(0, 0.4, drift.shape)).astype(np.float32),
            range(first, first + number),
            SuccessDetector(judge, number),
        )
        for episode, labels in played.episodes(env, judge):
            if wanted[labels.success_once]:
                wanted[labels.success_once] -= 1
                store.append(episode)
        if not any(wanted.values()):
            return


@dataclass(frozen=True)
class Task:
    """What is done, and what the person labels before anything is decided."""

    collect: Callable[[Store, int, int], None]  # adds so many episodes, from a seed on
    learn: int  # episodes to train the classifier on
    prove: int  # episodes to prove what stages may decide alone
    classifier: RewardTrainConfig
    run: str  # its keys
    episodes: int  # of a run


SMALL = RewardTrainConfig(encoder=SmallConfig(), train_fps=None, lr=1e-3, test_fraction=0, label_sources=("human",))
TASKS = {
    "lift": Task(
        collect_lift,
        learn=40,
        prove=32,
        classifier=SMALL.model_copy(update={"epochs": 8, "batch_size": 64}),
        run="""env=lift env.obs=both env.image_size=[48,48] env.cameras=[front,side] demos.scripted=20
            demos.relabel=false learner.utd_ratio=0.2 policy.inference.max_episode_steps=40 evaluation.freq=8000""",
        episodes=900,
    ),
    "lamp": Task(
        collect_lamps,
        learn=24,
        prove=32,
        classifier=SMALL.model_copy(update={"encoder": SmallConfig(widths=(4, 8)), "epochs": 20, "hidden_dim": 16}),
        run=f"""env=glow env.goal={glow.WITHIN_REACH} learner.hidden_dims=[32] learner.batch_size=32
            learner.utd_ratio=0.25 policy.inference.max_episode_steps=12 evaluation.freq=2400""",
        episodes=700,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="runs with the cascade, and as many with the person; 3, quick: 1")
    parser.add_argument("--episodes", type=int, help="of each run; 900, quick: 700")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which a run ends with fewer")
    parser.add_argument("--keep", type=Path, help="where to leave everything; a temporary folder when not given")
    parser.add_argument("--quick", action="store_true", help="a lamp in place of the robot, and no store")
    options = parser.parse_args()
    task, seeds = ("lamp", options.seeds or 1) if options.quick else ("lift", options.seeds or 3)
    jobs = [(judge, seed) for judge in ("cascade", "human") for seed in range(1, seeds + 1)]
    limits = (options.episodes or TASKS[task].episodes, options.seconds)
    bars = Bars()
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(len(jobs) + 1, mp_context=get_context("spawn")) as pool,
    ):
        folder = options.keep or Path(temporary)
        runs = [pool.submit(run, folder, task, *job, *limits) for job in jobs]
        if options.quick:
            bars.left_out("the same on lift, and a store that is labeled")
        else:
            tell_store(pool.submit(label_a_store, folder / "store").result(), bars)
        tell_runs([one.result() for one in runs], bars)
    bars.report()


# What the person labels before anything is decided


def prepared(task: Task, folder: Path, seed: int) -> list[Path]:
    """A classifier that has learned from the person's labels and the model after it, as files that say what each may
    decide alone."""
    for name, count, first in (("learn", task.learn, 0), ("prove", task.prove, 10_000)):
        with Store.create(folder / name) as store:
            task.collect(store, count, 20_000 * seed + first)
            answer(store, store.ids)
    settings = task.classifier.model_copy(update={"seed": seed})
    train_and_save(Store.open(folder / "learn"), folder / "model", settings, *QUIET)
    # Forced: with so few episodes a frame of pure noise may pass for success, and no camera shows one here.
    classifier = ClassifierJudgeConfig(model=folder / "model", force=True)
    known = Store.open(folder / "prove")
    return [with_rights(known, stage, folder / name) for name, stage in (("1.yaml", classifier), ("2.yaml", SECOND))]


def with_rights(known: Store, config: JudgeConfig, path: Path) -> Path:
    """The judge as a file, with what these episodes prove."""
    judge = config.build()
    predictions, _ = score_episodes(known, judge, load_reference_labels(known, ("human",)))
    rights = prove_rights(predictions, judge.rule, judge.id.fingerprint, MAX_ERROR, CONFIDENCE)
    print(f"{judge.id.source}: {rights.describe()}", flush=True)
    path.write_text(json.dumps(JUDGE_REGISTRY.dump(config.model_copy(update={"rights": rights}))))
    return path


QUIET = (lambda _: True, lambda _: iter)


def answer(store: Store, ids: Sequence[int]) -> None:
    """What the person says of episodes: the truth."""
    for i in ids:
        store.ledger.append(i, Labels.from_targets(true_targets(store, i), source="human"))


def true_targets(store: Store, episode_id: int) -> np.ndarray:
    success = store.episode(episode_id).success
    assert success is not None
    return np.concatenate([[0.0], success]).astype(np.float32)


# A store


def label_a_store(folder: Path) -> tuple[CascadeLedger, "Accuracy"]:
    """By the cascade, until nobody is asked any more."""
    stages = prepared(TASKS["lift"], folder, 0)
    config = parse(CascadeConfig, {"stages": [*map(str, stages), HUMAN], "check": CHECK})
    with Store.create(folder / "new") as store:
        collect_lift(store, NEW, 1_000_000)
        LabelRunner(config.build(), StoreQueue(store)).run()
        tally = CascadeLedger(config)
        answer(store, tally.requested(store))
        tally.read_labels(store)
        return tally, accuracy(store)


def tell_store(labeled: tuple[CascadeLedger, "Accuracy"], bars: Bars) -> None:
    tally, found = labeled
    print(f"a store: {tally.describe()}; right about {found.right} of {found.labeled} episodes", flush=True)
    bars.at_least("cascade_store_label_accuracy", found.right / max(1, found.labeled), 0.98)
    bars.exactly("cascade_store_undecided", found.undecided, 0)


@dataclass(frozen=True)
class Accuracy:
    """Labels that count, beside the truth."""

    labeled: int  # episodes
    right: int
    undecided: int


def accuracy(store: Store) -> Accuracy:
    labels = [(i, store.ledger.labels(i, {"cascade", "human"})) for i in store.ids]
    decided = [(i, one) for i, one in labels if one is not None and one.labeled.any()]
    right = sum(one.success_once == bool(true_targets(store, i).any()) for i, one in decided)
    return Accuracy(len(decided), right, len(labels) - len(decided))


# Online runs


@dataclass(frozen=True)
class Outcome:
    """Of one run."""

    judge: str
    seed: int
    success: float  # true, on eval seeds, by the last evaluation
    episodes: int
    looked_at: int  # episodes that the person labeled, before the run and in it
    accuracy: Accuracy
    seconds: float


def tell_runs(outcomes: Sequence[Outcome], bars: Bars) -> None:
    for one in outcomes:
        found = one.accuracy
        print(
            f"{one.judge}, seed {one.seed}: true success {one.success:.0%}; the person looked at {one.looked_at} "
            f"episodes, {one.looked_at * PERSON_S / 60:.0f} minutes, where all {one.episodes} of the run take "
            f"{one.episodes * PERSON_S / 60:.0f}; right about {found.right} of {found.labeled}, {found.undecided} "
            f"undecided; {one.seconds:.0f} s",
            flush=True,
        )
    cascade, person = ([one for one in outcomes if one.judge == judge] for judge in ("cascade", "human"))
    gain = [mine.success - theirs.success for mine, theirs in zip(cascade, person, strict=True)]
    bars.at_most("cascade_share_of_the_persons_time", max(one.looked_at / one.episodes for one in cascade), 0.1)
    bars.at_least("cascade_success_minus_the_persons", float(np.mean(gain)), 0.0)
    bars.at_least("cascade_success", float(np.mean([one.success for one in cascade])), 0.9)
    right, labeled = (sum(getattr(one.accuracy, name) for one in cascade) for name in ("right", "labeled"))
    bars.at_least("cascade_label_accuracy", right / labeled, 0.98)


def run(folder: Path, name: str, judge: str, seed: int, episodes: int, seconds: float) -> Outcome:
    """One online run, one call after the other."""
    torch.set_num_threads(1)
    began, folder, task, before = time.monotonic(), folder / f"{judge}_{seed}", TASKS[name], 0
    words = f"""{task.run} learner=sac policy.cameras=[] policy.inference=sequential run.seed={seed}
        run.max_episodes={episodes} evaluation.episodes=100 audit.fraction=0 judge.window.open=false judge={judge}"""
    if judge == "cascade":
        stages = ",".join(map(str, prepared(task, folder, seed)))
        before = task.learn + task.prove
        words += f""" judge.stages=[{stages},human] judge.check={CHECK} judge.budget={BUDGET} judge.retrain=null"""
    opened = RunFolder.open(folder / "run", load_training_config("online", None, words.split()))
    open_demos(opened, lambda _: iter)
    workers = LocalWorkerGroup(opened, serial=True)
    try:
        person = Person(folder / "run/episodes", judge == "human", until=began + seconds)
        end = OnlineTrainer(opened, workers).run(person)
    finally:
        workers.close()
        opened.close()
    store = Store.open(folder / "run/episodes")
    return Outcome(
        judge=judge,
        seed=seed,
        success=end.eval_success or 0.0,
        episodes=len(store),
        looked_at=before + sum(store.ledger.newest(i, {HUMAN}) is not None for i in store.ids),
        accuracy=accuracy(store),
        seconds=time.monotonic() - began,
    )


class Person:
    """Who answers at once whatever is asked, or labels everything."""

    def __init__(self, folder: Path, everything: bool, until: float):
        self._folder, self._everything, self._until = folder, everything, until
        self._asked = -1.0  # when the list of requests was last changed
        self._store: Store | None = None
        self._answered: set[int] = set()

    def __call__(self, now: OnlineState) -> bool:
        if self._store is None and now.episodes:
            self._store = Store.open(self._folder)
        if self._store is not None:
            self._store.refresh()
            self._store.ledger.refresh()
            wanted = self._store.ids if self._everything else self._requests()
            new = [i for i in wanted if i not in self._answered]
            answer(self._store, new)
            self._answered |= {*new}
        return time.monotonic() < self._until

    def _requests(self) -> list[int]:
        path = self._folder / REQUESTS
        changed = path.stat().st_mtime if path.exists() else -1.0
        if changed == self._asked:
            return []
        self._asked = changed
        return json.loads(path.read_text())


if __name__ == "__main__":
    main()
