"""What many simulated runs come to: counts, violations, and the measured rate and bound of each guarantee."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from plaudit.testing.runner import Result
from plaudit.testing.scenario import KEYS

CONFIDENCE = 0.99  # with which a guarantee is said to be broken


@dataclass(frozen=True)
class Rate:
    """Failures among trials, beside what is promised."""

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
    """Of many runs."""

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
        """Of the guarantees, over whole runs."""
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
                f"{len(self.keys)} of {len(KEYS)} config keys were set",
                *(broken or ["no invariant was violated"]),
            ]
        )
