"""The figures of an exam, each with an interval over episodes."""

import math
from collections.abc import Sequence

import numpy as np

from plaudit.judges import intervals
from plaudit.judges.controls import ScoredControl
from plaudit.judges.evaluation import JudgeEvaluation
from plaudit.judges.metrics import RateCI, episode_rate, false_positive_rate, value_order, wilson
from plaudit.judges.predictions import EpisodePrediction
from plaudit.judges.rights import episode_score
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, Labels

RECALL = 0.95  # at which `fpr_at_95_recall` is measured
_BINS = 10  # of the calibration error


def exam_figures(found: JudgeEvaluation, rule: DecisionRule, scored: Sequence[ScoredControl]) -> dict[str, RateCI]:
    """All of `FIGURES`; NaN for what could not be measured.

    scored: the controls
    """
    predictions = [one for one in found.predictions if one.has_target.any()]
    labels = [found.labels[one.episode] for one in predictions]
    successes = [one for prediction, one in zip(predictions, labels) if prediction.first_success is not None]
    outcome = found.label_metrics
    onset_median, onset_p90 = intervals.onset_intervals(outcome)
    not_begun = sum(bool(one.target[one.has_target][0] == 0) for one in predictions)
    return {
        "same_time_roc_auc": intervals.auc(
            *intervals.count_same_time_pairs([p.success_prob for p in predictions], [p.target for p in predictions])
        ),
        "frame_roc_auc": intervals.auc(*_frame_pairs(predictions)),
        "episode_roc_auc": intervals.auc(*_episode_pairs(predictions, rule)),
        "precision": wilson(outcome.tp, outcome.tp + outcome.fp),
        "recall": wilson(outcome.tp, outcome.tp + outcome.fn),
        **_frame_rates(predictions, labels),
        "fpr": false_positive_rate(predictions, found.metrics.threshold),
        "fpr_at_95_recall": _fpr_at_recall(predictions),
        "first_frame_fpr": wilson(found.metrics.first_frame_fp, not_begun),
        "onset_median": onset_median,
        "onset_p90": onset_p90,
        "value_order": intervals.mean_correlation([_order(one) for one in successes]),
        "value_order_still": _control_order(scored, "frozen frame"),
        "value_order_reversed": _control_order(scored, "time reversed"),
        "ece": _calibration_error(predictions),
    }


def _order(labels: Labels) -> float:
    """Of a judge's progress where it measures that, else of P(success)."""
    progress = None if labels.scores is None else labels.scores.progress
    return value_order(labels.frame_probs if progress is None else progress)


def _control_order(scored: Sequence[ScoredControl], name: str) -> RateCI:
    return intervals.mean_correlation([_order(one.labels) for one in scored if one.name == name])


def _frame_pairs(predictions: Sequence[EpisodePrediction]) -> tuple[AnyArray, AnyArray]:
    success, failure = ([p.success_prob[p.target == kind] for p in predictions] for kind in (1, 0))
    return intervals.count_pairs(success, failure)


def _episode_pairs(predictions: Sequence[EpisodePrediction], rule: DecisionRule) -> tuple[AnyArray, AnyArray]:
    none = np.zeros(0, np.float32)
    scores = [np.array([episode_score(p.success_prob[p.has_target], rule)]) for p in predictions]
    succeeds = [p.first_success is not None for p in predictions]
    success = [score if yes else none for score, yes in zip(scores, succeeds)]
    return intervals.count_pairs(success, [none if yes else score for score, yes in zip(scores, succeeds)])


def _frame_rates(predictions: Sequence[EpisodePrediction], labels: Sequence[Labels]) -> dict[str, RateCI]:
    """By the labels, which the rule in use has decided."""
    counts = []
    for prediction, one in zip(predictions, labels):
        called = one.success & prediction.has_target
        success = prediction.target == 1
        counts.append(((called & ~success).sum(), called.sum(), (success & ~called).sum(), success.sum()))
    false, called, missed, success = np.array(counts, float).T
    return {
        "frame_precision": _complement(episode_rate(false, called)),
        "frame_recall": _complement(episode_rate(missed, success)),
    }


def _complement(rate: RateCI) -> RateCI:
    return RateCI(1 - rate.value, 1 - rate.high, 1 - rate.low)


def _fpr_at_recall(predictions: Sequence[EpisodePrediction]) -> RateCI:
    """The threshold is chosen anew in every draw of the bootstrap; the upper end is no lower than of that threshold."""
    scores, owners = [], []
    for kind in (1, 0):
        values = np.concatenate([p.success_prob[p.target == kind] for p in predictions])
        owner = np.concatenate([np.full(int((p.target == kind).sum()), row) for row, p in enumerate(predictions)])
        order = np.argsort(values, kind="stable")
        scores.append(values[order])
        owners.append(owner[order])

    def threshold_of(weights: AnyArray) -> float:
        success = np.cumsum(weights[owners[0]])
        place = np.searchsorted(success, (1 - RECALL) * success[-1], "right")
        return float(scores[0][place]) if success[-1] else math.nan

    def statistic(weights: AnyArray) -> float:
        failure = np.cumsum(weights[owners[1]])
        below = np.searchsorted(scores[1], threshold_of(weights), "left")
        return float(1 - (failure[below - 1] if below else 0) / failure[-1]) if failure[-1] else math.nan

    found = intervals.bootstrap_rate(statistic, len(predictions))
    fixed = false_positive_rate(predictions, threshold_of(np.ones(len(predictions))))
    return RateCI(found.value, found.low, max(found.high, fixed.high))


def _calibration_error(predictions: Sequence[EpisodePrediction]) -> RateCI:
    """The same bins as `calibration_curve`."""
    sums = np.zeros((2, len(predictions), _BINS))  # of errors with their sign, and of frames
    for row, one in enumerate(predictions):
        prob, target = one.success_prob[one.has_target].astype(float), one.target[one.has_target]
        place = np.minimum((prob * _BINS).astype(int), _BINS - 1)
        sums[0, row] = np.bincount(place, prob - target, _BINS)
        sums[1, row] = np.bincount(place, minlength=_BINS)
    weights = intervals.episode_weights(len(predictions))
    errors = np.abs(weights @ sums[0]).sum(axis=1) / (weights @ sums[1]).sum(axis=1)
    return intervals.percentile_interval(errors, len(predictions))
