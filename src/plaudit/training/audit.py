"""The audit of a judge in charge: of a random share of the episodes it judged, what is true is looked up.

    audit = Audit(config, judge="classifier", seed=seed)
    audit.look(store)                        # every now and then, by the one process that owns the store
    human.offer(audit.waiting(store))        # where only a person can say
    if audit.stops: print(audit.sentence)    # the learner goes no further on this judge

Whether an episode is audited is drawn from the seed and its id, so a run that goes on after a stop audits the same
ones. A person may label others too, odd ones first, and those teach the next judge; but only the ones that were drawn
say how often this judge is right.

An episode counts for the judge that was in charge when it came. A new judge judges the old ones again, and it may have
learned from them: that it agrees with their truth says nothing. So a new judge begins with a count of nothing.

Nothing is kept but what stands in the ledger. What the simulator knows of an audited episode is written there too, as a
label of source "simulator": it outlives the episode's eviction, a retraining may learn from it, and a learner that
samples by the judge's source never sees it. An alarm that rang for a judge stays rung for that judge, whatever comes
later: an error rate that hovers about the bound would otherwise start and stop the learner with every episode.
"""

import hashlib
from contextlib import suppress
from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from plaudit.config import Config
from plaudit.data.ledger import Ledger
from plaudit.data.store import Store
from plaudit.errors import EpisodeNotFound, JudgeError
from plaudit.judges.audit import Alarm
from plaudit.judges.config import HUMAN
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.types import Labels

By = Literal["auto", "simulator", "human"]
_PAIRS = [(False, False), (False, True), (True, False), (True, True)]  # judged and true; kept once, for weeks of them


class AuditConfig(Config):
    share: float = Field(default=0.25, ge=0, le=1)  # of the judged episodes, whose truth is looked up
    bound: float = Field(default=0.2, gt=0, le=1)  # of false or of missed successes among these, beyond which it rings
    window: PositiveInt = 60  # audited episodes that count, the newest
    least: PositiveInt = 30  # audited episodes of a judge before it may ring
    on_alarm: Literal["stop", "warn"] = "stop"  # whether the learner stops on that judge
    by: By = "auto"  # who knows: the simulator, a person, or the simulator where an episode has one

    @model_validator(mode="after")
    def _can_ring(self) -> Self:
        if self.least > self.window:
            raise ValueError(
                f"least is {self.least} and window {self.window}; an alarm that waits for more episodes than it "
                "remembers can never ring"
            )
        return self


class Audit:
    """Of one judge's source, over all models that it had."""

    def __init__(self, config: AuditConfig, judge: str, seed: int = 0):
        """judge: the source of the labels that are audited"""
        believed = {"auto": (SIMULATOR, HUMAN), "simulator": (SIMULATOR,), "human": (HUMAN,)}[config.by]
        self.config, self.judge = config, judge
        self.model = ""  # fingerprint of the judge in charge, by its newest label
        self._believed = tuple(source for source in believed if source != judge)
        self._seed = seed
        self._seen = 0  # versions of the ledger
        self._pairs: dict[str, dict[int, int]] = {}  # model -> episode -> one of _PAIRS, by its number
        self._open: dict[int, str] = {}  # episode -> model, where nobody has said yet what is true
        self._begin_count()

    def picks(self, episode_id: int) -> bool:
        """Whether an episode is one of those audited."""
        return lot(self._seed, "audit", episode_id) < self.config.share

    def look(self, store: Store) -> None:
        """Catch up with what was judged and audited; the simulator's word goes into the ledger here."""
        store.ledger.refresh()
        store.refresh()
        self._ask_simulator(store)
        new = store.ledger.since(self._seen)
        self._seen += len(new)
        for version in new:
            if version.source == self.judge:
                self.model = version.model
        picked = [i for i in sorted({version.episode for version in new}) if self.picks(i)]
        changed = [episode_id for episode_id in picked if self._compare(store.ledger, episode_id)]
        if new:
            alive = set(store.ids)
            self._open = {episode_id: model for episode_id, model in self._open.items() if episode_id in alive}
            self._count(changed)

    def waiting(self, store: Store) -> list[int]:
        """Episodes that a person should look at, those of the judge in charge first."""
        self.look(store)
        if HUMAN not in self._believed:
            return []
        return sorted(self._open, key=lambda i: (self._open[i] != self.model, i))

    @property
    def episodes(self) -> int:
        """Audited so far, of the judge in charge."""
        return len(self._pairs.get(self.model, {}))

    @property
    def judged(self) -> float:
        """Share of the newest audited episodes that the judge called a success; NaN before there is any."""
        return self._alarm.shares[0]

    @property
    def true(self) -> float:
        """Share of the same that are one."""
        return self._alarm.shares[1]

    @property
    def gap(self) -> float:
        return self._alarm.gap

    @property
    def ringing(self) -> bool:
        """Whether it has rung for the judge in charge."""
        return self._rang is not None

    @property
    def stops(self) -> bool:
        """Whether the learner must not go on with this judge."""
        return self.ringing and self.config.on_alarm == "stop"

    @property
    def sentence(self) -> str:
        """How it stands; when it has rung, what was wrong then and what follows."""
        if self._rang is not None:
            what = "the learner has stopped until another judge replaces" if self.stops else "the learner goes on with"
            return f"{self._rang}; {what} {self.judge} {self.model}"
        if not self.episodes:
            return "no episode of the judge in charge was audited yet"
        return f"judged {self.judged:.0%} and true {self.true:.0%} of the last {self._counted} audited episodes"

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md; shares only once there are any."""
        shares = {"audit/judged": self.judged, "audit/true": self.true, "audit/gap": self.gap} if self.episodes else {}
        waiting = len(self._open) if HUMAN in self._believed else 0
        return {
            **shares,
            **self._alarm.metrics(),
            "audit/alarm": float(self.ringing),
            "audit/episodes": float(self.episodes),
            "audit/waiting": float(waiting),
        }

    @property
    def _counted(self) -> int:
        return min(self.episodes, self.config.window)

    def _ask_simulator(self, store: Store) -> None:
        """Its verdicts on the episodes that were judged since, into the ledger."""
        if SIMULATOR not in self._believed:
            return
        judged = {version.episode for version in store.ledger.since(self._seen) if version.source == self.judge}
        said: dict[int, Labels] = {}
        for episode_id in sorted(judged & set(store.ids)):
            if self.picks(episode_id) and store.ledger.newest(episode_id, {SIMULATOR}) is None:
                with suppress(EpisodeNotFound):  # evicted just now
                    said |= self._simulated(store, episode_id)
        if said:
            store.ledger.extend(said.items())

    def _simulated(self, store: Store, episode_id: int) -> dict[int, Labels]:
        (said,) = label_episodes(SimulatorJudge(), [store.episode(episode_id)])
        if isinstance(said, Labels):
            return {episode_id: said}
        if self.config.by == SIMULATOR:
            raise JudgeError(
                f"episode {episode_id} is to be audited by the simulator, and none knows of it; on a robot a person "
                "audits: set audit.by to human"
            )
        return {}

    def _compare(self, ledger: Ledger, episode_id: int) -> bool:
        """What the judge of its day said of an episode beside what is true of it, as far as anybody knows.

        Returns whether that is news.
        """
        verdicts = [version for version in ledger.history(episode_id) if version.source == self.judge]
        if not verdicts:
            return False
        model = verdicts[0].model
        judged = next(version for version in reversed(verdicts) if version.model == model).labels()
        truth = next((said for by in self._believed if (said := ledger.labels(episode_id, {by})) is not None), None)
        if truth is None:
            self._open[episode_id] = model
            return False
        self._open.pop(episode_id, None)
        if not truth.labeled.any():  # a person said that nobody should learn from it
            return False
        pairs, pair = self._pairs.setdefault(model, {}), _PAIRS.index((judged.success_once, truth.success_once))
        if pairs.get(episode_id) == pair:
            return False
        pairs[episode_id] = pair
        return True

    def _begin_count(self) -> None:
        config = self.config
        self._alarm = Alarm(config.bound, config.window, config.least)
        self._rang: str | None = None  # its sentence when it first rang
        self._of, self._last = self.model, -1  # whose episodes it has counted, and up to which

    def _count(self, changed: list[int]) -> None:
        """Go on with what was compared just now, in the order of the ids; from the first one where something earlier
        has changed, or the judge."""
        pairs = self._pairs.get(self.model, {})
        new = [episode_id for episode_id in changed if episode_id in pairs]
        if self._of != self.model or (new and new[0] <= self._last):
            self._begin_count()
            new = sorted(pairs)
        for episode_id in new:
            self._alarm.note(*_PAIRS[pairs[episode_id]])
            if self._rang is None and self._alarm.ringing:
                self._rang = self._alarm.sentence
            self._last = episode_id


def lot(seed: int, what: str, episode: object) -> float:
    """From 0 to 1, the same for the same on every machine and in every year."""
    digest = hashlib.sha256(f"{seed} {what} {episode}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
