"""Which of two judges is used, from figures you can check by eye."""

import math

import pytest
from pydantic import TypeAdapter

from plaudit.training.retrain import EpisodeResult, JudgeEvalSummary, PromotionRules, should_promote

RULES = PromotionRules()


def figures(problems=(), fpr=0.1, called=2, **right: tuple[int, int]) -> JudgeEvalSummary:
    """online_failures=(2, 5): right about the first 2 of 5; called: failure frames called in every episode."""
    kinds = {name.replace("_", " "): pair for name, pair in right.items()}
    shares = {name: pair[0] for name, pair in kinds.items()}, {name: pair[1] for name, pair in kinds.items()}
    each = {f"{name} {i}": EpisodeResult(i < good, called) for name, (good, of) in kinds.items() for i in range(of)}
    return JudgeEvalSummary("f", *shares, fpr, 0.0, 1.0, 0.9, tuple(problems), each)


FOOLED = figures(online_failures=(2, 10), initial_failures=(20, 20), initial_successes=(10, 10))
BETTER = figures(online_failures=(10, 10), initial_failures=(20, 20), initial_successes=(9, 10))
BLIND = figures(online_failures=(10, 10), initial_failures=(20, 20), initial_successes=(0, 10), fpr=0.0)


def test_shares_are_over_episodes_and_the_score_over_kinds():
    assert FOOLED.balanced_accuracy == pytest.approx((0.2 + 1 + 1) / 3)
    assert FOOLED.fpr == pytest.approx(8 / 30) and FOOLED.fnr == 0 and FOOLED.episodes == 40
    assert math.isnan(figures(online_failures=(1, 1)).fnr)


def test_one_that_is_right_more_often_takes_over():
    replaced, why = should_promote(FOOLED, BETTER, RULES)
    assert replaced and why.startswith(
        "promoted a new version of the judge: balanced accuracy 97% on 40 held-out episodes"
    )


def test_one_that_calls_nothing_does_not_although_no_failure_gets_through():
    replaced, why = should_promote(FOOLED, BLIND, RULES)
    assert not replaced and "it misses 100% of the successes, the current judge 0%" in why


def test_one_that_lets_more_failures_through_does_not():
    replaced, why = should_promote(BETTER, FOOLED, RULES)
    assert not replaced and "it predicts success in 27% of the failures, the current judge in 0%" in why


def test_a_few_mistakes_more_are_allowed_where_the_old_one_makes_many_of_the_other_kind():
    strict = figures(online_failures=(20, 20), online_successes=(2, 12))
    fair = figures(online_failures=(19, 20), online_successes=(10, 12))
    assert should_promote(strict, fair, RULES)[0]
    assert not should_promote(strict, fair, PromotionRules(max_fpr=0.0))[0]


def test_as_good_is_not_better_unless_fewer_failure_frames_are_called():
    assert not should_promote(BETTER, BETTER, RULES)[0]
    calmer = figures(online_failures=(10, 10), initial_failures=(20, 20), initial_successes=(9, 10), fpr=0.05, called=1)
    assert should_promote(BETTER, calmer, RULES)[0] and not should_promote(calmer, BETTER, RULES)[0]


@pytest.mark.parametrize(("old", "new", "of", "promoted"), [(0, 4, 4, False), (0, 5, 5, True), (2, 11, 14, True)])
def test_one_that_may_be_better_by_chance_does_not(old, new, of, promoted):
    """The first `old` or `new` of `of` failures are judged right."""
    data = {"initial_failures": (20, 20), "initial_successes": (10, 10)}
    replaced, why = should_promote(
        figures(online_failures=(old, of), **data), figures(online_failures=(new, of), **data), RULES
    )
    assert replaced == promoted
    assert promoted or "it is right in 4 of the 4 held-out episodes in which the two differ, which may be chance" in why


def test_wins_and_losses_are_weighed_against_each_other():
    data = {"initial_failures": (20, 20), "online_failures": (4, 12)}
    old, better = (
        figures(initial_successes=(10, 10), **data),
        figures(initial_successes=(9, 10), **{**data, "online_failures": (8, 12)}),
    )
    replaced, why = should_promote(old, better, RULES)  # four won, one lost
    assert not replaced and "right in 4 of the 5 held-out episodes" in why
    assert should_promote(old, better, PromotionRules(confidence=0.8))[0]


def test_one_that_fails_a_control_does_not_however_good_it_is():
    trick = figures(
        ["blank black: 100% of 8 frames called success"], online_failures=(5, 5), initial_successes=(10, 10)
    )
    replaced, why = should_promote(FOOLED, trick, RULES)
    assert not replaced and "failed its checks: blank black" in why


@pytest.mark.parametrize(
    ("right", "sentence"),
    [
        ({"online_failures": (3, 3)}, "3 held-out episodes are too few to compare on, 4 are needed"),
        ({"online_failures": (9, 9)}, "none of the held-out episodes succeeds, so there is nothing to compare on"),
        ({"online_successes": (9, 9)}, "none of the held-out episodes fails, so there is nothing to compare on"),
    ],
)
def test_where_there_is_too_little_to_compare_on_the_old_one_stays(right, sentence):
    replaced, why = should_promote(FOOLED, figures(**right), RULES)
    assert not replaced and sentence in why


def test_figures_survive_being_written_down():
    kept = TypeAdapter(JudgeEvalSummary).validate_python(figures(online_failures=(1, 5), fpr=math.nan).to_json())
    assert kept.num_correct == {"online failures": 1} and math.isnan(kept.frame_fpr) and kept.frame_recall == 0.9
    assert kept.results["online failures 0"] == EpisodeResult(True, 2) and len(kept.results) == 5
