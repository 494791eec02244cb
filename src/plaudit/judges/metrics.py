"""How good is a judge? Numbers for any of them: a classifier, a vision-language model, a person.

    episodes = [EpisodePrediction(probability, truth, episode) for ... in held_out]
    threshold = choose_threshold(episodes, target_fpr=0.01)      # judges/calibration.py
    metrics = compute_metrics(test_episodes, DecisionRule(threshold=threshold.value))

Two kinds of mistake count most, because a learner finds them: a failure that is called success (judges/calibration.py)
and a success that is called at the wrong moment (judges/cutoffs.py). Frames of an episode look alike and are right or
wrong together: every interval here counts episodes, not frames.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from plaudit.errors import JudgeError
from plaudit.judges.calibration import false_positive_rate
from plaudit.judges.cutoffs import cutoff_decode_errors, onset_errors
from plaudit.judges.scored import EpisodePrediction, drop_unlabeled
from plaudit.rule import DecisionRule, above_threshold
from plaudit.types import AnyArray, FloatArray

# Frames, one by one


def roc_auc(target: AnyArray, score: AnyArray) -> float:
    """The chance that a success scores higher than a failure, a tie counting half; NaN without one of the two."""
    target, score = drop_unlabeled(target, score)
    return float(roc_auc_score(target, score)) if 0 < target.sum() < len(target) else math.nan


def precision_recall(target: AnyArray, predicted: AnyArray) -> tuple[float, float]:
    """Precision and recall of success, NaN for a share of nothing."""
    target, predicted = drop_unlabeled(target, predicted)
    nothing: Any = math.nan  # which the functions take and their types do not say
    return (
        float(precision_score(target, predicted, zero_division=nothing)),
        float(recall_score(target, predicted, zero_division=nothing)),
    )


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Whether 80% means 80%: frames in bins of equal width by their probability. An empty bin has NaN in it."""

    probability: FloatArray  # [B] mean of what the judge said
    success: FloatArray  # [B] share that was a success
    count: AnyArray  # i64 [B] frames
    ece: float  # expected calibration error: mean of |success - probability|, weighted by count
    brier: float  # mean of (probability - truth)^2; 0.25 for a judge that always says 50%
    log_loss: float  # mean of -log of the probability given to the truth, in nats


def calibration_curve(probability: AnyArray, truth: AnyArray, bins: int = 10) -> CalibrationCurve:
    truth, probability = drop_unlabeled(truth, probability)
    if not len(truth):
        raise JudgeError("no frame has a truth to compare with")
    place = np.minimum((probability * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        said = np.bincount(place, probability, bins) / count
        was = np.bincount(place, truth, bins) / count
    given = np.clip(np.where(truth == 1, probability, 1 - probability), 1e-7, 1)  # one sure mistake is not infinite
    return CalibrationCurve(
        probability=said.astype(np.float32),
        success=was.astype(np.float32),
        count=count,
        ece=float(np.nansum(np.abs(said - was) * count) / len(truth)),
        brier=float(np.mean((probability - truth) ** 2)),
        log_loss=float(-np.mean(np.log(given))),
    )


# All of it


@dataclass(frozen=True)
class JudgeMetrics:
    """A judge's report card on one set of episodes. A number that nothing was there to measure with is NaN."""

    episodes: int  # in which some frame has a truth
    frames: int  # with a truth
    success_frames: int  # of these, that show success
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
    fpr: float  # share of failure frames called success
    fpr_low: float  # 95% confidence interval of it, by episodes
    fpr_high: float
    episodes_hit: int  # succeed and are called
    episodes_missed: int  # succeed and are not
    episodes_false: int  # fail and are called
    episodes_rejected: int  # fail and are not
    cutoff_median: float  # frames between the first one called and the first that shows success, of those called
    cutoff_p90: float
    decoded_median: float  # the same when the whole episode is seen, by `decode_cutoff`
    decoded_p90: float
    decoded_missed: int  # episodes that succeed and for which it finds no cutoff
    decoded_false: int  # episodes that fail and for which it finds one
    start_called: int = 0  # episodes whose first frame is called; reports of earlier versions counted none
    start_false: int = 0  # of these, the ones that do not begin with success

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        tree = asdict(self)
        return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in tree.items()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
        return cls(**values)


def compute_metrics(episodes: Sequence[EpisodePrediction], rule: DecisionRule, seed: int = 0) -> JudgeMetrics:
    """Frames at the rule's threshold; episodes as the rule decides live, and by one cutoff."""
    threshold = rule.threshold
    live = rule if rule.causal else rule.model_copy(update={"decode": "k_of_n"})
    episodes = [episode for episode in episodes if episode.judged.any()]
    if not episodes:
        raise JudgeError("no frame of these episodes has a truth; label some of them first")
    truth = np.concatenate([e.truth[e.judged] for e in episodes])
    probability = np.concatenate([e.probability[e.judged] for e in episodes])
    yes = above_threshold(probability, threshold)
    precision, recall = precision_recall(truth, yes)
    calibrated = calibration_curve(probability, truth)
    rate = false_positive_rate(episodes, threshold, seed)
    cutoffs = onset_errors(episodes, live)
    decoded = cutoff_decode_errors(episodes, rule.cutoff_offset, threshold)
    starts = [episode.truth[episode.judged][0] for episode in episodes if episode.called(threshold)[episode.judged][0]]
    return JudgeMetrics(
        episodes=len(episodes),
        frames=len(truth),
        success_frames=int(truth.sum()),
        threshold=float(threshold),
        k=live.window[0],
        n=live.window[1],
        precision=precision,
        recall=recall,
        accuracy=float((yes == (truth == 1)).mean()),
        roc_auc=roc_auc(truth, probability),
        brier=calibrated.brier,
        log_loss=calibrated.log_loss,
        ece=calibrated.ece,
        fpr=rate.value,
        fpr_low=rate.low,
        fpr_high=rate.high,
        episodes_hit=len(cutoffs.errors) - cutoffs.missed,
        episodes_missed=cutoffs.missed,
        episodes_false=cutoffs.false_calls,
        episodes_rejected=cutoffs.failing - cutoffs.false_calls,
        cutoff_median=cutoffs.median,
        cutoff_p90=cutoffs.p90,
        decoded_median=decoded.median,
        decoded_p90=decoded.p90,
        decoded_missed=decoded.missed,
        decoded_false=decoded.false_calls,
        start_called=len(starts),
        start_false=sum(bool(truth == 0) for truth in starts),
    )
