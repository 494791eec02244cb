"""The smallest scenario that still violates the same invariant: what is not needed is left out, one thing at a time."""

from collections.abc import Iterator
from dataclasses import replace

from plaudit.errors import PlauditError
from plaudit.testing.people import Habits
from plaudit.testing.runner import Result, simulate
from plaudit.testing.scenario import Scenario

MAX_RUNS = 150


def shrink(smallest: Result, max_runs: int = MAX_RUNS) -> Result:
    """The result of the smallest scenario that was found."""
    assert smallest.violation is not None
    invariant, runs, smaller = smallest.violation.invariant, 0, True
    while smaller and runs < max_runs:
        smaller = False
        for scenario in _simpler(smallest.scenario):
            runs += 1
            result = _try(scenario)
            if result is not None and result.violation and result.violation.invariant == invariant:
                smallest, smaller = result, True
                break
            if runs >= max_runs:
                break
    return smallest


def _try(scenario: Scenario) -> Result | None:
    try:
        return simulate(scenario)
    except PlauditError:  # validation refuses the rest
        return None


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
