"""The guarantees that hold across runs, each tried many times, and the results of many simulated runs.

    for study in STUDIES: failures = sum(study.trial(seed) for seed in range(100))

A study has a limit on how often it may fail. Studies go through the real audit, retraining and rights on real stores,
without a robot and a learner: one trial takes a fraction of a second, and a rate near 5% needs hundreds. The results of
runs are counts, violations, the rate of each guarantee, and the smallest scenario that still violates an invariant.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import PlauditError
from plaudit.judges.exam import examine
from plaudit.judges.guarantee import prove_rights
from plaudit.judges.labeling import SuccessDetector, label_episodes
from plaudit.judges.metrics import EpisodePrediction
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import collect_rollout
from plaudit.rule import DecisionRule
from plaudit.testing.env import SimulatedEnvConfig, SimulatedJudgeConfig, write_model
from plaudit.testing.faults import SimulatedDisk, simulated_machine
from plaudit.testing.keys import NEVER, belongs
from plaudit.testing.learner import ON_POLICY
from plaudit.testing.people import Habits
from plaudit.testing.runner import Result, simulate, temporary_folder
from plaudit.testing.scenario import FIXED, Scenario, every_key
from plaudit.testing.world import World, entered, pick, uniform
from plaudit.training.audit import AuditConfig, LedgerAudit
from plaudit.training.config import RetrainConfig
from plaudit.training.retrain import Retrainer
from plaudit.types import Episode, JudgeId, Labels

BATCH = 8  # episodes that a judge labels before the audit looks
MAX_PAID = 20  # false successes before the alarm


@dataclass(frozen=True)
class Study:
    """A guarantee."""

    name: str
    limit: float  # of the trials, the fraction that may fail
    trial: Callable[[int], bool]  # seed -> whether it failed


@contextmanager
def _machine(seed: int, candidate: str = "") -> Iterator[Path]:
    """A temporary folder on a simulated machine. candidate: see `World`"""
    with (
        entered(World(seed, candidate=candidate)) as world,
        temporary_folder() as folder,
        simulated_machine(world, SimulatedDisk(world, {}, {})),
    ):
        yield folder


@contextmanager
def _store(seed: int) -> Iterator[Store]:
    with _machine(seed) as folder, Store.create(folder / "store") as store:
        yield store


def _add_judged(store: Store, predicted: list[bool], wrong: list[bool]) -> list[int]:
    """Store episodes of one step with a judge's labels; returns their ids. wrong: where the judge errs"""
    actions, state = np.zeros((1, 1)), np.zeros((2, 1), np.float32)
    truths = [{"success": np.array([success != error])} for success, error in zip(predicted, wrong, strict=True)]
    ids = store.extend([Episode.of(frames={}, actions=actions, state=state, privileged=truth) for truth in truths])
    labels = [Labels.from_cutoff(steps=1, cutoff=1 if one else None, source="classifier") for one in predicted]
    store.ledger.extend((i, replace(one, judge=JudgeId("classifier", "a"))) for i, one in zip(ids, labels))
    return ids


def honest_alarm(seed: int) -> bool:
    """An honest judge is stopped, while people answer in any order."""
    order = pick(("in order", "random", "errors first"), seed, "order")
    false, missed = pick((0.1, 0.09), seed, "false"), pick((0.2, 0.1), seed, "missed")
    rate, due, truths = 0.5 + 0.45 * uniform(seed, "rate"), dict[int, int](), dict[int, bool]()
    with _store(seed) as store:
        audit = LedgerAudit(AuditConfig(by="human"), "classifier", seed)
        for start in range(0, 400, BATCH):
            success = [uniform(seed, "says", start + n) < rate for n in range(BATCH)]
            wrong = [uniform(seed, "wrong", start + n) < (false if s else missed) for n, s in enumerate(success)]
            truths |= {i: s != w for i, s, w in zip(_add_judged(store, success, wrong), success, wrong)}
            for i in audit.requested(store):
                at_once = order == "in order" or (order == "errors first" and wrong[i - start] if i >= start else False)
                delay = 0 if at_once else 400 if order == "errors first" else int(60 * uniform(seed, "delay", i))
                due.setdefault(i, start + delay)
            for i in sorted((i for i, when in due.items() if when <= start), key=lambda i: (due[i], i)):
                due[i] = 10**9
                cutoff = 1 if truths[i] else None
                store.ledger.append(i, Labels.from_cutoff(steps=1, cutoff=cutoff, source="human"))
            audit.read_labels(store)
            if audit.current.alarm is not None:
                return True
    return False


def exploited_long(seed: int) -> bool:
    """A judge that begins to be exploited pays more than 20 false successes before it is stopped."""
    change, share = int(150 * uniform(seed, "change")), 0.5 + 0.5 * uniform(seed, "share")
    rate, paid = 0.3 + 0.6 * uniform(seed, "rate"), 0
    with _store(seed) as store:
        audit = LedgerAudit(AuditConfig(), "classifier", seed)
        for n in range(change + 400):
            success = uniform(seed, "says", n) < rate
            wrong = success and uniform(seed, "wrong", n) < (share if n >= change else 0.03)
            _add_judged(store, [success], [wrong])
            audit.read_labels(store)
            if audit.current.alarm is not None:
                return False
            paid += wrong and n >= change
            if paid > MAX_PAID:
                return True
    return False


def interval_misses(seed: int) -> bool:
    """The interval of the false successes misses their true fraction at some moment."""
    rate, false = uniform(seed, "rate"), uniform(seed, "false") ** 2
    fraction, successes, wrongs = pick((0.1, 0.25, 0.5), seed, "fraction"), 0, 0
    config = AuditConfig(fraction=fraction, first_episodes=10, on_alarm="warn", window=50)
    with _store(seed) as store:
        audit = LedgerAudit(config, "classifier", seed)
        for start in range(0, 200, BATCH):
            success = [uniform(seed, "says", start + n) < rate for n in range(BATCH)]
            wrong = [s and uniform(seed, "wrong", start + n) < false for n, s in enumerate(success)]
            _add_judged(store, success, wrong)
            audit.read_labels(store)
            successes, wrongs = successes + sum(success), wrongs + sum(wrong)
            estimate = audit.current.false_successes
            if successes and not estimate.low - 1e-9 <= wrongs / successes <= estimate.high + 1e-9:
                return True
    return False


def equal_promoted(seed: int) -> bool:
    """A candidate that is as good as the current judge takes its place."""
    watched = pick((False, True), seed, "watched")  # a person labels the errors that they notice
    with _machine(seed, candidate="equal") as folder, Store.create(folder / "episodes") as store:
        first = SimulatedJudgeConfig(model=write_model(folder / "model", {"false": 0.3, "missed": 0.1}), force=True)
        audit = LedgerAudit(AuditConfig(on_alarm="warn"), "classifier", seed)
        for part in range(6):
            episodes = _make_episodes(seed * 100_003 + 50 * part)
            ids = store.extend(episodes)
            labels = [one for one in label_episodes(first.build(), episodes) if isinstance(one, Labels)]
            for at in range(0, 50, BATCH):
                chunk = list(zip(ids, labels, episodes, strict=True))[at : at + BATCH]
                store.ledger.extend((i, one) for i, one, _ in chunk)
                audit.read_labels(store)
                errors = [(i, e) for i, one, e in chunk if one.success_once and not _succeeds(e)]
                for i, episode in errors if watched else ():
                    store.ledger.append(i, Labels.from_cutoff(steps=episode.steps, cutoff=None, source="human"))
        retrainer = Retrainer(folder / "judge", first, RetrainConfig(), seed)
        return retrainer.run(Store.open(folder / "episodes"), unchosen=audit.by_lot).promoted


def _make_episodes(seed: int) -> list[Episode]:
    """50 episodes, of which every other one succeeds."""
    env, truth, push = SimulatedEnvConfig(max_steps=6).build(50), SimulatorJudge(), np.zeros((50, 2), np.float32)
    push[:, 0] = np.where(np.arange(50) % 2, 0.8, -0.02)
    detector = SuccessDetector(truth, 50)
    rollout = collect_rollout(env, lambda _: push, range(seed, seed + 50), detector, steps_after_success=2)
    return [episode for episode, _ in rollout.episodes(env, truth)]


def _succeeds(episode: Episode) -> bool:
    return episode.success is not None and bool(episode.success.any())


JUDGED = ({"false": 0.1, "missed": 0.1}, {"false": 0.3, "missed": 0.02}, {"false": 0.02, "missed": 0.3})


def certificate_misses(seed: int) -> bool:
    """The certificate of a judge states an interval that misses the true figure."""
    kind, parts = pick(range(len(JUDGED)), seed, "judge"), pick((1, 2, 4), seed, "parts")
    figure = pick(("precision", "recall", "fpr"), seed, "figure")
    with _machine(seed) as folder, Store.create(folder / "store") as store:
        config = _judge(kind, folder)
        for part in range(parts):
            store.extend(_make_episodes(seed * 100_003 + 50 * part))
        certificate = examine(store, config, config.build(), ["simulator"], store.ids, name="judge")[0]
    stated = certificate.figures[figure]
    return not stated.low <= _true_figures(kind)[figure] <= stated.high


@cache
def _true_figures(kind: int) -> dict[str, float]:
    """The true figures of a judge, counted on 3,000 other episodes."""
    with _machine(0) as folder:
        judge = _judge(kind, folder).build()
        episodes = [episode for part in range(60) for episode in _make_episodes(2**40 + 50 * part)]
        labels = [one for one in label_episodes(judge, episodes) if isinstance(one, Labels)]
    called, true = np.array([one.success_once for one in labels]), np.array([_succeeds(one) for one in episodes])
    frames = [(one.frame_probs > 0.5, np.append(False, e.privileged["success"])) for one, e in zip(labels, episodes)]
    false, failure = (sum(int((m & ~t).sum()) for m, t in pairs) for pairs in (frames, [(~t, t) for _, t in frames]))
    return {
        "precision": float(true[called].mean()),
        "recall": float(called[true].mean()),
        "fpr": false / failure,
    }


def _judge(kind: int, folder: Path) -> SimulatedJudgeConfig:
    return SimulatedJudgeConfig(model=write_model(folder / "model", JUDGED[kind]), force=True)


def wrong_right(seed: int) -> bool:
    """A judge's right to decide alone lets more errors through than it was proven for (each of two, 90% confidence)."""
    rng = np.random.default_rng(seed)
    shape, count = 1 + 3 * uniform(seed, "shape"), pick((60, 120, 300), seed, "count")
    success = rng.random(count) < 0.5
    scores = np.where(success, 1 - rng.random(count) ** shape, rng.random(count) ** shape)
    predictions = [
        EpisodePrediction(np.array([score], np.float32), np.array([float(kind)]), number)
        for number, (score, kind) in enumerate(zip(scores, success, strict=True))
    ]
    rights = prove_rights(predictions, DecisionRule(decode="per_frame"), "a", 0.05, 0.9)
    return rights.success_from is not None and 1 - rights.success_from ** (1 / shape) > 0.05


def early_alarm(seed: int) -> bool:
    """A judge that sees success one step before the simulator does is stopped as if it were fooled."""
    keys = {"learner.type": ON_POLICY, "demos.made": 4, "learner.pretrain_updates": 80, "env.max_steps": 12}
    scenario = Scenario(seed, "train", "classifier", keys, {"early": 1.0}, episodes=40)
    return bool(simulate(scenario).alarm)


STUDIES = (
    Study("honest_alarm", 0.05, honest_alarm),
    Study("exploited_long", 0.05, exploited_long),
    Study("interval_misses", 0.05, interval_misses),
    Study("equal_promoted", 0.05, equal_promoted),
    Study("certificate_misses", 0.05, certificate_misses),
    Study("wrong_right", 0.10, wrong_right),
    Study("early_alarm", 0.05, early_alarm),
)


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

    @property
    def coverage(self) -> str:
        """The config keys that these runs drew, those they did not, and those that none draws, with the reason."""
        missing = sorted(key for key in every_key() if not belongs(key, {*FIXED, *self.keys}))
        others = [key for key in missing if not belongs(key, NEVER)]
        drawn = f"config keys: {len(every_key()) - len(missing)} of {len(every_key())} drawn"
        reasons = [f"{', '.join(k for k in NEVER if NEVER[k] == why)} ({why})" for why in dict.fromkeys(NEVER.values())]
        return f"{drawn}; not by these seeds: {', '.join(others) or 'none'}; never drawn: {'; '.join(reasons)}"

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
                self.coverage,
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
