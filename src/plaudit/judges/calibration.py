"""From a judge's scores to decisions: fits temperature and bias, the threshold, and the offset of its cutoffs.

    fit, cross_val = calibrate(predictions, judge.rule, target_fpr=0.01)

A failure predicted a success is a reward for nothing, and a learner exploits it, so the threshold is chosen by the rate
of these. The stored rule is fitted on all episodes. Its rate is measured by cross-validation: a rule is fitted on four
of five folds and tried on the fifth, in turn. The reported rate is therefore one of episodes that chose nothing, by
rules from four fifths of the data, which are slightly worse than the stored one.
"""

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Self

import numpy as np

from plaudit.config import Config, Fraction, NonNegativeInt, Number, PositiveFloat
from plaudit.errors import JudgeError
from plaudit.judges.guarantee import Guarantee, Rights, episode_losses, make_guarantee, midway, prove_rights
from plaudit.judges.metrics import (
    EpisodeMetrics,
    EpisodePrediction,
    causal_metrics,
    drop_unlabeled,
    false_positive_rate,
    offline_metrics,
)
from plaudit.judges.stats import Interval
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import AnyArray, FloatArray, JudgeId

NUM_FOLDS = 5
MIN_EPISODES = 3  # that show success, and that show failure
_RIDGE = 0.01  # a prior on calibration as wide as 10: it decides only where the data does not
_TEMPERATURES = (0.05, 20.0)
_FLOOR = 0.5  # no threshold is below this
_NOISE = 0.01  # scores of one frame on two devices, one of them in half precision, are not further apart
_PER_FRAME = DecisionRule(decode="per_frame")

# From logits to probabilities


class PlattScaling(Config):
    """P(success) = sigmoid(logit / temperature + bias)."""

    temperature: PositiveFloat = 1.0  # above 1 for a judge that is more confident than it should be
    bias: Number = 0.0  # added to the logit

    def __call__(self, logits: AnyArray) -> FloatArray:
        """P(success) of logits; NaN stays NaN."""
        return _sigmoid(self.logit(logits)).astype(np.float32)

    def logit(self, logits: AnyArray) -> AnyArray:
        """The calibrated logit, before the sigmoid, in float64."""
        return np.asarray(logits, np.float64) / self.temperature + self.bias

    def recalibrate(self, success_prob: AnyArray) -> FloatArray:
        """P(success) of uncalibrated probabilities."""
        return self(logit(success_prob))


def logit(success_prob: AnyArray | float) -> AnyArray:
    """Logit of a probability in float64, limited to 20.7, which maps back to 1."""
    prob = np.clip(np.asarray(success_prob, np.float64), 1e-9, 1 - 1e-9)
    return np.log(prob / (1 - prob))


def _sigmoid(logits: AnyArray) -> AnyArray:
    """Exact at both ends, NaN of NaN. (scipy.special has it too, and takes 0.3 s to import in every process.)"""
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1 + small)


def fingerprint_of(model: str, calibration: PlattScaling | None) -> str:
    """Of a model's fingerprint and a calibration on top: both decide the scores."""
    if calibration is None:
        return model
    return hashlib.sha256(f"{model} {calibration.model_dump_json()}".encode()).hexdigest()[:16]


def fit_platt(logits: AnyArray, target: AnyArray) -> PlattScaling:
    """The temperature and bias that make held-out targets most likely.

    Where the logits separate the classes without a mistake, the likelihood would have the temperature go to zero and
    every probability to 0 or 1. A tiny ridge towards temperature 1 and bias 0 stops that, and the temperature stays
    within 0.05 and 20 whatever the data says (a judge that is wrong more often than right ends at 20: all near 50%).
    """
    from scipy.optimize import minimize

    target, logits = drop_unlabeled(target, logits)
    if not np.isfinite(logits).all():
        raise JudgeError("a logit is NaN or infinite; calibration needs finite ones")
    if not 0 < target.sum() < len(target):
        raise JudgeError(
            "calibration needs frames that show success and frames that do not; all of these are of one kind"
        )

    def loss(point: AnyArray) -> tuple[float, AnyArray]:
        """Mean cross-entropy and its gradient, at a slope (1 / temperature) and a bias."""
        z = point[0] * logits + point[1]
        ridge, error = _RIDGE * (point - (1, 0)), _sigmoid(z) - target
        value = (np.logaddexp(0, z) - target * z).sum() + ((point - (1, 0)) * ridge).sum() / 2
        return value / len(z), (np.array([error @ logits, error.sum()]) + ridge) / len(z)

    coldest, hottest = _TEMPERATURES
    bounds = [(1 / hottest, 1 / coldest), (None, None)]
    options = {"ftol": 1e-14, "gtol": 1e-10, "maxiter": 1000}
    slope, bias = minimize(loss, (1.0, 0.0), jac=True, bounds=bounds, method="L-BFGS-B", options=options).x
    return PlattScaling(temperature=float(1 / slope), bias=float(bias))


@dataclass(frozen=True)
class EnsembleCalibration:
    """P(success) of an ensemble: its least confident member counts, and that probability is calibrated once more.

    Members are calibrated by themselves so that the lowest is not always the one that is least sure of anything. The
    lowest of several is too low on average, however well calibrated each of them is; the second step corrects that.
    """

    members: tuple[PlattScaling, ...]
    lowest: PlattScaling = field(default_factory=PlattScaling)

    def __call__(self, logits: Sequence[AnyArray]) -> FloatArray:
        """[F] of logits [F] of each member."""
        return self.lowest(self._lowest(logits))

    def _lowest(self, logits: Sequence[AnyArray]) -> AnyArray:
        return np.min([scaling.logit(one) for scaling, one in zip(self.members, logits, strict=True)], axis=0)

    @classmethod
    def fit(cls, logits: Sequence[AnyArray], target: AnyArray) -> "EnsembleCalibration":
        """From logits [F] of each member; of a single one it is `fit_platt`."""
        members = cls(tuple(fit_platt(one, target) for one in logits))
        return members if len(logits) == 1 else cls(members.members, fit_platt(members._lowest(logits), target))


# The threshold and the cutoff offset


@dataclass(frozen=True)
class ThresholdChoice:
    """From which probability on a frame is predicted a success, and its rate on the episodes it was chosen on."""

    value: float  # a hair over 1 where failures reach 1.0: nothing is predicted a success then
    fpr: Fraction  # share of failure frames predicted a success
    low: float  # 95% confidence interval of it
    high: float
    target: float  # that was asked for

    @classmethod
    def of(cls, episodes: Sequence[EpisodePrediction], value: float, target: float) -> Self:
        """A threshold with its rate on these episodes."""
        rate = false_positive_rate(episodes, value)
        return cls(value=value, fpr=rate.value, low=rate.low, high=rate.high, target=target)


def choose_threshold(
    episodes: Sequence[EpisodePrediction], target_fpr: float = 0.01, floor: float = _FLOOR
) -> ThresholdChoice:
    """A threshold, `floor` or more, at which at most `target_fpr` of the failure frames are predicted a success.

    It lies midway between the first failure frame that must not pass and the next higher score of any frame, because
    scores of one frame differ in their last digits between devices. The rate to report is that of other episodes.
    """
    failures = np.concatenate([e.success_prob[e.target == 0] for e in episodes] or [np.zeros(0, np.float32)])
    if not len(failures):
        raise JudgeError(
            "no frame of these episodes shows failure; a threshold is chosen by how many of those get through"
        )
    allowed = int(target_fpr * len(failures) + 1e-9)
    highest = np.sort(failures)[::-1][allowed] if allowed < len(failures) else np.float32(0)  # first that must not pass
    value = float(floor)
    if highest > floor - _NOISE:
        value = max(value, midway(highest, np.concatenate([e.success_prob[e.has_target] for e in episodes])))
    return ThresholdChoice.of(episodes, value, target_fpr)


def guaranteed_threshold(
    episodes: Sequence[EpisodePrediction], target_fpr: float, confidence: float, *, labeled: int | None = None
) -> tuple[ThresholdChoice, Guarantee]:
    """The lowest threshold, 0.5 or more, that keeps `target_fpr` on episodes to come; where these episodes prove none,
    the one of `choose_threshold`, which keeps it on these.

    labeled: how many episodes there are in all, where these are some of them
    """
    guarantee = make_guarantee(episodes, target_fpr, confidence, labeled=labeled, floor=_FLOOR)
    if guarantee.threshold is None:
        return choose_threshold(episodes, target_fpr), guarantee
    return ThresholdChoice.of(episodes, guarantee.threshold, target_fpr), guarantee


def fit_cutoff_offset(episodes: Sequence[EpisodePrediction], threshold: float = 0.5) -> int:
    """How many frames late decoded cutoffs will be, by the median of these episodes; below 0 for early.

    A robot lingers before a grasp and is quick after it, so most frames near the onset look almost like success, and
    a judge turns a few frames late; a strict one turns later. A median of E episodes is shrunk by E / (E + 1).
    """
    errors = [error for error in offline_metrics(episodes, threshold=threshold).errors if error is not None]
    return round(float(np.median(errors)) * len(errors) / (len(errors) + 1)) if errors else 0


SINGLE_FRAMES = "one frame decides, because most successes here last for one frame (rule.k=2 rule.n=3: two do)"


def fit_window(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> DecisionRule:
    """The rule, or one that a single frame meets if its window was not set and most episodes end with their first
    success: there is no second frame to confirm it."""
    lengths = [int((one.target == 1).sum()) for one in episodes if one.first_success is not None]
    if {"k", "n"} & rule.model_fields_set or np.median(lengths) >= rule.window[0]:
        return rule
    return rule.model_copy(update={"k": 1, "n": 1})


# All of it, for `plaudit judge calibrate`


class CalibrationRecord(Config):
    """Where a calibration and a threshold came from, and what they are worth on episodes that did not choose them."""

    date: str  # UTC
    fingerprint: str  # of the judge before it was calibrated
    reference: tuple[str, ...]  # whose labels it was fitted on
    episodes: NonNegativeInt  # that it was fitted on
    successes: NonNegativeInt  # of these, episodes that succeed
    target_fpr: Fraction  # share of failure frames that may be above the threshold
    fpr: Fraction  # share that was, on episodes held out
    fpr_low: Fraction  # 95% confidence interval of it, by episodes
    fpr_high: Fraction  # upper end of the same interval
    recall: Fraction  # share of success frames above the threshold, on episodes held out
    num_seen: NonNegativeInt = 0  # of these episodes, how many the judge had learned from
    fitted_on: str | None = None  # keys of these episodes (data/episode_keys.py); None: of an earlier version
    promise: Guarantee | None = None  # about episodes to come; None: of an earlier version


@dataclass(frozen=True)
class Fit:
    """Calibration and rule that were fitted on a judge's scores."""

    rule: DecisionRule
    calibration: PlattScaling
    promise: Guarantee | None = None  # about episodes to come


@dataclass(frozen=True, eq=False)
class CrossValResult:
    """Metrics of rules on episodes that were not used to choose them."""

    fpr: Interval
    losses: FloatArray  # [E] of each episode with failure frames, the share of these predicted a success
    recall: Fraction
    cutoffs: EpisodeMetrics  # decoded


def calibrate(
    episodes: Sequence[EpisodePrediction], rule: DecisionRule, target_fpr: float, confidence: float = 0.9
) -> tuple[Fit, CrossValResult]:
    """The rule of all episodes, and what such rules are worth on others; confidence: of the guarantee about these."""
    successes, failures = count_classes(one.target for one in episodes)
    if min(successes, failures) < MIN_EPISODES:
        raise JudgeError(
            f"calibration needs at least {MIN_EPISODES} episodes that show success and {MIN_EPISODES} that show "
            f"failure, and some 50 to be sure of the rate. Of those with reference labels {successes} show success and "
            f"{failures} failure"
        )
    rule = fit_window(episodes, rule)
    calibration, calibrated = _recalibrate(episodes)
    chosen, guarantee = guaranteed_threshold(calibrated, target_fpr, confidence)
    # A fifth fewer episodes may prove nothing: the rules of the folds are as strict as the proven threshold is on all.
    cross_val = cross_validate(episodes, rule, chosen.fpr if guarantee.kept else target_fpr)
    fitted = _with_threshold(rule, calibrated, chosen.value)
    return Fit(fitted, calibration, guarantee.with_bound(cross_val.losses)), cross_val


def count_classes(targets: Iterable[FloatArray]) -> tuple[int, int]:
    """Episodes with frames that show success, and episodes with frames that show failure."""
    shown = [((target == 1).any(), (target == 0).any()) for target in targets]
    return sum(bool(success) for success, _ in shown), sum(bool(failure) for _, failure in shown)


def fit_rights(
    fit: Fit, episodes: Sequence[EpisodePrediction], fingerprint: str, max_error: float, confidence: float
) -> Rights:
    """Which episodes the judge may decide alone in a cascade, once it is fitted; a calibration changes no order, so the
    episodes that it was fitted on prove it too.

    fingerprint: of the judge before
    """
    calibrated = [replace(one, success_prob=fit.calibration.recalibrate(one.success_prob)) for one in episodes]
    return prove_rights(calibrated, fit.rule, fingerprint_of(fingerprint, fit.calibration), max_error, confidence)


def check_has_probabilities(source: str, episodes: Sequence[EpisodePrediction]) -> None:
    """Refuse a judge whose scores are all yes and no: there is nothing to calibrate."""
    certain = logit(1.0) - 1e-3
    if episodes and all((np.abs(logit(one.success_prob)) > certain).all() for one in episodes):
        raise JudgeError(f"'{source}' answers yes or no; only a judge that gives probabilities can be calibrated")


def fit_rule(episodes: Sequence[EpisodePrediction], rule: DecisionRule, target_fpr: float) -> Fit:
    """The rule with its threshold and cutoff offset fitted, and the calibration below it."""
    calibration, calibrated = _recalibrate(episodes)
    return Fit(_with_threshold(rule, calibrated, choose_threshold(calibrated, target_fpr).value), calibration)


def _recalibrate(episodes: Sequence[EpisodePrediction]) -> tuple[PlattScaling, list[EpisodePrediction]]:
    prob, target = (np.concatenate([getattr(one, name) for one in episodes]) for name in ("success_prob", "target"))
    calibration = fit_platt(logit(prob), target)
    return calibration, [replace(one, success_prob=calibration.recalibrate(one.success_prob)) for one in episodes]


def _with_threshold(rule: DecisionRule, calibrated: Sequence[EpisodePrediction], threshold: float) -> DecisionRule:
    fitted = {"threshold": threshold, "cutoff_offset": fit_cutoff_offset(calibrated, threshold)}
    return DecisionRule(**{**rule.model_dump(), **fitted})


def cross_validate(episodes: Sequence[EpisodePrediction], rule: DecisionRule, target_fpr: float) -> CrossValResult:
    """Fit on four folds, try on the fifth, in turn; the predictions of all fifths are counted together."""
    from sklearn.metrics import recall_score

    frames: list[EpisodePrediction] = []  # by single frames
    decoded: list[EpisodePrediction] = []  # by cutoffs
    for others, held_out in folds(episodes):
        fit = fit_rule(others, rule, target_fpr)
        cutoff_rule = fit.rule.model_copy(update={"decode": "cutoff"})
        for one in held_out:
            prob = fit.calibration.recalibrate(one.success_prob)
            frames.append(replace(one, success_prob=above_threshold(prob, fit.rule.threshold)))
            decoded.append(replace(one, success_prob=cutoff_rule.decide(prob)))
    target, predicted = drop_unlabeled(
        np.concatenate([one.target for one in frames]), np.concatenate([one.success_prob for one in frames])
    )
    recall = float(recall_score(target, predicted))
    fpr, losses = false_positive_rate(frames, 0.5), episode_losses(frames, 0.5)
    return CrossValResult(fpr, losses, recall, causal_metrics(decoded, _PER_FRAME))


def by_others_thresholds(
    episodes: Sequence[EpisodePrediction], threshold: float, target_fpr: float, seed: int = 0
) -> list[EpisodePrediction]:
    """The same episodes, with scores moved so that `threshold` decides as one does that the other folds choose.

    A threshold looks better on the episodes that chose it than it is; so moved, every episode is one that did not.
    """
    moved: list[EpisodePrediction] = []
    for others, held_out in folds(episodes, seed):
        shift = float(logit(threshold) - logit(choose_threshold(others, target_fpr).value))
        scaling = PlattScaling(bias=shift)
        moved += [replace(one, success_prob=scaling.recalibrate(one.success_prob)) for one in held_out]
    return sorted(moved, key=lambda one: one.episode)


def folds(
    episodes: Sequence[EpisodePrediction], seed: int = 0
) -> list[tuple[list[EpisodePrediction], list[EpisodePrediction]]]:
    """(the others, held out) of each fold: dealt by episode, those with the same kinds of frames alike."""
    rng = np.random.default_rng(seed)
    shown = [((one.target == 1).any(), (one.target == 0).any()) for one in episodes]  # success, failure
    groups = [np.flatnonzero([kinds == one for one in shown]) for kinds in product((True, False), repeat=2)]
    ordered = [episodes[i] for group in groups for i in rng.permutation(group)]
    held_out = [fold for number in range(NUM_FOLDS) if (fold := ordered[number::NUM_FOLDS])]
    return [([one for other in held_out if other is not fold for one in other], fold) for fold in held_out]


def make_record(
    judge: JudgeId,
    episodes: Sequence[EpisodePrediction],
    reference: Sequence[str],
    target_fpr: Fraction,
    cross_val: CrossValResult,
    **more: Any,
) -> CalibrationRecord:
    """What is stored with the judge. more: `num_seen`, `fitted_on` and `promise` of the record"""
    return CalibrationRecord(
        date=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        fingerprint=judge.fingerprint,
        reference=tuple(reference),
        episodes=len(episodes),
        successes=sum(one.first_success is not None for one in episodes),
        target_fpr=target_fpr,
        fpr=cross_val.fpr.value,
        fpr_low=cross_val.fpr.low,
        fpr_high=cross_val.fpr.high,
        recall=cross_val.recall,
        **more,
    )
