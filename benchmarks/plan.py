"""How well does `plaudit judge plan` predict? True success that is predicted and achieved under a judge's errors.

    python benchmarks/plan.py                 18 settings, 5 runs each, against the table of the package
    python benchmarks/plan.py --fit           make that table again: 180 runs
    python benchmarks/plan.py --docs          write the table of docs/judges.md, from the table of the package
    python benchmarks/plan.py --quick         short runs of one task: whether it runs, not how well it predicts

A run takes half a minute of one core. The runs that the predictions are made from have other seeds and other levels of
errors than those that check them; errors of two kinds at once were never part of the former. Runs are printed as JSON,
a line each; --seconds leaves out what has not ended by then, and --runs FILE takes lines of an earlier call.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import plaudit.judges
from bars import Bars
from plaudit.judges.plan import TABLE_FILE, NoiseRun, PlanTable
from plaudit.report.tables import BOTH, describe_noise, describe_prediction
from plaudit.training.noise_runs import LEVELS, Setting, make_runs, recipe, settings_to_run

TASKS = ("lift", "push", "pick_place")
CHECKED = (
    {"false_positives": 0.1},
    {"false_positives": 0.35},
    {"misses": 0.1},
    {"misses": 0.35},
    {"false_positives": 0.3, "misses": 0.3},
    {"tricks": 0.6},
)
FIT_SEEDS = (0, 1, 2, 3, 4)
CHECK_SEEDS = (200, 201, 202, 203, 204)
WITHIN = 0.05  # of predicted and achieved success
PACKAGED = Path(plaudit.judges.__file__).with_name(TABLE_FILE)
DOCS = Path(__file__).parent.parent / "docs" / "judges.md"
BEGIN, END = "<!-- made by benchmarks/plan.py -->\n", "<!-- end -->"
DOCS_ROWS: list[dict[str, float]] = [
    {},
    *({kind: level} for kind in BOTH for level in (0.1, 0.2, 0.4, 0.8)),
    *(dict.fromkeys(BOTH, level) for level in (0.1, 0.2, 0.4)),
    *({"tricks": level} for level in (0.2, 0.5, 1.0)),
    {"late_by": 64},
]
QUICK = ("run.max_steps=1500", "learner.pretrain_updates=100", "run.num_envs=16", "demos.scripted=4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true", help="make the table of the package again")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/judges.md")
    parser.add_argument("--quick", action="store_true", help="short runs: whether it runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    parser.add_argument("--seconds", type=float, help="leave out what has not ended by then")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--runs", type=Path, help="lines of runs that an earlier call printed; make no others")
    options = parser.parse_args()
    if options.quick:
        quick(options.jobs)
        return
    if options.fit:
        settings = [one for seed in FIT_SEEDS for task in options.tasks for one in settings_to_run(task, (seed,))]
        save_table(runs_of(settings, options))
    if options.docs:
        write_docs(PlanTable.built_in())
    if not (options.fit or options.docs):
        settings = [Setting(task, noise, seed) for seed in CHECK_SEEDS for task in options.tasks for noise in CHECKED]
        bars = Bars()
        for task, gaps in compare(PlanTable.built_in(), runs_of(settings, options)).items():
            bars.at_most(f"plan_{task}_largest_gap_of_{len(gaps)}_settings", max(gaps), WITHIN)
            bars.at_least(f"plan_{task}_settings_within_5_points", sum(gap <= WITHIN for gap in gaps), len(CHECKED))
        bars.report()


def quick(jobs: int) -> None:
    settings = [Setting("lift", noise, seed, more=QUICK) for seed in (0, 1) for noise in ({}, {"misses": 0.5})]
    runs = list(make_runs(settings, jobs))
    table = PlanTable(recipes={"lift": {"ppo": recipe("lift", "ppo")}}, runs=tuple(runs))
    checks = list(make_runs([Setting("lift", {"misses": 0.3}, 2, more=QUICK)], jobs))
    bars = Bars()
    bars.exactly("plan_settings_compared", len(compare(table, checks)["lift"]), 1)
    bars.left_out("how near predicted and achieved success are")
    bars.report()


def runs_of(settings: Sequence[Setting], options: argparse.Namespace) -> list[NoiseRun]:
    if options.runs is not None:
        lines = options.runs.read_text().splitlines()
        return [NoiseRun(**json.loads(line)) for line in lines if line.startswith("{")]
    runs = []
    for run in make_runs(settings, options.jobs, options.seconds):
        print(run.model_dump_json(), flush=True)
        runs.append(run)
    return runs


def save_table(runs: list[NoiseRun]) -> None:
    """As the package has it, the main learner's runs first."""
    runs = sorted(runs, key=lambda run: (TASKS.index(run.env), run.learner, str(run.noise), run.seed))
    recipes = {task: {learner: recipe(task, learner) for learner in LEVELS} for task in TASKS}
    PlanTable(recipes=recipes, runs=tuple(runs)).save(PACKAGED)
    print(f"{len(runs)} runs in {PACKAGED}", file=sys.stderr)


def compare(table: PlanTable, runs: list[NoiseRun]) -> dict[str, list[float]]:
    """task -> how far predicted success is from what was achieved, in each setting."""
    gaps: dict[str, list[float]] = {run.env: [] for run in runs}
    for task in gaps:
        for noise in sorted({json.dumps(run.noise) for run in runs if run.env == task}):
            found = [run.success for run in runs if run.env == task and json.dumps(run.noise) == noise]
            predicted = table.plan(task).predict(json.loads(noise))
            gaps[task].append(float(abs(predicted.success - np.mean(found))))
            ranged = f"{min(found):.0%} to {max(found):.0%} in {len(found)} runs"
            print(f"{task:10} {noise:48} predicted {predicted.success:6.1%} achieved {np.mean(found):6.1%} ({ranged})")
    return gaps


def write_docs(table: PlanTable) -> None:
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END, 1)
    DOCS.write_text(before + BEGIN + markdown_table(table) + END + after)


def markdown_table(table: PlanTable) -> str:
    """For docs: success of all tasks, and what 90% needs."""
    plans = [table.plan(env) for env in table.recipes]
    rows: list[Sequence[str]] = [("the judge is wrong", *(f"`{plan.env}`" for plan in plans))]
    rows.append(["---"] * (len(plans) + 1))
    for noise in DOCS_ROWS:
        cells = [describe_prediction(p.predict(noise)) if set(noise) <= set(p.curves) else "-" for p in plans]
        rows.append((describe_noise(noise), *cells))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
