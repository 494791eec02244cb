"""The alarm of an audit: whether a judge is wrong about too many of the episodes whose truth was looked up."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from plaudit.errors import JudgeError


class Alarm:
    """Rings when the judge is wrong about too many audited episodes, in either way: it calls a success what is none,
    and the policy has found out how to please it; or it misses successes, and the policy is not paid for them.

    alarm.note(judged=labels.success_once, true=episode.success.any())    # of each episode that somebody audits
    if alarm.ringing: print(alarm.sentence)

    The two kinds of mistake are counted apart. Their difference, `gap`, says nothing of a judge that makes both.
    """

    def __init__(self, bound: float = 0.2, window: int = 50, least: int = 20):
        """
        bound: of either error rate, a share of the audited episodes, beyond which it rings
        window: audited episodes that count, the newest
        least: audited episodes before it rings at all
        """
        if not 1 <= least <= window:
            raise JudgeError(f"an alarm that waits for {least} episodes and remembers {window} can never ring")
        self.bound, self.window, self.least = bound, window, least
        self._noted: deque[tuple[bool, bool]] = deque(maxlen=window)

    def note(self, judged: bool, true: bool) -> None:
        """Count one audited episode."""
        self._noted.append((bool(judged), bool(true)))

    @property
    def shares(self) -> tuple[float, float]:
        """Of the audited episodes: those judged a success and those that are one; NaN before there are any."""
        return self._share(lambda judged, true: judged), self._share(lambda judged, true: true)

    @property
    def false_successes(self) -> float:
        """Share of the audited episodes that were called a success and are none; NaN before there are any."""
        return self._share(lambda judged, true: judged and not true)

    @property
    def missed_successes(self) -> float:
        """Share of the audited episodes that are a success and were not called; NaN before there are any."""
        return self._share(lambda judged, true: true and not judged)

    @property
    def gap(self) -> float:
        """Judged minus true success."""
        judged, true = self.shares
        return judged - true

    @property
    def ringing(self) -> bool:
        return len(self._noted) >= self.least and max(self.false_successes, self.missed_successes) > self.bound

    @property
    def sentence(self) -> str:
        """What is wrong, by how much, and what to do about it."""
        judged, true = self.shares
        rates = {"false": self.false_successes, "missed": self.missed_successes}
        follows = {
            "false": "the policy has learned to please the judge",
            "missed": "the judge does not see what the policy does right, and it is not paid for it",
        }
        kinds = [kind for kind in rates if rates[kind] > self.bound] or [max(rates, key=lambda kind: rates[kind])]
        wrong = "; ".join(
            f"{rates[kind]:.0%} are {kind} successes, at most {self.bound:.0%} may be: {follows[kind]}"
            for kind in kinds
        )
        return (
            f"the judge called {judged:.0%} of the last {len(self._noted)} audited episodes a success and {true:.0%} "
            f"were; {wrong}; look at these episodes (plaudit data sheet), label the "
            f"{' and '.join(kinds)} successes (plaudit data label) and train the judge again (plaudit train-reward)"
        )

    def metrics(self) -> dict[str, float]:
        """Both error rates, by the names in docs/metrics.md; nothing before there are any."""
        if not self._noted:
            return {}
        return {"audit/false_successes": self.false_successes, "audit/missed_successes": self.missed_successes}

    def to_json(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("bound", "window", "least")}
        return {**facts, "noted": list(map(list, self._noted))}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """Checkpoints of earlier versions have `two_sided` too, which means nothing any more."""
        alarm = cls(tree["bound"], tree["window"], tree["least"])
        for judged, true in tree["noted"]:
            alarm.note(judged, true)
        return alarm

    def _share(self, counts: Callable[[bool, bool], bool]) -> float:
        if not self._noted:
            return math.nan
        return sum(counts(judged, true) for judged, true in self._noted) / len(self._noted)
