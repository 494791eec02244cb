"""Tests and intervals of error rates: by their formulas, by counting every outcome, and by simulation with a seed."""

import math
from itertools import product

import numpy as np
import pytest

from plaudit.judges.stats import FIXED_BETS, Checks, ErrorTest


def bet_on(errors, allowed: float = 0.1, weights=None) -> ErrorTest:
    test = ErrorTest(allowed)
    for error, weight in zip(errors, weights or [1.0] * len(errors), strict=True):
        test.add(bool(error), weight)
    return test


def counted(answers: int, drawn: int, errors: int, probability: float = 0.25) -> Checks:
    checks = Checks()
    for number in range(answers):
        checks.add(probability, error=number < errors, drawn=number < drawn)
    return checks


def test_the_stake_is_the_average_of_the_bets():
    first = np.append(FIXED_BETS, 0.0) / 0.1  # the one that follows errors has seen none yet
    weights = np.append(np.full(len(FIXED_BETS), 0.5 / len(FIXED_BETS)), 0.5)
    assert ErrorTest(0.1).log_evidence == pytest.approx(0)
    assert math.exp(bet_on([True]).log_evidence) == pytest.approx(weights @ (1 + 0.9 * first))
    assert math.exp(bet_on([False]).log_evidence) == pytest.approx(weights @ (1 - 0.1 * first))


def test_an_honest_claim_gains_nothing_on_average():
    """Over all outcomes of eight answers, each weighed by its probability: 1 for errors as allowed, less below."""
    outcomes = list(product((False, True), repeat=8))
    stakes = [math.exp(bet_on(outcome).log_evidence) for outcome in outcomes]
    for rate in (0.1, 0.05):
        chances = [rate ** sum(outcome) * (1 - rate) ** (8 - sum(outcome)) for outcome in outcomes]
        assert np.dot(stakes, chances) == pytest.approx(1) if rate == 0.1 else np.dot(stakes, chances) < 0.99


def test_dense_checks_of_some_answers_do_not_bias_the_test():
    """Half of the answers are checked twice as often and weighed by a half; all errors are among these."""
    usual, stake = 0.4, 0.0
    for drawn, error in product((False, True), repeat=2):
        chance = (0.8 if drawn else 0.2) * (0.2 if error else 0.8)
        stake += 0.5 * chance * math.exp(bet_on([error], 0.1, [0.5]).log_evidence if drawn else 0)
    stake += 0.5 * (usual * math.exp(bet_on([False]).log_evidence) + 1 - usual)
    assert stake == pytest.approx(1)


def test_whole_runs_with_an_honest_rate_are_stopped_in_at_most_5_of_100_and_others_in_all():
    drawn = np.random.default_rng(0).random((150, 400))
    rang = {rate: sum(rings(row < rate) for row in drawn) / len(drawn) for rate in (0.1, 0.3)}
    assert rang[0.1] <= 0.05 and rang[0.3] == 1


def test_errors_that_begin_late_are_found_about_as_soon():
    late = [False] * 1000 + [True, False] * 15
    assert rings(late) and not rings(late[:1004])


def rings(errors) -> bool:
    test = ErrorTest(0.1)
    for error in errors:
        test.add(bool(error))
        if test.log_evidence >= math.log(20):
            return True
    return False


def test_what_is_allowed_beside_makes_the_evidence_weaker():
    with_more, test = bet_on([True, True]), bet_on([True, True])
    with_more.allow(0.02)
    assert with_more.log_evidence < test.log_evidence


def test_a_test_survives_a_checkpoint():
    test, again = bet_on([True, False, True]), ErrorTest(0.1)
    again.load_state_dict(test.state_dict())
    test.add(True)
    again.add(True)
    assert again.log_evidence == test.log_evidence


def test_what_is_checked_with_certainty_is_known():
    assert counted(40, 40, 3, probability=1.0).bounds(0.05) == (3, 3)
    assert counted(40, 40, 3, probability=1.0).errors == 3


def test_errors_are_weighted_by_the_inverse_of_the_probability():
    checks = counted(20, 20, 2, probability=1.0).merge(counted(400, 100, 5))
    assert checks.errors == pytest.approx(420 * (2 + 4 * 5) / (20 + 4 * 100))
    low, high = checks.bounds(0.05)
    assert 7 < low < 22 < high < 70


def test_bounds_are_those_that_the_formula_does_not_rule_out():
    """One error among answers of which each is drawn with 1/4, none found: n errors that all escape have (3/4)^n."""
    low, high = counted(100, 25, 0).bounds(0.05)
    assert low == 0 and 0.75**high > 0.0005 and 0.75 ** (high + 1) < 0.05
    assert counted(100, 25, 25).bounds(0.05)[1] == 100


def test_who_has_not_told_might_tell_of_an_error_or_of_none():
    told, waiting = counted(40, 10, 0), counted(40, 10, 0)
    for _ in range(5):
        told.add(1.0, error=False)
        waiting.add(1.0)
    assert told.bounds(0.05)[0] == waiting.bounds(0.05)[0] == 0
    assert waiting.bounds(0.05)[1] >= told.bounds(0.05)[1] + 5
    assert Checks().bounds(0.05) == (0, 0)


def test_in_95_of_100_runs_the_bounds_hold_at_every_moment_whatever_the_errors_do():
    """Errors come in bursts, and checks are denser after one that was found; read six times."""
    rng, missed, runs = np.random.default_rng(1), 0, 120
    for _ in range(runs):
        checks, errors, dense, holds = Checks(), 0, 0, True
        rate = np.repeat(rng.choice([0.02, 0.1, 0.7], size=6, p=[0.5, 0.3, 0.2]), 50)
        for moment, error in enumerate(rng.random(300) < rate):
            probability = 0.6 if dense else 0.25
            drawn = rng.random() < probability
            checks.add(probability, bool(error), bool(drawn))
            errors, dense = errors + error, 10 if drawn and error else max(0, dense - 1)
            if moment % 50 == 49:
                low, high = checks.bounds(0.1)
                holds &= bool(low <= errors <= high)
        missed += not holds
    assert missed / runs <= 0.1
