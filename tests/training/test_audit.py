"""An audit whose episodes are counted one by one, as a synchronous run does, and its promises by simulation."""

import json
import math

import numpy as np
import pytest

from plaudit.config import parse
from plaudit.errors import ConfigError
from plaudit.judges.stats import RUN_ALPHA, Checks, ErrorBudget, alpha_spent
from plaudit.training.audit import PATIENCE, Audit, AuditConfig, hashed_uniform, true_success

ALL = AuditConfig(fraction=1.0)


def play(audit: Audit, *outcomes: tuple[bool, bool], start: int = 0) -> list[int]:
    """Judged and true, an episode each, until the alarm is raised; returns those that were audited."""
    audited = []
    for episode, (judged, true) in enumerate(outcomes, start):
        if audit.draws(episode, judged):
            audited.append(episode)
            audit.add(episode, true)
        if audit.alarm is not None:
            break
    return audited


def counted(right: int = 0, false: int = 0, missed: int = 0, **options) -> Audit:
    audit = Audit(AuditConfig(**{"fraction": 1.0, **options}))
    play(audit, *[(True, True)] * right, *[(True, False)] * false, *[(False, True)] * missed)
    return audit


def test_before_anything_is_audited_there_is_nothing_to_say():
    audit = counted()
    assert math.isnan(audit.gap) and audit.alarm is None
    assert audit.metrics() == {"audit/alarm": 0, "audit/episodes": 0}


def test_a_few_false_successes_in_a_row_raise_the_alarm_and_it_says_what_to_do():
    audit = counted(false=10)
    assert audit.blocks_learning and audit.num_episodes <= 4
    assert audit.alarm is not None
    assert "100% [100-100] of the judge's successes are false (max 10%)" in audit.alarm
    assert "plaudit train-reward" in audit.alarm and "missed" not in audit.alarm


def test_missed_successes_raise_it_too():
    audit = counted(missed=12)
    assert audit.alarm is not None
    assert (
        "100% [100-100] of all episodes are successes that the judge missed (max 20%)" in audit.alarm
        and audit.num_episodes < 12
    )
    assert "false" not in audit.alarm


def test_a_judge_whose_mistakes_cancel_out_is_found():
    audit = Audit(ALL)
    play(audit, *[(True, False), (False, True)] * 10)
    assert abs(audit.gap) < 0.2 and audit.alarm is not None


def test_a_limit_that_is_kept_is_no_alarm_and_a_warning_does_not_stop():
    assert counted(right=36, false=4).alarm is None and counted(right=5, false=4, max_false=0.8).alarm is None
    warned = counted(false=10, on_alarm="warn")
    assert warned.alarm is not None and not warned.blocks_learning


def test_few_false_successes_of_a_policy_that_hardly_succeeds_are_no_alarm():
    """Two of 100 failures are called a success: all of its successes are false, and it is a good judge."""
    audit = Audit(ALL)
    play(audit, *([(False, False)] * 49 + [(True, False)]) * 12)
    assert audit.false_successes.value == 1 and audit.alarm is None


def test_rates_with_intervals_are_exact_where_all_is_audited():
    metrics = counted(right=15, false=1, missed=4).metrics()
    assert metrics["audit/judge_success_rate"] == 0.8
    for name, rate in (("corrected_success_rate", 19 / 20), ("false_successes", 1 / 16), ("missed_successes", 4 / 20)):
        found = [metrics[f"audit/{name}{end}"] for end in ("", "_low", "_high")]
        assert found == pytest.approx([rate] * 3)
    assert metrics["audit/success_gap"] == pytest.approx(-0.15)
    assert metrics["audit/fpr"] == 1 and metrics["audit/fnr"] == pytest.approx(4 / 19)


def test_success_is_that_of_the_newest_episodes_and_errors_are_those_of_all():
    audit = counted(right=60, window=30)
    play(audit, *[(False, False)] * 20, start=60)
    assert audit.judge_success_rate == pytest.approx(1 / 3) and audit.num_episodes == 80
    assert audit.false_successes.value == 0 and audit.missed_successes.high == 0


def test_the_first_episodes_and_the_first_successes_of_a_judge_are_all_audited():
    audit = Audit(AuditConfig(first_episodes=10))
    assert play(audit, *[(False, False)] * 10, *[(True, True)] * 10) == list(range(20))
    assert len(play(audit, *[(True, True)] * 100, start=20)) < 45


def test_after_a_false_success_the_next_ones_are_all_audited():
    audit = Audit(AuditConfig(first_episodes=0, max_false=0.5))
    found = next(i for i in range(100) if audit.draws(i, True))
    audit.add(found, False)
    assert play(audit, *[(True, True)] * 10, start=100) == list(range(100, 110))


def test_after_a_leap_of_the_success_rate_the_next_ones_are_all_audited():
    audit = Audit(AuditConfig(first_episodes=0))
    play(audit, *[(False, False)] * 60)
    drawn = play(audit, *[(True, True)] * 40, start=60)
    leap = next(i for i in drawn if {*range(i, i + 10)} <= {*drawn})
    assert 60 < leap < 75


def test_where_judges_disagree_all_are_audited_and_weighted_back():
    audit = Audit(AuditConfig(first_episodes=0))
    disputed = {episode for episode in range(400) if episode % 4 == 0}
    for episode in range(400):  # every disputed failure is a success, and no other
        if audit.draws(episode, False, disputed=episode in disputed):
            audit.add(episode, episode in disputed)
    assert audit.num_episodes < 210
    assert audit.missed_successes.low <= 0.25 < audit.missed_successes.high
    assert audit.missed_successes.value == pytest.approx(0.25, abs=0.05)


def test_the_same_episodes_are_drawn_each_time_and_others_by_another_seed():
    def drawn(seed: int) -> list[int]:
        return play(Audit(AuditConfig(first_episodes=0), seed), *[(True, True)] * 2000)

    assert drawn(3) == drawn(3) != drawn(4) and 430 < len(drawn(3)) < 570
    assert hashed_uniform(0, "audit", 7) == pytest.approx(0.4320, abs=1e-4), "a run of last year draws as it did"
    assert play(Audit(AuditConfig(fraction=0)), *[(True, False)] * 50) == []


def outcomes(rng: np.random.Generator, false_after: float, change: int = 0) -> list[tuple[bool, bool]]:
    """A policy that gets better, and of whose judged successes 10% are false, or more after some moment."""
    found = []
    for moment in range(600):
        judged = bool(rng.random() < 0.2 + moment / 1000)
        false = false_after if moment >= change else 0.1
        found.append((judged, bool(rng.random() >= false) if judged else bool(rng.random() < 0.05)))
    return found


def test_an_honest_judge_is_stopped_in_at_most_5_of_100_runs_and_a_fooled_one_before_it_has_paid_much():
    rng, honest, paid = np.random.default_rng(2), [], []
    for run in range(40):
        honest.append(Audit(AuditConfig(), run))
        play(honest[-1], *outcomes(rng, 0.1))
        change, audit = int(rng.integers(50, 400)), Audit(AuditConfig(), run)
        played = outcomes(rng, 0.7, change)
        last = max(play(audit, *played))
        assert audit.alarm is not None
        paid.append(sum(judged and not true for judged, true in played[change : last + 1]))
    assert sum(audit.alarm is not None for audit in honest) <= 2
    assert np.median(paid) < 15 and np.quantile(paid, 0.95) < 25


def test_corrected_success_has_the_true_one_in_its_interval():
    rng, covered = np.random.default_rng(5), []
    for run in range(40):
        audit, played = Audit(AuditConfig(on_alarm="warn"), run), outcomes(rng, 0.3, change=200)
        for episode, (judged, true) in enumerate(played[:400]):
            if audit.draws(episode, judged):
                audit.add(episode, true)
        truth = np.mean([true for _, true in played[200:400]])
        covered.append(audit.corrected_success.low <= truth <= audit.corrected_success.high)
        assert abs(audit.corrected_success.value - truth) < 0.12 < audit.judge_success_rate - truth + 0.12
    assert np.mean(covered) >= 0.95


def test_every_further_judge_of_a_run_has_a_smaller_part_of_its_false_alarms():
    needed = []
    for number in (1, 2, 5):
        audit = Audit(ALL, number=number)
        needed.append(len(play(audit, *[(True, False)] * 20)))
    assert needed == sorted(needed) and needed[-1] > needed[0]


def test_an_audit_survives_a_checkpoint():
    audit, again = Audit(AuditConfig(window=50), number=2), Audit(AuditConfig(window=50))
    played = outcomes(np.random.default_rng(1), 0.1)
    play(audit, *played[:300])
    again.load_state_dict(json.loads(json.dumps(audit.state_dict())))
    assert again.metrics() == audit.metrics()
    assert play(again, *played[300:], start=300) == play(audit, *played[300:], start=300)
    assert again.state_dict() == audit.state_dict()


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="minutes_per_hour"):
        parse(AuditConfig, {"minutes_per_hour": 0})


@pytest.mark.parametrize("max_false", [0.001, 0.005, 0.01, 0.014, 0.1, 0.9])
def test_any_limit_that_is_accepted_stops_a_judge_whose_successes_are_all_false(max_false):
    audit = Audit(AuditConfig(max_false=max_false))
    play(audit, *[(False, False)] * 5, *[(True, False)] * 295)
    assert audit.blocks_learning and math.isfinite(audit._log_evidence())


@pytest.mark.parametrize("key", ["max_false", "max_missed"])
@pytest.mark.parametrize("limit", [0.0, 1e-9, 1.0, math.nan])
def test_a_limit_that_cannot_be_tested_is_refused(key, limit):
    with pytest.raises(ConfigError, match=key):
        parse(AuditConfig, {key: limit})


def answered(order: list[int], true: list[bool]) -> Audit:
    """All episodes are successes by the judge and are drawn; answers come in this order."""
    audit = Audit(AuditConfig(fraction=1.0, first_episodes=0))
    for episode in range(len(true)):
        audit.draws(episode, True)
    for episode in order:
        audit.add(episode, true[episode])
    return audit


def test_the_order_of_answers_does_not_change_what_is_tested():
    true = [n % 10 != 0 for n in range(60)]
    false_first = sorted(range(60), key=lambda n: true[n])
    in_order, out_of_order = answered(list(range(60)), true), answered(false_first, true)
    assert in_order._log_evidence() == pytest.approx(out_of_order._log_evidence())
    assert in_order.alarm is None and out_of_order.alarm is None


def test_an_episode_that_nobody_answers_delays_an_alarm_and_does_not_prevent_it():
    audit = answered([], [False] * (PATIENCE + 1))
    for episode in range(1, PATIENCE):
        audit.add(episode, False)
    assert audit.alarm is None
    audit.add(PATIENCE, False)
    assert audit.alarm is not None


def test_an_excluded_episode_counts_as_right_and_leaves_the_interval_open():
    audit = answered([], [True])
    audit.exclude(0)
    assert audit._log_evidence() < 0 and audit.num_episodes == 0
    assert (audit.false_successes.low, audit.false_successes.high) == (0, 1)


def test_a_resumed_audit_goes_on_with_answers_that_are_out_of_order():
    true = [n % 7 != 0 for n in range(40)]
    whole, half = (answered(list(range(39, 20, -1)), true) for _ in range(2))
    resumed = Audit(half.config)
    resumed.load_state_dict(json.loads(json.dumps(half.state_dict())))
    for episode in range(21):
        whole.add(episode, true[episode])
        resumed.add(episode, true[episode])
    assert resumed.state_dict() == whole.state_dict()


def test_an_estimate_is_at_least_the_errors_that_are_known_and_inside_of_its_interval():
    checks = Checks()
    for n in range(20):
        checks.add(1.0, error=n < 12)
    for n in range(40):
        checks.add(0.25, error=False if n < 14 else None, drawn=n < 14)
    errors, low, high = checks.estimate(0.05)
    assert errors == 12 and low <= errors <= high


@pytest.mark.parametrize("seed", range(5))
def test_point_estimates_lie_inside_of_their_intervals_at_every_moment(seed):
    rng, audit = np.random.default_rng(seed), Audit(AuditConfig(on_alarm="warn"), seed)
    for episode in range(150):
        says, error = rng.random() < 0.6, rng.random() < 0.3
        if audit.draws(episode, bool(says), disputed=bool(rng.random() < 0.1)):
            audit.add(episode, bool(says ^ error))
        for found in (audit.false_successes, audit.missed_successes, audit.corrected_success):
            assert math.isnan(found.value) or found.low - 1e-9 <= found.value <= found.high + 1e-9


@pytest.mark.parametrize(
    ("first", "true_first", "expected"),
    [
        (8, 8, (True, False)),
        (8, 5, (True, False)),  # late
        (8, 11, (True, True)),  # early
        (8, 12, (False, False)),  # too early
        (8, None, (False, False)),
        (None, 40, (True, False)),  # missed
        (None, None, (False, False)),
    ],
)
def test_a_success_that_becomes_true_a_little_later_is_early_and_not_false(first, true_first, expected):
    assert true_success(first, true_first, tolerance=3) == expected


def test_early_successes_are_reported_and_raise_no_alarm():
    audit = Audit(ALL)
    for episode in range(30):
        audit.draws(episode, True)
        audit.add(episode, True, early=episode % 2 == 0)
    assert audit.alarm is None and audit.metrics()["audit/early_successes"] == 0.5
    assert audit.metrics()["audit/false_successes"] == 0


def test_whether_an_episode_is_drawn_by_lot_does_not_depend_on_the_judge():
    judges = [Audit(AuditConfig(), seed=3) for _ in range(2)]
    for episode in range(200):
        for judge, says in zip(judges, (True, episode % 3 == 0)):
            if judge.draws(episode, says):
                judge.add(episode, episode % 2 == 0)
    lots = [[episode for episode in range(200) if judge.is_by_lot(episode)] for judge in judges]
    assert lots[0] == lots[1] and 30 < len(lots[0]) < 70


@pytest.mark.parametrize(("retrains", "cascade"), [(False, False), (True, False), (True, True)])
def test_all_decisions_of_a_run_together_spend_at_most_five_percent(retrains, cascade):
    budget = ErrorBudget.of(retrains=retrains, cascade=cascade)
    parts = (budget.alarm, budget.promotion, budget.cascade)
    assert sum(alpha_spent(part, number) for part in parts for number in range(1, 1000)) <= RUN_ALPHA
