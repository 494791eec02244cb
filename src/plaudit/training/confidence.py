"""What random spot checks prove: a test of an error rate that may be read at any moment, and intervals for counts.

    test = ErrorTest(allowed=0.1)
    test.add(error=True)             # a checked answer
    if test.log_evidence > math.log(20): ...

    checks = Checks()
    checks.add(probability=0.25, error=False)   # error: None where it was not drawn
    low, high = checks.bounds(alpha=0.05)

`ErrorTest` is a bet against the claim that errors are no more frequent than allowed (Waudby-Smith and Ramdas,
"Estimating means of bounded random variables by betting"). While the claim is true, whatever else changes, no bet gains
on average, so the stake grows to 1/alpha in a fraction alpha of all runs at most, however long they are (Ville's
inequality). Half of the stake is on fixed bets, which find an error rate that was too high from the start. The other
half follows the newest errors and bets nothing while they are few, so that it is still there when errors begin late. A
detector that restarts (Shiryaev-Roberts, CUSUM) would find late ones a little sooner; it promises a mean time between
false alarms, and sooner or later stops every honest run.

`Checks` bounds how many errors there are among answers of which some were drawn for a check, each with a known
probability. Nothing is assumed of the errors, only of the lots. For every s, the product over all errors of
exp(s drawn/p) / (1 - p + p exp(s/p)) is 1 on average at every moment; what an average over fixed values of s makes
larger than 1/alpha is ruled out. Checks with probability 1 are counted as they are and cost nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FIXED_BETS = np.array([0.025, 0.05, 0.1, 0.2, 0.4, 0.7])  # of the stake, lost with every right answer
MEMORY = 0.9  # of the moving average of errors that the other half of the stake follows, per answer
MOST = 0.75  # of this half, lost with a right answer
STRENGTHS = np.geomspace(0.02, 8, 40)  # of s, as a multiple of the usual probability of a check


class ErrorTest:
    """Whether errors are more frequent than allowed."""

    def __init__(self, allowed: float):
        """allowed: fraction of the answers"""
        self._allowed, self._recent = allowed, allowed
        self._log_stakes = np.log(np.append(np.full(len(FIXED_BETS), 0.5 / len(FIXED_BETS)), 0.5))

    @property
    def log_evidence(self) -> float:
        """Of the stake, which was 1 at the start; above log(1/alpha) with probability alpha at most, ever."""
        return float(np.logaddexp.reduce(self._log_stakes))

    def add(self, error: bool, weight: float = 1.0) -> None:
        """One checked answer.

        weight: at most 1; the probability with which an answer is checked at this moment, divided by the one of this
        """
        self._bet(weight * (error - self._allowed))
        self._recent = MEMORY * self._recent + (1 - MEMORY) * weight * error

    def allow(self, errors: float) -> None:
        """Allow more of them: a fraction of one, for something that was no answer of the kind that is tested."""
        self._bet(-errors)

    def _bet(self, gain: float) -> None:
        follow = min(max((self._recent - self._allowed) / (1 - self._allowed), 0.0), MOST)
        self._log_stakes += np.log1p(np.append(FIXED_BETS, follow) / self._allowed * gain)

    def state_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"recent": self._recent, "log_stakes": self._log_stakes.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""
        self._recent, self._log_stakes = state["recent"], np.array(state["log_stakes"])


@dataclass
class Checks:
    """Answers, some of them checked."""

    answers: int = 0
    waiting: int = 0  # drawn, and nobody has told yet
    sure: int = 0  # checked with probability 1
    sure_errors: int = 0
    drawn: int = 0  # checked with less
    drawn_errors: int = 0
    weighted: float = 0.0  # the drawn ones, each by 1/probability
    weighted_errors: float = 0.0
    weighted_waiting: float = 0.0
    least: float = 1.0  # probability

    def add(self, probability: float, error: bool | None = None, drawn: bool = True) -> None:
        """One answer.

        error: None where nobody has told
        drawn: whether it is to be checked
        """
        self.answers += 1
        self.least = min(self.least, probability)
        if not drawn:
            return
        if error is None:
            self.waiting += 1
            self.weighted_waiting += 1 / probability
        elif probability == 1:
            self.sure, self.sure_errors = self.sure + 1, self.sure_errors + error
        else:
            self.drawn, self.drawn_errors = self.drawn + 1, self.drawn_errors + error
            self.weighted, self.weighted_errors = (
                self.weighted + 1 / probability,
                self.weighted_errors + error / probability,
            )

    def merge(self, other: "Checks") -> "Checks":
        """Both together."""
        own, more = asdict(self), asdict(other)
        both: dict[str, Any] = {key: own[key] + more[key] for key in own}
        both["least"] = min(self.least, other.least)
        return Checks(**both)

    @property
    def checked(self) -> int:
        """Of which it is known whether they are errors."""
        return self.sure + self.drawn

    @property
    def errors(self) -> float:
        """How many there are among all answers, each check weighted by 1/probability; 0 before there is one."""
        weight = self.sure + self.weighted
        return self.answers * (self.sure_errors + self.weighted_errors) / weight if weight else 0.0

    def bounds(self, alpha: float, usual: float = 0.25) -> tuple[int, int]:
        """The smallest and the largest number of errors, not ruled out at `alpha`.

        Who has not told yet might tell of an error, or of none.
        usual: probability of a check, where the bounds are to be narrowest
        """
        low, high = self._not_ruled_out(alpha, usual, self.drawn_errors, self.weighted_errors)
        if self.waiting:
            found, weighted = self.drawn_errors + self.waiting, self.weighted_errors + self.weighted_waiting
            _, high = self._not_ruled_out(alpha, usual, found, weighted)
        return self.sure_errors + low, self.sure_errors + high

    def _not_ruled_out(self, alpha: float, usual: float, found: int, weighted: float) -> tuple[int, int]:
        unchecked = self.answers - self.sure - self.drawn - self.waiting
        most = found + unchecked
        if not unchecked or not self.least:
            return found, most
        counts = np.unique(np.linspace(found, most, min(most - found + 1, 2001)).astype(int))
        s = usual * np.concatenate([-STRENGTHS, STRENGTHS])
        p = self.least
        growth = -np.logaddexp(math.log1p(-p), math.log(p) + s / p)
        log_evidence = np.logaddexp.reduce(s * weighted + counts[:, None] * growth, axis=1) - math.log(len(s))
        kept = np.flatnonzero(log_evidence < -math.log(alpha))
        if not len(kept):
            kept = np.array([np.argmin(log_evidence)])
        low = found if kept[0] == 0 else int(counts[kept[0] - 1]) + 1
        high = most if kept[-1] == len(counts) - 1 else int(counts[kept[-1] + 1]) - 1
        return low, high
