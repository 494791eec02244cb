"""Prediction intervals: what a judge will show on other episodes, by those that it was measured on."""

import math

import numpy as np
import pytest

from plaudit.judges.guarantee import AHEAD, FORECAST_FIGURES, Forecast, draw_others, make_forecast
from plaudit.judges.metrics import EpisodePrediction
from plaudit.judges.stats import NOT_MEASURED, Interval
from plaudit.report.judge import format_figure
from plaudit.rule import DecisionRule

FRAMES, CUTOFF = 12, 6
RULE = DecisionRule(decode="per_frame")


def episodes(rng: np.random.Generator, count: int, bad: float = 0.15) -> list[EpisodePrediction]:
    """Most are right but for an error of the first success; in a few all failure frames are taken for success."""
    target = (np.arange(FRAMES) >= CUTOFF).astype(np.float32)
    found = []
    for number in range(count):
        onset = 0 if rng.random() < bad else CUTOFF + int(rng.geometric(0.5)) - 1
        found.append(EpisodePrediction((np.arange(FRAMES) >= onset).astype(np.float32), target, number))
    return found


def test_the_intervals_hold_the_figures_of_ten_others_in_nine_of_ten_data_sets():
    covered = {name: [] for name in FORECAST_FIGURES}
    for seed in range(25):
        rng = np.random.default_rng(seed)
        forecast = make_forecast(episodes(rng, 20), RULE)
        others = make_forecast(episodes(rng, AHEAD), RULE).figures
        for name, interval in forecast.figures.items():
            covered[name].append(interval.low <= others[name].value <= interval.high)
    assert min(np.mean(held) for held in covered.values()) >= 0.9


@pytest.mark.parametrize("known, high", [(20, 0.3), (100, 0.1)])
def test_without_a_mistake_an_episode_unlike_all_is_still_reckoned_with(known, high):
    figures = make_forecast(episodes(np.random.default_rng(0), known, bad=0.0), RULE).figures
    assert figures["fpr"] == Interval(0.0, 0.0, figures["fpr"].high) and figures["fpr"].high == pytest.approx(high)


def test_more_episodes_tell_more_and_the_forecast_says_how_much():
    rng = np.random.default_rng(0)
    few = make_forecast(episodes(rng, 4), RULE)
    width = lambda figures: figures["fpr"].high - figures["fpr"].low  # noqa: E731
    assert width(few.figures) > width(few.with_twice) > width(make_forecast(episodes(rng, 60), RULE).figures)


def test_others_are_drawn_as_ranks_of_new_values_fall():
    """Of 19 alike, the next is above all of them once in 20 times, and two in a row with the chance of two new ones."""
    drawn = draw_others(19, 2)
    assert np.mean(drawn[:, 0] == 19) == pytest.approx(1 / 20, abs=0.01)
    assert np.mean((drawn == 19).all(axis=1)) == pytest.approx(2 / (20 * 21), abs=0.005)


def test_what_cannot_be_measured_is_none_and_the_rest_is_kept_in_json():
    failures = [EpisodePrediction(np.zeros(FRAMES), np.zeros(FRAMES), number) for number in range(5)]
    forecast = make_forecast(failures, RULE, why_not="the encoder was trained")
    assert forecast.figures["recall"] == NOT_MEASURED and forecast.figures["fpr"].value == 0
    assert forecast.describe() == ("measured on 5 test episodes, so the intervals are wide: the encoder was trained")
    assert Forecast.model_validate_json(forecast.model_dump_json()) == forecast


def test_each_draw_counts_by_the_threshold_in_use_or_by_one_that_others_choose():
    """Folds that choose a lax threshold find all; the strict one in use finds a fifth."""
    target = np.ones(10)
    lax = [EpisodePrediction(np.ones(10), target, number) for number in range(20)]
    strict = [EpisodePrediction(np.arange(10) >= 8, target, number) for number in range(20)]
    recall = make_forecast(lax, RULE, at_threshold=strict).figures["recall"]
    assert recall.value == 1.0 and recall.high == 1.0 and recall.low <= 0.2


def test_an_error_of_the_first_success_has_no_upper_end_where_none_may_be_found():
    target = (np.arange(FRAMES) >= CUTOFF).astype(np.float32)
    missed = [EpisodePrediction(np.zeros(FRAMES), target, number) for number in range(20)]
    some = make_forecast([*missed, EpisodePrediction(target, target, 20)], RULE).figures["onset_median"]
    assert some == Interval(0.0, 0.0, math.inf) and format_figure("onset_median", some) == "0 frames (0 or more)"
    none = make_forecast(missed, RULE).figures["onset_median"]
    assert (
        none == Interval(math.nan, 0.0, math.inf)
        and format_figure("onset_median", none) == "no success found (0 or more)"
    )
    found = make_forecast([EpisodePrediction(target, target, number) for number in range(20)], RULE)
    assert found.figures["onset_p90"] == Interval(0.0, 0.0, FRAMES)
