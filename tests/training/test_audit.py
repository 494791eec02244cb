"""An audit whose episodes are counted one by one, as a synchronous run does, and its promises by simulation."""

import json
import math

import numpy as np
import pytest

from plaudit.config import parse
from plaudit.errors import ConfigError
from plaudit.training.audit import Audit, AuditConfig, hashed_uniform

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
    assert "100% [100-100] of the successes by the judge are false (max 10%)" in audit.alarm
    assert "plaudit train-reward" in audit.alarm and "missed" not in audit.alarm


def test_missed_successes_raise_it_too():
    audit = counted(missed=12)
    assert audit.alarm is not None
    assert "100% [100-100] of all episodes are missed successes (max 20%)" in audit.alarm and audit.num_episodes < 12
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
    assert audit.false_successes.rate == 1 and audit.alarm is None


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
    assert audit.false_successes.rate == 0 and audit.missed_successes.high == 0


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
    assert audit.missed_successes.rate == pytest.approx(0.25, abs=0.05)


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
        assert abs(audit.corrected_success.rate - truth) < 0.12 < audit.judge_success_rate - truth + 0.12
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
