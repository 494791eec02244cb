"""Policies that see two cameras and the joint state, with a learned judge as their only reward: true success.

    python benchmarks/pixels.py [--tasks lift,pick_place,push] [--seeds 0,1,2] [--encoder cnn] [--folder F] [--quick]
    python benchmarks/pixels.py --tasks lift --encoder cloned         # two CPU cores
    python benchmarks/pixels.py --set policy.history=2 --judge simulator

By these commands, as a user would call them:

    collect         scripted episodes, labeled by the simulator
    train-reward    the judge, once per task
    train           the policy, once per seed
    eval            on 100 test seeds, by the simulator

The judge sees the cameras front and side, the policy front and wrist, all of 64x64. The time is that of `train` with
its demonstrations and evaluations. `--judge simulator` pays the simulator's success instead, and `--state` lets the
policy see the simulator's state: both are upper bounds.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bars import Bars

CONFIGS = Path(__file__).parents[1] / "examples/configs"
JUDGE_CONFIG = "pickcube_train_reward_keypoints.yaml"
LEARNER = "learner=sac learner.bc_weight=0.1 learner.tau=0.01 demos.scripted=60 demos.noise=0.05"
MINUTES = 3.0
ALARM = "alarm: "  # begins the message of a run that was stopped


@dataclass(frozen=True)
class Task:
    """Goals of a task, and what its runs need."""

    goal: float  # true success
    max_steps: int
    episodes: tuple[int, int] = (450, 600)  # successes and failures that the judge learns from
    clumsy: int = 0  # more failures, with much noise on the script's actions: a policy that learns fails in many ways
    settings: str = ""
    rule: str = ""  # of a learned judge


TASKS = {
    "lift": Task(0.95, 10_000, (150, 250)),
    "pick_place": Task(0.95, 24_000, clumsy=1000, settings="learner.utd_ratio=1"),
    # The judge's own threshold, for few false successes, misses a fifth of the frames with success. The
    # policy soon leaves the data of the judge. While most of its episodes are withheld, it forgets what it learned.
    "push": Task(0.9, 24_000, (900, 1200), 600, "learner.utd_ratio=1", "judge.rule.threshold=0.5 judge.ood=accept"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="lift,pick_place,push")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--encoder", default="cnn", help="policy.encoder: cnn, cloned, ... or {type: resnet10, ...}")
    parser.add_argument("--judge", default="learned", choices=["learned", "simulator"])
    parser.add_argument("--state", action="store_true", help="the policy sees the simulator's state and no camera")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of `plaudit train`")
    parser.add_argument("--size", type=int, default=64, help="edge of the images, of judge and policy")
    parser.add_argument("--folder", type=Path, help="keeps data, judges and runs; what it has is not made again")
    parser.add_argument("--quick", action="store_true", help="lift, few episodes and steps: whether it runs")
    options = parser.parse_args()
    tasks = ["lift"] if options.quick else options.tasks.split(",")
    bars = Bars()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        for name in tasks:
            task = TASKS[name]
            if options.judge == "learned":
                make_judge(name, task, folder, options)
            for seed in [0] if options.quick else map(int, options.seeds.split(",")):
                success, minutes, steps = learn(name, task, seed, folder, options)
                title = f"{name}_{options.encoder}_{seed}".replace(" ", "")
                print(f"{title}: {success:.0%} true success, {steps:,} steps, {minutes:.1f} minutes", flush=True)
                if not options.quick:
                    bars.at_least(f"pixels_{title}_success", success, task.goal)
                    bars.at_most(f"pixels_{title}_minutes", minutes, MINUTES)
    if options.quick:
        bars.left_out("true success and minutes")
    bars.report()


def make_judge(name: str, task: Task, folder: Path, options: argparse.Namespace) -> None:
    """Collect episodes of a task and train its judge, if the folder has none."""
    if (folder / name / "judge").exists():
        return
    (folder / name).mkdir(parents=True, exist_ok=True)
    successes, failures = (6, 6) if options.quick else task.episodes
    began = time.monotonic()
    collect = f"collect data --env {name} --camera front --camera side --steps-after-success 30 --size {options.size}"
    targets = f"--target-success {successes} --target-failure {failures}"
    plaudit(folder / name, f"{collect} --noise 0.05 {targets} --seed 100000")
    if task.clumsy and not options.quick:
        targets = f"--target-success {successes} --target-failure {failures + task.clumsy}"
        plaudit(folder / name, f"{collect} --noise 0.5 {targets} --seed 300000")
    collected = time.monotonic()
    plaudit(folder / name, f"train-reward data --config {CONFIGS}/{JUDGE_CONFIG} --output-dir judge")
    scores = json.loads((folder / name / "judge/model.json").read_text())["scores"]
    print(
        f"{name}: data {collected - began:.0f} s, judge {time.monotonic() - collected:.0f} s, precision "
        f"{scores['precision'] or 0:.1%}, recall {scores['recall'] or 0:.1%} of held-out frames",
        flush=True,
    )


def learn(name: str, task: Task, seed: int, folder: Path, options: argparse.Namespace) -> tuple[float, float, int]:
    """Train and evaluate a policy; returns true success, minutes and steps."""
    run = f"run_{seed}_{int(time.time())}"
    (folder / name).mkdir(parents=True, exist_ok=True)
    judge = f"judge=judge judge.rule.k=3 judge.rule.n=3 {task.rule}" if options.judge == "learned" else ""
    sees = "env.obs=both policy.cameras=[]" if options.state else "env.obs=pixels policy.cameras=[front,wrist]"
    short = "evaluation.episodes=2 run.num_envs=2 demos.scripted=2 run.max_steps=100 judge.force=true"
    words = [
        *f"train env={name} env.cameras=[front,side,wrist] {sees} {LEARNER} {task.settings} {judge}".split(),
        f"env.image_size=[{options.size},{options.size}]",
        *f"run.max_steps={task.max_steps} evaluation.freq=4000 evaluation.episodes=100".split(),
        *f"evaluation.stop_success_rate=0.98 run.name={run} run.seed={seed}".split(),
        *([] if options.state else [f"policy.encoder={options.encoder}"]),
        *options.set,
        *(short.split() if options.quick else []),
    ]
    began = time.monotonic()
    said = plaudit(folder / name, words, alarm=True)
    minutes = (time.monotonic() - began) / 60
    if ALARM in said:
        print(f"{run}: an alarm stopped it", flush=True)
    said = plaudit(folder / name, f"eval runs/{run} --episodes {4 if options.quick else 100}")
    success = re.search(r"success rate (\d+)% \(simulator", said)
    assert success is not None, said
    lines = (folder / name / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return int(success[1]) / 100, minutes, json.loads(lines[-1])["step"]


def plaudit(folder: Path, words: str | list[str], *, alarm: bool = False) -> str:
    """What a command prints; its output is shown where it fails. A run that an `alarm` stopped has not failed."""
    command = [sys.executable, "-m", "plaudit", *(words.split() if isinstance(words, str) else words)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode and not (alarm and ALARM in done.stderr):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()
