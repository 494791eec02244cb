"""A judge that knows what it does not know: its wrong verdicts on starts and backgrounds that it did not learn from.

    python benchmarks/ood.py [--seeds 0,1] [--device cpu] [--quick]

`pick_place` with two cameras. A judge of three members learns from scripted episodes on three tables, in which neither
the cube nor the marker ever starts on the left half of the table. Then it judges new episodes: known ones, some
that start there, and some on a table, before a wall and on a floor of other colors. How many of its wrong verdicts on
these are flagged as out of distribution, and how many known episodes?
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, islice
from pathlib import Path

import numpy as np

from bars import Bars
from plaudit.data.store import Store
from plaudit.envs.panda import PandaConfig
from plaudit.envs.panda.scene import TABLE_CENTER, TASKS
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.training import never_stop
from plaudit.judges.labeling import SuccessDetector, label_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.scripted import OUTCOMES, SUCCESSES, expert_act_fn
from plaudit.rollout.vector import collect_rollout
from plaudit.types import Episode, Labels

FLAGGED, KNOWN_FLAGGED = 0.9, 0.05
BACKGROUNDS = {  # colors of table, wall and floor
    "oak": ((0.72, 0.60, 0.45), (0.62, 0.68, 0.74), (0.30, 0.33, 0.37)),
    "slate": ((0.45, 0.50, 0.58), (0.75, 0.72, 0.66), (0.25, 0.25, 0.25)),
    "white": ((0.85, 0.85, 0.82), (0.50, 0.55, 0.60), (0.40, 0.36, 0.32)),
    "moss": ((0.25, 0.42, 0.25), (0.35, 0.25, 0.22), (0.50, 0.50, 0.50)),  # left out of training
}
KNOWN = ("oak", "slate", "white")
LEFT_FROM = TABLE_CENTER[1]  # starts lie within 0.1 m of the center
PLAN = [kind for pair in zip(SUCCESSES * 2, [o for o in OUTCOMES if o not in SUCCESSES], strict=True) for kind in pair]
JUDGE = {"lr": 2e-3, "batch_size": 16, "label_smoothing": 0, "dropout": 0, "num_history_frames": 1, "history_stride": 1}
NUM_ENVS = 16

LabeledEpisodes = list[tuple[Episode, Labels]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--device", default="cpu", help="of the training of judges")
    parser.add_argument("--quick", action="store_true", help="few episodes, one member")
    options = parser.parse_args()
    bars = Bars()
    sizes = {"known": 36, "others": 36, "members": 1, "epochs": 2} if options.quick else {}
    for seed in [0] if options.quick else map(int, options.seeds.split(",")):
        found = measure(seed, options.device, **sizes)
        for kind, counts in found.items():
            print(f"seed {seed}, {kind}: {counts['flagged']} of {counts['episodes']} flagged, ", end="")
            print(f"{counts['wrong and flagged']} of {counts['wrong']} wrong verdicts flagged", flush=True)
        strange = found["start"] + found["background"]
        bars.at_most(f"ood_{seed}_known_flagged", share(found["in distribution"], "flagged", "episodes"), KNOWN_FLAGGED)
        background = share(found["background"], "wrong and flagged", "wrong")
        bars.at_least(f"ood_{seed}_wrong_flagged_background", background, FLAGGED)
        if not options.quick:
            bars.at_least(f"ood_{seed}_wrong_flagged", share(strange, "wrong and flagged", "wrong"), FLAGGED)
    if options.quick:
        bars.left_out("how many wrong verdicts on other starts and backgrounds together are flagged")
    bars.report()


def share(counts: Counter[str], part: str, of: str) -> float:
    return counts[part] / max(counts[of], 1)


def measure(
    seed: int, device: str, known: int = 300, others: int = 150, members: int = 3, epochs: int = 3
) -> dict[str, Counter[str]]:
    """Episodes, flagged ones, wrong verdicts and both, of each kind."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "known") as store:
        for episode, labels in record(known, KNOWN, left=False, seed=seed):
            store.ledger.append(store.append(episode), labels)
        config = RewardTrainConfig(
            encoder={"type": "keypoints"}, train_fps=None, target_fpr=0.005, epochs=epochs, ensemble_size=members,
            seed=seed, device=device, **JUDGE,
        )  # fmt: skip
        trained = train_reward_model(store, config, Path(folder) / "work", never_stop, lambda _: iter)
    judge = ClassifierJudge(trained.model)
    kinds = {"in distribution": (KNOWN, False), "start": (KNOWN, True), "background": (("moss",), False)}
    return {
        kind: tally(judge, record(others, backgrounds, left=left, seed=1000 + seed))
        for kind, (backgrounds, left) in kinds.items()
    }


def record(episodes: int, backgrounds: Sequence[str], *, left: bool, seed: int) -> LabeledEpisodes:
    """Scripted episodes on these backgrounds, in turn, with the simulator's labels."""
    found: LabeledEpisodes = []
    for number, background in enumerate(backgrounds):
        seeds, wanted = starts(left, 1_000_000 * seed + 100_000 * number), episodes // len(backgrounds)
        with closing(PandaConfig(type="pick_place", obs="both", cameras=("front", "side")).build(NUM_ENVS)) as env:
            for name, color in zip(("table", "wall", "floor"), BACKGROUNDS[background], strict=True):
                env._appearance.color[:, env._model.geom(name).id] = color
            judge, mine = SimulatorJudge(), list[tuple[Episode, Labels]]()
            while len(mine) < wanted:
                batch = list(islice(seeds, NUM_ENVS))
                act = expert_act_fn(env, [PLAN[n % len(PLAN)] for n in range(NUM_ENVS)], 0.05, batch[0])
                detector = SuccessDetector(judge, NUM_ENVS)
                rollout = collect_rollout(env, act, batch, detector, steps_after_success=16)
                mine += rollout.episodes(env, judge)
            found += mine[:wanted]
    return found


def starts(left: bool, first: int) -> Iterator[int]:
    """Seeds whose cube or marker starts on the left, or of which neither does."""
    for seed in count(first):
        start = TASKS["pick_place"].sample_start(np.random.default_rng(seed))
        if (max(start.cube[1], start.goal[1]) > LEFT_FROM) == left:
            yield seed


def tally(judge: ClassifierJudge, recorded: LabeledEpisodes) -> Counter[str]:
    """How many episodes are flagged, judged wrongly, and both."""
    counts: Counter[str] = Counter(episodes=len(recorded))
    for episode, true in recorded:
        (labels,) = label_episodes(judge, [episode])
        assert isinstance(labels, Labels)
        wrong = labels.success_once != true.success_once
        counts += Counter({"flagged": bool(labels.ood), "wrong": wrong})
        counts["wrong and flagged"] += bool(labels.ood) and wrong
    return counts


if __name__ == "__main__":
    main()
