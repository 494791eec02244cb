import json
import math

import numpy as np
import pytest

from plaudit.errors import JudgeError
from plaudit.judges.metrics import EpisodePrediction, JudgeMetrics, calibration_curve, compute_metrics
from plaudit.rule import DecisionRule

NAN = math.nan
SINGLE = DecisionRule(decode="per_frame")


def scored(probability, truth, episode: int = 0) -> EpisodePrediction:
    return EpisodePrediction(np.array(probability, "f4"), np.array(truth, "f4"), episode)


def random_frames(seed: int, count: int = 60):
    """Scores of eleven values, so that many tie."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, count).astype(float)
    return truth, np.round(0.3 * truth + 0.7 * rng.random(count), 1)


# Frames


@pytest.mark.parametrize("seed", range(20))
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(seed):
    truth, score = random_frames(seed)
    pairs = [(s, f) for s in score[truth == 1] for f in score[truth == 0]]
    auc = compute_metrics([scored(score, truth)], SINGLE).roc_auc
    assert auc == pytest.approx(np.mean([(s > f) + 0.5 * (s == f) for s, f in pairs]))


def test_roc_auc_leaves_out_what_is_not_known_and_needs_both_kinds():
    assert compute_metrics([scored([0.9, 0.1, 0.0, 1.0], [1, 0, NAN, NAN])], SINGLE).roc_auc == 1
    assert math.isnan(compute_metrics([scored([0.9, 0.1, 0.5], [1, 1, NAN])], SINGLE).roc_auc)


def test_precision_and_recall_by_hand():
    found = compute_metrics([scored([1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, NAN])], SINGLE)
    assert (found.precision, found.recall) == (2 / 3, 2 / 3)
    never = compute_metrics([scored([0, 0], [1, 0])], SINGLE)
    assert math.isnan(never.precision) and never.recall == 0


def test_reliability_of_two_bins_by_hand():
    table = calibration_curve([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], bins=2)
    assert table.count.tolist() == [2, 2]
    assert table.success_prob == pytest.approx([0.2, 0.9])
    assert table.success_rate == pytest.approx([0.5, 1.0])
    assert table.ece == pytest.approx((0.3 + 0.1) / 2)
    assert table.brier == pytest.approx((0.01 + 0.49 + 0.04 + 0) / 4)
    assert table.log_loss == pytest.approx(-np.log([0.9, 0.3, 0.8, 1.0]).mean())


def test_an_empty_bin_is_nan_and_does_not_count():
    table = calibration_curve([0.05, 0.95], [0, 1], bins=10)
    assert np.isnan(table.success_rate[1:9]).all()
    assert table.ece == pytest.approx(0.05)


def test_a_sure_mistake_costs_much_and_not_everything():
    assert 10 < calibration_curve([1.0], [0]).log_loss < 20


# All of it


def small_set() -> list[EpisodePrediction]:
    return [
        scored([0.1, 0.2, 0.7, 0.9, 0.1], [0, 0, 1, 1, NAN], 7),  # released at the end
        scored([0.1, 0.6, 0.1], [0, 0, 0], 8),
        scored([0.9, 0.9], [NAN, NAN], 9),  # excluded
    ]


def test_measure_by_hand():
    scores = compute_metrics(small_set(), SINGLE)
    assert (scores.episodes, scores.frames, scores.success_frames) == (2, 7, 2)
    assert (scores.precision, scores.recall) == (2 / 3, 1)
    assert scores.accuracy == pytest.approx(6 / 7)
    assert scores.roc_auc == 1
    assert scores.fpr == pytest.approx(1 / 5) and scores.fpr_low <= 1 / 5 <= scores.fpr_high
    assert (scores.causal.tp, scores.causal.fn, scores.causal.fp, scores.causal.tn) == (1, 0, 1, 0)
    assert (scores.causal.onset_median, scores.offline.onset_median, scores.offline.fn) == (0, 0, 0)


def test_confirmation_rejects_the_flicker_and_calls_the_success_a_frame_later():
    scores = compute_metrics(small_set(), DecisionRule(k=2, n=2))
    assert (scores.causal.fp, scores.causal.tn, scores.causal.onset_median) == (0, 1, 1)
    assert scores.fpr == pytest.approx(1 / 5)  # frames are scored one by one


def test_a_success_that_is_undone_is_decoded_up_to_there():
    undone = scored([0.1, 0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1], [0, 0, 1, 1, 0, 0, 0, 0])
    assert compute_metrics([undone], SINGLE).offline.onset_median == 0


def test_scores_go_through_json_with_what_could_not_be_measured():
    scores = compute_metrics([scored([0.1, 0.2], [0, 0])], SINGLE)  # no success: no recall, no cutoff
    text = json.dumps(scores.to_json(), allow_nan=False)
    again = JudgeMetrics.from_json(json.loads(text))
    assert again.to_json() == scores.to_json()
    assert math.isnan(again.recall) and (again.k, again.n) == (1, 1)


def test_scored_says_what_is_wrong_with_it():
    with pytest.raises(JudgeError, match=r"episode 3: .* got \[2\] and \[1\]"):
        scored([0.1, 0.2], [0], 3)
    with pytest.raises(JudgeError, match="outside"):
        scored([3.2], [1])
    with pytest.raises(JudgeError, match="1, 0 or NaN"):
        scored([0.2], [0.5])
    with pytest.raises(JudgeError, match="label some"):
        compute_metrics([scored([0.2], [NAN])], SINGLE)


def test_episodes_that_are_called_at_their_first_frame_are_counted():
    episodes = [
        EpisodePrediction(np.array([0.9, 0.2, 0.9], "f4"), np.array([0, 0, 1], "f4"), 0),
        EpisodePrediction(np.array([0.9, 0.9], "f4"), np.array([1, 1], "f4"), 1),
        EpisodePrediction(np.array([0.9, 0.1, 0.9], "f4"), np.array([np.nan, 0, 1], "f4"), 2),  # no target at first
    ]
    scores = compute_metrics(episodes, SINGLE)
    assert (scores.first_frame_positives, scores.first_frame_fp) == (2, 1)
