"""Improving a cloned policy: every learner from the same base, with the same judge and as many steps of the robot.

    python benchmarks/pretrained.py --jobs 16                   all methods, two tasks, three seeds; hours
    python benchmarks/pretrained.py --tasks push --methods dsrl steer --seeds 1 --steps 5000
    python benchmarks/pretrained.py --quick                     whether it runs: few steps, the simulator as judge

For each task a flow policy is cloned from few scripted demonstrations, so that it succeeds in about half of the
episodes, and a classifier is trained on other scripted episodes. From then on the classifier is the only source of
reward (`--judge simulator` pays the truth instead). Policies see the simulation's state, and the judge sees images. The
table has the success on evaluation seeds that no training episode uses, by the judge and in truth; step 0 is the clone.

Each run is a process of its own with one thread. A result is a file in the folder, so a stopped benchmark continues
where it was: `--folder runs/pretrained`. The packages are those of `pip install -e '.[sim,dev]'`; no GPU is used.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bars import Bars, line_charts
from plaudit.data.disk import write_atomic
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.envs.panda import PandaConfig
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.policies.config import FlowConfig, VelocityNetConfig
from plaudit.policies.loader import save_policy
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted, record_demos
from plaudit.training.config import demo_seed
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Trainer

DEMOS = {"push": 20, "pick_place": 14}  # of which a clone succeeds in about half of the episodes
CLONE_STEPS, HORIZON, WIDTH = 1500, 5, 96  # of the base
EVALUATED = (0, 2000, 5000, 10_000, 20_000)  # steps of the robot
EPISODES = 100  # of an evaluation
JUDGE = RewardTrainConfig(encoder=SmallConfig(), train_fps=None, epochs=8, batch_size=64, lr=1e-3, target_fpr=0.005)
METHODS: dict[str, list[str]] = {
    "weighted_bc": ["learner=weighted_bc"],
    "advantage": ["learner=weighted_bc", "learner.method=advantage"],
    "conditioned": ["learner=weighted_bc", "learner.method=conditioned"],
    "steer": ["learner=steer"],
    "dsrl": ["learner=dsrl"],
    "dsrl_repeat": ["learner=dsrl", "learner.repeat_noise=true", "learner.check_episodes=0"],
    "residual": ["learner=expo", "learner.num_samples=1", "learner.select=false"],
    "expo": ["learner=expo"],
    "qchunk": ["learner=qchunk"],
    "sac": ["learner=sac"],
}
FROM_SCRATCH = ("qchunk", "sac")
GAIN, WITHIN = 0.3, 10_000  # what a method has to gain, and by when


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(DEMOS), choices=list(DEMOS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=EVALUATED[-1], help="of the robot, at most")
    parser.add_argument("--judge", choices=["learned", "simulator"], default="learned")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--quick", action="store_true", help="two methods, one seed, few steps")
    parser.add_argument("--run", nargs=3, metavar=("TASK", "METHOD", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.tasks, options.methods, options.seeds, options.judge = (
            ["push"],
            ["weighted_bc", "steer"],
            1,
            "simulator",
        )
        options.steps, options.folder = 600, options.folder / "quick"
    if options.run:
        task, method, seed = options.run
        run(options, task, method, int(seed))
        return
    for task in options.tasks:
        prepare(options, task)
    cells = [(t, m, s) for s in range(options.seeds) for t in options.tasks for m in options.methods]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda cell: start(options, *cell), cells))
    report(options)


def place(options: argparse.Namespace, *parts: str) -> Path:
    """A folder of the benchmark: what the learned judge paid is kept apart from what the simulator paid."""
    return options.folder.joinpath(options.judge, *parts)


def prepare(options: argparse.Namespace, task: str) -> None:
    """The demonstrations, the clone and the judge of a task, where they are not there yet."""
    folder = options.folder / task
    env = PandaConfig(type=task, obs="both", image_size=(64, 64))  # type: ignore[arg-type] # images: for the judge
    if not (folder / "base").exists():
        print(f"{task}: cloning {DEMOS[task]} demonstrations", flush=True)
        with Store.create(folder / "demos") as demos:
            record_demos(env, demos, episodes=DEMOS[task], seed=demo_seed(0), steps_after_success=10)
        from plaudit.learners.bc import train_flow_from_store

        demos = Store.open(folder / "demos")
        first, normalizer = demos.episode(demos.ids[0]), Normalizer.from_store(demos)
        sizes: dict[str, Any] = {"state_dim": first.state.shape[1], "action_dim": first.actions.shape[1]}
        flow = FlowConfig(**sizes, horizon=HORIZON, velocity_net=VelocityNetConfig(width=WIDTH, depth=2))
        steps = 100 if options.quick else CLONE_STEPS
        fitted = train_flow_from_store(flow.build(), demos, normalizer, steps=steps, batch_size=128)
        save_policy(folder / "cloning", flow, fitted.weights(), normalizer)
        (folder / "cloning").rename(folder / "base")
    if options.judge == "learned" and not (folder / "judge").exists():
        from plaudit.training.reward_model import train_and_save

        print(f"{task}: training the judge", flush=True)
        with Store.open_or_create(folder / "judged") as data:
            collect_scripted(env, data, EpisodeTargets(120, 120), seed=1)
        judge = train_and_save(
            Store.open(folder / "judged"), folder / "judge", JUDGE, lambda *_: True, lambda *_: iter, lambda *_: True
        )
        print(f"{task}: held-out ROC-AUC of the judge {judge.metrics.roc_auc:.3f}", flush=True)


def start(options: argparse.Namespace, task: str, method: str, seed: int) -> None:
    """One run in a process of its own, unless its result is there."""
    result = place(options, task, f"{method}_{seed}", "result.json")
    last = max((step for step in EVALUATED if step <= options.steps), default=0)
    if result.exists() and json.loads(result.read_text())["steps"][-1] >= last:
        return
    words = ["--judge", options.judge, "--steps", str(options.steps), "--folder", str(options.folder)]
    command = [sys.executable, __file__, *words, "--run", task, method, str(seed)]
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{task} {method} {seed} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
        return
    print(f"{task} {method} {seed}: {done.stdout.strip()} ({time.monotonic() - began:.0f} s)", flush=True)


def run(options: argparse.Namespace, task: str, method: str, seed: int) -> None:
    """Train from one evaluation to the next; a run that was stopped continues from its checkpoint."""
    folder, data = place(options, task, f"{method}_{seed}"), options.folder / task
    words = [
        f"env={task}", *METHODS[method], f"run.seed={seed}", f"demos.store={data / 'demos'}",
        "evaluation.freq=1000000000", f"evaluation.episodes={EPISODES}", "run.checkpoint_freq=2000",
    ]  # fmt: skip
    if method not in FROM_SCRATCH:
        words.append(f"learner.base={data / 'base'}")
    if options.judge == "simulator":
        words.append("env.obs=state")
    else:
        words += ["env.obs=both", "env.image_size=[64,64]", "policy.cameras=[]", "audit.on_alarm=warn"]
        words += [f"judge={data / 'judge'}", "judge.force=true"]
    marks = [step for step in (*EVALUATED, options.steps) if 0 < step <= options.steps]
    for mark in sorted(set(marks)):
        if (folder / "run" / "config.yaml").exists():
            reopened = RunFolder.reopen(folder / "run", "train")
            limit = [f"run.max_steps={mark}"]
            opened = reopened.with_config(load_training_config("train", folder / "run" / "config.yaml", limit))
        else:
            opened = RunFolder.create(
                folder / "run", load_training_config("train", None, [*words, f"run.max_steps={mark}"])
            )
        with Trainer(opened, lambda _: iter) as trainer:
            trainer.run(lambda state: True)
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval/success_once" in line]
    columns = {"true": "eval/success_once", "judged": "eval/judge_success_once", "seconds": "time/elapsed_s"}
    result: dict[str, Any] = {"steps": [max(m for m in (0, *marks) if m <= line["step"]) for line in evaluated]}
    result |= {name: [line.get(key, line["eval/success_once"]) for line in evaluated] for name, key in columns.items()}
    write_atomic(folder / "result.json", json.dumps(result).encode())
    print(", ".join(f"{step}: {rate:.0%}" for step, rate in zip(result["steps"], result["true"])))


def report(options: argparse.Namespace) -> None:
    """The table, the plot and the bars, of all results that are there."""
    bars, panels = Bars(), []
    for task in options.tasks:
        curves: dict[str, dict[int, tuple[float, float, float]]] = {}
        for method in options.methods:
            files = [place(options, task, f"{method}_{seed}", "result.json") for seed in range(options.seeds)]
            results = [json.loads(file.read_text()) for file in files if file.exists()]
            rows: dict[int, list[tuple[float, float, float]]] = {}
            for each in results:
                for step, *figures in zip(each["steps"], each["true"], each["judged"], each["seconds"]):
                    rows.setdefault(step, []).append(tuple(figures))
            if rows:
                curves[method] = {step: tuple(np.mean(rows[step], axis=0)) for step in sorted(rows)}
        steps = sorted({step for curve in curves.values() for step in curve})
        print(f"\n{task}: true success (by the judge), mean of up to {options.seeds} seeds\n")
        print("| method | " + " | ".join(f"{step:,} steps" for step in steps) + " | seconds |")
        print("|---|" + "---|" * (len(steps) + 1))
        for method, curve in curves.items():
            cells = [f"{curve[s][0]:.0%} ({curve[s][1]:.0%})" if s in curve else "" for s in steps]
            print(f"| {method} | {' | '.join(cells)} | {curve[max(curve)][2]:.0f} |")
        lines = {method: [[(step, point[0]) for step, point in curve.items()]] for method, curve in curves.items()}
        panels.append({"lines": lines, "title": f"{task}: true success", "x": "robot steps", "percent": True})
        gains = {m: max(p[0] for s, p in c.items() if s <= WITHIN) - c[0][0] for m, c in curves.items() if 0 in c}
        if options.steps >= WITHIN:
            own = [gain for method, gain in gains.items() if method not in FROM_SCRATCH]
            bars.at_least(f"pretrained_{task}_methods_that_gain_30", sum(gain >= GAIN for gain in own), 3)
            bars.at_least(f"pretrained_{task}_best", max(max(p[0] for p in c.values()) for c in curves.values()), 0.95)
            best = max(curves.values(), key=lambda c: c[max(c)][0])
            bars.at_most(f"pretrained_{task}_gap_of_best", abs(best[max(best)][1] - best[max(best)][0]), 0.05)
        elif curves:
            bars.at_least(f"pretrained_{task}_best_gain", max(gains.values(), default=0.0), 0.0)
    if options.steps < WITHIN:
        bars.left_out(f"what is gained within {WITHIN:,} steps")
    plot = place(options, "success.svg")
    plot.parent.mkdir(parents=True, exist_ok=True)
    plot.write_text(line_charts(panels, size=(620, 380)))
    print(f"\n{plot}")
    bars.report()


if __name__ == "__main__":
    main()
