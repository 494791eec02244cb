"""From a judge's numbers to a call: temperature and bias, a threshold, and how often that lets a failure through.

    calibration = fit_calibration(logits, truth)
    threshold = choose_threshold(episodes, target_fpr=0.01)
    rate = false_positive_rate(other_episodes, threshold.value)

A failure that is called success is a reward for nothing, and a learner finds it; so the threshold is chosen by the
share of these. Frames of an episode look alike and are right or wrong together: every interval here counts episodes.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveFloat
from scipy.special import expit
from scipy.stats import binomtest

from plaudit.config import Config
from plaudit.errors import JudgeError
from plaudit.judges.scored import EpisodePrediction, drop_unlabeled
from plaudit.types import AnyArray, BoolArray, FloatArray

_DRAWS = 2000  # of a bootstrap
_RIDGE = 0.01  # a prior on calibration as wide as 10: felt only where the data is silent
_TEMPERATURES = (0.05, 20.0)
_NOISE = 0.01  # scores of one frame on two devices, one of them in half precision, are not further apart

# From logits to probabilities


@dataclass(frozen=True)
class Calibration:
    """P(success) = sigmoid(logit / temperature + bias)."""

    temperature: float = 1.0  # above 1 for a network that is surer than it should be
    bias: float = 0.0

    def __call__(self, logits: AnyArray) -> FloatArray:
        return expit(self.logit(logits)).astype(np.float32)

    def logit(self, logits: AnyArray) -> AnyArray:
        """The same before the sigmoid, in float64."""
        return np.asarray(logits, np.float64) / self.temperature + self.bias


class PlattScaling(Config):
    """The same as a judge's file has it, of any judge that gives probabilities."""

    temperature: PositiveFloat = 1.0  # log-odds are divided by it; above 1 for a judge that is surer than it should be
    bias: float = 0.0  # and this is added

    def __call__(self, logits: AnyArray) -> FloatArray:
        """P(success) of log-odds; NaN stays NaN."""
        return Calibration(self.temperature, self.bias)(logits)

    def recalibrate(self, success_prob: AnyArray) -> FloatArray:
        """P(success) of what a judge took for P(success)."""
        return self(logit(success_prob))


def logit(success_prob: AnyArray | float) -> AnyArray:
    """In float64; of a probability of 1 it is 20.7, which comes back as 1."""
    prob = np.clip(np.asarray(success_prob, np.float64), 1e-9, 1 - 1e-9)
    return np.log(prob / (1 - prob))


def fingerprint_of(model: str, calibration: PlattScaling | None) -> str:
    """Of a model's fingerprint and a calibration on top: both decide the scores."""
    if calibration is None:
        return model
    return hashlib.sha256(f"{model} {calibration.model_dump_json()}".encode()).hexdigest()[:16]


@dataclass(frozen=True)
class EnsembleCalibration:
    """P(success) of an ensemble: its most doubtful member counts, and what that one says is calibrated once more.

    Members are calibrated by themselves so that the lowest is not always the one that is least sure of anything. The
    lowest of several is too low on average, however well calibrated each of them is; the second step takes that back.
    """

    members: tuple[Calibration, ...]
    lowest: Calibration = Calibration()

    def __call__(self, logits: Sequence[AnyArray]) -> FloatArray:
        """[F] of logits [F] of each member."""
        said = [member.logit(mine) for member, mine in zip(self.members, logits, strict=True)]
        return self.lowest(np.min(said, axis=0))


def fit_ensemble(logits: Sequence[AnyArray], truth: AnyArray) -> EnsembleCalibration:
    """From logits [F] of each member; of a single one it is `fit_calibration`."""
    members = tuple(fit_calibration(mine, truth) for mine in logits)
    if len(members) == 1:
        return EnsembleCalibration(members)
    lowest = np.min([member.logit(mine) for member, mine in zip(members, logits, strict=True)], axis=0)
    return EnsembleCalibration(members, fit_calibration(lowest, truth))


def fit_calibration(logits: AnyArray, truth: AnyArray) -> Calibration:
    """The two numbers that make held-out truth most likely, by Newton's method.

    Where the logits separate the classes without a mistake, the likelihood would have the temperature go to zero and
    every probability to 0 or 1. A tiny ridge towards temperature 1 and bias 0 stops that, and the temperature stays
    within 0.05 and 20 whatever the data says (a judge that is wrong more often than right ends at 20: all near 50%).
    """
    truth, logits = drop_unlabeled(truth, logits)
    if not np.isfinite(logits).all():
        raise JudgeError("a logit is NaN or infinite; calibration needs finite ones")
    if not 0 < truth.sum() < len(truth):
        raise JudgeError(
            "calibration needs frames that show success and frames that do not; all of these are of one kind"
        )
    slope, bias = _newton(logits, truth, free=np.array([True, True]), start=np.array([1.0, 0.0]))
    coldest, hottest = _TEMPERATURES
    bounded = min(max(slope, 1 / hottest), 1 / coldest)
    if bounded != slope:  # the problem is convex, so the best within the bounds lies on the bound
        _, bias = _newton(logits, truth, free=np.array([False, True]), start=np.array([bounded, 0.0]))
    return Calibration(temperature=float(1 / bounded), bias=float(bias))


def _newton(logits: AnyArray, truth: AnyArray, *, free: BoolArray, start: AnyArray) -> AnyArray:
    """Slope (1 / temperature) and bias of least loss; those that are not free stay where they start."""
    columns = np.stack([logits, np.ones_like(logits)], axis=1)
    at = start

    def loss(point: AnyArray) -> float:
        z = columns @ point
        return float((np.logaddexp(0, z) - truth * z).sum() + _RIDGE / 2 * ((point - (1, 0)) ** 2).sum())

    for _ in range(100):
        p = expit(columns @ at)
        gradient = (columns.T @ (p - truth) + _RIDGE * (at - (1, 0)))[free]
        curvature = (columns.T * (p * (1 - p))) @ columns + _RIDGE * np.eye(2)
        step = np.zeros(2)
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient)
        now = loss(at)
        while loss(at - step) > now and np.abs(step).max() > 1e-9:  # far from the optimum a full step may overshoot
            step = step / 2
        at = at - step
        if np.abs(step).max() <= 1e-9:
            break
    return at


# The threshold, and how often it lets a failure through


@dataclass(frozen=True)
class RateCI:
    """A share with its 95% confidence interval."""

    value: float  # NaN where there was nothing to count
    low: float
    high: float


@dataclass(frozen=True)
class ThresholdChoice:
    """From which probability on a frame is called a success, and what that costs on the episodes it was chosen on."""

    value: float  # a hair over 1 where failures reach 1.0: nothing is called success then
    fpr: float  # share of failure frames called success
    low: float  # 95% confidence interval of it
    high: float
    target: float  # that was asked for


def choose_threshold(
    episodes: Sequence[EpisodePrediction], target_fpr: float = 0.01, floor: float = 0.5, seed: int = 0
) -> ThresholdChoice:
    """A threshold, `floor` or more, at which at most `target_fpr` of the failure frames are called success.

    It lies midway between the first failure frame that must not be called and the next higher score of any frame:
    scores of one frame differ in their last digits from one device to the next, and a threshold right above one of them
    would let it through elsewhere.

    It was chosen to look good on these episodes: the rate to believe is `false_positive_rate` of others.
    """
    failures = np.concatenate([e.probability[e.truth == 0] for e in episodes] or [np.zeros(0, np.float32)])
    if not len(failures):
        raise JudgeError(
            "no frame of these episodes shows failure; a threshold is chosen by how many of those get through"
        )
    allowed = int(target_fpr * len(failures) + 1e-9)
    value = float(floor)
    if allowed < len(failures):
        highest = np.sort(failures)[::-1][allowed]  # the first one that must not be called
        if highest > floor - _NOISE:
            value = max(value, _midway(highest, np.concatenate([e.probability[e.judged] for e in episodes])))
    rate = false_positive_rate(episodes, value, seed)
    return ThresholdChoice(value=value, fpr=rate.value, low=rate.low, high=rate.high, target=target_fpr)


def _midway(score: np.float32, scores: FloatArray) -> float:
    """Between a score and the next higher one, or 1 where there is none; above it in any case."""
    above = scores[scores > score]
    middle = (float(score) + float(above.min() if len(above) else 1.0)) / 2
    return float(max(np.float32(middle), np.nextafter(score, np.float32(2))))


def false_positive_rate(episodes: Sequence[EpisodePrediction], threshold: float, seed: int = 0) -> RateCI:
    """The share of failure frames called success, with an interval that counts episodes.

    The interval is a bootstrap over episodes. That alone is too sure of itself when few episodes have a mistake in
    them, and with none it would be [0, 0]. So its upper end is at least this: the upper end of Wilson's interval for
    the share of episodes with a mistake, times the share of frames that goes wrong in such an episode, which is taken
    to be all of them where none was seen. Without any mistake in E episodes that is 3.84 / (E + 3.84), a little more
    than the rule of three: 16% after 20 episodes, 3.7% after 100.

    Where mistakes are of one length the interval holds the true rate in 98 of 100 data sets; where most are short and
    a few are long, in 86 to 96, and then it is the upper end that was too low.
    """
    counts = [(int((e.truth == 0).sum()), int(e.called(threshold)[e.truth == 0].sum())) for e in episodes]
    failures, called = np.array([c for c in counts if c[0]], float).reshape(-1, 2).T  # [E] each
    if not len(failures):
        return RateCI(math.nan, 0.0, 1.0)
    chosen = np.random.default_rng(seed).integers(len(failures), size=(_DRAWS, len(failures)))
    draws = called[chosen].sum(axis=1) / failures[chosen].sum(axis=1)
    wrong = called > 0
    share = called[wrong].sum() / failures[wrong].sum() if wrong.any() else 1.0
    return RateCI(
        value=float(called.sum() / failures.sum()),
        low=float(np.quantile(draws, 0.025)),
        high=float(max(np.quantile(draws, 0.975), share * wilson(int(wrong.sum()), len(wrong)).high)),
    )


def wilson(hits: int, of: int) -> RateCI:
    """A share of things that are independent, as episodes are, with Wilson's interval."""
    if not of:
        return RateCI(math.nan, 0.0, 1.0)
    interval = binomtest(hits, of).proportion_ci(0.95, method="wilson")
    return RateCI(hits / of, interval.low if hits else 0.0, interval.high if hits < of else 1.0)  # exactly, at the ends
