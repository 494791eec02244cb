"""Progress from successes alone: is it in order, and does shaping by it save steps?

    python benchmarks/progress.py [--device cuda] [--seeds 3] [--jobs 4]   both tasks and the bottle, all runs
    python benchmarks/progress.py --order                                  without the runs of a policy
    python benchmarks/progress.py --quick                                  few demonstrations and steps: whether it runs

Value order is Spearman's correlation of a model's values with time, of successes that it never saw, up to their first
success: 150 scripted demonstrations and 30 others in each task (64x64, two cameras), and the first 20 episodes of
g1_bottle and the other 10 where that folder is there. The same backwards, standing still at the first frame, and cut at
half of the way, where the last value should be lower.

Shaping: PPO from states, which clones demonstrations first, and the simulator's sparse reward, beside the same with the
model's values as the potential (`judge.progress`, `reward.shaping`), until 90% of 50 eval seeds succeed; steps are
medians over seeds. Loitering would show in the length of episodes: their mean, shaped over sparse, up to the step at
which the first of the two runs of a seed was solved. SAC, whose replay has the demonstrations, gains nothing
(docs/results.md).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bars import Bars
from plaudit.data.store import Store
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.controls import frozen_frame, time_reversed
from plaudit.judges.metrics import value_order
from plaudit.types import Episode, FloatArray
from real_images import DATA, TRAINED_ON, prepare, read

Metrics = Sequence[dict[str, float]]

TASKS = ("pick_place", "push")
KEYPOINTS = (
    "--backbone keypoints lr=2e-3 batch_size=64 dropout=0 train_fps=null augment.shift=0.02 augment.scale=0.02 "
    "augment.color=0.1"
)
FROZEN = "freeze_encoder=true image_size=[96,128] num_augmented_views=2 train_fps=5"  # a minute on two cores
IMAGES = "env.obs=both env.cameras=[front,side] env.image_size=[64,64] policy.cameras=[]"
SHAPING = 0.3  # weight
SOLVED = 0.9
RECIPES = {  # those of docs/train.md
    "pick_place": "learner=ppo demos.scripted=20 run.max_steps=40000",
    "push": "learner=ppo demos.scripted=100 run.num_envs=64 learner.target_kl=0.02 learner.gamma=0.97 "
    "learner.gae_lambda=0.95 learner.log_std_init=-2 run.max_steps=80000",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few demonstrations and steps: whether it runs")
    parser.add_argument("--order", action="store_true", help="value order alone, no policy")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of g1_bottle")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--seeds", type=int, default=3, help="of the policies")
    parser.add_argument("--jobs", type=int, default=1, help="policies that are trained at a time")
    parser.add_argument("--shaping", type=float, default=SHAPING, help="weight")
    parser.add_argument("--device", default="auto", help="of the training of models")
    options = parser.parse_args()
    bars = Bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for task in options.tasks[:1] if options.quick else options.tasks:
            measure_order(None if options.quick else bars, task, *of_a_task(task, folder, options))
            if options.quick:
                train(folder, task, 0, "shaped", f"{shaped(folder, task, 1.0)} run.max_steps=200")
            elif not options.order:
                measure_shaping(bars, task, folder, options)
        if options.data.is_dir() and not options.quick:
            measure_order(bars, "g1_bottle", *of_the_bottle(options.data, folder, options))
    if options.quick:
        bars.left_out("value order, and the steps to 90% with and without shaping")
    bars.report()


# Value order


def of_a_task(task: str, folder: Path, options: argparse.Namespace) -> tuple[RewardModel, Store]:
    """A model of demonstrations, and others that it has not seen."""
    known, unseen = (6, 2) if options.quick else (150, 30)
    cameras = f"--env {task} --camera front --camera side --target-failure 0"
    plaudit(folder, f"collect {task}_known {cameras} --target-success {known} --steps-after-success 4")
    plaudit(folder, f"collect {task}_unseen {cameras} --target-success {unseen} --steps-after-success 0 --seed 5000")
    epochs = "--epochs 1 --members 1" if options.quick else "--epochs 12"
    return trained(folder, task, f"{KEYPOINTS} {epochs}", options), Store.open(folder / f"{task}_unseen")


def of_the_bottle(data: Path, folder: Path, options: argparse.Namespace) -> tuple[RewardModel, Store]:
    """The same of a real robot, labeled up to where the bottle is let go."""
    prepare(data, folder / "bottle_known", range(TRAINED_ON))
    prepare(data, folder / "bottle_unseen", range(TRAINED_ON, len(read(data, "cutoffs"))))
    return trained(folder, "bottle", FROZEN, options), Store.open(folder / "bottle_unseen")


def trained(folder: Path, name: str, keys: str, options: argparse.Namespace) -> RewardModel:
    plaudit(folder, f"train-progress {name}_known -o {name}_progress {keys} --device {options.device}")
    return RewardModel.from_pretrained(folder / f"{name}_progress", force=True)


def measure_order(bars: Bars | None, name: str, model: RewardModel, unseen: Store) -> None:
    """Of each unseen success: as it was, backwards, standing still, and how much higher it ends than half-way."""
    orders = []
    for episode_id, episode in unseen:
        labels = unseen.ledger.labels(episode_id)
        assert labels is not None
        first = int(np.argmax(labels.success))
        target = labels.targets
        controls = [frozen_frame(episode, target), time_reversed(episode, target, margin=0)]
        if any(control is None for control in controls):
            continue
        still, back = (values(model, control.episode) for control in controls if control is not None)
        ahead = values(model, episode)[: first + 1]
        back = back[len(back) - 1 - first :]
        orders.append((value_order(ahead), value_order(back), value_order(still), ahead[-1] - ahead[first // 2]))
    mean, low = np.mean(orders, axis=0), np.min(orders, axis=0)
    print(
        f"{name}: value order of {len(orders)} unseen successes {mean[0]:.3f} (least {low[0]:.2f}), backwards "
        f"{mean[1]:.3f}, standing still {mean[2]:.3f}; half-way the value is {mean[3]:.2f} lower (least {low[3]:.2f})",
        flush=True,
    )
    if bars is not None:
        bars.at_least(f"progress_{name}_order", float(mean[0]), 0.9)
        bars.at_most(f"progress_{name}_order_backwards", float(mean[1]), -0.9)
        bars.at_most(f"progress_{name}_order_still", float(np.abs(orders)[:, 2].max()), 0.2)
        bars.at_least(f"progress_{name}_truncated_lower", float(np.mean(np.array(orders)[:, 3] > 0)), 0.95)


def values(model: RewardModel, episode: Episode) -> FloatArray:
    found = model.score_episode(episode).progress
    assert found is not None
    return found


# Shaping


def measure_shaping(bars: Bars, task: str, folder: Path, options: argparse.Namespace) -> None:
    kinds = {"sparse": "", "shaped": shaped(folder, task, options.shaping)}
    runs = [(kind, seed) for kind in kinds for seed in range(options.seeds)]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = dict(zip(runs, pool.map(lambda run: train(folder, task, run[1], run[0], kinds[run[0]]), runs)))
    steps = {kind: [solved_at(done[kind, seed]) for seed in range(options.seeds)] for kind in kinds}
    ends = [min(pair) for pair in zip(*steps.values(), strict=True)]
    lengths = {kind: [mean_length(done[kind, seed], end) for seed, end in enumerate(ends)] for kind in kinds}
    print(f"{task}: steps to {SOLVED:.0%} {steps}; episodes of {lengths} steps", flush=True)
    bars.at_most(
        f"progress_{task}_steps_of_sparse", float(np.median(steps["shaped"]) / np.median(steps["sparse"])), 0.7
    )
    bars.at_most(
        f"progress_{task}_length_of_sparse", float(np.mean(lengths["shaped"]) / np.mean(lengths["sparse"])), 1.0
    )


def shaped(folder: Path, task: str, weight: float) -> str:
    return f"{IMAGES} judge.progress={folder / task}_progress judge.force=true reward.shaping={weight}"


def train(folder: Path, task: str, seed: int, kind: str, words: str) -> Metrics:
    """A run, until it is solved; returns its metrics."""
    run = f"{kind}_{task}_{seed}"
    plaudit(
        folder,
        f"train env={task} run.seed={seed} run.name={run} run.num_threads=1 evaluation.freq=500 "
        f"evaluation.stop_success_rate={SOLVED} {RECIPES[task]} {words}",
    )
    return [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]


def solved_at(metrics: Metrics) -> float:
    return next((line["step"] for line in metrics if line.get("eval/success_once", 0) >= SOLVED), float("inf"))


def mean_length(metrics: Metrics, end: float) -> float:
    """Of the episodes up to a step."""
    name = "rollout/episode_length"
    return float(np.mean([line[name] for line in metrics if name in line and line["step"] <= end]))


def plaudit(folder: Path, words: str) -> None:
    """A command; its output is shown where it fails."""
    command = [sys.executable, "-m", "plaudit", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"plaudit {words}\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
