"""The audit of a judge whose labels stand in a store's ledger: `plaudit online`.

    audit = LedgerAudit(config, source="classifier", seed=seed)
    audit.read_labels(store)                                    # now and then, in the process that owns the store
    window.show(audit.requested(store))                         # where only a human can tell
    if audit.current.blocks_learning: print(audit.status)

Nothing is kept but what stands in the ledger, and labels and answers are read in its order: a resumed run draws the
same lots and comes to the same figures. What the simulator knows of an audited episode is written there too, as a label
of source "simulator": it outlives the episode's eviction, a retraining may learn from it, and a learner that samples by
the judge's source never sees it.

An episode counts for the model that labeled it first. A new model labels old episodes again, and may have learned from
them: that it agrees with what is true of them says nothing. So a new model begins with no audited episodes.

An episode that is unlike what the judge learned from may be withheld (`judge.unlike: audit`): it is audited before
others, its labels are written once the audit has said the same, and what the judge would have been wrong about is no
evidence against it: nobody was paid for it.

Humans are asked in the order of the lots. One who tells of some episodes and not of others decides what is measured, so
the intervals count what nobody has told of as right and as wrong.
"""

from contextlib import suppress

from plaudit.data.label_index import LabelVersion
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, JudgeError
from plaudit.judges.config import HUMAN
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rule import awaits_audit, release
from plaudit.training.audit import Audit, AuditConfig
from plaudit.types import Labels


class LedgerAudit:
    """Of all models that a judge had in a run."""

    def __init__(self, config: AuditConfig, source: str, seed: int = 0):
        """source: of the labels that are audited"""
        references = {"auto": (SIMULATOR, HUMAN), "simulator": (SIMULATOR,), "human": (HUMAN,)}[config.by]
        self.config, self.source, self._seed = config, source, seed
        self.fingerprint = ""  # of the current model, by its newest label
        self._references = tuple(reference for reference in references if reference != source)
        minutes = config.minutes_per_hour
        self._budget = None if minutes is None else Budget(minutes, config.minutes_per_episode)
        self._ledger_version = 0
        self._audits: dict[str, Audit] = {}  # by fingerprint
        self._models: dict[int, str] = {}  # episode -> fingerprint of the model that labeled it first
        self._opinions: dict[int, bool] = {}  # episode -> success by a third party, told before the judge's
        self._answers: dict[int, LabelVersion] = {}  # episode -> who tells what is true
        self._pending: dict[int, str] = {}  # episode -> fingerprint, where nobody has told yet what is true
        self._asked: set[int] = set()  # of these, what the simulator was asked about
        self._withheld: dict[int, Labels] = {}  # episodes that count once the audit says what the judge says

    @property
    def current(self) -> Audit:
        """Of the current model."""
        return self._audits.get(self.fingerprint) or Audit(self.config, self._seed)

    def read_labels(self, store: Store) -> None:
        """Catch up with the ledger; what the simulator knows of audited episodes is written there."""
        store.ledger.refresh()
        store.refresh()
        self._read(store)
        if self._ask_simulator(store):
            self._read(store)
        stored = set(store.ids)
        self._pending = {episode: model for episode, model in self._pending.items() if episode in stored}
        self._withheld = {episode: labels for episode, labels in self._withheld.items() if episode in stored}
        self._release(store)

    def requested(self, store: Store) -> list[int]:
        """Episodes that a human should label: those that are withheld until then, then those of the current model."""
        self.read_labels(store)
        if HUMAN not in self._references:
            return []
        return sorted(self._pending, key=lambda i: (i not in self._withheld, self._pending[i] != self.fingerprint, i))

    @property
    def status(self) -> str:
        """How it stands, in a sentence."""
        audit = self.current
        if audit.alarm is not None:
            follows = (
                "learning stops until another judge replaces" if audit.blocks_learning else "learning goes on with"
            )
            return f"{audit.alarm}; {follows} {self.source} {self.fingerprint}"
        if not audit.num_episodes:
            return "no episode of the current judge is audited yet"
        return (
            f"success rate {audit.judge_success_rate:.0%} (judge), {audit.corrected_success} (corrected), after "
            f"{audit.num_episodes} audited episodes"
        )

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md."""
        pending = len(self._pending) if HUMAN in self._references else 0
        return {**self.current.metrics(), "audit/pending_episodes": float(pending)}

    def _read(self, store: Store) -> None:
        """Lots and answers, in the order of the ledger."""
        new = store.ledger.since(self._ledger_version)
        self._ledger_version += len(new)
        for version in new:
            if version.source == self.source:
                self._read_prediction(version)
            elif version.source in self._references:
                self._read_answer(version)
            elif version.episode not in self._models:
                self._opinions[version.episode] = version.labels().success_once

    def _read_prediction(self, version: LabelVersion) -> None:
        episode, self.fingerprint, labels = version.episode, version.model, version.labels()
        if version.model not in self._audits:
            self._audits[version.model] = Audit(self.config, self._seed, number=len(self._audits) + 1)
        self._withheld.pop(episode, None)
        if withheld := awaits_audit(labels):
            self._withheld[episode] = labels
        if episode in self._models or not (withheld or labels.labeled.any()):  # undecided: no prediction
            return
        self._models[episode] = version.model
        success, opinion = release(labels).success_once, self._opinions.pop(episode, None)
        disputed = bool(labels.unlike) or opinion not in (None, success)
        affordable = 1.0 if self._budget is None else self._budget.affordable(version.time)
        audit = self._audits[version.model]
        drawn = audit.draws(episode, success, disputed=disputed, withheld=withheld, affordable=affordable)
        if self._budget is not None:
            self._budget.spend(audit.probability(episode))
        if drawn:
            self._pending[episode] = version.model
            if episode in self._answers:
                self._answer(self._answers[episode])

    def _read_answer(self, version: LabelVersion) -> None:
        """The simulator knows better than a human where both tell, and of each the last word counts."""
        known, rank = self._answers.get(version.episode), self._references.index
        if known is None or rank(version.source) <= rank(known.source):
            self._answers[version.episode] = version
            if version.episode in self._models:
                self._answer(version)

    def _answer(self, version: LabelVersion) -> None:
        labels = version.labels()
        self._pending.pop(version.episode, None)
        if labels.labeled.any():  # else excluded by a human
            self._audits[self._models[version.episode]].add(version.episode, labels.success_once)

    def _release(self, store: Store) -> None:
        """What was withheld counts from now on, where whoever was asked says the same; else nobody learns from it."""
        answers = {episode: self._answers[episode].labels() for episode in self._withheld.keys() & self._answers.keys()}
        decided = {episode: release(self._withheld.pop(episode)) for episode in answers}
        confirmed = {
            episode: labels
            for episode, labels in decided.items()
            if answers[episode].labeled.any() and answers[episode].success_once == labels.success_once
        }
        if confirmed:
            store.ledger.extend(confirmed.items())

    def _ask_simulator(self, store: Store) -> bool:
        """Returns whether it had anything to say."""
        if SIMULATOR not in self._references:
            return False
        found: dict[int, Labels] = {}
        for episode in sorted((self._pending.keys() & set(store.ids)) - self._asked):
            with suppress(EpisodeNotFound):  # evicted just now
                found |= self._simulator_labels(store, episode)
        self._asked = set(self._pending)
        if found:
            store.ledger.extend(found.items())
        return bool(found)

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


class Budget:
    """A human's time, in episodes: it comes back with the hours, an hour's worth at most is saved.

    What an audit spends is its probability, so that with little left every episode has a chance, if a small one.
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

    def affordable(self, time: float) -> float:
        """The highest probability of an audit at this moment."""
        return min(1.0, self.left(time))

    def spend(self, episodes: float) -> None:
        """Of what is left."""
        self._left -= episodes
