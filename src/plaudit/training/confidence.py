"""What random checks prove: a test of an error rate that may be read at any time, and intervals for counts.

    test = ErrorTest(allowed=0.1)
    test.add(error=True)                        # a checked answer
    if test.log_evidence > math.log(20): ...

    checks = Checks()
    checks.add(probability=0.25, error=False)   # error: None while the answer is not known
    low, high = checks.bounds(alpha=0.05)

`ErrorTest` bets against the claim that each answer, given everything before it, is wrong with at most the allowed
probability (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting"). While the claim is
true, no bet gains on average. The stake then reaches 1/alpha in at most a fraction alpha of all runs, however long they
are (Ville's inequality). Half of the stake is on fixed bets, which find an error rate that is too high from the start.
The other half follows the newest errors and bets nothing while they are rare, so it is still there when errors begin
late. Detectors that restart (Shiryaev-Roberts, CUSUM) find late errors slightly sooner. They guarantee only a mean time
between false alarms, so they stop every honest run sooner or later.

`Checks` bounds the number of errors among answers of which some were drawn for a check, each with a known probability.
It assumes nothing about the errors, only that the draws are random. For every s, the product over all errors of
exp(s drawn/p) / (1 - p + p exp(s/p)) is 1 on average at every moment. Counts for which the mean of these products over
fixed values of s exceeds 1/alpha are ruled out. Checks with probability 1 are counted as they are and cost nothing.

`ErrorBudget` splits the 5% chance of a wrong decision in a whole run between the kinds of decisions that a run makes.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

FIXED_BETS = np.array([0.025, 0.05, 0.1, 0.2, 0.4, 0.7])  # fractions of the stake, lost with every right answer
MEMORY = 0.9  # of the moving average of errors that the other half of the stake follows, per answer
MAX_BET = 0.75  # fraction of a stake that one answer can lose
STRENGTHS = np.geomspace(0.02, 8, 40)  # of s, as a multiple of the usual probability of a check
RUN_ALPHA = 0.05  # chance of any wrong decision in a whole run


@dataclass(frozen=True)
class ErrorBudget:
    """Chance of a wrong decision in a whole run, by kind of decision; they add up to `RUN_ALPHA`."""

    alarm: float  # an honest judge is stopped
    promotion: float  # a candidate that is no better replaces the judge
    cascade: float  # a retrained stage of a cascade decides alone and is wrong more often than it may be

    @classmethod
    def of(cls, *, retrains: bool, cascade: bool) -> "ErrorBudget":
        """The budget of a run that makes these kinds of decisions besides alarms."""
        shares = (1.0, 0.0, 0.0) if not retrains else (0.4, 0.4, 0.2) if cascade else (0.5, 0.5, 0.0)
        return cls(*(RUN_ALPHA * share for share in shares))


def alpha_spent(budget: float, number: int) -> float:
    """What the `number`-th decision of a kind may spend; over all numbers this adds up to `budget`."""
    return budget * 6 / (math.pi * number) ** 2


class ErrorTest:
    """Tests whether errors are more frequent than allowed."""

    def __init__(self, allowed: float):
        """allowed: fraction of the answers that may be wrong"""
        self._allowed, self._recent = allowed, allowed
        self._log_stakes = np.log(np.append(np.full(len(FIXED_BETS), 0.5 / len(FIXED_BETS)), 0.5))

    @property
    def log_evidence(self) -> float:
        """Log of the stake, which starts at 1. It ever exceeds log(1/alpha) with probability at most alpha."""
        return float(np.logaddexp.reduce(self._log_stakes))

    def add(self, error: bool, weight: float = 1.0) -> None:
        """Add one checked answer.

        weight: at most 1; probability with which such answers are usually checked, divided by that of this one
        """
        self._bet(weight * error, weight * self._allowed)
        self._recent = MEMORY * self._recent + (1 - MEMORY) * weight * error

    def allow(self, errors: float) -> None:
        """Allow a fraction of an error for something that is not an answer of the tested kind."""
        self._bet(0.0, errors)

    def _bet(self, errors: float, allowed: float) -> None:
        """Bet that there are more errors than allowed. No bet loses more than `MAX_BET` of its stake."""
        if not allowed:
            return
        follow = min(max((self._recent - self._allowed) / (1 - self._allowed), 0.0), MAX_BET)
        bets = np.minimum(np.append(FIXED_BETS, follow) / self._allowed, MAX_BET / allowed)
        self._log_stakes += np.log1p(bets * (errors - allowed))

    def state_dict(self) -> dict[str, Any]:
        """State as JSON."""
        return {"recent": self._recent, "log_stakes": self._log_stakes.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` returned."""
        self._recent, self._log_stakes = state["recent"], np.array(state["log_stakes"])


@dataclass
class Checks:
    """Answers, some of them checked."""

    answers: int = 0
    waiting: int = 0  # drawn, not answered yet
    sure: int = 0  # checked with probability 1
    sure_errors: int = 0
    drawn: int = 0  # checked with a lower probability
    drawn_errors: int = 0
    weighted: float = 0.0  # the drawn ones, each by 1/probability
    weighted_errors: float = 0.0
    weighted_waiting: float = 0.0
    least: float = 1.0  # lowest probability

    def add(self, probability: float, error: bool | None = None, drawn: bool = True) -> None:
        """Add one answer.

        error: None while it is not known
        drawn: whether it is checked
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
            self.weighted += 1 / probability
            self.weighted_errors += error / probability

    def merge(self, other: "Checks") -> "Checks":
        """Both together."""
        own, more = asdict(self), asdict(other)
        both: dict[str, Any] = {key: own[key] + more[key] for key in own}
        both["least"] = min(self.least, other.least)
        return Checks(**both)

    @property
    def checked(self) -> int:
        """Answers that are known to be right or wrong."""
        return self.sure + self.drawn

    @property
    def errors(self) -> float:
        """Estimated number of errors among all answers; 0 before anything is checked.

        The errors that are known count as they are. The rest has the error rate of the randomly drawn checks, or of all
        checks while there are none.
        """
        if not self.checked:
            return 0.0
        rate = self.weighted_errors / self.weighted if self.drawn else self.sure_errors / self.sure
        return self.sure_errors + (self.answers - self.sure) * rate

    def estimate(self, alpha: float, usual: float = 0.25) -> tuple[float, int, int]:
        """`errors`, inside of its `bounds`, and these."""
        low, high = self.bounds(alpha, usual)
        return min(max(self.errors, low), high), low, high

    def bounds(self, alpha: float, usual: float = 0.25) -> tuple[int, int]:
        """The smallest and the largest number of errors that are not ruled out at `alpha`.

        An answer that is drawn and not known yet may be right or wrong.
        usual: probability of a check for which the bounds are narrowest
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
