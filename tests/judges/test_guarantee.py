"""A guarantee holds on new episodes as often as it says, and is not given where too few episodes could prove it."""

import math

import numpy as np
import pytest

from plaudit.judges.calibration import choose_threshold, guaranteed_threshold
from plaudit.judges.guarantee import Guarantee, episode_losses, make_guarantee, proven_threshold
from plaudit.judges.metrics import EpisodePrediction
from plaudit.judges.stats import episodes_needed, p_value, upper_bound

RATE, CONFIDENCE = 0.1, 0.9
FRAMES = 40


def failures(rng: np.random.Generator, episodes: int) -> list[EpisodePrediction]:
    """Episodes of failure; each has one score for all its frames but a few, so that they are wrong together."""
    level = rng.beta(0.6, 3.0, episodes)[:, None]
    scores = np.clip(level + rng.normal(0, 0.02, (episodes, FRAMES)), 0, 1)
    return [EpisodePrediction(row, np.zeros(FRAMES), number) for number, row in enumerate(scores)]


def successes(count: int) -> list[EpisodePrediction]:
    return [EpisodePrediction(np.full(FRAMES, 0.999), np.ones(FRAMES), 1000 + number) for number in range(count)]


@pytest.fixture(scope="module")
def to_come() -> list[EpisodePrediction]:
    return failures(np.random.default_rng(10**6), 4000)


def kept_in(choose, to_come: list[EpisodePrediction], episodes: int, repetitions: int) -> float:
    """In which share of data sets the chosen threshold keeps the rate on episodes to come."""
    scores = np.concatenate([one.success_prob for one in to_come])  # all of one length
    found = [choose(failures(np.random.default_rng(seed), episodes)) for seed in range(repetitions)]
    return float(np.mean([threshold is None or np.mean(scores >= threshold) <= RATE for threshold in found]))


@pytest.mark.parametrize("repetitions", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_a_proven_threshold_keeps_its_rate_on_episodes_to_come_and_todays_does_not(to_come, repetitions):
    prove = lambda known: proven_threshold(known, RATE, CONFIDENCE)  # noqa: E731
    count = lambda known: choose_threshold(known, RATE, floor=0.0).value  # noqa: E731
    assert kept_in(prove, to_come, 40, repetitions) >= CONFIDENCE
    assert kept_in(count, to_come, 40, repetitions) < 0.7


def test_the_promise_is_worth_something_and_more_with_more_episodes(to_come):
    rng = np.random.default_rng(0)
    first, second, third = (proven_threshold(failures(rng, count), RATE, CONFIDENCE) for count in (10, 60, 2000))
    assert first is None and second is not None and third is not None and second > third
    best = choose_threshold(to_come, RATE, floor=0.0).value
    assert third == pytest.approx(best, abs=0.05)


@pytest.mark.parametrize("bad", [0.02, 0.1, 0.4])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_the_bound_holds_the_true_mean_whether_mistakes_are_short_or_whole_episodes(bad, share):
    rng = np.random.default_rng(3)
    bounds = [upper_bound(share * (rng.random(30) < bad), CONFIDENCE) for _ in range(200)]
    assert np.mean([bound >= bad * share for bound in bounds]) >= CONFIDENCE


@pytest.mark.parametrize("rate", [0.5, 0.1, 0.01, 0.005])
def test_so_many_episodes_without_a_mistake_are_enough_and_one_less_is_not(rate):
    needed = episodes_needed(rate, CONFIDENCE)
    assert p_value(np.zeros(needed), rate) <= 1 - CONFIDENCE < p_value(np.zeros(needed - 1), rate)
    assert math.log(1 - CONFIDENCE) / math.log(1 - rate) <= needed  # what a coin would take
    assert upper_bound(np.zeros(needed), CONFIDENCE) <= rate + 1e-9


def test_too_few_episodes_are_said_to_be_too_few_and_nothing_else_changes():
    known = [*failures(np.random.default_rng(0), 12), *successes(12)]
    chosen, promise = guaranteed_threshold(known, 0.01, CONFIDENCE, labeled=160)
    assert chosen == choose_threshold(known, 0.01)
    assert not promise.kept and (promise.episodes, promise.needed) == (12, 254)
    assert promise.more == math.ceil(254 * 160 / 12) - 160
    assert f"too few episodes to guarantee a false-positive rate of 1%: label at least {promise.more:,} more" in (
        promise.describe()
    )
    assert promise.next_best is not None and promise.next_best.rate >= 0.2
    assert (
        f"{promise.next_best.threshold:.4g} is proven for a rate of {100 * promise.next_best.rate:.0f}%"
        in promise.describe()
    )


def test_with_enough_episodes_the_proven_threshold_is_in_use():
    known = [*failures(np.random.default_rng(0), 300), *successes(10)]
    chosen, promise = guaranteed_threshold(known, 0.02, CONFIDENCE)
    assert promise.kept and chosen.value == promise.threshold
    assert chosen.value > choose_threshold(known, 0.02).value
    assert "is guaranteed for new episodes, with 90% confidence" in promise.describe()


def test_no_threshold_is_proven_that_would_not_be_used():
    """A low threshold keeps half of the failure frames out, and none below 0.5 is ever in use."""
    known = [*failures(np.random.default_rng(0), 40), *successes(10)]
    lowest = proven_threshold(known, 0.5, CONFIDENCE)
    assert lowest is not None and lowest < 0.5
    _, promise = guaranteed_threshold(known, 0.5, CONFIDENCE)
    assert [step.threshold for step in promise.steps if step.threshold is not None and step.threshold < 0.5] == []
    assert promise.threshold == 0.5


def test_a_judge_that_would_have_to_say_no_to_everything_is_promised_nothing():
    sure = [EpisodePrediction(np.ones(FRAMES), np.zeros(FRAMES), number) for number in range(400)]
    chosen, promise = guaranteed_threshold([*sure, *successes(10)], 0.01, CONFIDENCE)
    assert not promise.kept and promise.more == 0
    assert "no threshold that predicts any success keeps it on 400 episodes" in promise.describe()
    assert chosen.value > 1


def test_a_rate_of_zero_is_never_promised():
    promise = make_guarantee([*failures(np.random.default_rng(0), 20), *successes(2)], 0.0, CONFIDENCE)
    assert "cannot be guaranteed by any number of episodes" in promise.describe()


def test_what_others_showed_of_the_threshold_is_said():
    known = [*failures(np.random.default_rng(0), 12), *successes(12)]
    promise = make_guarantee(known, 0.01, CONFIDENCE).with_bound(
        episode_losses(failures(np.random.default_rng(1), 9), 0.9)
    )
    assert promise.bound_episodes == 9 and promise.bound is not None and 0.1 < promise.bound < 0.5
    assert "9 episodes that did not choose the threshold bound its rate to" in promise.describe()
    assert Guarantee.model_validate_json(promise.model_dump_json()) == promise
