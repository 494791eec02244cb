"""The audit of a run's judge: what is true is looked up for some of its episodes, and compared.

    audit = Audit(config, seed)
    if audit.draws(number, predicted): audit.add(number, actual)
    if audit.blocks_learning: print(audit.alarm)

**What it promises.** A judge of whose successes at most `max_false` are false, and that misses at most `max_missed`, is
stopped in at most 5% of whole runs, however long they are and however the policy changes; of several judges in a run,
each gets its part of the 5%. A judge that begins to be fooled, early or late, so that half of its successes or more are
false, is stopped before it has paid 20 false ones in 19 of 20 runs with the default settings: this is measured by
benchmarks/trust.py, the former is proven (confidence.py).

**What is looked up.** Each episode is drawn with a probability that is known: all of the first episodes of a judge, all
of its next successes when one was found to be false or when its success rate leaps, all where another judge disagrees
or that are unlike what it learned from, and of the others a fraction. Dense checks bias nothing: the test goes by what
is checked, and rates are weighted by 1/probability. Lots follow from the seed and the episode's number, so a resumed
run audits the same ones. Humans may label others too, and a retrained judge learns from those; but only drawn ones
measure the judge.

Two errors are counted apart: false successes, where the policy has learned to please the judge, and missed ones, for
which it is not rewarded. Their difference, the gap, is zero for a judge that makes both. A raised alarm stays raised
for that judge; one near the limit would otherwise start and stop the learner with every episode.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt

from plaudit.config import Config
from plaudit.training.confidence import Checks, ErrorTest

FALSE_ALARMS = 0.05  # of whole runs with honest judges, the fraction that may be stopped
FALSE_SHARE = 0.8  # of this, for false successes; the rest for missed ones
ALPHA = 0.05  # of the intervals: how many may miss what they are about
# False successes that a judge is allowed for every episode that it calls a failure. A policy that hardly ever succeeds
# leaves few true successes to compare the false ones with; without this an honest judge is stopped early in training.
ALLOWED_ANYWAY = 0.02
NEXT = 10  # successes by the judge that are all audited when one was found to be false, or after a leap
LEAP, NEWEST, BEFORE = 0.2, 20, 100  # a leap: the newest so many episodes succeed so much more often than those before
CORRECTED, FALSE, MISSED = "audit/corrected_success_rate", "audit/false_successes", "audit/missed_successes"


class AuditConfig(Config):
    """How the judge of a run is audited."""

    fraction: float = Field(default=0.25, ge=0, le=1)  # of the episodes, for which what is true is looked up
    first_episodes: NonNegativeInt = 20  # of a run, and of every new judge, and its first successes: all are audited
    max_false: float = Field(default=0.1, gt=0, lt=1)  # of the successes by the judge, the fraction that may be false
    max_missed: float = Field(default=0.2, gt=0, lt=1)  # of all episodes, those that may be successes it does not see
    window: PositiveInt = 200  # newest episodes of a judge over which success is reported
    on_alarm: Literal["stop", "warn"] = "stop"  # whether learning stops
    by: Literal["auto", "simulator", "human"] = "auto"  # who tells; auto: the simulator where there is one
    minutes_per_hour: float | None = Field(default=None, gt=0, le=60)  # of a human's time for audits; None: no limit
    minutes_per_episode: float = Field(default=0.5, gt=0)  # that one takes a human


@dataclass
class AuditedPrediction:
    """What the judge said of an episode, and what came of its audit."""

    success: bool  # by the judge
    probability: float  # with which it was to be drawn
    weight: float  # of its audit in the test
    drawn: bool
    actual: bool | None = None  # None: nobody has told

    def count(self, checks: Checks) -> None:
        """Add it to those with the same prediction."""
        checks.add(self.probability, None if self.actual is None else self.actual != self.success, self.drawn)


@dataclass(frozen=True)
class Estimate:
    """A rate and an interval that has it in 95 of 100 cases or more: 79% [70-85]."""

    rate: float  # NaN before there is anything to tell it by
    low: float
    high: float

    @classmethod
    def of(cls, metrics: Mapping[str, float], name: str) -> Self | None:
        """From what `metrics` told of it; None where that is nothing."""
        if f"{name}_low" not in metrics:
            return None
        return cls(metrics[name], metrics[f"{name}_low"], metrics[f"{name}_high"])

    def metrics(self, name: str) -> dict[str, float]:
        """By the names in docs/metrics.md; nothing while the rate is not known."""
        if math.isnan(self.rate):
            return {}
        return {name: self.rate, f"{name}_low": self.low, f"{name}_high": self.high}

    def __str__(self) -> str:
        return f"{self.rate:.0%} [{100 * self.low:.0f}-{100 * self.high:.0f}]"


class Audit:
    """Of one judge at a time, in the order in which it labels episodes."""

    def __init__(self, config: AuditConfig, seed: int = 0, number: int = 1):
        """number: of the judge in this run, from 1 on"""
        self.config, self._seed = config, seed
        self.restart(number)

    def restart(self, number: int) -> None:
        """Forget everything but how many judges there were, as for another judge."""
        self.number = number
        self._predictions: dict[int, AuditedPrediction] = {}  # of the newest episodes
        self._older = {True: Checks(), False: Checks()}  # success by the judge -> episodes that left the window
        self._late: dict[int, AuditedPrediction] = {}  # those of them that wait for an answer
        self._tests = {True: ErrorTest(self.config.max_false), False: ErrorTest(self.config.max_missed)}
        self._recent: deque[bool] = deque(maxlen=NEWEST + BEFORE)  # successes by the judge
        self._num_judged = 0
        self._dense = self.config.first_episodes  # successes by the judge that are all audited, from now on
        self._leaping = False
        self.alarm: str | None = None  # why the judge is not to be trusted, from when that was first found

    # Lots and answers, one by one

    def draws(
        self, episode: int, success: bool, *, disputed: bool = False, withheld: bool = False, affordable: float = 1.0
    ) -> bool:
        """Whether this episode is audited, which the judge has just labeled.

        success: by the judge
        disputed: whether another judge says otherwise, or it is unlike what this one learned from
        withheld: whether nobody is paid for it unless the audit agrees: it is audited, and no evidence for the alarm
        affordable: fraction of the audits for which there is time
        """
        usual = affordable * self._probability(success)
        probability = affordable if (disputed or withheld) and usual else usual
        drawn = hashed_uniform(self._seed, "audit", episode) < probability
        weight = 0.0 if withheld else usual / probability if usual else 1.0
        self._predictions[episode] = AuditedPrediction(success, probability, weight, drawn)
        allowed = self.config.max_missed if success else ALLOWED_ANYWAY
        self._tests[not success].allow(allowed * affordable * self._probability(not success))
        self._look_ahead(success)
        while len(self._predictions) > self.config.window:
            self._leave_window(next(iter(self._predictions)))
        return drawn

    def probability(self, episode: int) -> float:
        """With which one of the newest episodes was to be drawn."""
        return self._predictions[episode].probability

    def _leave_window(self, episode: int) -> None:
        prediction = self._predictions.pop(episode)
        if prediction.drawn and prediction.actual is None:
            self._late[episode] = prediction
        else:
            prediction.count(self._older[prediction.success])

    def _probability(self, success: bool) -> float:
        """With which an episode is drawn now."""
        dense = self._num_judged < self.config.first_episodes or (success and self._dense > 0)
        return 1.0 if dense and self.config.fraction else self.config.fraction

    def _look_ahead(self, success: bool) -> None:
        """Whether the next ones are audited more densely."""
        self._num_judged += 1
        self._dense = max(0, self._dense - success)
        self._recent.append(success)
        recent = list(self._recent)
        newest, before = recent[-NEWEST:], recent[:-NEWEST]
        leaping = len(before) >= NEWEST and sum(newest) / NEWEST > sum(before) / len(before) + LEAP
        if leaping and not self._leaping:
            self._dense = max(self._dense, NEXT)
        self._leaping = leaping

    def add(self, episode: int, actual: bool) -> None:
        """What is true of an episode that was drawn; for the alarm, the first answer counts."""
        prediction = self._predictions.get(episode) or self._late.get(episode)
        if prediction is None or not prediction.drawn:
            return
        is_new, prediction.actual = prediction.actual is None, bool(actual)
        if self._late.pop(episode, None) is not None:
            prediction.count(self._older[prediction.success])
        if is_new:
            self._test(prediction)

    def _test(self, prediction: AuditedPrediction) -> None:
        error = prediction.actual != prediction.success
        if prediction.weight:
            self._tests[prediction.success].add(error, prediction.weight)
        if error and prediction.success:
            self._dense = max(self._dense, NEXT)
        if self.alarm is None and self._log_evidence() >= -math.log(self._alpha):
            self.alarm = self._alarm_message()

    @property
    def _alpha(self) -> float:
        """Of all false alarms, what this judge may have: 1/n^2 of them, up to a factor that makes a sum of 1."""
        return FALSE_ALARMS * 6 / (math.pi * self.number) ** 2

    def _log_evidence(self) -> float:
        false, missed = (self._tests[success].log_evidence for success in (True, False))
        a, b = sorted((false + math.log(FALSE_SHARE), missed + math.log(1 - FALSE_SHARE)))
        return b + math.log1p(math.exp(a - b))

    # What it comes to

    @property
    def blocks_learning(self) -> bool:
        """Whether the learner must not learn from this judge any more."""
        return self.alarm is not None and self.config.on_alarm == "stop"

    @property
    def num_episodes(self) -> int:
        """Audited so far."""
        return sum(checks.sure + checks.drawn for checks in self._all().values())

    @property
    def false_successes(self) -> Estimate:
        """Of the successes by this judge, the fraction that are none; the interval holds at every moment of the run."""
        checks = self._all()[True]
        return self._estimate(checks, checks.answers)

    @property
    def missed_successes(self) -> Estimate:
        """Of all its episodes, the fraction that are successes and by this judge none."""
        checks = self._all()
        return self._estimate(checks[False], checks[False].answers + checks[True].answers)

    @property
    def judge_success_rate(self) -> float:
        """Of the newest episodes, the fraction that succeed by the judge; NaN before there is one."""
        predictions = self._predictions.values()
        return sum(prediction.success for prediction in predictions) / len(predictions) if predictions else math.nan

    @property
    def corrected_success(self) -> Estimate:
        """Of the same episodes, those that truly succeed: the judge's, less the false ones and with the missed ones.

        This is prediction-powered inference with known probabilities. The interval is right 95 times of 100 whenever
        it is looked at; it is not one that holds at all moments together.
        """
        checks, total = self._checks(self._predictions.values()), len(self._predictions)
        if not total:
            return Estimate(math.nan, 0.0, 1.0)
        successes, failures = checks[True], checks[False]
        rate = (successes.answers - successes.errors + failures.errors) / total
        false, missed = (c.bounds(ALPHA / 2, self.config.fraction) for c in (successes, failures))
        low, high = successes.answers - false[1] + missed[0], successes.answers - false[0] + missed[1]
        return Estimate(rate, low / total, high / total)

    @property
    def gap(self) -> float:
        """Success rate by the judge minus the corrected one."""
        return self.judge_success_rate - self.corrected_success.rate

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md; rates once there are audited episodes."""
        counts = {"audit/alarm": float(self.alarm is not None), "audit/episodes": float(self.num_episodes)}
        if not self.num_episodes:
            return counts
        return {
            **counts,
            "audit/judge_success_rate": self.judge_success_rate,
            "audit/success_gap": self.gap,
            **self.corrected_success.metrics(CORRECTED),
            **self.false_successes.metrics(FALSE),
            **self.missed_successes.metrics(MISSED),
            **self._error_rates(),
        }

    def _error_rates(self) -> dict[str, float]:
        checks = self._all()
        false, missed = checks[True].errors, checks[False].errors
        failures, successes = false + checks[False].answers - missed, missed + checks[True].answers - false
        rates = {"audit/fpr": (false, failures), "audit/fnr": (missed, successes)}
        return {name: wrong / of for name, (wrong, of) in rates.items() if of > 0}

    def _all(self) -> dict[bool, Checks]:
        newest = self._checks([*self._late.values(), *self._predictions.values()])
        return {success: self._older[success].merge(newest[success]) for success in (True, False)}

    def _checks(self, predictions: Iterable[AuditedPrediction]) -> dict[bool, Checks]:
        checks = {True: Checks(), False: Checks()}
        for prediction in predictions:
            prediction.count(checks[prediction.success])
        return checks

    def _estimate(self, checks: Checks, total: int) -> Estimate:
        if not checks.checked:
            return Estimate(math.nan, 0.0, checks.answers / total if total else 1.0)
        low, high = checks.bounds(ALPHA, self.config.fraction)
        return Estimate(checks.errors / total, low / total, high / total)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        return {
            "number": self.number,
            "alarm": self.alarm,
            "predictions": [[episode, *astuple(prediction)] for episode, prediction in self._predictions.items()],
            "late": [[episode, *astuple(prediction)] for episode, prediction in self._late.items()],
            "older": [asdict(self._older[success]) for success in (True, False)],
            "tests": [self._tests[success].state_dict() for success in (True, False)],
            "recent": list(self._recent),
            "judged": [self._num_judged, self._dense, self._leaping],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""
        self.restart(state["number"])
        self.alarm = state["alarm"]
        self._predictions = {episode: AuditedPrediction(*rest) for episode, *rest in state["predictions"]}
        self._late = {episode: AuditedPrediction(*rest) for episode, *rest in state["late"]}
        for success, older, test in zip((True, False), state["older"], state["tests"], strict=True):
            self._older[success] = Checks(**older)
            self._tests[success].load_state_dict(test)
        self._recent.extend(state["recent"])
        self._num_judged, self._dense, self._leaping = state["judged"]

    def _alarm_message(self) -> str:
        false, missed = self._tests[True].log_evidence, self._tests[False].log_evidence
        found = {
            "false": f"{self.false_successes} of the successes by the judge are false "
            f"(max {self.config.max_false:.0%}): the policy has learned to please the judge",
            "missed": f"{self.missed_successes} of all episodes are missed successes "
            f"(max {self.config.max_missed:.0%}): the judge does not see what the policy does right, which is not "
            "rewarded then",
        }
        kinds = [kind for kind, evidence in (("false", false), ("missed", missed)) if evidence > max(false, missed) / 2]
        return (
            f"in {self.num_episodes} audited episodes {'; '.join(found[kind] for kind in kinds)}; look at them "
            f"(plaudit data sheet), label the {' and '.join(kinds)} successes (plaudit label) and train the judge "
            "again (plaudit train-reward), or calibrate one that is not trained (plaudit judge calibrate)"
        )


def hashed_uniform(seed: int, purpose: str, key: object) -> float:
    """A number in [0, 1), the same for the same arguments on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
