"""What must never happen, tried: the store, the importers, the commands and what they read, under attack.

    python benchmarks/attack.py [--quick] [--seed N] [--only store]

Every class of attack is counted on a line of its own: how often it was tried, how often Plaudit lost or refused
something and said so, how often it came through. What came through is printed with what is needed to see it again.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np

from attacks.tally import BREACHES, Tally
from bars import Bars

MEMORY = 1 << 30  # bytes that a hostile file may cost above a normal import
SHOWN = 5  # of what came through in one class

TARGETS = ("store", "strangers", "datasets", "weights", "commands")  # modules of attacks/


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TARGETS, action="append", help="a target; all of them when not given")
    parser.add_argument("--quick", action="store_true", help="a few of each class")
    options = parser.parse_args()
    tallies: list[Tally] = []
    for name in options.only or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng([options.seed, *name.encode()])
            target = import_module(f"attacks.{name}")  # only what is attacked: some of them import torch
            tallies += run(target.attacks(Path(folder), rng, options.quick))
    report(tallies).report()


def run(attacks: Iterator[Tally]) -> Iterator[Tally]:
    """Print a line for each class when it is done."""
    began = time.monotonic()
    for tally in attacks:
        came_through = sum(map(len, tally.breaches.values()))
        spent = time.monotonic() - began
        print(
            f"{tally.name}: {tally.tried:,} tried, {tally.named:,} named, {came_through} came through, {spent:.0f} s",
            flush=True,
        )
        for kind, sentences in tally.breaches.items():
            for sentence in sentences[:SHOWN]:
                print(f"    {kind}: {sentence}", flush=True)
        yield tally
        began = time.monotonic()


def report(tallies: list[Tally]) -> Bars:
    bars = Bars()
    counts = Counter(kind for tally in tallies for kind, found in tally.breaches.items() for _ in found)
    bars.at_least("attack_tried", sum(tally.tried for tally in tallies), 1)
    for kind in BREACHES:
        bars.exactly(f"attack_{kind}", counts[kind], 0)
    bars.at_most("attack_memory_gb", max((t.extra_bytes for t in tallies), default=0) / MEMORY, 1)
    return bars


if __name__ == "__main__":
    main()
