"""The results of simulated runs: counts, violations, the rate of each guarantee, and the smallest scenario that still
violates an invariant."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from plaudit.errors import PlauditError
from plaudit.testing.people import Habits
from plaudit.testing.runner import Result, simulate
from plaudit.testing.scenario import KEYS, Scenario

CONFIDENCE = 0.99  # with which a guarantee is reported as broken
MAX_RUNS = 150  # in search of the smallest scenario


@dataclass(frozen=True)
class Rate:
    """Failures among trials, and the rate that is guaranteed."""

    name: str
    limit: float
    failures: int
    trials: int

    def bound(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """The exact binomial interval (Clopper and Pearson), one-sided in each direction."""
        from scipy.stats import binomtest

        interval = binomtest(self.failures, self.trials).proportion_ci(2 * confidence - 1, method="exact")
        return float(interval.low), float(interval.high)

    @property
    def holds(self) -> bool:
        """Whether the failures are no more than chance allows."""
        return self.bound()[0] <= self.limit

    def __str__(self) -> str:
        low, high = self.bound()
        rate = self.failures / self.trials if self.trials else 0.0
        state = "holds" if self.holds else "BROKEN"
        return (
            f"{self.name:16} {self.failures:4} of {self.trials:5} = {rate:6.1%} [{low:.1%}, {high:.1%}], "
            f"at most {self.limit:.0%}: {state}"
        )


@dataclass
class Summary:
    """Counts, violations and rates of many runs."""

    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    keys: set[str] = field(default_factory=set)
    violations: dict[str, list[Result]] = field(default_factory=dict)  # by invariant
    honest: list[bool] = field(default_factory=list)
    equal: list[bool] = field(default_factory=list)

    def add(self, results: Iterable[Result]) -> None:
        """Count runs."""
        for result in results:
            self.runs += 1
            self.counts += result.counts
            self.keys |= result.scenario.keys.keys()
            if result.violation is not None:
                self.violations.setdefault(result.violation.invariant, []).append(result)
            if result.alarm is not None and result.scenario.honest:
                self.honest.append(result.alarm)
            if result.equal_promoted is not None:
                self.equal.append(result.equal_promoted)

    @property
    def rates(self) -> list[Rate]:
        """How often each guarantee failed, over whole runs."""
        rates = {"alarms_in_runs": self.honest, "equal_in_runs": self.equal}
        return [Rate(name, 0.05, sum(failed), len(failed)) for name, failed in rates.items() if failed]

    def __str__(self) -> str:
        counted = ", ".join(f"{count:,} {name}" for name, count in sorted(self.counts.items()) if count)
        broken = [
            f"{name}: {len(results)} runs, first seed {results[0].scenario.seed}: {results[0].violation.message}"
            for name, results in sorted(self.violations.items())
            if results[0].violation is not None
        ]
        return "\n".join(
            [
                f"{self.runs:,} runs: {counted}",
                f"{len(self.keys & KEYS.keys())} of {len(KEYS)} config keys were set"
                + (f", not: {', '.join(missing)}" if 0 < len(missing := sorted(KEYS.keys() - self.keys)) <= 12 else ""),
                *(broken or ["no invariant was violated"]),
            ]
        )


def shrink(smallest: Result, max_runs: int = MAX_RUNS) -> Result:
    """Leave out what is not needed, one thing at a time; returns the result of the smallest scenario."""
    assert smallest.violation is not None
    invariant, candidates = smallest.violation.invariant, _simpler(smallest.scenario)
    for _ in range(max_runs):
        scenario = next(candidates, None)
        if scenario is None:
            break
        with suppress(PlauditError):  # validation refuses the rest
            result = simulate(scenario)
            if result.violation and result.violation.invariant == invariant:
                smallest, candidates = result, _simpler(scenario)
    return smallest


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """With one thing less, the largest first."""
    if scenario.events:
        yield replace(scenario, events=())
    for event in scenario.events:
        yield replace(scenario, events=tuple(e for e in scenario.events if e is not event))
    for key in scenario.keys:
        yield replace(scenario, keys={k: v for k, v in scenario.keys.items() if k != key})
    for name, value in scenario.errors.items():
        if value:
            yield replace(scenario, errors={**scenario.errors, name: 0})
    if scenario.habits != Habits():
        yield replace(scenario, habits=Habits())
    for episodes in (5, 10, 20, 40):
        if episodes < scenario.episodes:
            yield replace(scenario, episodes=episodes)


def describe(result: Result) -> str:
    """The scenario and what happened, for people."""
    scenario = result.scenario
    lines = [
        f"seed {scenario.seed}: {result.violation.invariant if result.violation else 'nothing'} is violated",
        f"replay: python benchmarks/simulate.py --replay {scenario.seed}",
        f"{scenario.schedule}, judge {scenario.judge}, {scenario.episodes} episodes",
        f"config: {' '.join(f'{key}={value}' for key, value in scenario.keys.items()) or 'as it is by default'}",
        f"judge errs: { {name: value for name, value in scenario.errors.items() if value} or 'never' }",
        f"people: {scenario.habits}",
        *(f"event: {event}" for event in scenario.events),
        *result.log[-40:],
    ]
    return "\n".join(lines)
