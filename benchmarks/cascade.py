"""A cascade and a scripted person: how much of the person's time does a run need, and what does it cost in success?

    python benchmarks/cascade.py [--seeds N] [--episodes N] [--keep FOLDER] [--quick]

1. The person labels episodes of `lift`: some to train a small classifier on, others to prove what each model may decide
   alone (at most 15% of the failures called a success, and of the successes a failure, 90% confidence).
2. A new store is labeled by a cascade of that classifier, a model that is wrong about 1% of the episodes in place of a
   vision-language model, and the person, who answers what they are asked.
3. SAC learns online from that cascade, and from a person who labels everything, on the same seeds. (Left out by
   --quick.)

The person knows the truth and takes 30 s an episode. All that they look at counts: the episodes of step 1 too, which
whoever labels everything does not need. What is true is read nowhere else but for measuring.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from bars import Bars
from plaudit.config import parse
from plaudit.data.store import Store
from plaudit.envs.panda.config import PandaConfig
from plaudit.judges.cascade import CascadeConfig
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.encoders.small import SmallConfig
from plaudit.judges.classifier.judge import ClassifierJudgeConfig
from plaudit.judges.config import HUMAN, JudgeConfig
from plaudit.judges.evaluation import load_reference_labels, score_episodes
from plaudit.judges.human.queue import REQUESTS
from plaudit.judges.labeling import LabelRunner, StoreQueue
from plaudit.judges.noisy import NoisyJudgeConfig
from plaudit.judges.rights import prove_rights
from plaudit.registry import JUDGE_REGISTRY
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted
from plaudit.training.cascade_ledger import CascadeLedger
from plaudit.training.config_file import load_training_config
from plaudit.training.demos import open_demos
from plaudit.training.online import OnlineTrainer
from plaudit.training.progress import OnlineProgress
from plaudit.training.reward_model import train_and_save
from plaudit.training.run_folder import RunFolder
from plaudit.training.worker_group import LocalWorkers
from plaudit.types import Labels

ENV = PandaConfig(type="lift", obs="both", image_size=(48, 48), cameras=("front", "side"))
CLASSIFIER = RewardTrainConfig(
    encoder=SmallConfig(), train_fps=None, epochs=8, batch_size=64, lr=1e-3, test_fraction=0, label_sources=("human",)
)
TO_LEARN, TO_PROVE = EpisodeTargets(26, 26), EpisodeTargets(16, 16)  # that the person labels before all others
SECOND = NoisyJudgeConfig(false_positives=0.01, misses=0.01, cost_s=5.0)  # stands in for a vision-language model
MAX_ERROR, CONFIDENCE = 0.15, 0.9
PERSON_S = 30.0  # that an episode takes the person
BUDGET = 4.0  # minutes of the person an hour: 8 episodes at first, and few more in the minutes that a run takes here
CHECK = 0.005  # of the episodes, that go to the person by lot
NEW = EpisodeTargets(60, 60)  # to be labeled by the cascade


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs with the cascade, and as many with the person")
    parser.add_argument("--episodes", type=int, default=1100, help="of each run")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which a run ends with fewer")
    parser.add_argument("--keep", type=Path, help="where to leave everything; a temporary folder when not given")
    parser.add_argument("--quick", action="store_true", help="label a store, without the runs")
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        if options.quick:
            tell_store(label_a_store(folder / "store"), bars)
            bars.left_out("the person's time and the final success of online runs")
        else:
            jobs = [(judge, seed) for judge in ("cascade", "human") for seed in range(1, options.seeds + 1)]
            with ProcessPoolExecutor(len(jobs) + 1, mp_context=get_context("spawn")) as pool:
                runs = [pool.submit(run, folder, *job, options.episodes, options.seconds) for job in jobs]
                tell_store(pool.submit(label_a_store, folder / "store").result(), bars)
                tell_runs([one.result() for one in runs], bars)
    bars.report()


# What the person labels before anything is decided


def prepared(folder: Path, seed: int) -> list[Path]:
    """A classifier that has learned from the person's labels and the model after it, as files that say what each may
    decide alone."""
    for name, targets, first in (("learn", TO_LEARN, 0), ("prove", TO_PROVE, 10_000)):
        with Store.create(folder / name) as store:
            collect_scripted(ENV, store, targets, seed=20_000 * seed + first)
            answer(store, store.ids)
    train_and_save(Store.open(folder / "learn"), folder / "model", CLASSIFIER.model_copy(update={"seed": seed}), *QUIET)
    # Forced: with so few episodes a frame of pure noise may pass for success, and no camera shows one here.
    classifier = ClassifierJudgeConfig(model=folder / "model", force=True)
    known = Store.open(folder / "prove")
    return [with_rights(known, stage, folder / name) for name, stage in (("1.yaml", classifier), ("2.yaml", SECOND))]


def with_rights(known: Store, config: JudgeConfig, path: Path) -> Path:
    """The judge as a file, with what these episodes prove."""
    judge = config.build()
    predictions, _ = score_episodes(known, judge, load_reference_labels(known, ("human",)))
    rights = prove_rights(predictions, judge.rule, judge.id.fingerprint, MAX_ERROR, CONFIDENCE)
    print(f"{judge.id.source}: {rights.sentence()}", flush=True)
    tree = JUDGE_REGISTRY.dump(config.model_copy(update={"rights": rights}))
    path.write_text(json.dumps(tree))
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
    stages = prepared(folder, seed=0)
    config = parse(CascadeConfig, {"stages": [*map(str, stages), HUMAN], "check": CHECK})
    with Store.create(folder / "new") as store:
        collect_scripted(ENV, store, NEW, seed=1_000_000)
        LabelRunner(config.build(), StoreQueue(store)).run()
        tally = CascadeLedger(config)
        answer(store, tally.requested(store))
        tally.read_labels(store)
        return tally, accuracy(store)


def tell_store(labeled: tuple[CascadeLedger, "Accuracy"], bars: Bars) -> None:
    tally, found = labeled
    print(f"a store: {tally.sentence()}; right about {found.right} of {found.labeled} episodes", flush=True)
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


def run(folder: Path, judge: str, seed: int, episodes: int, seconds: float) -> Outcome:
    """One online run, one call after the other."""
    torch.set_num_threads(1)
    began, folder = time.monotonic(), folder / f"{judge}_{seed}"
    words = f"""env=lift learner=sac env.obs=both env.image_size=[48,48] env.cameras=[{",".join(ENV.cameras)}]
        policy.cameras=[] policy.inference=sequential demos.scripted=20 demos.relabel=false learner.utd_ratio=0.15
        policy.inference.max_episode_steps=40 run.seed={seed} run.max_episodes={episodes} evaluation.freq=8000
        evaluation.episodes=100 audit.fraction=0 judge.window.open=false"""
    before = 0
    if judge == "cascade":
        stages = ",".join(map(str, prepared(folder, seed)))
        before = sum(len(Store.open(folder / name)) for name in ("learn", "prove"))
        words += f""" judge=cascade judge.stages=[{stages},human] judge.check={CHECK} judge.budget={BUDGET}
            judge.retrain=null"""
    else:
        words += " judge=human"
    opened = RunFolder.open(folder / "run", load_training_config("online", None, words.split()))
    open_demos(opened, lambda _: iter)
    workers = LocalWorkers(opened, serial=True)
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

    def __call__(self, now: OnlineProgress) -> bool:
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
