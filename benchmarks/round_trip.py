"""From nothing to a policy whose only success signal is a learned reward: time and true success, seed by seed.

    python benchmarks/round_trip.py [--seeds 0,1,2] [--ppo] [--pixels] [--quick]

Runs the demo (collect, train a judge, learn from it with SAC) for each seed and counts the true successes of the last
policy on 100 test seeds. With --ppo the same judge then teaches PPO, with --pixels a SAC whose policy
sees the camera instead of the state (for a machine with a GPU: hours without one).
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bars import Bars
from plaudit.training.config_file import load_training_config
from plaudit.training.demo import DemoConfig, DemoDisplay, Progress, run_demo
from plaudit.training.evaluation import evaluate_run
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Trainer

LIMIT = 360  # seconds of the demo
GOAL = 0.9
TEST_EPISODES = 100
COMMON = (
    "env=lift env.cameras=[front,side] env.image_size=[64,64] demos.scripted=20 evaluation.episodes=100 "
    "evaluation.stop_success_rate=0.95"
)
POLICIES = {
    "ppo": f"{COMMON} learner=ppo env.obs=both policy.cameras=[] run.num_envs=64 run.max_steps=200000 "
    "learner.lr=1e-3 learner.num_minibatches=16 evaluation.freq=6400 audit.on_alarm=warn",
    "sac_pixels": f"{COMMON} learner=sac env.obs=pixels run.max_steps=60000 evaluation.freq=4000",
}
SMALL = DemoConfig(
    target_success=10,
    target_failure=10,
    judge=("encoder=small", "train_fps=null", "epochs=1"),
    policy=(
        *("learner=sac", "env=lift", "env.obs=both", "env.cameras=[front,side]", "policy.cameras=[]"),
        *("demos.scripted=3", "run.max_steps=800"),
        # A judge of so few episodes is unsure, and the alarm would end the run before the learner's first update.
        *("judge.force=true", "judge.rule.threshold=0.01", "audit.on_alarm=warn", "evaluation.episodes=10"),
    ),
    eval_episodes=10,
)
QUICK = "judge.force=true judge.rule.threshold=0.01 audit.on_alarm=warn run.max_steps=800 evaluation.episodes=10"
QUICK_PPO = f"{QUICK} learner.pretrain_updates=20"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ppo", action="store_true")
    parser.add_argument("--pixels", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a demo in small, and PPO for a moment: whether it runs")
    options = parser.parse_args()
    seeds = [0] if options.quick else [int(seed) for seed in options.seeds.split(",")]
    others = [
        name for name, wanted in (("ppo", options.ppo or options.quick), ("sac_pixels", options.pixels)) if wanted
    ]
    bars = Bars()
    with tempfile.TemporaryDirectory() as temporary:
        for seed in seeds:
            folder = Path(temporary) / str(seed)
            success, seconds = round_trip(folder, seed, options.quick)
            print(f"seed {seed}: sac {success:.0%} on test seeds, {seconds:.0f} s from nothing", flush=True)
            if not options.quick:
                bars.at_least(f"demo_{seed}_success", success, GOAL)
                bars.at_most(f"demo_{seed}_seconds", seconds, LIMIT)
            for name in others:
                success, seconds = learn(name, folder, seed, options.quick)
                print(f"seed {seed}: {name} {success:.0%}, {seconds:.0f} s with the same judge", flush=True)
                if not options.quick:
                    bars.at_least(f"{name}_{seed}_success", success, GOAL)
    if options.quick:  # a judge of one epoch and policies of 800 steps
        bars.left_out("true success of the policies, and how long the demo takes")
    bars.report()


def round_trip(folder: Path, seed: int, quick: bool) -> tuple[float, float]:
    """The demo; true success and seconds."""
    display = DemoDisplay(Console(), lambda _: iter, lambda *_: no_progress(), lambda _: no_progress())
    result = run_demo(folder, display, seed, SMALL if quick else DemoConfig())
    log = json.loads((folder / "demo.json").read_text())
    return result.success_rate, sum(log["seconds"].values())


@contextmanager
def no_progress() -> Iterator[Progress]:
    yield lambda _: True, lambda: False


def learn(name: str, folder: Path, seed: int, quick: bool) -> tuple[float, float]:
    quickly = QUICK_PPO if name == "ppo" else QUICK
    words = f"{POLICIES[name]} judge={folder / 'judge'} run.seed={seed} {quickly if quick else ''}"
    run = RunFolder.create(folder / name, load_training_config("train", None, words.split()))
    began = time.monotonic()
    with Trainer(run, lambda _: iter) as trainer:
        trainer.run(lambda _: True)
    result = evaluate_run(run, SMALL.eval_episodes if quick else TEST_EPISODES)
    return result.success_rate, time.monotonic() - began


if __name__ == "__main__":
    main()
