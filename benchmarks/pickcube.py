"""PickCube from nothing, with a judge of two cameras as the only success signal: true success, seed by seed.

    python benchmarks/pickcube.py [--learners sac,ppo] [--seeds 0,1,2] [--quick]

By these commands, each in a process of its own on at most two cores:

    collect         scripted episodes, labeled by the simulator
    train-reward    a first judge
    train           the policy learns from that judge; its episodes are collected too
    train-reward    a second judge, which knows what this policy does
    train --resume  the policy goes on with it
    eval            on 100 test seeds, by the simulator

The simulator labels what the judges learn from; the policy is paid by the judges alone. Minutes are of all commands
together. Precision and recall are of frames of episodes that a judge never saw: of the script's, and in the second
judge's case of the policy's too, which come to the edge of success and do not stay.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bars import Bars

CONFIGS = Path(__file__).parents[1] / "examples/configs"
CORES = 2
GOAL, MINUTES, HELD_OUT = 0.9, 10.0, 0.95
COLLECT = "collect data --env pick_place --camera front --camera side --noise 0.05 --steps-after-success 16"
JUDGE = (
    "encoder=keypoints lr=2e-3 batch_size=16 label_smoothing=0 dropout=0 num_history_frames=1 history_stride=1 "
    "train_fps=null target_fpr=0.005"
)
STEPS = {"sac": (10_000, 26_000), "ppo": (20_000, 80_000)}  # with the first judge, and in all
EPOCHS = {"sac": (3, 2), "ppo": (3, 1)}  # of the first judge, and of the second, which has more episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", default="sac,ppo")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--quick", action="store_true", help="one learner, few episodes and steps: whether it runs")
    options = parser.parse_args()
    bars = Bars()
    learners = options.learners.split(",")
    if unknown := set(learners) - set(STEPS):
        parser.error(f"there is no recipe for {', '.join(sorted(unknown))}; --learners takes {', '.join(STEPS)}")
    for learner in learners[:1] if options.quick else learners:
        for seed in [0] if options.quick else map(int, options.seeds.split(",")):
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                success, judges = learn(learner, seed, Path(folder), options.quick)
                minutes = (time.monotonic() - began) / 60
            name = f"pickcube_{learner}_{seed}"
            told = "; ".join(
                f"{which}: precision {one['precision']:.1%}, recall {one['recall']:.1%}"
                for which, one in judges.items()
            )
            print(f"{name}: {success:.0%} true success on test seeds after {minutes:.1f} minutes; {told}", flush=True)
            if not options.quick:
                bars.at_least(f"{name}_success", success, GOAL)
                bars.at_most(f"{name}_minutes", minutes, MINUTES)
                for which, scores in judges.items():
                    for key, share in scores.items():
                        bars.at_least(f"{name}_{which}_{key}", share, HELD_OUT)
    if options.quick:
        bars.left_out("true success, minutes, and the judge's precision and recall")
    bars.report()


def learn(learner: str, seed: int, folder: Path, quick: bool) -> tuple[float, dict[str, dict[str, float]]]:
    """True success on test seeds, and precision and recall of both judges."""
    first, last = (100, 200) if quick else STEPS[learner]
    episodes, epochs = ((6, 6), (1, 1)) if quick else ((150, 200), EPOCHS[learner])
    forced = "judge.force=true judge.rule.threshold=0.01" if quick else ""
    small = "evaluation.episodes=2 run.num_envs=2 demos.scripted=2" if quick else ""
    collected = f"--target-success {episodes[0]} --target-failure {episodes[1]} --seed {1000 * seed}"
    plaudit(folder, f"{COLLECT} {collected}")
    plaudit(folder, f"train-reward data {JUDGE} epochs={epochs[0]} --seed {seed} --output-dir judge_1")
    config = (
        f"train --config {CONFIGS}/pickcube_{learner}_mlp_reward.yaml run.name=run run.seed={seed} {small} {forced}"
    )
    collect = "collect.store=data collect.stop=false collect.target_success=500 collect.target_failure=500"
    rewards = f"judge.model=judge_1 audit.on_alarm=warn {collect}"
    plaudit(folder, f"{config} {rewards} run.max_steps={first} evaluation.freq={last}")
    plaudit(folder, f"train-reward data {JUDGE} epochs={epochs[1]} --seed {seed} --output-dir judge_2")
    plaudit(folder, f"train --resume runs/run judge.model=judge_2 run.max_steps={last}")
    said = plaudit(folder, f"eval runs/run --episodes {4 if quick else 100}")
    success = re.search(r"success rate (\d+)% \(simulator", said)
    assert success is not None, said
    return int(success[1]) / 100, {which: held_out_scores(folder / which) for which in ("judge_1", "judge_2")}


def held_out_scores(model: Path) -> dict[str, float]:
    scores = json.loads((model / "model.json").read_text())["scores"]
    return {key: scores[key] or 0.0 for key in ("precision", "recall")}


def plaudit(folder: Path, words: str) -> str:
    """What a command prints; its output is shown where it fails."""
    command = [sys.executable, "-m", "plaudit.cli", *words.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=on_two_cores)
    if done.returncode:
        raise SystemExit(f"plaudit {words}\n{done.stdout}{done.stderr}")
    return done.stdout


def on_two_cores() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])


if __name__ == "__main__":
    main()
