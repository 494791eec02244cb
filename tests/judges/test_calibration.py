"""Temperature, bias and threshold against what can be counted, and intervals against many data sets."""

import json
import math

import numpy as np
import pytest

from plaudit.errors import JudgeError
from plaudit.judges.calibration import EnsembleCalibration, PlattScaling, choose_threshold, fit_platt
from plaudit.judges.metrics import EpisodePrediction, calibration_curve, false_positive_rate
from plaudit.judges.stats import wilson
from plaudit.rule import above_threshold


def scored(probability, truth, episode: int = 0) -> EpisodePrediction:
    return EpisodePrediction(np.array(probability, "f4"), np.array(truth, "f4"), episode)


def failing(*probability: float) -> EpisodePrediction:
    return scored(probability, [0] * len(probability))


def simulated(rng: np.random.Generator, episodes: int, bad: float, share: float) -> list[EpisodePrediction]:
    """Failures of 40 frames; in a share `bad` of them a run of `share` of the frames is called success."""
    made = []
    for number in range(episodes):
        probability = np.full(40, 0.1)
        if rng.random() < bad:
            probability[: round(40 * share)] = 0.9
        made.append(scored(probability, np.zeros(40), number))
    return made


@pytest.mark.parametrize(("temperature", "bias"), [(2.5, -1.0), (0.5, 0.7), (1.0, 0.0), (8.0, 2.0)])
def test_calibration_finds_the_temperature_and_bias_that_made_the_data(temperature, bias):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3 * temperature, 20_000)
    truth = rng.random(20_000) < 1 / (1 + np.exp(-(logits / temperature + bias)))
    found = fit_platt(logits, truth)
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.bias == pytest.approx(bias, abs=0.07)


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_logits_without_a_mistake_keep_a_bounded_temperature(scale):
    found = fit_platt(scale * np.array([-2.0, -1.0, 1.0, 2.0]), [0, 0, 1, 1])
    assert 0.05 <= found.temperature <= 20
    probability = found(scale * np.array([-2.0, -1.0, 1.0, 2.0]))
    assert (probability[:2] < 0.5).all() and (probability[2:] > 0.5).all()


def test_a_judge_that_is_mostly_wrong_ends_at_the_hottest_with_the_bias_that_fits_there():
    logits, truth = np.array([-1.0] * 6 + [1.0] * 6), np.array([1] * 6 + [0] * 3 + [1] * 3)
    found = fit_platt(logits, truth)
    assert found.temperature == pytest.approx(20)
    assert found(logits).mean() == pytest.approx(truth.mean(), abs=0.01)


def test_calibration_is_the_minimum_of_the_loss_over_a_grid():
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 2, 60).astype(float)
    logits = 8 * np.round(0.3 * truth + 0.7 * rng.random(60), 1) - 4
    found = fit_platt(logits, truth)
    grid = [PlattScaling(temperature=t, bias=b) for t in np.geomspace(0.1, 10, 80) for b in np.linspace(-3, 3, 61)]
    probs = [np.clip(c(logits), 1e-7, 1 - 1e-7) for c in grid]
    losses = [-np.log(np.where(truth == 1, prob, 1 - prob)).mean() for prob in probs]
    assert calibration_curve(found(logits), truth).log_loss <= min(losses) + 1e-5


def test_calibration_needs_both_kinds_and_finite_logits():
    with pytest.raises(JudgeError, match="of one kind"):
        fit_platt([1.0, 2.0], [1, 1])
    with pytest.raises(JudgeError, match="finite"):
        fit_platt([math.inf, 2.0], [1, 0])


# ThresholdChoice


def test_the_threshold_lies_midway_between_the_first_failure_that_must_not_pass_and_the_next_score():
    episodes = [failing(0.6, 0.7, 0.1, 0.2), failing(0.8, 0.9, 0.3, 0.4)]
    chosen = choose_threshold(episodes, target_fpr=0.25)  # two of eight may be called
    assert (chosen.value, chosen.fpr) == (pytest.approx(0.75), 0.25)
    with_success = [*episodes, scored([0.72, 0.95], [1, 1])]
    assert choose_threshold(with_success, target_fpr=0.25).value == pytest.approx(0.71)
    assert choose_threshold(episodes, target_fpr=0.0).value == pytest.approx(0.95)  # above it comes 1


def test_a_threshold_keeps_out_what_it_should_when_scores_differ_in_their_last_digits():
    """As they do from one device to the next."""
    episodes = [scored([0.2, 0.7, 0.96, 0.99], [0, 0, 1, 1]), failing(0.3, 0.4999999)]
    value = choose_threshold(episodes, target_fpr=0.0).value
    elsewhere = [EpisodePrediction(np.minimum(e.success_prob + np.float32(1e-4), 1), e.target, 0) for e in episodes]
    assert false_positive_rate(elsewhere, value).value == 0
    low = [failing(0.3, 0.4999999)]  # a hair under the floor
    assert choose_threshold(low, target_fpr=0.0).value > 0.51


@pytest.mark.parametrize("members", [1, 5])
def test_an_ensemble_is_calibrated_as_a_whole(members):
    rng = np.random.default_rng(0)
    clear = rng.normal(0, 2, 6000)
    truth = rng.random(6000) < 1 / (1 + np.exp(-clear))
    logits = [scale * (clear + rng.normal(0, 2, 6000)) for scale in (1, 2, 0.5, 3, 1)[:members]]
    found = EnsembleCalibration.fit(logits[:], truth)
    lowest = np.min([one(said) for one, said in zip(found.members, logits, strict=True)], axis=0)
    assert calibration_curve(found(logits), truth).ece < 0.03
    assert found(logits).mean() == pytest.approx(truth.mean(), abs=0.005)
    assert (calibration_curve(lowest, truth).ece > 0.1) == (members > 1)  # what the lowest of calibrated ones is worth


def test_the_threshold_is_the_floor_where_that_is_enough():
    assert choose_threshold([failing(0.1, 0.2)], floor=0.5).value == 0.5


@pytest.mark.parametrize("target", [0.0, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("digits", [1, 2, 7])
def test_no_more_failures_get_through_than_asked_and_no_smaller_threshold_would_do(target, digits):
    rng = np.random.default_rng(digits)
    episodes = [scored(rng.random(50).round(digits), rng.random(50) < 0.3, n) for n in range(10)]
    chosen = choose_threshold(episodes, target_fpr=target, floor=0.0)
    assert chosen.fpr <= target
    smaller = max(p for e in episodes for p in e.success_prob if p < np.float32(chosen.value))
    assert false_positive_rate(episodes, smaller).value > target


def test_failures_at_one_leave_a_threshold_that_calls_nothing():
    chosen = choose_threshold([failing(1.0, 1.0)])
    assert chosen.fpr == 0
    assert not above_threshold(1.0, chosen.value)


def test_a_threshold_goes_through_json_and_still_keeps_out_what_it_should():
    episodes = [failing(*np.random.default_rng(0).random(100))]
    value = json.loads(json.dumps(choose_threshold(episodes, target_fpr=0.0).value))
    assert false_positive_rate(episodes, value).value == 0


def test_without_failure_frames_there_is_no_threshold_and_no_rate():
    with pytest.raises(JudgeError, match="shows failure"):
        choose_threshold([scored([0.9], [1])])
    rate = false_positive_rate([scored([0.9], [1])], 0.5)
    assert math.isnan(rate.value) and (rate.low, rate.high) == (0, 1)


def test_no_mistake_in_twenty_episodes_still_leaves_room_for_some():
    rate = false_positive_rate([failing(*[0.1] * 500)] * 20, 0.5)
    assert (rate.value, rate.low) == (0, 0)
    assert 1 - 0.025 ** (1 / 20) < rate.high < 0.2  # what a coin would leave, and a little more


def test_wilson_by_the_textbook():
    rate = wilson(5, 10)
    assert (rate.value, rate.low, rate.high) == (0.5, pytest.approx(0.2366, abs=1e-4), pytest.approx(0.7634, abs=1e-4))
    assert wilson(0, 10).low == 0 and wilson(10, 10).high == 1
    assert wilson(0, 0).high == 1 and math.isnan(wilson(0, 0).value)


def test_more_frames_of_the_same_episodes_do_not_narrow_the_interval():
    few = [failing(0.9, 0.1), failing(0.1, 0.1), failing(0.1, 0.1), failing(0.9, 0.9)]
    many = [scored(np.repeat(e.success_prob, 100), np.repeat(e.target, 100)) for e in few]
    assert false_positive_rate(few, 0.5) == false_positive_rate(many, 0.5)


@pytest.mark.parametrize(
    ("episodes", "bad", "share"),
    [
        (20, 0.05, 0.3),
        pytest.param(20, 0.3, 0.5, marks=pytest.mark.slow),
        pytest.param(60, 0.1, 0.1, marks=pytest.mark.slow),
        pytest.param(40, 0.02, 1, marks=pytest.mark.slow),
    ],
)
def test_the_interval_holds_the_true_rate_in_most_of_many_data_sets(episodes, bad, share):
    rng = np.random.default_rng(1)
    rates = [false_positive_rate(simulated(rng, episodes, bad, share), 0.5) for _ in range(200)]
    assert np.mean([rate.low <= bad * share <= rate.high for rate in rates]) >= 0.95


@pytest.mark.slow
def test_the_interval_holds_it_too_where_a_few_mistakes_are_long():
    rng = np.random.default_rng(1)
    sets = [[e for _ in range(60) for e in simulated(rng, 1, 0.1, rng.exponential(0.1))] for _ in range(200)]
    true = np.mean([e.predicted(0.5) for episodes in sets for e in episodes])
    rates = [false_positive_rate(episodes, 0.5) for episodes in sets]
    assert np.mean([rate.low <= true <= rate.high for rate in rates]) >= 0.95


def test_frames_taken_as_independent_would_hold_it_far_less_often():
    rng = np.random.default_rng(1)
    values = np.array([false_positive_rate(simulated(rng, 20, 0.3, 0.5), 0.5).value for _ in range(200)])
    width = 1.96 * np.sqrt(values * (1 - values) / (20 * 40))
    assert np.mean(np.abs(values - 0.15) <= width) < 0.6
