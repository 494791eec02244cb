"""Learning with a person's corrections: true success over robot steps, with a simulated person of limited time.

    python benchmarks/hil.py [--tasks pick_place,push] [--seeds 10,11,12] [--folder F] [--plot hil.png] [--quick]

`plaudit online` on the simulator's state, 20 demonstrations, labels by the simulator:

    none      SAC without a person
    hil       SAC, and the person's interventions are also demonstrations, as in HIL-SERL
    dagger    HG-DAgger: behavior cloning of demonstrations and interventions
    both      SAC whose actor is that of HG-DAgger for its first 2,500 updates, and then as in hil

The person (teleop.type=scripted) helps where the task makes no progress, for 200 s in all. `--tasks pick_cube` is
gym_hil's PandaPickCube with a person of its own (gym_hil_person.py), who also records the demonstrations. It needs the
environment of `make .venv-simulators/.ready`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bars import Bars
from plaudit.data.store import Store
from plaudit.types import HUMAN

SAC = "learner=sac learner.bc_weight=0.1 learner.tau=0.01"
BUDGET_S = 200
PERSON = f"teleop.type=scripted teleop.budget_s={BUDGET_S}"
CLONE = "learner.pretrain_updates=500 learner.clone_updates=2500"
VARIANTS = {
    "none": SAC,
    "hil": f"{SAC} {PERSON}",
    "dagger": f"learner=dagger {PERSON}",
    "both": f"learner=sac learner.bc_weight=1 learner.tau=0.01 {CLONE} {PERSON}",
}
GOAL = 0.9  # true success
PICK_CUBE, DEMOS = "pick_cube", "demos"
PICK_CUBE_PERSON, PLUGIN = "gym_hil_person:PickCubePersonConfig", "--allow-code gym_hil_person"


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    steps: list[int]  # at each evaluation
    success: list[float]  # true, of 50 evaluation seeds
    person_s: float  # that the person acted for
    final_rate: float  # of the steps of the last 50 episodes, by the person
    seconds: float  # of the run, wall time

    @property
    def steps_to_goal(self) -> float:
        """Robot steps at the first evaluation that reaches the goal; infinity where none does."""
        return next((step for step, rate in zip(self.steps, self.success) if rate >= GOAL), np.inf)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="pick_place,push")
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--episodes", type=int, default=400)
    parser.add_argument("--folder", type=Path, help="keeps the runs; those that it has are not made again")
    parser.add_argument("--plot", type=Path, help="an image of success over robot steps")
    parser.add_argument("--quick", action="store_true", help="lift, few episodes: whether it runs")
    options = parser.parse_args()
    tasks, seeds = options.tasks.split(","), list(map(int, options.seeds.split(",")))
    if options.quick:
        tasks, seeds, options.episodes = ["lift"], [0], 12
    bars, outcomes = Bars(), {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        for task in tasks:
            for name, settings in VARIANTS.items():
                runs = [learn(folder, task, name, settings, seed, options.episodes) for seed in seeds]
                outcomes[task, name] = runs
                print(row(task, name, runs), flush=True)
    if options.quick:
        bars.left_out("success and robot steps")
        bars.report()
        return
    for task in tasks:
        median = {name: float(np.median([o.steps_to_goal for o in outcomes[task, name]])) for name in VARIANTS}
        alone = min(median["none"], max(one.steps[-1] for one in outcomes[task, "none"]))
        best = min(("hil", "both"), key=median.__getitem__)
        bars.at_most(f"hil_{task}_steps_{best}", median[best] / alone, 0.5)
        bars.at_most(f"hil_{task}_final_rate_{best}", max(one.final_rate for one in outcomes[task, best]), 0.05)
    if options.plot is not None:
        plot(outcomes, tasks, options.plot)
    bars.report()


def learn(folder: Path, task: str, name: str, settings: str, seed: int, episodes: int) -> Outcome:
    """Train, unless the folder has the run."""
    run = folder / "runs" / f"{task}_{name}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (run / "report.html").exists():
        target = f"env={task} demos.scripted=20 demos.noise=0.05"
        if task == PICK_CUBE:
            record_pick_cube(folder)
            target = f"env=gym_hil env.max_steps=40 demos.store={DEMOS} {PLUGIN}"
            settings = settings.replace("teleop.type=scripted", f"teleop.type={PICK_CUBE_PERSON}")
        plaudit(
            folder,
            f"online {target} env.obs=state audit.fraction=0 evaluation.freq=1000 evaluation.episodes=50 "
            f"run.max_episodes={episodes} run.seed={seed} run.name={run.name} {settings}",
        )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval/success_once" in line]
    acted = [(episode.control_mode == HUMAN, episode.fps) for _, episode in Store.open(run / "episodes")]
    return Outcome(
        steps=[line["step"] for line in evaluations],
        success=[line["eval/success_once"] for line in evaluations],
        person_s=sum(human.sum() / fps for human, fps in acted),
        final_rate=float(np.concatenate([human for human, _ in acted[-50:]]).mean()),
        seconds=max(line.get("time/elapsed_s", 0) for line in lines),
    )


def record_pick_cube(folder: Path) -> None:
    """Record 20 demonstrations of the simulated person; those that the folder has are not recorded again."""
    plaudit(
        folder,
        f"record {DEMOS} --robot sim robot.env.type=gym_hil robot.env.obs=state policy.inference.realtime=false "
        f"--teleop {PICK_CUBE_PERSON} teleop.patience=1 teleop.delay=0 teleop.duration=60 {PLUGIN} "
        "--episodes 20 --seed 900 --steps 40 --auto",
    )
    plaudit(folder, f"label {DEMOS} --judge simulator")


def plaudit(folder: Path, words: str) -> None:
    """Run a command in a folder; the person of gym_hil is a module next to this file."""
    command = [sys.executable, "-m", "plaudit", *words.split()]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def row(task: str, name: str, runs: list[Outcome]) -> str:
    """A row of the table in docs/results.md: steps to the goal, last evaluation, person, final rate, wall time."""
    columns = (
        ", ".join(f"{one.steps_to_goal:,.0f}".replace("inf", "never") for one in runs),
        ", ".join(f"{one.success[-1]:.0%}" for one in runs),
        ", ".join(f"{one.person_s:.0f}" for one in runs),
        ", ".join(f"{one.final_rate:.1%}" for one in runs),
        ", ".join(f"{one.seconds:.0f}" for one in runs),
    )
    return f"| `{task}` | {name} | {' | '.join(columns)} |"


def plot(outcomes: dict[tuple[str, str], list[Outcome]], tasks: list[str], path: Path) -> None:
    """Mean success of the seeds over robot steps, and each seed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 3.4), sharey=True, squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for number, name in enumerate(VARIANTS):
            runs = outcomes[task, name]
            grid = np.linspace(0, max(one.steps[-1] for one in runs), 100)
            curves = np.array([np.interp(grid, one.steps, one.success) for one in runs])
            axis.plot(grid, curves.mean(axis=0), color=f"C{number}", label=name)
            axis.fill_between(grid, curves.min(axis=0), curves.max(axis=0), color=f"C{number}", alpha=0.15, lw=0)
        axis.set(title=task, xlabel="robot steps", ylim=(-0.02, 1.02))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("true success")
    axes[0][0].legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
