"""The audit of a run's judge: what is true is looked up for a random fraction of its episodes, and compared.

    audit = Audit(config, seed)                                 # `plaudit train`
    if audit.selects(number): audit.add(predicted, actual)

    audit = LedgerAudit(config, source="classifier", seed=seed)  # `plaudit online`
    audit.read_labels(store)                                    # now and then, in the process that owns the store
    window.show(audit.requested(store))                         # where only a human can tell
    if audit.blocks_learning: print(audit.alarm)

The alarm is raised when the judge is wrong too often in either way: it predicts success where there is none, and the
policy has learned to please it; or it misses successes, and the policy is not rewarded for them. The two errors are
counted apart: their difference, the gap, is zero for a judge that makes both. A raised alarm stays raised for that
judge; an error rate near the limit would otherwise start and stop the learner with every episode.

The first episodes of a judge are all audited, and until there are enough of them for rates, the alarm is raised by a
sequential test (Wald's) of all errors together: is the judge as good as a coin, or wrong in no more than half of what
is allowed? One that is wrong half the time is found within 20 audited episodes in at least 95 of 100 runs, whichever
errors it makes, and after 7 in most; one that is wrong in 5% is stopped so in one run of a thousand.

Whether an episode is audited follows from the seed, its number and how many this judge has labeled before, so that a
resumed run audits the same ones, and the probability of each is known. Humans may label others too, and a retrained
judge learns from those; but only the selected ones measure the judge.
"""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from plaudit.config import Config
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, JudgeError
from plaudit.judges.config import HUMAN
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.types import Labels

COIN = 0.5  # how often a judge is wrong that has nothing to do with what is true
EARLY_EPISODES = 5  # audited, before the sequential test may raise the alarm
EARLY_ERROR = 0.02  # of the sequential test: how likely it stops a judge that is wrong in half of what is allowed


class AuditConfig(Config):
    """How the judge of a run is audited."""

    fraction: float = Field(default=0.25, ge=0, le=1)  # of the episodes, for which what is true is looked up
    first_episodes: NonNegativeInt = 20  # of a run, and of every new judge: these are all audited
    max_gap: float = Field(default=0.2, gt=0, le=1)  # of these, the fraction of false or of missed successes allowed
    window: PositiveInt = 60  # audited episodes that count, the newest
    min_episodes: PositiveInt = 20  # audited episodes of a judge from which on rates count; before: a sequential test
    on_alarm: Literal["stop", "warn"] = "stop"  # whether learning stops
    by: Literal["auto", "simulator", "human"] = "auto"  # who tells; auto: the simulator where there is one

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.min_episodes > self.window:
            raise ValueError(
                f"min_episodes is {self.min_episodes} and window {self.window}; an alarm that waits for more episodes "
                "than it remembers can never be raised"
            )
        return self


class Audit:
    """Counts a judge's errors among audited episodes, in the order in which they are added."""

    def __init__(self, config: AuditConfig, seed: int = 0):
        self.config, self._seed = config, seed
        self.restart()

    def restart(self, since: int = 0) -> None:
        """Forget everything, as for another judge.

        since: the number of its first episode
        """
        self._since = since
        self._newest: deque[tuple[bool, bool]] = deque(maxlen=self.config.window)  # predicted, actual
        self.alarm: str | None = None  # why the judge is not to be trusted, from when that was first found

    def selects(self, episode: int) -> bool:
        """Whether the episode with this number is audited."""
        return hashed_uniform(self._seed, "audit", episode) < self.probability(episode)

    def probability(self, episode: int) -> float:
        """With which it is: of the judge's first ones 1."""
        return self._probability_of_nth(episode - self._since)

    def _probability_of_nth(self, nth: int) -> float:
        config = self.config
        return 1.0 if config.fraction and nth < config.first_episodes else config.fraction

    def add(self, predicted: bool, actual: bool) -> None:
        """Count one audited episode: what the judge said of its success, and what is true."""
        self._newest.append((bool(predicted), bool(actual)))
        if self.alarm is None and self._is_wrong_too_often():
            self.alarm = self._alarm_message()

    def _is_wrong_too_often(self) -> bool:
        if self.num_recent >= self.config.min_episodes:
            return max(self.false_successes, self.missed_successes) > self.config.max_gap
        wrong, allowed = sum(predicted != actual for predicted, actual in self._newest), self.config.max_gap / 2
        right = self.num_recent - wrong
        log_ratio = wrong * math.log(COIN / allowed) + right * math.log(COIN / (1 - allowed))
        return self.num_recent >= EARLY_EPISODES and log_ratio >= -math.log(EARLY_ERROR)

    @property
    def blocks_learning(self) -> bool:
        """Whether the learner must not learn from this judge any more."""
        return self.alarm is not None and self.config.on_alarm == "stop"

    @property
    def judge_success_rate(self) -> float:
        """Fraction of the newest audited episodes that succeed by the judge; NaN before there is any."""
        return self._fraction(predicted for predicted, _ in self._newest)

    @property
    def true_success_rate(self) -> float:
        """Fraction of the same that do."""
        return self._fraction(actual for _, actual in self._newest)

    @property
    def gap(self) -> float:
        """Success rate by the judge minus the true one."""
        return self.judge_success_rate - self.true_success_rate

    @property
    def false_successes(self) -> float:
        """Fraction of the audited episodes in which the judge predicts a success that is none."""
        return self._fraction(predicted and not actual for predicted, actual in self._newest)

    @property
    def missed_successes(self) -> float:
        """Fraction of the audited episodes that succeed while the judge sees no success."""
        return self._fraction(actual and not predicted for predicted, actual in self._newest)

    @property
    def num_recent(self) -> int:
        """Audited episodes that count."""
        return len(self._newest)

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md; rates once there are audited episodes."""
        raised = {"audit/alarm": float(self.alarm is not None)}
        if not self._newest:
            return raised
        failures, successes = 1 - self.true_success_rate, self.true_success_rate
        rates = {
            "audit/judge_success_rate": self.judge_success_rate,
            "audit/true_success_rate": self.true_success_rate,
            "audit/success_gap": self.gap,
            "audit/false_successes": self.false_successes,
            "audit/missed_successes": self.missed_successes,
        }
        if failures:
            rates["audit/fpr"] = self.false_successes / failures
        if successes:
            rates["audit/fnr"] = self.missed_successes / successes
        return {**raised, **rates}

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint, as JSON."""
        return {"newest": [list(pair) for pair in self._newest], "alarm": self.alarm, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""
        self.restart(state.get("since", 0))  # checkpoints of earlier versions have none
        self._newest.extend((bool(predicted), bool(actual)) for predicted, actual in state["newest"])
        self.alarm = state["alarm"]

    def _fraction(self, flags: Any) -> float:
        return sum(flags) / len(self._newest) if self._newest else math.nan

    def _alarm_message(self) -> str:
        limit = self.config.max_gap
        rates = {"false": self.false_successes, "missed": self.missed_successes}
        reasons = {
            "false": "the policy has learned to please the judge",
            "missed": "the judge does not see what the policy does right, which is not rewarded then",
        }
        kinds = [kind for kind, rate in rates.items() if rate > limit or rate == max(rates.values())]
        wrong = "; ".join(
            f"{rates[kind]:.0%} are {kind} successes (limit {limit:.0%}): {reasons[kind]}" for kind in kinds
        )
        return (
            f"the judge predicted success in {self.judge_success_rate:.0%} of the last {self.num_recent} audited "
            f"episodes, {self.true_success_rate:.0%} succeed; {wrong}; look at these episodes (plaudit data sheet), "
            f"label the {' and '.join(kinds)} successes (plaudit label) and train the judge again "
            "(plaudit train-reward), or calibrate one that is not trained (plaudit judge calibrate)"
        )


class LedgerAudit(Audit):
    """The audit of a judge whose labels stand in a store's ledger, over all models that it had.

    Nothing is kept but what stands in the ledger. What the simulator knows of an audited episode is written there too,
    as a label of source "simulator": it outlives the episode's eviction, a retraining may learn from it, and a learner
    that samples by the judge's source never sees it.

    An episode counts for the model that labeled it first. A new model labels old episodes again, and may have learned
    from them: that it agrees with what is true of them says nothing. So a new model begins with no audited episodes.
    """

    def __init__(self, config: AuditConfig, source: str, seed: int = 0):
        """source: of the labels that are audited"""
        super().__init__(config, seed)
        references = {"auto": (SIMULATOR, HUMAN), "simulator": (SIMULATOR,), "human": (HUMAN,)}[config.by]
        self.source = source
        self.fingerprint = ""  # of the current model, by its newest label
        self._references = tuple(reference for reference in references if reference != source)
        self._ledger_version = 0
        self._nth: dict[int, int] = {}  # episode -> how many the model that labeled it first had labeled before
        self._num_first: Counter[str] = Counter()  # fingerprint -> episodes that it labeled first
        self._results: dict[str, dict[int, tuple[bool, bool]]] = {}  # fingerprint -> episode -> predicted, actual
        self._pending: dict[int, str] = {}  # episode -> fingerprint, where nobody has told yet what is true
        self._counted_model, self._counted_until = "", -1  # whose results were added, and up to which episode

    def probability(self, episode: int) -> float:
        """With which it is audited; 0 before the judge has labeled it."""
        return self._probability_of_nth(self._nth[episode]) if episode in self._nth else 0.0

    def read_labels(self, store: Store) -> None:
        """Catch up with the ledger; what the simulator knows of audited episodes is written there."""
        store.ledger.refresh()
        store.refresh()
        for version in store.ledger.since(self._ledger_version):
            if version.source == self.source and version.episode not in self._nth:
                self._nth[version.episode] = self._num_first[version.model]
                self._num_first[version.model] += 1
        self._ask_simulator(store)
        new = store.ledger.since(self._ledger_version)
        self._ledger_version += len(new)
        for version in new:
            if version.source == self.source:
                self.fingerprint = version.model
        selected = [i for i in sorted({version.episode for version in new}) if self.selects(i)]
        changed = [episode_id for episode_id in selected if self._compare(store.ledger, episode_id)]
        if new:
            stored = set(store.ids)
            self._pending = {i: fingerprint for i, fingerprint in self._pending.items() if i in stored}
            self._count(changed)

    def requested(self, store: Store) -> list[int]:
        """Episodes that a human should label, those of the current model first."""
        self.read_labels(store)
        if HUMAN not in self._references:
            return []
        return sorted(self._pending, key=lambda i: (self._pending[i] != self.fingerprint, i))

    @property
    def num_episodes(self) -> int:
        """Audited so far, of the current model."""
        return len(self._results.get(self.fingerprint, {}))

    @property
    def status(self) -> str:
        """How it stands, in a sentence."""
        if self.alarm is not None:
            follows = "learning stops until another judge replaces" if self.blocks_learning else "learning goes on with"
            return f"{self.alarm}; {follows} {self.source} {self.fingerprint}"
        if not self.num_episodes:
            return "no episode of the current judge is audited yet"
        return (
            f"success rate {self.judge_success_rate:.0%} (judge), {self.true_success_rate:.0%} (true) in the last "
            f"{self.num_recent} audited episodes"
        )

    def metrics(self) -> dict[str, float]:
        pending = len(self._pending) if HUMAN in self._references else 0
        counts = {"audit/episodes": float(self.num_episodes), "audit/pending_episodes": float(pending)}
        return {**super().metrics(), **counts}

    def _ask_simulator(self, store: Store) -> None:
        if SIMULATOR not in self._references:
            return
        new = {version.episode for version in store.ledger.since(self._ledger_version) if version.source == self.source}
        found: dict[int, Labels] = {}
        for episode_id in sorted(new & set(store.ids)):
            if self.selects(episode_id) and store.ledger.newest(episode_id, {SIMULATOR}) is None:
                with suppress(EpisodeNotFound):  # evicted just now
                    found |= self._simulator_labels(store, episode_id)
        if found:
            store.ledger.extend(found.items())

    def _simulator_labels(self, store: Store, episode_id: int) -> dict[int, Labels]:
        (labels,) = label_episodes(SimulatorJudge(), [store.episode(episode_id)])
        if isinstance(labels, Labels):
            return {episode_id: labels}
        if self.config.by == SIMULATOR:
            raise JudgeError(
                f"episode {episode_id} is to be audited by the simulator, and no simulator recorded it; on a robot a "
                "human audits: set audit.by to human"
            )
        return {}

    def _compare(self, ledger: Ledger, episode_id: int) -> bool:
        """Compare the first model's label of an episode with what is true; returns whether the result is new."""
        versions = [version for version in ledger.history(episode_id) if version.source == self.source]
        if not versions:
            return False
        fingerprint = versions[0].model
        predicted = next(version for version in reversed(versions) if version.model == fingerprint).labels()
        references = (ledger.labels(episode_id, {reference}) for reference in self._references)
        actual = next((labels for labels in references if labels is not None), None)
        if actual is None:
            self._pending[episode_id] = fingerprint
            return False
        self._pending.pop(episode_id, None)
        if not actual.labeled.any():  # excluded by a human
            return False
        results, result = self._results.setdefault(fingerprint, {}), (predicted.success_once, actual.success_once)
        if results.get(episode_id) == result:
            return False
        results[episode_id] = result
        return True

    def _count(self, changed: list[int]) -> None:
        """Add new results in the order of the episodes; all of them again where an earlier one or the model changed."""
        results = self._results.get(self.fingerprint, {})
        new = [episode_id for episode_id in changed if episode_id in results]
        if self._counted_model != self.fingerprint or (new and new[0] <= self._counted_until):
            self.restart()
            self._counted_model, self._counted_until = self.fingerprint, -1
            new = sorted(results)
        for episode_id in new:
            self.add(*results[episode_id])
            self._counted_until = episode_id


def hashed_uniform(seed: int, purpose: str, key: object) -> float:
    """A number in [0, 1), the same for the same arguments on every machine."""
    digest = hashlib.sha256(f"{seed} {purpose} {key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
