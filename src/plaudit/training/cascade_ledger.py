"""Who decided the episodes of a store that a cascade judges, what that has cost, and what a human is asked next.

    tally = CascadeLedger(config)
    tally.read_labels(store)               # now and then
    tally.requested(store)                 # ids, the most wanted first, as many as the budget allows
    tally.metrics()

Nothing is kept but what stands in the ledger. An hour's worth of the human's time is there at first and comes back with
the hours; each of their labels spends what an episode costs. Time is that of the newest label: a run that waits for
nobody always has a new one.
"""

from collections import Counter

from plaudit.data.store import Store
from plaudit.judges.cascade import CascadeConfig, CascadeNote
from plaudit.judges.config import CASCADE, HUMAN
from plaudit.training.ledger_audit import Budget

SHARE = "judge/cascade_share/"  # of a metric, before the name of a stage


class CascadeLedger:
    """Of one store."""

    def __init__(self, config: CascadeConfig):
        self._config, human = config, config.human
        self._human_cost_s = 0.0 if human is None else human.cost_s
        self._start(generation=0)

    def _start(self, generation: int) -> None:
        """Forget everything: the ledger is read from its beginning."""
        budget = self._config.budget
        self._budget = None if budget is None else Budget(budget, self._human_cost_s / 60)
        self._generation, self._ledger_version, self._time = generation, 0, 0.0
        self._notes: dict[int, CascadeNote] = {}  # episode -> of the cascade's newest label
        self._by_human: set[int] = set()  # episodes that a human has labeled
        self._open: set[int] = set()  # episodes that nobody has decided
        self._compute_s = 0.0

    def read_labels(self, store: Store) -> None:
        """Catch up with the ledger."""
        store.ledger.refresh()
        if store.ledger.generation != self._generation:
            self._start(store.ledger.generation)
        new = store.ledger.since(self._ledger_version)
        self._ledger_version += len(new)
        for version in new:
            self._time = max(self._time, version.time)
            if version.source == CASCADE:
                self._notes[version.episode] = note = CascadeNote.parse(version.labels().note)
                self._compute_s += note.cost_s
                (self._open.discard if note.decided_by else self._open.add)(version.episode)
            elif version.source == HUMAN and version.episode not in self._by_human:
                self._by_human.add(version.episode)
                if self._budget is not None:
                    self._budget.left(version.time)
                    self._budget.spend(1)
        self._open -= self._by_human

    @property
    def undecided(self) -> list[int]:
        """Episodes that nobody has decided, the most wanted first."""
        return sorted(self._open, key=lambda i: (self._notes[i].urgency, i))

    def requested(self, store: Store) -> list[int]:
        """Of these, what a human is asked about now."""
        self.read_labels(store)
        if self._config.human is None:
            return []
        stored = set(store.ids)
        wanted = [i for i in self.undecided if i in stored]
        return wanted if self._budget is None else wanted[: max(0, int(self._budget.left(self._time)))]

    @property
    def human_s(self) -> float:
        """Seconds of a human, for all episodes that they labeled."""
        return self._human_cost_s * len(self._by_human)

    def shares(self) -> dict[str, float]:
        """Stage -> of all episodes, those that it decided; what is missing to 1 is undecided."""
        decided = Counter(note.decided_by for i, note in self._notes.items() if i not in self._by_human)
        decided[HUMAN] = len(self._by_human)
        total = len(self._notes.keys() | self._by_human)
        return {name: decided[name] / total for name in self._config.names()} if total else {}

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md."""
        return {
            **{f"{SHARE}{name}": share for name, share in self.shares().items()},
            "judge/undecided_episodes": float(len(self.undecided)),
            "judge/human_s": self.human_s,
            "judge/compute_s": self._compute_s,
        }

    def describe(self) -> str:
        """For people."""
        decided = ", ".join(f"{name} {share:.0%}" for name, share in self.shares().items())
        return (
            f"decided by {decided}; {len(self.undecided)} episodes are undecided; it took {self.human_s / 60:.3g} "
            f"minutes of a human and {self._compute_s / 60:.3g} of compute"
        )
