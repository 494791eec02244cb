"""The audit of a judge whose labels are in a store's ledger, and the costs of a cascade: `plaudit online`.

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

People are asked in the order of drawing, and the test uses their answers in that order (audit.py). Which episodes they
answer could bias the estimates, so the intervals count unanswered episodes both as right and as wrong.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from plaudit.data.ledger import LabelVersion, Ledger, counted_sources
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, JudgeError
from plaudit.judges.cascade import URGENCY, CascadeConfig
from plaudit.judges.config import CASCADE, HUMAN
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.judges.stats import RUN_ALPHA
from plaudit.rule import awaits_audit, release
from plaudit.training.audit import Audit, AuditConfig, true_success
from plaudit.types import PEOPLE, CascadeResult, Labels

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
            f"decided by {decided}; {len(self._open)} episodes are undecided; it took "
            f"{metrics['judge/human_s'] / 60:.3g} minutes of a human and {self._compute_s / 60:.3g} of compute"
        )
