"""Mutation check of the run simulator: each fixed bug is put back, and the simulator has to find it.

    python benchmarks/mutations.py [--seeds N] [--trials N] [--jobs J] [--quick] [NAME ...]

Every mutation is applied to a copy of the source of its own, so several can be tried at a time. The simulator then runs
the same seeds as for any other change, with no hint about what was changed, until an invariant is violated or a
guarantee is broken.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bars import Bars

ROOT = Path(__file__).resolve().parents[1]
GOAL = 12


@dataclass(frozen=True)
class Mutation:
    """A bug that was fixed: the fixed lines, and what stands there with the bug."""

    name: str
    file: str
    fixed: str
    broken: str
    also: tuple[str, str, str] | None = None  # a second place: file, fixed, broken

    @property
    def edits(self) -> list[tuple[str, str, str]]:
        """(file, fixed, broken) of each place."""
        return [(self.file, self.fixed, self.broken), *([] if self.also is None else [self.also])]


MUTATIONS = (
    Mutation(
        "bet_exceeds_stake",
        "judges/stats.py",
        "np.minimum(np.append(FIXED_BETS, follow) / self._allowed, MAX_BET / allowed)",
        "np.append(FIXED_BETS, follow) / self._allowed",
    ),
    Mutation(
        "compared_on_chosen_episodes",
        "training/retrain.py",
        "fair = unchosen is None or episode_id in unchosen or self.is_by_lot(store, episode_id)",
        "fair = True",
    ),
    Mutation("mark_without_progress", "data/step_table.py", 'update={"shaping": 0.0}', "update={}"),
    Mutation(
        "stopped_judge_is_sampled",
        "training/monitor.py",
        "return frozenset() if self.audit is None else self.audit.rejected",
        "return frozenset()",
        ("training/online.py", " and not self.state.replay.outdated\n", "\n"),
    ),
    Mutation(
        "shaping_of_lost_episode_kept", "data/rewards.py", "ended & ~success, env_info", "ended & False, env_info"
    ),
    Mutation(
        "people_do_not_count", "data/ledger.py", "return PEOPLE | {judge}", 'return frozenset({judge, "operator"})'
    ),
    Mutation(
        "answers_tested_as_they_come",
        "training/audit.py",
        "            episode, prediction = next(iter(self._untested.items()))\n"
        "            if prediction.drawn and not prediction.closed and answered < PATIENCE:\n"
        "                return\n",
        "            done = [e for e, p in self._untested.items() if p.closed or not p.drawn]\n"
        "            if not done:\n"
        "                return\n"
        "            episode, prediction = done[0], self._untested[done[0]]\n",
    ),
    Mutation(
        "chunks_executed_in_part",
        "training/config.py",
        "and settings.realtime and not whole else",
        "and settings.realtime else",
    ),
    Mutation("failure_ends_nothing", "rollout/engine.py", 'FAILURE = "failure"', 'FAILURE = "no such flag"'),
    Mutation(
        "estimate_outside_its_interval",
        "judges/stats.py",
        "return min(max(self.errors, low), high), low, high",
        "return self.answers * (self.sure_errors + self.weighted_errors) / max(self.checked, 1), low, high",
    ),
    Mutation(
        "simulator_releases_strange_episodes",
        "training/audit.py",
        "        stored = set(store.ids)\n",
        "        stored = set(store.ids)\n"
        "        for i in sorted(self._answers.keys() & stored):\n"
        "            found = store.ledger.newest(i, {self.source})\n"
        "            labels = None if found is None else found.labels()\n"
        "            if labels is not None and labels.withheld and self._answers[i].labels().success_once == "
        "release(labels).success_once:\n"
        "                store.ledger.append(i, release(labels))\n",
        ("training/config.py", 'ood = "audit" if config.human_audits else "abstain"', 'ood = "audit"'),
    ),
    Mutation("operator_failure_bootstrapped", "data/step_table.py", 'line["meta"].get(OPERATOR) == "failure"', "False"),
    Mutation("success_at_start_is_paid", "rule.py", "return judge.source not in TRUSTED and", "return False and"),
    Mutation(
        "faults_use_no_patience",
        "training/online.py",
        "        self.state.add_episode(info)\n        if info.fault:",
        '        self.events.recovered("env")\n        self.state.add_episode(info)\n        if info.fault:',
    ),
    Mutation(
        "early_is_false",
        "training/audit.py",
        "return true_first <= first + tolerance, first",
        "return true_first <= first, first",
    ),
    Mutation(
        "update_after_alarm",
        "training/trainer.py",
        '            if not self.audit.blocks_learning:\n                self.phase = "updating"',
        '            if True:\n                self.phase = "updating"',
    ),
    Mutation("exclusion_of_demos_ignored", "training/replay_buffer.py", "labeled.ledger.extend([", "_ = list(["),
)


def detect(mutation: Mutation, seeds: int, trials: int) -> bool:
    """Whether something finds a mutation; prints what, after how many seeds, and in how many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for file, fixed, broken in mutation.edits:
            path = source / "plaudit" / file
            text = path.read_text()
            if text.count(fixed) != 1:
                sys.exit(f"{mutation.name}: its lines are not in {file} once; update benchmarks/mutations.py")
            path.write_text(text.replace(fixed, broken))
        began = time.monotonic()
        command = [sys.executable, __file__, "--detect", str(seeds), str(trials)]
        path = os.pathsep.join([str(source), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{mutation.name}: {done.stderr[-2000:]}")
        what, needed = done.stdout.strip().splitlines()[-1].split("|")
        seconds = time.monotonic() - began
        print(f"{mutation.name:36} {what or 'NOT FOUND':20} {needed:>5} seeds {seconds:7.1f} s", flush=True)
        return bool(what)


def search(seeds: int, trials: int) -> str:
    """In the process of a mutation: the first invariant that is violated, or guarantee that is broken."""
    from plaudit.testing.runner import simulate
    from plaudit.testing.scenario import draw
    from plaudit.testing.studies import STUDIES, Rate

    for seed in range(seeds):
        found = simulate(draw(seed)).violation
        if found is not None:
            return f"{found.invariant}|{seed + 1}"
    for study in STUDIES:
        failed = 0
        for trial in range(trials):
            failed += study.trial(trial)
            if not Rate(study.name, study.limit, failed, trial + 1).holds:
                return f"{study.name}|{seeds + trial + 1}"
    return f"|{seeds}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of mutations; none: all")
    parser.add_argument("--seeds", type=int, default=150)
    parser.add_argument("--trials", type=int, default=60, help="of each guarantee")
    parser.add_argument("--jobs", type=int, default=1, help="mutations at a time")
    parser.add_argument("--quick", action="store_true", help="two mutations, few seeds: whether it works")
    parser.add_argument("--detect", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.detect:
        print(search(*options.detect))
        return
    known = [mutation.name for mutation in MUTATIONS]
    for name in options.names:
        if name not in known:
            parser.error(f"there is no mutation '{name}'; known: {', '.join(known)}")
    chosen = [m for m in MUTATIONS if not options.names or m.name in options.names]
    if options.quick:
        swift = ("people_do_not_count", "success_at_start_is_paid")
        chosen, options.seeds, options.trials = [m for m in MUTATIONS if m.name in swift], 20, 0
    bars = Bars()
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda mutation: detect(mutation, options.seeds, options.trials), chosen))
    bars.at_least("mutations_found", sum(found), min(GOAL, len(chosen)))
    bars.report()


if __name__ == "__main__":
    main()
