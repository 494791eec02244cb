"""How good is a judge? Metrics of any of them: a classifier, a vision-language model, a person.

    episodes = [EpisodePrediction(success_prob, target, episode) for ... in held_out]
    metrics = compute_metrics(episodes, DecisionRule(threshold=0.9))

Two kinds of mistake count most, because a learner exploits them: a failure that is predicted a success, and a success
that is predicted at the wrong moment. Frames of an episode look alike and are right or wrong together: every interval
here counts episodes, not frames.

scipy and scikit-learn are imported where they are used: they take as long to import as torch, and most processes that
import this, every worker of a run among them, compute no metrics.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Self

import numpy as np

from plaudit.errors import JudgeError
from plaudit.judges.predictions import EpisodePrediction, drop_unlabeled, first_true
from plaudit.judges.promise import upper_bound
from plaudit.rule import DecisionRule, above_threshold, decode_cutoff
from plaudit.types import AnyArray, FloatArray

_DRAWS = 2000  # of a bootstrap

# Rates


@dataclass(frozen=True)
class RateCI:
    """A rate with its 95% confidence interval."""

    value: float  # NaN where there was nothing to count
    low: float
    high: float


def wilson(count: int, total: int) -> RateCI:
    """A rate of independent trials, as episodes are, with Wilson's interval."""
    if not total:
        return RateCI(math.nan, 0.0, 1.0)
    rate, z = count / total, NormalDist().inv_cdf(0.975)
    center = rate + z**2 / (2 * total)
    half = z * math.sqrt(rate * (1 - rate) / total + (z / (2 * total)) ** 2)
    low, high = (center - half) / (1 + z**2 / total), (center + half) / (1 + z**2 / total)
    return RateCI(rate, low if count else 0.0, high if count < total else 1.0)  # exactly, at the ends


def false_positive_rate(episodes: Sequence[EpisodePrediction], threshold: float, seed: int = 0) -> RateCI:
    """The share of failure frames predicted a success, with an interval that counts episodes.

    The interval is a bootstrap over episodes. That alone is too narrow when few episodes have a mistake in them, and
    with none it would be [0, 0]: an episode of a kind that was not among these may be wrong as a whole. So its ends are
    at least as wide as the bounds of promise.py, which assume nothing of the mistakes. Without any mistake the upper
    end is 63% after 4 episodes, 18% after 20, 3.9% after 100.
    """
    counts = [(int(e.predicted(threshold)[e.target == 0].sum()), int((e.target == 0).sum())) for e in episodes]
    count, total = np.array(counts, float).reshape(-1, 2).T
    return episode_rate(count, total, seed)


def episode_rate(count: AnyArray, total: AnyArray, seed: int = 0) -> RateCI:
    """The share of frames that are counted, with the interval that `false_positive_rate` describes.

    count, total: [E] of each episode
    """
    count, total = count[total > 0], total[total > 0]
    if not len(total):
        return RateCI(math.nan, 0.0, 1.0)
    chosen = np.random.default_rng(seed).integers(len(total), size=(_DRAWS, len(total)))
    draws = count[chosen].sum(axis=1) / total[chosen].sum(axis=1)
    return RateCI(
        value=float(count.sum() / total.sum()),
        low=float(min(np.quantile(draws, 0.025), 1 - upper_bound(1 - count / total, 0.975))),
        high=float(max(np.quantile(draws, 0.975), upper_bound(count / total, 0.975))),
    )


# Episodes, and their first success frame


@dataclass(frozen=True)
class EpisodeMetrics:
    """Episodes by outcome, and how far the first frame predicted a success lies from the first that shows it."""

    tp: int
    fn: int
    fp: int
    tn: int
    onset_median: float  # frames, median of |error| over true positives; NaN for none
    onset_p90: float  # 90th percentile of the same
    errors: tuple[int | None, ...] = ()  # frames, of each success; below 0 is too early, None for a false negative

    @classmethod
    def of(
        cls, episodes: Sequence[EpisodePrediction], onset_of: Callable[[EpisodePrediction], int | None]
    ) -> "EpisodeMetrics":
        """onset_of: the first frame that is predicted a success; None where none is"""
        errors: list[int | None] = []
        predicted: list[bool] = []  # of each failure, whether it is predicted a success
        for episode in episodes:
            onset, first = onset_of(episode), episode.first_success
            if first is not None:
                errors.append(None if onset is None else onset - first)
            elif episode.has_target.any():
                predicted.append(onset is not None)
        off = [abs(error) for error in errors if error is not None]
        median, p90 = (float(np.median(off)), float(np.quantile(off, 0.9))) if off else (math.nan, math.nan)
        fn, fp = len(errors) - len(off), sum(predicted)
        return cls(len(off), fn, fp, len(predicted) - fp, median, p90, tuple(errors))


def causal_metrics(episodes: Sequence[EpisodePrediction], rule: DecisionRule) -> EpisodeMetrics:
    """By a rule as it decides live; a prediction on a frame without a target is passed over."""
    return EpisodeMetrics.of(episodes, lambda e: first_true(rule.decide(e.success_prob) & e.has_target))


def offline_metrics(episodes: Sequence[EpisodePrediction], offset: int = 0, threshold: float = 0.5) -> EpisodeMetrics:
    """By `decode_cutoff`, which is given the labeled frames until success ends."""

    def onset_of(episode: EpisodePrediction) -> int | None:
        labeled, first = np.flatnonzero(episode.has_target), episode.first_success
        undone = None if first is None else first_true((episode.target[labeled] == 0) & (labeled > first))
        cutoff = decode_cutoff(episode.success_prob[labeled[:undone]], offset, threshold)
        return None if cutoff is None else int(labeled[cutoff])

    return EpisodeMetrics.of(episodes, onset_of)


# Probabilities


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Whether 80% means 80%: frames in bins of equal width by their probability. An empty bin has NaN in it."""

    success_prob: FloatArray  # [B] mean of the predictions
    success_rate: FloatArray  # [B] share of frames that show success
    count: AnyArray  # i64 [B] frames
    ece: float  # expected calibration error: mean of |success_rate - success_prob|, weighted by count
    brier: float  # mean of (success_prob - target)^2; 0.25 for a judge that always says 50%
    log_loss: float  # in nats; one sure mistake is not infinite

    @classmethod
    def of(cls, episodes: Sequence[EpisodePrediction]) -> "CalibrationCurve":
        """Of all frames of these episodes."""
        success_prob = np.concatenate([episode.success_prob for episode in episodes])
        return calibration_curve(success_prob, np.concatenate([episode.target for episode in episodes]))


def calibration_curve(success_prob: AnyArray, target: AnyArray, bins: int = 10) -> CalibrationCurve:
    """Of the frames that have a target."""
    from sklearn.metrics import log_loss

    target, prob = drop_unlabeled(target, success_prob)
    if not len(target):
        raise JudgeError("no frame has a reference label to compare with")
    place = np.minimum((prob * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(place, prob, bins) / count
        observed = np.bincount(place, target, bins) / count
    return CalibrationCurve(
        success_prob=predicted.astype(np.float32),
        success_rate=observed.astype(np.float32),
        count=count,
        ece=float(np.nansum(np.abs(predicted - observed) * count) / len(target)),
        brier=float(np.mean((prob - target) ** 2)),
        log_loss=float(log_loss(target, np.clip(prob, 1e-7, 1 - 1e-7), labels=[0, 1])),
    )


# All of it


@dataclass(frozen=True)
class JudgeMetrics:
    """A judge on one set of episodes. What nothing was there to measure with is NaN."""

    episodes: int  # in which some frame has a target
    frames: int  # with a target
    success_frames: int
    threshold: float
    k: int  # of the last n frames, how many decide on an episode; frames are scored one by one
    n: int
    precision: float  # of frames, at the threshold
    recall: float
    accuracy: float
    roc_auc: float  # at any threshold
    brier: float
    log_loss: float
    ece: float
    fpr: float  # share of failure frames predicted a success
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    causal: EpisodeMetrics  # k of n frames at the threshold, as decided live
    offline: EpisodeMetrics  # one cutoff, decoded from the whole episode
    first_frame_positives: int  # episodes predicted a success at their first frame
    first_frame_fp: int  # of these, the ones that do not begin with success
    recall_low: float  # 95% confidence interval of it, by episodes
    recall_high: float

    @property
    def recall_interval(self) -> RateCI:
        return RateCI(self.recall, self.recall_low, self.recall_high)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        return nan_to_none(asdict(self))

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        values = _none_to_nan(tree)
        for name in ("causal", "offline"):
            episodes: dict[str, Any] = {**_none_to_nan(values[name]), "errors": tuple(values[name]["errors"])}
            values[name] = EpisodeMetrics(**episodes)
        return cls(**values)


def value_order(values: AnyArray) -> float:
    """Spearman's correlation of a judge's values with time; 0 where they do not vary."""
    from scipy.stats import spearmanr

    values = values[~np.isnan(values)]
    if len(values) < 2 or np.ptp(values) == 0:
        return 0.0
    result: Any = spearmanr(values, np.arange(len(values)))
    return float(result.statistic)


def nan_to_none(value: Any) -> Any:
    """The same as JSON reads it back: None for NaN, lists for tuples; of mappings, too."""
    if isinstance(value, dict):
        return {name: nan_to_none(inner) for name, inner in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return None if isinstance(value, float) and math.isnan(value) else value


def _none_to_nan(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in tree.items()}


def compute_metrics(episodes: Sequence[EpisodePrediction], rule: DecisionRule, seed: int = 0) -> JudgeMetrics:
    """Frames at the rule's threshold; episodes as the rule decides live, and by one cutoff."""
    from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score

    threshold = rule.threshold
    live = rule if rule.causal else rule.model_copy(update={"decode": "k_of_n"})
    episodes = [episode for episode in episodes if episode.has_target.any()]
    if not episodes:
        raise JudgeError("no frame of these episodes has a reference label; label some of them first")
    target = np.concatenate([e.target[e.has_target] for e in episodes])
    prob = np.concatenate([e.success_prob[e.has_target] for e in episodes])
    predicted = above_threshold(prob, threshold)
    undefined: Any = math.nan  # of a share of nothing, which scikit-learn takes and its types do not say
    calibration = calibration_curve(prob, target)
    fpr = false_positive_rate(episodes, threshold, seed)
    recall = _recall(episodes, threshold, seed)
    starts = [e.target[e.has_target][0] for e in episodes if e.predicted(threshold)[e.has_target][0]]
    return JudgeMetrics(
        episodes=len(episodes),
        frames=len(target),
        success_frames=int(target.sum()),
        threshold=float(threshold),
        k=live.window[0],
        n=live.window[1],
        precision=float(precision_score(target, predicted, zero_division=undefined)),
        recall=float(recall_score(target, predicted, zero_division=undefined)),
        accuracy=float(accuracy_score(target, predicted)),
        roc_auc=float(roc_auc_score(target, prob)) if 0 < target.sum() < len(target) else math.nan,
        brier=calibration.brier,
        log_loss=calibration.log_loss,
        ece=calibration.ece,
        fpr=fpr.value,
        fpr_low=fpr.low,
        fpr_high=fpr.high,
        causal=causal_metrics(episodes, live),
        offline=offline_metrics(episodes, rule.cutoff_offset, threshold),
        first_frame_positives=len(starts),
        first_frame_fp=sum(bool(first == 0) for first in starts),
        recall_low=recall.low,
        recall_high=recall.high,
    )


def _recall(episodes: Sequence[EpisodePrediction], threshold: float, seed: int) -> RateCI:
    counts = [(int(e.predicted(threshold)[e.target == 1].sum()), int((e.target == 1).sum())) for e in episodes]
    count, total = np.array(counts, float).reshape(-1, 2).T
    return episode_rate(count, total, seed)
