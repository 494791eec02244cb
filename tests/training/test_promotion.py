"""Which of two judges is in charge, from figures you can check by eye."""

import math

import pytest

from plaudit.training.promotion import Figures, Rules, Verdict, decide

RULES = Rules()


def figures(problems=(), fpr=0.1, called=2, **right: tuple[int, int]) -> Figures:
    """run_failures=(2, 5): right about the first 2 of 5; called: failure frames called in every episode."""
    kinds = {name.replace("_", " "): pair for name, pair in right.items()}
    shares = {name: pair[0] for name, pair in kinds.items()}, {name: pair[1] for name, pair in kinds.items()}
    each = {f"{name} {i}": Verdict(i < good, called) for name, (good, of) in kinds.items() for i in range(of)}
    return Figures("f", *shares, fpr, 0.0, 1.0, 0.9, tuple(problems), each)


FOOLED = figures(run_failures=(2, 10), data_failures=(20, 20), data_successes=(10, 10))
BETTER = figures(run_failures=(10, 10), data_failures=(20, 20), data_successes=(9, 10))
BLIND = figures(run_failures=(10, 10), data_failures=(20, 20), data_successes=(0, 10), fpr=0.0)


def test_shares_are_over_episodes_and_the_score_over_kinds():
    assert FOOLED.score == pytest.approx((0.2 + 1 + 1) / 3)
    assert FOOLED.false == pytest.approx(8 / 30) and FOOLED.missed == 0 and FOOLED.episodes == 40
    assert math.isnan(figures(run_failures=(1, 1)).missed)


def test_one_that_is_right_more_often_takes_over():
    replaced, why = decide(FOOLED, BETTER, RULES)
    assert replaced and why.startswith("the new judge takes over: it is right about 97% of 40 held-out episodes")


def test_one_that_calls_nothing_does_not_although_no_failure_gets_through():
    replaced, why = decide(FOOLED, BLIND, RULES)
    assert not replaced and "the new one misses 100% of the successes, the old one 0%" in why


def test_one_that_lets_more_failures_through_does_not():
    replaced, why = decide(BETTER, FOOLED, RULES)
    assert not replaced and "the new one calls 27% of the failures a success, the old one 0%" in why


def test_a_few_mistakes_more_are_allowed_where_the_old_one_makes_many_of_the_other_kind():
    strict = figures(run_failures=(20, 20), run_successes=(2, 12))
    fair = figures(run_failures=(19, 20), run_successes=(10, 12))
    assert decide(strict, fair, RULES)[0]
    assert not decide(strict, fair, Rules(most_false=0.0))[0]


def test_as_good_is_not_better_unless_fewer_failure_frames_are_called():
    assert not decide(BETTER, BETTER, RULES)[0]
    calmer = figures(run_failures=(10, 10), data_failures=(20, 20), data_successes=(9, 10), fpr=0.05, called=1)
    assert decide(BETTER, calmer, RULES)[0] and not decide(calmer, BETTER, RULES)[0]


@pytest.mark.parametrize(("old", "new", "of", "promoted"), [(0, 4, 4, False), (0, 5, 5, True), (2, 11, 14, True)])
def test_one_that_may_be_better_by_chance_does_not(old, new, of, promoted):
    """The first `old` or `new` of `of` failures are judged right."""
    data = {"data_failures": (20, 20), "data_successes": (10, 10)}
    replaced, why = decide(figures(run_failures=(old, of), **data), figures(run_failures=(new, of), **data), RULES)
    assert replaced == promoted
    assert promoted or "is right in 4 of the 4 held-out episodes in which the two differ, which may be chance" in why


def test_wins_and_losses_are_weighed_against_each_other():
    data = {"data_failures": (20, 20), "run_failures": (4, 12)}
    old, better = (
        figures(data_successes=(10, 10), **data),
        figures(data_successes=(9, 10), **{**data, "run_failures": (8, 12)}),
    )
    replaced, why = decide(old, better, RULES)  # four won, one lost
    assert not replaced and "right in 4 of the 5 held-out episodes" in why
    assert decide(old, better, Rules(confidence=0.8))[0]


def test_one_that_fails_a_control_does_not_however_good_it_is():
    trick = figures(["blank black: 100% of 8 frames called success"], run_failures=(5, 5), data_successes=(10, 10))
    replaced, why = decide(FOOLED, trick, RULES)
    assert not replaced and "not to be trusted: blank black" in why


@pytest.mark.parametrize(
    ("right", "sentence"),
    [
        ({"run_failures": (3, 3)}, "3 held-out episodes are too few to compare on, 4 are needed"),
        ({"run_failures": (9, 9)}, "none of the held-out episodes succeeds, so there is nothing to compare on"),
        ({"run_successes": (9, 9)}, "none of the held-out episodes fails, so there is nothing to compare on"),
    ],
)
def test_where_there_is_too_little_to_compare_on_the_old_one_stays(right, sentence):
    replaced, why = decide(FOOLED, figures(**right), RULES)
    assert not replaced and sentence in why


def test_figures_survive_being_written_down():
    kept = Figures.from_json(figures(run_failures=(1, 5), fpr=math.nan).to_json())
    assert kept.right == {"run failures": 1} and math.isnan(kept.fpr) and kept.recall == 0.9
    assert kept.each["run failures 0"] == Verdict(True, 2) and len(kept.each) == 5
    old = {name: value for name, value in kept.to_json().items() if name != "each"}
    assert Figures.from_json(old).each == {}  # of a decision of an earlier version
