"""What the audit of a judge promises, in simulated runs: honest judges go on, fooled ones are stopped soon.

    python benchmarks/trust.py [--runs N] [--seed N] [--quick]

A run is 1,000 episodes of a policy that gets better, a judge, and the audit of `plaudit train` with its default
settings, which draws episodes, tests, and reports. Honest judges are as bad as is allowed in half of the runs (10% of
their successes are false) and better in the others. Fooled ones are honest until a random moment; from there on, over
up to 100 episodes, the policy learns to please the judge: judged success rises, and of it half to all is false.

Beside it, in the same runs, the alarm that this one replaced, and its audits: the first 20 episodes and a quarter of
the others; a sequential test, then a fixed limit of 20% false or missed successes among the last 60 audited episodes.
"""

import argparse
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bars import Bars
from plaudit.training.audit import Audit, AuditConfig, hashed_uniform

EPISODES = 1000
REPORTS = 100  # episodes between two looks at the intervals
CONFIG = AuditConfig()


class Episode(NamedTuple):
    """What the judge says of it, and what is true."""

    judged: bool
    true: bool


@dataclass
class Run:
    """Its episodes, and when the judge begins to be fooled."""

    episodes: list[Episode]
    change: int | None  # None: never

    def paid(self, end: int) -> int:
        """False successes since then."""
        return sum(judged and not true for judged, true in self.episodes[self.change : end])


@dataclass
class Outcome:
    """How an alarm fared in a run."""

    stopped: int | None  # after so many episodes
    audited: int
    covered: list[bool] = field(default_factory=list)  # of the reported intervals, whether they held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="40 runs of each kind")
    options = parser.parse_args()
    count = 40 if options.quick else options.runs
    seeds = range(options.seed * 10_000, options.seed * 10_000 + count)
    honest = [simulate(seed, fooled=False) for seed in seeds]
    fooled = [simulate(seed, fooled=True) for seed in seeds]
    compare(honest, fooled, seeds).report()


def simulate(seed: int, fooled: bool) -> Run:
    """The episodes of a run."""
    rng = np.random.default_rng([seed, fooled])
    start, share = rng.uniform(0.05, 0.3), CONFIG.max_false
    if fooled or rng.random() < 0.5:
        share *= rng.uniform(0, 1)
    change, ramp, worst = int(rng.integers(int(0.8 * EPISODES))), int(rng.integers(1, 101)), rng.uniform(0.5, 1)
    episodes = []
    for moment in range(EPISODES):
        exploited = min(1.0, max(0, moment - change + 1) / ramp) if fooled else 0.0
        false = share + (worst - share) * exploited
        judged_rate = max((start + 0.6 * moment / EPISODES) / (1 - share), 0.9 * exploited)
        judged = bool(rng.random() < judged_rate)
        episodes.append(Episode(judged, bool(rng.random() >= false) if judged else bool(rng.random() < 0.05)))
    return Run(episodes, change if fooled else None)


def audited(run: Run, seed: int) -> Outcome:
    """By the audit as it is."""
    audit = Audit(CONFIG, seed)
    found = Outcome(None, 0)
    for number, (judged, true) in enumerate(run.episodes):
        if audit.draws(number, judged):
            audit.add(number, true)
        if (number + 1) % REPORTS == 0 or audit.alarm is not None:
            found.covered += intervals_hold(audit, run.episodes[: number + 1])
        if audit.alarm is not None:
            found.stopped = number + 1
            break
    found.audited = audit.num_episodes
    return found


def intervals_hold(audit: Audit, episodes: list[Episode]) -> Iterator[bool]:
    """Whether each of the three that a run reports has what is true of its episodes."""
    successes = [true for judged, true in episodes if judged]
    truths = [
        (audit.corrected_success, np.mean([true for _, true in episodes[-CONFIG.window :]])),
        (audit.false_successes, 1 - np.mean(successes) if successes else 0.0),
        (audit.missed_successes, np.mean([true and not judged for judged, true in episodes])),
    ]
    return (estimate.low - 1e-9 <= truth <= estimate.high + 1e-9 for estimate, truth in truths)


def audited_by_fixed_gap(run: Run, seed: int) -> Outcome:
    """By the alarm of before."""
    newest: deque[Episode] = deque(maxlen=60)
    count = 0
    for number, episode in enumerate(run.episodes):
        if hashed_uniform(seed, "audit", number) < (1.0 if number < 20 else 0.25):
            newest.append(episode)
            count += 1
            false, missed = (sum(e == kind for e in newest) for kind in (Episode(True, False), Episode(False, True)))
            wrong, right = false + missed, len(newest) - false - missed
            likely = wrong * math.log(0.5 / 0.1) + right * math.log(0.5 / 0.9) >= -math.log(0.02)
            if max(false, missed) > 0.2 * len(newest) if len(newest) >= 20 else len(newest) >= 5 and likely:
                return Outcome(number + 1, count)
    return Outcome(None, count)


def compare(honest: list[Run], fooled: list[Run], seeds: range) -> Bars:
    """Both alarms in all runs, as a table and as bars."""
    bars, covered = Bars(), []
    for name, alarm in (("now", audited), ("fixed gap, before", audited_by_fixed_gap)):
        of_honest = [alarm(run, seed) for run, seed in zip(honest, seeds, strict=True)]
        of_fooled = [alarm(run, seed) for run, seed in zip(fooled, seeds, strict=True)]
        false_alarms = float(np.mean([outcome.stopped is not None for outcome in of_honest]))
        paid = [run.paid(outcome.stopped or EPISODES) for run, outcome in zip(fooled, of_fooled, strict=True)]
        changes = [run.change or 0 for run in fooled]
        too_soon = sum(o.stopped is not None and o.stopped <= at for at, o in zip(changes, of_fooled, strict=True))
        never = sum(outcome.stopped is None for outcome in of_fooled)
        used = sum(outcome.audited for outcome in of_honest) / sum(outcome.stopped or EPISODES for outcome in of_honest)
        median, worst = np.quantile(paid, [0.5, 0.95])
        print(
            f"{name}: {false_alarms:.1%} of {len(honest)} honest runs stopped, {used:.0%} of their episodes audited; "
            f"{median:.0f} false successes paid in the median of {len(fooled)} fooled runs, {worst:.0f} at the 95th "
            f"percentile ({too_soon} stopped before the change, {never} never)",
            flush=True,
        )
        if alarm is audited:
            covered = [held for outcome in of_honest + of_fooled for held in outcome.covered]
            bars.at_most("trust_honest_stopped", false_alarms, 0.05)
            bars.at_most("trust_paid_median", median, 20)
            bars.at_most("trust_paid_95th", worst, 20)
    print(f"{len(covered):,} intervals of 95% reported, {np.mean(covered):.1%} hold", flush=True)
    bars.at_least("trust_coverage", float(np.mean(covered)), 0.95)
    return bars


if __name__ == "__main__":
    main()
