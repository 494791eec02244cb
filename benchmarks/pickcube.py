"""PickCube from nothing, with a judge of two cameras as the only success signal: true success, seed by seed.

    python benchmarks/pickcube.py [--learners sac,ppo] [--seeds 0,1,2] [--quick]

By these commands, each in a process of its own on at most two cores:

    collect         scripted episodes, labeled by the simulator
    train-reward    the judge
    train           the policy learns from demonstrations and from what the judge pays
    eval            on 100 test seeds, by the simulator

The simulator labels what the judge learns from; the policy is paid by the judge alone, for its demonstrations too.
Minutes are of all commands together. Precision and recall are of frames of episodes that the judge never saw. PPO
clones its demonstrations before the judge pays anything, and its success on evaluation seeds then is printed too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bars import Bars

CONFIGS = Path(__file__).parents[1] / "examples/configs"
CORES = 2
GOAL, MINUTES, HELD_OUT = 0.9, 10.0, 0.95
COLLECT = "collect data --env pick_place --camera front --camera side --noise 0.05 --steps-after-success 30"
JUDGE = "pickcube_train_reward_keypoints.yaml"
LEARNERS = ("sac", "ppo")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", default="sac,ppo")
    parser.add_argument("--seeds", type=seeds, default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one learner, few episodes and steps: whether it runs")
    options = parser.parse_args()
    bars = Bars()
    learners = options.learners.split(",")
    if unknown := set(learners) - set(LEARNERS):
        parser.error(f"there is no recipe for {', '.join(sorted(unknown))}; --learners takes {', '.join(LEARNERS)}")
    for learner in learners[:1] if options.quick else learners:
        for seed in [0] if options.quick else options.seeds:
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                found = learn(learner, seed, Path(folder), options.quick)
                minutes = (time.monotonic() - began) / 60
            name = f"pickcube_{learner}_{seed}"
            before = "" if found.cloned is None else f" ({found.cloned:.0%} on evaluation seeds by cloning alone)"
            told = f"{found.success:.0%} true success on test seeds{before} after {minutes:.1f} minutes"
            judge = f"precision {found.precision:.1%}, recall {found.recall:.1%}"
            print(f"{name}: {told}; the judge: {judge}", flush=True)
            if not options.quick:
                bars.at_least(f"{name}_success", found.success, GOAL)
                bars.at_most(f"{name}_minutes", minutes, MINUTES)
                bars.at_least(f"{name}_judge_precision", found.precision, HELD_OUT)
                bars.at_least(f"{name}_judge_recall", found.recall, HELD_OUT)
    if options.quick:
        bars.left_out("true success, minutes, and the judge's precision and recall")
    bars.report()


def seeds(text: str) -> list[int]:
    """Of the command line, with commas between them."""
    return [int(seed) for seed in text.split(",")]


@dataclass(frozen=True)
class Found:
    """What came of one learner and seed."""

    success: float  # true, on test seeds
    cloned: float | None  # the same on evaluation seeds, before the first reward; None: it clones while it learns
    precision: float  # of the judge, on held-out frames
    recall: float


def learn(learner: str, seed: int, folder: Path, quick: bool) -> Found:
    """The whole recipe, in a folder of its own."""
    successes, failures = (6, 6) if quick else (450, 600)
    short = (
        "evaluation.episodes=2 run.num_envs=2 demos.scripted=2 run.max_steps=200 judge.force=true "
        "judge.rule.threshold=0.01"
    )
    targets = f"--target-success {successes} --target-failure {failures}"
    plaudit(folder, f"{COLLECT} {targets} --seed {1000 * seed}")
    plaudit(folder, f"train-reward data --config {CONFIGS}/{JUDGE} --seed {seed} --output-dir judge")
    plaudit(
        folder,
        f"train --config {CONFIGS}/pickcube_{learner}_mlp_reward.yaml judge.model=judge run.name=run run.seed={seed} "
        f"evaluation.freq=1_000_000 {short if quick else ''}",
    )
    said = plaudit(folder, f"eval runs/run --episodes {4 if quick else 100}")
    success = re.search(r"success rate (\d+)% \(simulator", said)
    assert success is not None, said
    first = json.loads((folder / "runs/run/metrics.jsonl").read_text().splitlines()[0])
    scores = json.loads((folder / "judge/model.json").read_text())["scores"]
    return Found(
        success=int(success[1]) / 100,
        cloned=first["eval/success_once"] if first["step"] == 0 else None,
        precision=scores["precision"] or 0.0,
        recall=scores["recall"] or 0.0,
    )


def plaudit(folder: Path, words: str) -> str:
    """What a command prints; its output is shown where it fails."""
    command = [sys.executable, "-m", "plaudit", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=on_two_cores)
    if done.returncode:
        raise SystemExit(f"plaudit {words}\n{done.stdout}{done.stderr}")
    return done.stdout


def on_two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


if __name__ == "__main__":
    main()
