"""The audit of a run's judge: for some of its episodes the truth is looked up and compared with its labels.

    audit = Audit(config, seed)
    if audit.draws(number, predicted): audit.add(number, actual)
    if audit.blocks_learning: print(audit.alarm)

**What is guaranteed.** A judge is stopped in at most 5% of whole runs if, at every moment and given everything before,
its next success is false with a probability of at most `max_false` and its next episode is a missed success with a
probability of at most `max_missed`. This holds however long the run is and however the policy changes (judges/stats.py
has the proof), for episodes that were drawn at random. It concerns every moment, not the average: a judge whose only
errors all come early is stopped. The judges of a run, and the promotions of new ones, share the 5%. A judge whose
successes become false in half of the cases or more is stopped before it has rewarded 20 false successes, in 95% of runs
with the default settings (measured by benchmarks/trust.py).

**What is looked up.** Each episode is drawn with a known probability: all of the first episodes of a judge, all of its
next successes after one was false or after its success rate jumped, all episodes on which another judge disagrees or
that are out of distribution, and a fraction of the others. Dense checks introduce no bias: the test uses only what is
checked, and rates are weighted by 1/probability. Draws follow from the seed and the episode's number, so a resumed run
audits the same episodes. People may label other episodes too, but only drawn ones measure the judge.

**Order of answers.** Answers are tested in the order in which their episodes were drawn, because a person who answers
the false ones first would otherwise stop an honest judge. An episode without an answer counts as right once
`PATIENCE` later ones are answered, and so does one that a person excluded. Both can only delay an alarm.

**Two errors** are counted separately: false successes, which a policy can learn to exploit, and missed successes. A
success that becomes true at most `onset_tolerance` steps after the judge reported it is early, not false. An alarm
stays on for its judge; near the limit it would otherwise start and stop the learner with every episode.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import Config
from plaudit.judges.stats import RUN_ALPHA, Checks, ErrorTest, Interval, alpha_spent

FALSE_SHARE = 0.8  # of the chance of a false alarm, for false successes; the rest is for missed ones
ALPHA = 0.05  # of the intervals: the fraction that may not contain the truth
# False successes that a judge is allowed for every episode that it calls a failure. A policy that hardly ever succeeds
# leaves few true successes to compare the false ones with; without this an honest judge is stopped early in training.
ALLOWED_ANYWAY = 0.02
NEXT = 10  # successes by the judge that are all audited when one was found to be false, or after a jump
LEAP, NEWEST, BEFORE = 0.2, 20, 100  # a jump: the newest 20 episodes succeed this much more often than those before
PATIENCE = 10  # later answers after which an episode without one counts as right
CORRECTED, FALSE, MISSED = "audit/corrected_success_rate", "audit/false_successes", "audit/missed_successes"


class AuditConfig(Config):
    """How the judge of a run is audited."""

    fraction: float = Field(default=0.25, ge=0, le=1)  # of the episodes, for which the truth is looked up
    # Of a run, and of every new judge: its first episodes and its first successes are all audited.
    first_episodes: int = Field(default=20, ge=0, le=100_000)
    max_false: float = Field(default=0.1, ge=0.001, le=0.9)  # fraction of the judge's successes that may be false
    max_missed: float = Field(default=0.2, ge=0.001, le=0.9)  # fraction of all episodes that may be missed successes
    # Steps that a success may become true after the judge reported it, and count as early instead of false.
    onset_tolerance: int = Field(default=10, ge=0, le=10_000)
    window: int = Field(default=200, ge=1, le=1_000_000)  # newest episodes of a judge over which success is reported
    on_alarm: Literal["stop", "warn"] = "stop"  # whether learning stops
    by: Literal["auto", "simulator", "human"] = "auto"  # who knows the truth; auto: the simulator where there is one
    minutes_per_hour: float | None = Field(default=None, gt=0, le=60)  # of a person's time for audits; None: no limit
    minutes_per_episode: float = Field(default=0.5, ge=0.001, le=600)  # that one takes a person


@dataclass
class AuditedPrediction:
    """The judge's decision on an episode and the result of its audit."""

    success: bool  # by the judge
    probability: float  # with which it was drawn
    weight: float  # of its audit in the test
    drawn: bool
    allowance: float  # of an error of the other kind, which this prediction cannot be
    actual: bool | None = None  # the truth; None: not known
    closed: bool = False  # nothing more is expected: answered, or excluded by a person

    def count(self, checks: Checks) -> None:
        """Add it to those with the same prediction."""
        checks.add(self.probability, None if self.actual is None else self.actual != self.success, self.drawn)


def true_success(first: int | None, true_first: int | None, tolerance: int) -> tuple[bool, bool]:
    """Whether an episode truly succeeds, compared with the judge's decision, and whether the judge was early.

    first, true_first: the first frame of success by the judge and in truth; None: never
    tolerance: frames by which the judge may be early
    """
    if first is None or true_first is None:
        return true_first is not None, False
    return true_first <= first + tolerance, first < true_first <= first + tolerance


class Audit:
    """The audit of one judge at a time, in the order in which it labels episodes."""

    def __init__(self, config: AuditConfig, seed: int = 0, number: int = 1, alpha: float = RUN_ALPHA):
        """
        number: of the judge in this run, from 1 on
        alpha: chance of a false alarm over all judges of the run
        """
        self.config, self._seed, self._budget = config, seed, alpha
        self.restart(number)

    def restart(self, number: int) -> None:
        """Forget everything, as for another judge.

        number: of that judge in this run
        """
        self.number = number
        self._predictions: dict[int, AuditedPrediction] = {}  # of the newest episodes
        self._older = {True: Checks(), False: Checks()}  # success by the judge -> episodes that left the window
        self._late: dict[int, AuditedPrediction] = {}  # those of them that wait for an answer
        self._untested: dict[int, AuditedPrediction] = {}  # in the order of drawing, from the first without an answer
        self._tests = {True: ErrorTest(self.config.max_false), False: ErrorTest(self.config.max_missed)}
        self._recent: deque[bool] = deque(maxlen=NEWEST + BEFORE)  # successes by the judge
        self._num_judged = 0
        self._dense = self.config.first_episodes  # successes by the judge that are all audited, from now on
        self._leaping = False
        self._num_true, self._num_early = 0, 0  # audited successes by the judge that are true; of these, early ones
        self.alarm: str | None = None  # why the judge is stopped, once it is

    # Draws and answers, one by one

    def draws(
        self, episode: int, success: bool, *, disputed: bool = False, withheld: bool = False, affordable: float = 1.0
    ) -> bool:
        """Return whether this episode, which the judge has just labeled, is audited.

        success: by the judge
        disputed: whether another judge disagrees, or it is out of distribution
        withheld: whether it is not rewarded unless the audit agrees: it is audited, and is no evidence for the alarm
        affordable: fraction of the audits for which there is time
        """
        usual = affordable * self._probability(success)
        probability = affordable if (disputed or withheld) and usual else usual
        drawn = hashed_uniform(self._seed, "audit", episode) < probability
        weight = 0.0 if withheld else usual / probability if usual else 1.0
        allowed = self.config.max_missed if success else ALLOWED_ANYWAY
        allowance = allowed * affordable * self._probability(not success)
        prediction = AuditedPrediction(success, probability, weight, drawn, allowance)
        self._predictions[episode] = self._untested[episode] = prediction
        self._test_in_order()
        self._look_ahead(success)
        while len(self._predictions) > self.config.window:
            oldest = next(iter(self._predictions))
            left = self._predictions.pop(oldest)
            if left.drawn and left.actual is None:
                self._late[oldest] = left
            else:
                left.count(self._older[left.success])
        return drawn

    def is_by_lot(self, episode: int, affordable: float = 1.0) -> bool:
        """Whether an episode is drawn whatever any judge decides: such episodes compare two judges fairly."""
        return hashed_uniform(self._seed, "audit", episode) < affordable * self.config.fraction

    def probability(self, episode: int) -> float:
        """The probability with which one of the newest episodes was drawn."""
        return self._predictions[episode].probability

    def _probability(self, success: bool) -> float:
        """The probability with which an episode is drawn now."""
        dense = self._num_judged < self.config.first_episodes or (success and self._dense > 0)
        return 1.0 if dense and self.config.fraction else self.config.fraction

    def _look_ahead(self, success: bool) -> None:
        """Decide whether the next episodes are audited more densely."""
        self._num_judged += 1
        self._dense = max(0, self._dense - success)
        self._recent.append(success)
        newest, before = list(self._recent)[-NEWEST:], list(self._recent)[:-NEWEST]
        leaping = len(before) >= NEWEST and sum(newest) / NEWEST > sum(before) / len(before) + LEAP
        if leaping and not self._leaping:
            self._dense = max(self._dense, NEXT)
        self._leaping = leaping

    def add(self, episode: int, actual: bool, early: bool = False) -> None:
        """Add the truth about a drawn episode. A later answer corrects the estimates, not the test.

        early: whether the judge reported its success a few steps too early
        """
        prediction = self._waiting_for(episode)
        if prediction is None:
            return
        is_new, prediction.actual = prediction.actual is None, bool(actual)
        if self._late.pop(episode, None) is not None:
            prediction.count(self._older[prediction.success])
        if is_new and prediction.success:
            self._num_true += prediction.actual
            self._num_early += prediction.actual and early
            if not prediction.actual:
                self._dense = max(self._dense, NEXT)
        self._close(prediction)

    def exclude(self, episode: int) -> None:
        """A person excluded a drawn episode. The test counts it as right; the intervals leave it open."""
        prediction = self._waiting_for(episode)
        if prediction is not None and prediction.actual is None:
            self._close(prediction)

    def _waiting_for(self, episode: int) -> AuditedPrediction | None:
        prediction = self._predictions.get(episode) or self._late.get(episode)
        return prediction if prediction is not None and prediction.drawn else None

    def _close(self, prediction: AuditedPrediction) -> None:
        prediction.closed = True
        self._test_in_order()
        if self.alarm is None and self._log_evidence() >= -math.log(alpha_spent(self._budget, self.number)):
            self.alarm = self._alarm_message()

    def _log_evidence(self) -> float:
        false, missed = (self._tests[success].log_evidence for success in (True, False))
        return float(np.logaddexp(false + math.log(FALSE_SHARE), missed + math.log(1 - FALSE_SHARE)))

    def _test_in_order(self) -> None:
        """Test predictions in the order of drawing, up to the first without an answer."""
        answered = sum(prediction.drawn and prediction.closed for prediction in self._untested.values())
        while self._untested:
            episode, prediction = next(iter(self._untested.items()))
            if prediction.drawn and not prediction.closed and answered < PATIENCE:
                return
            answered -= prediction.drawn and prediction.closed
            del self._untested[episode]
            self._tests[not prediction.success].allow(prediction.allowance)
            if prediction.drawn and prediction.weight:
                error = prediction.actual not in (None, prediction.success)
                self._tests[prediction.success].add(error, prediction.weight)

    # Results

    @property
    def blocks_learning(self) -> bool:
        """Whether the learner must not learn from this judge."""
        return self.alarm is not None and self.config.on_alarm == "stop"

    @property
    def num_episodes(self) -> int:
        """Episodes audited so far."""
        return sum(checks.sure + checks.drawn for checks in self._all().values())

    @property
    def false_successes(self) -> Interval:
        """Fraction of this judge's successes that are false; the interval holds at all moments of the run together."""
        checks = self._all()[True]
        return self._estimate(checks, checks.answers)

    @property
    def missed_successes(self) -> Interval:
        """Fraction of all episodes that are successes which this judge missed."""
        checks = self._all()
        return self._estimate(checks[False], checks[False].answers + checks[True].answers)

    @property
    def judge_success_rate(self) -> float:
        """Success rate of the newest episodes according to the judge; NaN without episodes."""
        predictions = self._predictions.values()
        return sum(prediction.success for prediction in predictions) / len(predictions) if predictions else math.nan

    @property
    def corrected_success(self) -> Interval:
        """Fraction of the same episodes that truly succeed: the judge's, without the false and with the missed ones.

        This is prediction-powered inference with known probabilities. The interval contains the truth 95 times out of
        100 whenever it is read, but not at all moments together.
        """
        checks, total = self._checks(self._predictions.values()), len(self._predictions)
        if not total:
            return Interval(math.nan, 0.0, 1.0)
        successes = checks[True].answers
        false, missed = (checks[kind].estimate(ALPHA / 2, self.config.fraction) for kind in (True, False))
        rate, low, high = (successes - false[i] + missed[j] for i, j in ((0, 0), (2, 1), (1, 2)))
        return Interval(rate / total, low / total, high / total)

    @property
    def gap(self) -> float:
        """Success rate by the judge minus the corrected one."""
        return self.judge_success_rate - self.corrected_success.value

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md; rates only once episodes are audited."""
        counts = {"audit/alarm": float(self.alarm is not None), "audit/episodes": float(self.num_episodes)}
        if not self.num_episodes:
            return counts
        checks = self._all()
        false, missed = (checks[kind].estimate(ALPHA, self.config.fraction)[0] for kind in (True, False))
        failures, successes = false + checks[False].answers - missed, missed + checks[True].answers - false
        rates = {"audit/fpr": (false, failures), "audit/fnr": (missed, successes)}
        return {
            **counts,
            "audit/judge_success_rate": self.judge_success_rate,
            "audit/success_gap": self.gap,
            **self.corrected_success.to_metrics(CORRECTED),
            **self.false_successes.to_metrics(FALSE),
            **self.missed_successes.to_metrics(MISSED),
            **({"audit/early_successes": self._num_early / self._num_true} if self._num_true else {}),
            **{name: wrong / of for name, (wrong, of) in rates.items() if of > 0},
        }

    def _all(self) -> dict[bool, Checks]:
        newest = self._checks([*self._late.values(), *self._predictions.values()])
        return {success: self._older[success].merge(newest[success]) for success in (True, False)}

    def _checks(self, predictions: Iterable[AuditedPrediction]) -> dict[bool, Checks]:
        checks = {True: Checks(), False: Checks()}
        for prediction in predictions:
            prediction.count(checks[prediction.success])
        return checks

    def _estimate(self, checks: Checks, total: int) -> Interval:
        if not checks.checked:
            return Interval(math.nan, 0.0, checks.answers / total if total else 1.0)
        errors, low, high = checks.estimate(ALPHA, self.config.fraction)
        return Interval(errors / total, low / total, high / total)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, as JSON values."""
        listed = {"predictions": self._predictions, "late": self._late, "untested": self._untested}
        return {
            "number": self.number,
            "alarm": self.alarm,
            **{name: [[episode, *astuple(one)] for episode, one in part.items()] for name, part in listed.items()},
            "older": [asdict(self._older[success]) for success in (True, False)],
            "tests": [self._tests[success].state_dict() for success in (True, False)],
            "recent": list(self._recent),
            "judged": [self._num_judged, self._dense, self._leaping, self._num_true, self._num_early],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.restart(state["number"])
        self.alarm = state["alarm"]
        self._predictions = {episode: AuditedPrediction(*rest) for episode, *rest in state["predictions"]}
        self._late = {episode: AuditedPrediction(*rest) for episode, *rest in state["late"]}
        listed = {**self._predictions, **self._late}  # an open prediction is one object, wherever it is listed
        self._untested = {i: listed.get(i) or AuditedPrediction(*rest) for i, *rest in state["untested"]}
        for success, older, test in zip((True, False), state["older"], state["tests"], strict=True):
            self._older[success] = Checks(**older)
            self._tests[success].load_state_dict(test)
        self._recent.extend(state["recent"])
        self._num_judged, self._dense, self._leaping, self._num_true, self._num_early = state["judged"]

    def _alarm_message(self) -> str:
        false, missed = self._tests[True].log_evidence, self._tests[False].log_evidence
        texts = {
            "false": f"{self.false_successes} of the judge's successes are false (max {self.config.max_false:.0%}): "
            "the policy may have learned to exploit the judge",
            "missed": f"{self.missed_successes} of all episodes are successes that the judge missed "
            f"(max {self.config.max_missed:.0%}), which are not rewarded",
        }
        kinds = [kind for kind, evidence in (("false", false), ("missed", missed)) if evidence > max(false, missed) / 2]
        return (
            f"in {self.num_episodes} audited episodes {'; '.join(texts[kind] for kind in kinds)}. Look at them "
            f"(plaudit data sheet), label the {' and '.join(kinds)} successes (plaudit label) and train the judge "
            "again (plaudit train-reward), or calibrate a judge that is not trained (plaudit judge calibrate)"
        )


def hashed_uniform(seed: int, purpose: str, key: object) -> float:
    """A number in [0, 1), the same for the same arguments on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
