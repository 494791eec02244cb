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

**In a ledger.** `LedgerAudit` audits the labels in a store's ledger, for `plaudit online`:

    audit = LedgerAudit(config, source="classifier", seed=seed)
    audit.read_labels(store)                                    # now and then, in the process that owns the store
    window.show(audit.requested(store))                         # where only a person knows the truth
    if audit.current.blocks_learning: print(audit.status)

All state follows from the ledger, read in its order, so a resumed run draws the same episodes and reports the same
figures. The simulator's truth about an audited episode is written to the ledger too, as a label of source "simulator".
It outlives the episode's eviction, and a retraining may learn from it. The learner samples only labels of the judge and
of people, so it never sees it.

An episode counts for the model that labeled it first. A new model labels old episodes again and may have learned from
them, so agreement on those proves nothing. A new model therefore begins with no audited episodes.

With `judge.ood: audit`, an out-of-distribution episode is withheld: a person is asked about it before others, only
their label makes it count, and it is no evidence against the judge, because it was not rewarded. A simulator's answer
releases nothing, because that would tell the learner what only the simulator knows.

People may answer in any order, which could bias the estimates. So the intervals count unanswered episodes both as right
and as wrong.
"""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plaudit.config import Config
from plaudit.data.ledger import LabelVersion, Ledger, counted_sources
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, JudgeError, format_count
from plaudit.judges.cascade import URGENCY, CascadeConfig
from plaudit.judges.config import CASCADE, HUMAN
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.judges.stats import RUN_ALPHA, Checks, ErrorTest, Interval, alpha_spent
from plaudit.rule import DecisionRule, awaits_audit, release
from plaudit.types import PEOPLE, CascadeResult, Labels

FALSE_SHARE = 0.8  # of the chance of a false alarm, for false successes; the rest is for missed ones
ALPHA = 0.05  # of the intervals: the fraction that may not contain the truth
# False successes that a judge is allowed for every episode that it calls a failure. A policy that hardly ever succeeds
# leaves few true successes to compare the false ones with; without this an honest judge is stopped early in training.
ALLOWED_ANYWAY = 0.02
NEXT = 10  # successes by the judge that are all audited when one was found to be false, or after a jump
LEAP, NEWEST, BEFORE = 0.2, 20, 100  # a jump: the newest 20 episodes succeed this much more often than those before
OOD_WINDOW, MOST_WITHHELD = 50, 0.5  # newest episodes, and the share of withheld ones above which a run warns
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


def withheld_warning(ood: Sequence[bool], rule: DecisionRule) -> str:
    """What to do where the judge withholds most of the newest episodes; "" where it does not.

    ood: whether an episode is out of distribution, of the newest episodes
    """
    if rule.ood != "abstain" or len(ood) < OOD_WINDOW or np.mean(ood) <= MOST_WITHHELD:
        return ""
    return (
        f"{np.mean(ood):.0%} of the last {len(ood)} episodes are out of distribution, so the judge withholds them. The "
        "policy gets no reward for most of what it does and may unlearn what it can. Stop the run, label such episodes "
        "and train the judge on them too, or set judge.ood=accept"
    )


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


SHARE = "judge/cascade_share/"  # of a metric, before the name of a stage


class LedgerReader:
    """Reads each label of a ledger once, in order; all of them again after a repair has shortened the ledger."""

    def __init__(self) -> None:
        self._generation, self._ledger_version = 0, 0
        self._reset()

    def _reset(self) -> None:
        """Forget everything that was read."""
        raise NotImplementedError

    def _new_labels(self, ledger: Ledger) -> Sequence[LabelVersion]:
        if ledger.generation != self._generation:
            self._generation, self._ledger_version = ledger.generation, 0
            self._reset()
        new = ledger.since(self._ledger_version)
        self._ledger_version += len(new)
        return new


class LedgerAudit(LedgerReader):
    """The audit of all models that a judge had in a run."""

    def __init__(self, config: AuditConfig, source: str, seed: int = 0, alpha: float = RUN_ALPHA):
        """
        source: of the labels that are audited
        alpha: chance of a false alarm over all models of the run
        """
        references = {"auto": (SIMULATOR, HUMAN), "simulator": (SIMULATOR,), "human": (HUMAN,)}[config.by]
        self.config, self.source, self._seed, self._alpha = config, source, seed, alpha
        self._references = tuple(reference for reference in references if reference != source)
        super().__init__()

    def _reset(self) -> None:
        minutes = self.config.minutes_per_hour
        self._budget = None if minutes is None else Budget(minutes, self.config.minutes_per_episode)
        self.fingerprint = ""  # of the current model, by its newest label
        self.by_lot: set[int] = set()  # episodes that were drawn whatever any judge decides
        self._audits: dict[str, Audit] = {}  # by fingerprint
        self._models: dict[int, str] = {}  # episode -> fingerprint of the model that labeled it first
        self._onsets: dict[int, int | None] = {}  # episode -> first success frame by that model
        self._opinions: dict[int, bool] = {}  # episode -> success by a third party, known before the judge's
        self._answers: dict[int, LabelVersion] = {}  # episode -> the truth
        self._pending: dict[int, str] = {}  # episode -> fingerprint, where the truth is not known yet
        self._asked: set[int] = set()  # of these, what the simulator was asked about
        self._withheld: set[int] = set()  # out-of-distribution episodes that only a person's label makes count

    @property
    def current(self) -> Audit:
        """The audit of the current model."""
        return self._audits.get(self.fingerprint) or Audit(self.config, self._seed)

    @property
    def rejected(self) -> frozenset[str]:
        """Fingerprints of the models that an alarm has stopped; nothing learns from their labels."""
        return frozenset(model for model, audit in self._audits.items() if audit.blocks_learning)

    def read_labels(self, store: Store) -> None:
        """Catch up with the ledger, and write the simulator's truth about audited episodes to it."""
        store.ledger.refresh()
        store.refresh()
        self._read(store)
        if self._ask_simulator(store):
            self._read(store)
        stored = set(store.ids)
        self._pending = {episode: model for episode, model in self._pending.items() if episode in stored}

    def requested(self, store: Store) -> list[int]:
        """Episodes that a person should label: withheld ones first, then those of the current model, as drawn."""
        self.read_labels(store)
        if HUMAN not in self._references:
            return []
        return sorted(self._pending, key=lambda i: (i not in self._withheld, self._pending[i] != self.fingerprint, i))

    @property
    def status(self) -> str:
        """The state of the audit in a sentence."""
        audit = self.current
        if audit.alarm is not None:
            stops = "learning stops until another judge replaces"
            follows = stops if audit.blocks_learning else "learning goes on with"
            return f"{audit.alarm}; {follows} {self.source} {self.fingerprint}"
        if not audit.num_episodes:
            return "no episode of the current judge is audited yet"
        return (
            f"success rate {audit.judge_success_rate:.0%} (judge), {audit.corrected_success} (corrected), after "
            f"{audit.num_episodes} audited episodes"
        )

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        pending = len(self._pending) if HUMAN in self._references else 0
        return {**self.current.metrics(), "audit/pending_episodes": float(pending)}

    def _read(self, store: Store) -> None:
        """Read draws and answers in the order of the ledger."""
        for version in self._new_labels(store.ledger):
            episode = version.episode
            if version.source == self.source:
                self._read_prediction(version)
            elif version.source in self._references:
                # The simulator's answer counts before a person's, and the newest answer of each.
                earlier, rank = self._answers.get(episode), self._references.index
                if earlier is None or rank(version.source) <= rank(earlier.source):
                    self._answers[episode] = version
                    self._answer(episode)
            elif episode not in self._models:
                self._opinions[episode] = version.labels().success_once

    def _read_prediction(self, version: LabelVersion) -> None:
        episode, self.fingerprint, labels = version.episode, version.model, version.labels()
        if version.model not in self._audits:
            self._audits[version.model] = Audit(self.config, self._seed, len(self._audits) + 1, self._alpha)
        if withheld := awaits_audit(labels):
            self._withheld.add(episode)
        decided = withheld or labels.review or labels.labeled.any()  # else it is no prediction
        if episode in self._models or not decided:
            return
        self._models[episode] = version.model
        onset = self._onsets[episode] = release(labels).first_success
        success, opinion = onset is not None, self._opinions.pop(episode, None)
        disputed = bool(labels.ood) or opinion not in (None, success)
        affordable = 1.0 if self._budget is None else min(1.0, self._budget.left(version.time))
        audit = self._audits[version.model]
        if audit.is_by_lot(episode, affordable):
            self.by_lot.add(episode)
        drawn = audit.draws(episode, success, disputed=disputed, withheld=withheld, affordable=affordable)
        if self._budget is not None:
            self._budget.spend(audit.probability(episode))
        if drawn:
            self._pending[episode] = version.model
            self._answer(episode)

    def _answer(self, episode: int) -> None:
        """Add the truth about an episode to the audit of the model that labeled it first, if both are known."""
        if episode not in self._models or episode not in self._answers:
            return
        labels = self._answers[episode].labels()
        self._pending.pop(episode, None)
        audit = self._audits[self._models[episode]]
        if labels.labeled.any():
            tolerance = self.config.onset_tolerance
            audit.add(episode, *true_success(self._onsets[episode], labels.first_success, tolerance))
        else:  # excluded by a person
            audit.exclude(episode)

    def _ask_simulator(self, store: Store) -> bool:
        """Look up the truth of pending episodes; returns whether there were answers."""
        if SIMULATOR not in self._references:
            return False
        answers: dict[int, Labels] = {}
        for episode_id in sorted((self._pending.keys() & set(store.ids)) - self._asked):
            with suppress(EpisodeNotFound):  # evicted just now
                (labels,) = label_episodes(SimulatorJudge(), [store.episode(episode_id)])
                if isinstance(labels, Labels):
                    answers[episode_id] = labels
                elif self.config.by == SIMULATOR:
                    raise JudgeError(
                        f"episode {episode_id} should be audited by the simulator, but no simulator recorded it; on a "
                        "robot a person audits: set audit.by=human"
                    )
        self._asked = set(self._pending)
        if answers:
            store.ledger.extend(answers.items())
        return bool(answers)


class LabelChanges(LedgerReader):
    """Counts episodes whose success a later label changed: a person's correction, or a better judge."""

    def __init__(self, source: str):
        """source: of the run's judge"""
        self._sources = counted_sources(source)
        super().__init__()

    def _reset(self) -> None:
        self._success: dict[int, bool] = {}  # by the label that counts
        self._by_person: set[int] = set()  # episodes; a model's later label does not count
        self._changes = 0

    def read(self, ledger: Ledger) -> tuple[int, int]:
        """Read new labels; returns the number of changes and of labeled episodes."""
        ledger.refresh()
        for version in self._new_labels(ledger):
            episode, is_person = version.episode, version.source in PEOPLE
            if version.source not in self._sources or (episode in self._by_person and not is_person):
                continue
            labels = version.labels()
            if labels.labeled.any():
                self._changes += self._success.get(episode, labels.success_once) != labels.success_once
                self._success[episode] = labels.success_once
                self._by_person |= {episode} if is_person else set()
        return self._changes, len(self._success)


class Budget:
    """A person's time, in episodes. It refills over time, up to an hour's worth.

    An audit spends its probability, so every episode keeps a chance of being drawn when little time is left.
    """

    def __init__(self, minutes_per_hour: float, minutes_per_episode: float):
        self._per_hour = self._left = minutes_per_hour / minutes_per_episode
        self._time = 0.0

    def left(self, time: float) -> float:
        """Episodes that there is time for at this moment, in seconds."""
        if self._time:
            self._left = min(self._per_hour, self._left + self._per_hour * max(0.0, time - self._time) / 3600)
        self._time = max(time, self._time)
        return self._left

    def spend(self, episodes: float) -> None:
        """Use up some of what is left."""
        self._left -= episodes


class CascadeLedger(LedgerReader):
    """Which stage of a cascade decided the episodes of a store, at which cost, and what a human is asked next.

    All state follows from the ledger. The human has an hour's worth of time at first, which refills; each label spends
    the cost of an episode. The time is that of the newest label: a run that does not wait always has a new one.
    """

    def __init__(self, config: CascadeConfig):
        self._config, human = config, config.human
        self._human_cost_s = 0.0 if human is None else human.cost_s
        super().__init__()

    def _reset(self) -> None:
        budget = self._config.budget
        self._budget = None if budget is None else Budget(budget, self._human_cost_s / 60)
        self._time = 0.0
        self._results: dict[int, CascadeResult] = {}  # episode -> of the cascade's newest label
        self._by_human: set[int] = set()  # episodes that a human has labeled
        self._open: set[int] = set()  # undecided episodes
        self._compute_s = 0.0

    def read_labels(self, store: Store) -> None:
        """Catch up with the ledger."""
        store.ledger.refresh()
        for version in self._new_labels(store.ledger):
            self._time = max(self._time, version.time)
            if version.source == CASCADE:
                labels = version.labels()
                result = (labels.scores and labels.scores.cascade) or CascadeResult("", 0.0)
                self._results[version.episode] = result
                self._compute_s += result.cost_s
                (self._open.discard if labels.labeled.any() else self._open.add)(version.episode)
            elif version.source == HUMAN and version.episode not in self._by_human:
                self._by_human.add(version.episode)
                if self._budget is not None:
                    self._budget.left(version.time)
                    self._budget.spend(1)
        self._open -= self._by_human

    @property
    def undecided(self) -> list[int]:
        """Undecided episodes, the most urgent first."""
        return sorted(self._open, key=lambda i: (URGENCY.get(self._results[i].why, 2), i))

    def requested(self, store: Store) -> list[int]:
        """Undecided episodes that a human is asked about now, within the budget."""
        self.read_labels(store)
        if self._config.human is None:
            return []
        alive = set(store.ids)
        wanted = [i for i in self.undecided if i in alive]
        return wanted if self._budget is None else wanted[: max(0, int(self._budget.left(self._time)))]

    def shares(self) -> dict[str, float]:
        """Stage -> fraction of all episodes that it decided. The rest is undecided."""
        decided = Counter(note.decided_by for i, note in self._results.items() if i not in self._by_human)
        decided[HUMAN] = len(self._by_human)
        total = len(self._results.keys() | self._by_human)
        return {name: decided[name] / total for name in self._config.names()} if total else {}

    def metrics(self) -> dict[str, float]:
        """Metrics by their names in docs/metrics.md."""
        return {
            **{f"{SHARE}{name}": share for name, share in self.shares().items()},
            "judge/undecided_episodes": float(len(self._open)),
            "judge/human_s": self._human_cost_s * len(self._by_human),
            "judge/compute_s": self._compute_s,
        }

    def describe(self) -> str:
        """A sentence about the costs."""
        decided, metrics = ", ".join(f"{name} {share:.0%}" for name, share in self.shares().items()), self.metrics()
        return (
            f"decided by {decided}; undecided: {format_count(len(self._open), 'episode')}; it took "
            f"{metrics['judge/human_s'] / 60:.3g} minutes of a human and {self._compute_s / 60:.3g} of compute"
        )
