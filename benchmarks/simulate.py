"""Simulated runs: whole `train` and `online` runs from a seed each, under faults, people and every config.

    python benchmarks/simulate.py [--runs N] [--seed S] [--jobs J] [--trials N] [--quick]
    python benchmarks/simulate.py --replay SEED

Each seed draws a scenario (plaudit.testing) and checks what must hold after every step. A seed that violates something
is shrunk to the smallest scenario that still does, and printed with its event log and the command that replays it.
Then the guarantees that are stated for many runs are measured, each beside its exact binomial bound.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch

from bars import Bars
from plaudit.testing.runner import Result, simulate
from plaudit.testing.scenario import draw
from plaudit.testing.studies import STUDIES, Rate, Study, Summary, describe, shrink
from plaudit.testing.world import InvariantViolated, Violation

T = TypeVar("T")
MAX_SHRUNK = 5  # invariants of which the first violation is shrunk
RUNS_PER_HOUR = 2000  # on two cores
MAX_SECONDS = 600  # of one run, which usually takes one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--trials", type=int, default=300, help="of each guarantee; 0 for none")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one seed, shrink it and print what happens")
    parser.add_argument("--quick", action="store_true", help="few runs and trials: whether it works")
    options = parser.parse_args()
    if options.replay is not None:
        sys.exit(replay(options.replay))
    if options.quick:
        options.runs, options.trials = 24, 6
    bars = Bars()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # processes that are forked cannot use a GPU
    torch.set_num_threads(1)  # the networks are tiny, and each process has its own
    begun = time.monotonic()
    summary = Summary()
    seeds = range(options.seed, options.seed + options.runs)
    summary.add(each(run, seeds, options.jobs, "runs"))
    seconds = time.monotonic() - begun
    print(summary, flush=True)  # the studies take a while; it is printed again at the end
    for invariant in sorted(summary.violations)[:MAX_SHRUNK]:
        print(f"\n{describe(shrink(summary.violations[invariant][0]))}\n", flush=True)
    rates = [*summary.rates, *(measure(study, options) for study in STUDIES if options.trials)]
    print(f"\n{summary}\n{seconds:.0f} s, {options.jobs} processes, seeds from {options.seed:,}", flush=True)
    for rate in rates:
        print(rate, flush=True)
    bars.exactly("simulate_violations", sum(map(len, summary.violations.values())), 0)
    bars.exactly("simulate_broken_guarantees", sum(not rate.holds for rate in rates), 0)
    bars.at_least("simulate_runs_per_hour", 3600 * options.runs / seconds, RUNS_PER_HOUR)
    bars.report()


def run(seed: int) -> Result:
    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(MAX_SECONDS)
    try:
        return simulate(draw(seed))
    finally:
        signal.alarm(0)


def hangs(*_: object) -> None:
    raise InvariantViolated(Violation("ends", f"the run has not ended after {MAX_SECONDS} s"))


def measure(study: Study, options: Any) -> Rate:
    failed = sum(each(study.trial, range(options.seed, options.seed + options.trials), options.jobs, study.name))
    return Rate(study.name, study.limit, failed, options.trials)


def each(call: Callable[[int], T], seeds: Iterable[int], jobs: int, what: str) -> Iterator[T]:
    """The results, in processes of their own; progress goes to stderr."""
    seeds = list(seeds)
    if jobs == 1:
        yield from map(call, seeds)
        return
    gc.freeze()  # what is imported is shared, and not looked through again by each collection
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for number, result in enumerate(pool.imap(partial(call), seeds, chunksize=2), 1):
            if isinstance(result, Result) and result.violation is not None:
                print(f"{what}: seed {result.scenario.seed} {result.violation}", file=sys.stderr, flush=True)
            if number % 100 == 0:
                print(f"{what}: {number} of {len(seeds)}", file=sys.stderr, flush=True)
            yield result


def replay(seed: int) -> int:
    """One seed, as it is and as small as it gets; the exit status."""
    result = run(seed)
    print(describe(result))
    if result.violation is None:
        print("no invariant was violated")
        return 0
    print(f"\nviolated: {result.violation.message}\n\nthe smallest scenario that still violates it:")
    print(describe(shrink(result)))
    return 1


if __name__ == "__main__":
    main()
