import json
import math

import numpy as np
import pytest

from plaudit.errors import RewardError
from plaudit.rewards.measure import (
    Calibration,
    Scored,
    Scores,
    choose_threshold,
    cutoff_errors,
    decode_cutoff,
    false_positive_rate,
    first_success,
    fit_calibration,
    measure,
    precision_recall,
    reliability,
    roc_auc,
    wilson,
)

NAN = math.nan


def scored(probability, truth, episode: int = 0) -> Scored:
    return Scored(np.array(probability, "f4"), np.array(truth, "f4"), episode)


def failing(*probability: float) -> Scored:
    return scored(probability, [0] * len(probability))


def random_frames(seed: int, count: int = 60):
    """Scores of eleven values, so that many tie."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, count).astype(float)
    return truth, np.round(0.3 * truth + 0.7 * rng.random(count), 1)


def simulated(rng: np.random.Generator, episodes: int, bad: float, share: float) -> list[Scored]:
    """Failures of 40 frames; in a share `bad` of them a run of `share` of the frames is called success."""
    made = []
    for number in range(episodes):
        probability = np.full(40, 0.1)
        if rng.random() < bad:
            probability[: round(40 * share)] = 0.9
        made.append(scored(probability, np.zeros(40), number))
    return made


# Frames


@pytest.mark.parametrize("seed", range(20))
def test_roc_auc_is_the_share_of_pairs_in_the_right_order(seed):
    truth, score = random_frames(seed)
    pairs = [(s, f) for s in score[truth == 1] for f in score[truth == 0]]
    assert roc_auc(truth, score) == pytest.approx(np.mean([(s > f) + 0.5 * (s == f) for s, f in pairs]))


def test_roc_auc_leaves_out_what_is_not_known_and_needs_both_kinds():
    assert roc_auc([1, 0, NAN, NAN], [0.9, 0.1, 0.0, 1.0]) == 1
    assert math.isnan(roc_auc([1, 1, NAN], [0.9, 0.1, 0.5]))


def test_precision_and_recall_by_hand():
    truth, yes = [1, 1, 1, 0, 0, NAN], [True, True, False, True, False, True]
    assert precision_recall(truth, yes) == (2 / 3, 2 / 3)
    precision, recall = precision_recall([1, 0], [False, False])
    assert math.isnan(precision) and recall == 0


def test_reliability_of_two_bins_by_hand():
    table = reliability([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], bins=2)
    assert table.count.tolist() == [2, 2]
    assert table.probability == pytest.approx([0.2, 0.9])
    assert table.success == pytest.approx([0.5, 1.0])
    assert table.ece == pytest.approx((0.3 + 0.1) / 2)
    assert table.brier == pytest.approx((0.01 + 0.49 + 0.04 + 0) / 4)
    assert table.log_loss == pytest.approx(-np.log([0.9, 0.3, 0.8, 1.0]).mean())


def test_an_empty_bin_is_nan_and_does_not_count():
    table = reliability([0.05, 0.95], [0, 1], bins=10)
    assert np.isnan(table.success[1:9]).all()
    assert table.ece == pytest.approx(0.05)


def test_a_sure_mistake_costs_much_and_not_everything():
    assert 10 < reliability([1.0], [0]).log_loss < 20


# Calibration


@pytest.mark.parametrize(("temperature", "bias"), [(2.5, -1.0), (0.5, 0.7), (1.0, 0.0), (8.0, 2.0)])
def test_calibration_finds_the_temperature_and_bias_that_made_the_data(temperature, bias):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3 * temperature, 20_000)
    truth = rng.random(20_000) < 1 / (1 + np.exp(-(logits / temperature + bias)))
    found = fit_calibration(logits, truth)
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.bias == pytest.approx(bias, abs=0.07)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_logits_without_a_mistake_keep_a_bounded_temperature(scale):
    found = fit_calibration(scale * np.array([-2.0, -1.0, 1.0, 2.0]), [0, 0, 1, 1])
    assert 0.05 <= found.temperature <= 20
    probability = found(scale * np.array([-2.0, -1.0, 1.0, 2.0]))
    assert (probability[:2] < 0.5).all() and (probability[2:] > 0.5).all()


def test_a_judge_that_is_mostly_wrong_ends_at_the_hottest_with_the_bias_that_fits_there():
    logits, truth = np.array([-1.0] * 6 + [1.0] * 6), np.array([1] * 6 + [0] * 3 + [1] * 3)
    found = fit_calibration(logits, truth)
    assert found.temperature == pytest.approx(20)
    assert found(logits).mean() == pytest.approx(truth.mean(), abs=0.01)


def test_calibration_is_the_minimum_of_the_loss_over_a_grid():
    truth, score = random_frames(3)
    logits = 8 * score - 4
    found = fit_calibration(logits, truth)
    grid = [Calibration(t, b) for t in np.geomspace(0.1, 10, 80) for b in np.linspace(-3, 3, 61)]
    losses = [reliability(c(logits), truth).log_loss for c in grid]
    assert reliability(found(logits), truth).log_loss <= min(losses) + 1e-5


def test_calibration_needs_both_kinds_and_finite_logits():
    with pytest.raises(RewardError, match="of one kind"):
        fit_calibration([1.0, 2.0], [1, 1])
    with pytest.raises(RewardError, match="finite"):
        fit_calibration([math.inf, 2.0], [1, 0])


# Threshold


def test_the_threshold_lies_just_over_the_first_failure_that_must_not_pass():
    episodes = [failing(0.6, 0.7, 0.1, 0.2), failing(0.8, 0.9, 0.3, 0.4)]
    chosen = choose_threshold(episodes, target_fpr=0.25)  # two of eight may be called
    assert chosen.value == pytest.approx(0.7) and np.float32(chosen.value) > np.float32(0.7)
    assert chosen.fpr == 0.25


def test_the_threshold_is_the_floor_where_that_is_enough():
    assert choose_threshold([failing(0.1, 0.2)], floor=0.5).value == 0.5


@pytest.mark.parametrize("target", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("digits", [1, 2, 7])
def test_no_more_failures_get_through_than_asked_and_no_smaller_threshold_would_do(target, digits):
    rng = np.random.default_rng(digits)
    episodes = [scored(rng.random(50).round(digits), rng.random(50) < 0.3, n) for n in range(10)]
    chosen = choose_threshold(episodes, target_fpr=target, floor=0.0)
    assert chosen.fpr <= target
    smaller = max(p for e in episodes for p in e.probability if p < np.float32(chosen.value))
    assert false_positive_rate(episodes, smaller).value > target


def test_failures_at_one_leave_a_threshold_that_calls_nothing():
    chosen = choose_threshold([failing(1.0, 1.0)])
    assert chosen.fpr == 0
    assert first_success([1.0], chosen.value) is None


def test_a_threshold_goes_through_json_and_still_keeps_out_what_it_should():
    episodes = [failing(*np.random.default_rng(0).random(100))]
    value = json.loads(json.dumps(choose_threshold(episodes, target_fpr=0.0).value))
    assert false_positive_rate(episodes, value).value == 0


def test_without_failure_frames_there_is_no_threshold_and_no_rate():
    with pytest.raises(RewardError, match="shows failure"):
        choose_threshold([scored([0.9], [1])])
    rate = false_positive_rate([scored([0.9], [1])], 0.5)
    assert math.isnan(rate.value) and (rate.low, rate.high) == (0, 1)


def test_no_mistake_in_twenty_episodes_still_leaves_room_for_some():
    rate = false_positive_rate([failing(*[0.1] * 500)] * 20, 0.5)
    assert (rate.value, rate.low) == (0, 0)
    assert rate.high == pytest.approx(3.84 / (20 + 3.84), rel=0.01)


def test_wilson_by_the_textbook():
    rate = wilson(5, 10)
    assert (rate.value, rate.low, rate.high) == (0.5, pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson(0, 10).low == 0 and wilson(10, 10).high == 1
    assert wilson(0, 0).high == 1 and math.isnan(wilson(0, 0).value)


def test_more_frames_of_the_same_episodes_do_not_narrow_the_interval():
    few = [failing(0.9, 0.1), failing(0.1, 0.1), failing(0.1, 0.1), failing(0.9, 0.9)]
    many = [scored(np.repeat(e.probability, 100), np.repeat(e.truth, 100)) for e in few]
    assert false_positive_rate(few, 0.5) == false_positive_rate(many, 0.5)


@pytest.mark.parametrize(("episodes", "bad", "share"), [(20, 0.05, 0.3), (20, 0.3, 0.5), (60, 0.1, 0.1), (40, 0.02, 1)])
def test_the_interval_holds_the_true_rate_in_most_of_many_data_sets(episodes, bad, share):
    rng = np.random.default_rng(1)
    rates = [false_positive_rate(simulated(rng, episodes, bad, share), 0.5) for _ in range(200)]
    assert np.mean([rate.low <= bad * share <= rate.high for rate in rates]) >= 0.95


def test_the_interval_holds_it_less_often_where_a_few_mistakes_are_long():
    rng = np.random.default_rng(1)
    sets = [[e for _ in range(60) for e in simulated(rng, 1, 0.1, rng.exponential(0.1))] for _ in range(200)]
    true = np.mean([e.called(0.5) for episodes in sets for e in episodes])
    rates = [false_positive_rate(episodes, 0.5) for episodes in sets]
    assert 0.8 <= np.mean([rate.low <= true <= rate.high for rate in rates]) <= 0.97


def test_frames_taken_as_independent_would_hold_it_far_less_often():
    rng = np.random.default_rng(1)
    values = np.array([false_positive_rate(simulated(rng, 20, 0.3, 0.5), 0.5).value for _ in range(200)])
    width = 1.96 * np.sqrt(values * (1 - values) / (20 * 40))
    assert np.mean(np.abs(values - 0.15) <= width) < 0.6


# Cutoffs


def test_first_success_waits_for_its_confirmation():
    probability = [0.1, 0.9, 0.1, 0.9, 0.9, 0.9]
    assert first_success(probability, 0.5) == 1
    assert first_success(probability, 0.5, confirm=(2, 3)) == 3
    assert first_success(probability, 0.5, confirm=(3, 3)) == 5
    assert first_success(probability, 0.95) is None


def test_confirmation_is_k_of_n():
    with pytest.raises(RewardError, match="1 <= k <= n"):
        first_success([0.9], 0.5, confirm=(3, 2))


@pytest.mark.parametrize("seed", range(30))
def test_decode_cutoff_is_the_most_likely_of_all_cutoffs(seed):
    rng = np.random.default_rng(seed)
    p = np.clip(rng.random(12) + (np.arange(12) - rng.integers(0, 14)) / 10, 0, 1)
    clipped = np.clip(p, 1e-4, 1 - 1e-4)
    likelihood = [np.log(1 - clipped[:c]).sum() + np.log(clipped[c:]).sum() for c in range(13)]
    best = int(np.argmax(likelihood))
    assert decode_cutoff(p) == (None if best == 12 else best)


def test_decode_cutoff_is_not_fooled_by_a_flicker_and_prefers_never_where_it_cannot_tell():
    assert decode_cutoff([0.1, 0.9, 0.1, 0.1, 0.9, 0.9]) == 4
    assert decode_cutoff([0.1, 0.2, 0.1]) is None
    assert decode_cutoff([0.5, 0.5]) is None


def test_cutoff_errors_by_hand():
    episodes = [
        scored([0, 0, 1, 1, 1], [0, 0, 0, 1, 1]),  # one too early
        scored([0, 0, 0, 0, 1], [0, 1, 1, 1, 1]),  # three too late
        scored([0, 0, 0, 0, 0], [0, 0, 0, 0, 1]),  # missed
        scored([0, 1, 0, 0, 0], [0, 0, 0, 0, 0]),  # falsely called
        scored([0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
    ]
    found = cutoff_errors(episodes, 0.5)
    assert found.errors == (-1, 3, None)
    assert (found.median, found.p90) == (2, pytest.approx(2.8))
    assert (found.missed, found.false_calls, found.failing) == (1, 1, 2)


def test_a_call_where_the_truth_is_not_known_is_neither_right_nor_wrong():
    found = cutoff_errors(
        [scored([1, 0, 0, 1], [NAN, 0, 0, 1]), scored([0, 1], [0, NAN]), scored([1, 1], [NAN, NAN])], 0.5
    )
    assert found.errors == (0,)
    assert (found.false_calls, found.failing) == (0, 1)


# All of it


def small_set() -> list[Scored]:
    return [
        scored([0.1, 0.2, 0.7, 0.9, 0.1], [0, 0, 1, 1, NAN], 7),  # released at the end
        scored([0.1, 0.6, 0.1], [0, 0, 0], 8),
        scored([0.9, 0.9], [NAN, NAN], 9),  # excluded
    ]


def test_measure_by_hand():
    scores = measure(small_set(), 0.5)
    assert (scores.episodes, scores.frames, scores.success_frames) == (2, 7, 2)
    assert (scores.precision, scores.recall) == (2 / 3, 1)
    assert scores.accuracy == pytest.approx(6 / 7)
    assert scores.roc_auc == 1
    assert scores.fpr == pytest.approx(1 / 5) and scores.fpr_low <= 1 / 5 <= scores.fpr_high
    assert (scores.episodes_hit, scores.episodes_missed, scores.episodes_false, scores.episodes_rejected) == (
        1,
        0,
        1,
        0,
    )
    assert (scores.cutoff_median, scores.decoded_median, scores.decoded_missed) == (0, 0, 0)


def test_confirmation_rejects_the_flicker_and_calls_the_success_a_frame_later():
    scores = measure(small_set(), 0.5, confirm=(2, 2))
    assert (scores.episodes_false, scores.episodes_rejected, scores.cutoff_median) == (0, 1, 1)
    assert scores.fpr == pytest.approx(1 / 5)  # frames are scored one by one


def test_a_success_that_is_undone_is_decoded_up_to_there():
    undone = scored([0.1, 0.1, 0.9, 0.9, 0.1, 0.1, 0.1, 0.1], [0, 0, 1, 1, 0, 0, 0, 0])
    assert measure([undone], 0.5).decoded_median == 0


def test_scores_go_through_json_with_what_could_not_be_measured():
    scores = measure([failing(0.1, 0.2)], 0.5)  # no success: no recall, no cutoff
    text = json.dumps(scores.to_json(), allow_nan=False)
    again = Scores.from_json(json.loads(text))
    assert again.to_json() == scores.to_json()
    assert math.isnan(again.recall) and again.confirm == (1, 1)


def test_scored_says_what_is_wrong_with_it():
    with pytest.raises(RewardError, match=r"episode 3: .* got \[2\] and \[1\]"):
        scored([0.1, 0.2], [0], 3)
    with pytest.raises(RewardError, match="outside"):
        scored([3.2], [1])
    with pytest.raises(RewardError, match="1, 0 or NaN"):
        scored([0.2], [0.5])
    with pytest.raises(RewardError, match="label some"):
        measure([scored([0.2], [NAN])], 0.5)
