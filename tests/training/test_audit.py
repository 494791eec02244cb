"""An audit you can count by eye: episodes of 4 steps, judged and true by what they were made with."""

import math
from dataclasses import replace

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.config import parse
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import ConfigError, JudgeError
from plaudit.training.audit import Audit, AuditConfig, LedgerAudit, hashed_uniform
from plaudit.types import JudgeId, Labels

ALL = AuditConfig(fraction=1.0, window=10, min_episodes=4)


def labels(success: bool, source: str, model: str = "") -> Labels:
    found = Labels.from_cutoff(steps=4, cutoff=3 if success else None, source=source)
    return replace(found, judge=JudgeId(source, model))


def played(store: Store, judged: bool, true: bool | None, model: str = "one") -> int:
    """An episode of a simulator (true is None: of a robot) and the judge's verdict on it."""
    flags = {} if true is None else {"success": np.array([False, False, true, true])}
    episode_id = store.append(counting_episode(4, privileged=flags))
    store.ledger.append(episode_id, labels(judged, "classifier", model))
    return episode_id


def several(store: Store, count: int, judged: bool, true: bool | None, model: str = "one") -> list[int]:
    return [played(store, judged, true, model) for _ in range(count)]


def looked(store: Store, config: AuditConfig = ALL, **options) -> LedgerAudit:
    audit = LedgerAudit(config, "classifier", **options)
    audit.read_labels(store)
    return audit


def test_before_anything_is_audited_there_is_nothing_to_say(store):
    audit = looked(store)
    assert math.isnan(audit.gap) and audit.alarm is None and audit.requested(store) == []
    assert audit.metrics() == {"audit/alarm": 0, "audit/episodes": 0, "audit/pending_episodes": 0}
    assert audit.status == "no episode of the current judge is audited yet"


def test_it_rings_when_more_is_judged_than_true_and_says_who_and_what_follows(store):
    several(store, 2, True, True)
    several(store, 2, True, False)
    audit = looked(store)
    assert (audit.judge_success_rate, audit.true_success_rate, audit.gap) == (1.0, 0.5, 0.5)
    assert audit.alarm is not None and audit.blocks_learning
    assert "predicted success in 100% of the last 4 audited episodes, 50% succeed" in audit.status
    assert audit.status.endswith("learning stops until another judge replaces classifier one")


def test_it_rings_too_for_a_judge_that_sees_too_little(store):
    several(store, 4, False, True)
    audit = looked(store)
    assert audit.alarm is not None and "does not see what the policy does right" in audit.status


def test_it_rings_for_a_judge_whose_mistakes_cancel_out(store):
    several(store, 2, True, False)
    several(store, 2, False, True)
    audit = looked(store)
    assert audit.gap == 0 and audit.alarm is not None
    assert "false successes" in audit.status and "missed successes" in audit.status
    told = audit.metrics()
    assert (told["audit/false_successes"], told["audit/missed_successes"]) == (0.5, 0.5)


def test_a_warning_rings_and_does_not_stop(store):
    several(store, 4, True, False)
    audit = looked(store, ALL.model_copy(update={"on_alarm": "warn"}))
    assert (
        audit.alarm is not None
        and not audit.blocks_learning
        and audit.status.endswith("learning goes on with classifier one")
    )


def test_it_waits_for_enough_and_within_the_bound_it_is_silent(store):
    several(store, 3, True, False)
    assert looked(store).alarm is None
    other = AuditConfig(fraction=1.0, max_gap=0.8, window=10, min_episodes=4)
    several(store, 1, True, True)
    assert looked(store, other).alarm is None
    assert looked(store, other).status == "success rate 100% (judge), 25% (true) in the last 4 audited episodes"


def test_what_rang_stays_rung_for_that_judge(store):
    several(store, 4, True, False)
    several(store, 10, True, True)
    audit = looked(store)
    assert audit.gap == 0 and audit.alarm is not None, "the learner would start and stop with every episode otherwise"


def test_another_judge_begins_anew_and_what_it_judges_again_does_not_count(store):
    ids = several(store, 4, True, False)
    for episode_id in ids:
        store.ledger.append(episode_id, labels(False, "classifier", "two"))  # it may have learned from these
    audit = looked(store)
    assert (audit.fingerprint, audit.num_episodes, audit.alarm) == ("two", 0, None)
    several(store, 4, False, False, model="two")
    audit.read_labels(store)
    assert (audit.num_episodes, audit.gap, audit.alarm) == (4, 0, None)


def test_a_restart_comes_to_the_same_state_whatever_the_order_in_which_labels_came(store):
    audit = looked(store)
    ids = several(store, 6, True, None)
    for number, episode_id in enumerate([ids[i] for i in (5, 2, 0, 3, 1)]):
        store.ledger.append(episode_id, labels(number % 2 == 0, "human"))
        audit.read_labels(store)
    again = looked(Store.open(store.folder))
    assert (again.metrics(), again.status, again.fingerprint) == (audit.metrics(), audit.status, audit.fingerprint)
    assert again.requested(store) == audit.requested(store) == [ids[4]]


def test_the_same_episodes_are_drawn_each_time_and_others_by_another_seed(store):
    config = AuditConfig(fraction=0.25, first_episodes=0)
    drawn = [i for i in range(2000) if Audit(config, seed=3).selects(i)]
    assert drawn == [i for i in range(2000) if Audit(config, seed=3).selects(i)]
    assert drawn != [i for i in range(2000) if Audit(config, seed=4).selects(i)]
    assert 430 < len(drawn) < 570
    assert hashed_uniform(0, "audit", 7) == pytest.approx(0.4320, abs=1e-4), "a run of last year draws as it did"


def test_the_first_episodes_of_every_judge_are_all_audited_and_each_probability_is_known(store):
    config = AuditConfig(fraction=0.25, first_episodes=3)
    often = LedgerAudit(config, "classifier", seed=2)
    for model in ("one", "two"):
        for _ in range(12):
            played(store, True, None, model)
            often.read_labels(store)
        store.ledger.append(0, labels(True, "classifier", "two"))  # an old episode, which says nothing of a new judge
    audit = looked(store, config, seed=2)
    assert [i for i in store.ids if audit.probability(i) == 1] == [0, 1, 2, 12, 13, 14]
    assert {audit.probability(i) for i in store.ids} == {1, 0.25} and audit.probability(99) == 0
    drawn = [i for i in store.ids if audit.selects(i)]
    assert {0, 1, 2, 12, 13, 14} < set(drawn) and len(drawn) < 18
    assert drawn == [i for i in store.ids if often.selects(i)] and audit.requested(store) == often.requested(store)


def test_only_the_drawn_ones_count_whoever_labels_others(store):
    none = AuditConfig(fraction=0.0, window=10, min_episodes=4)
    for episode_id in several(store, 6, True, None):
        store.ledger.append(episode_id, labels(False, "human"))
    audit = looked(store, none)
    assert audit.num_episodes == 0 and audit.requested(store) == []


def test_on_a_robot_those_drawn_wait_for_a_person(store):
    ids = several(store, 5, True, None)
    audit = looked(store)
    assert audit.requested(store) == ids and audit.metrics()["audit/pending_episodes"] == 5
    for episode_id in ids[:4]:
        store.ledger.append(episode_id, labels(False, "human"))
    assert audit.requested(store) == ids[4:] and audit.alarm is not None
    store.ledger.append(ids[4], Labels.from_targets(np.full(5, np.nan), source="human"))  # excluded
    assert audit.requested(store) == [] and audit.num_episodes == 4


def test_those_of_the_judge_in_charge_come_first(store):
    old, new = played(store, True, None, "one"), played(store, True, None, "two")
    assert looked(store).requested(store) == [new, old]


def test_episodes_that_nobody_judged_yet_are_not_audited(store):
    store.append(counting_episode(4, privileged={"success": np.ones(4, bool)}))
    audit = looked(store)
    assert audit.num_episodes == 0 and len(store.ledger) == 0


def test_a_person_may_audit_a_simulation(store):
    episode_id = played(store, True, True)
    audit = looked(store, ALL.model_copy(update={"by": "human"}))
    assert audit.requested(store) == [episode_id] and audit.num_episodes == 0
    store.ledger.append(episode_id, labels(False, "human"))
    audit.read_labels(store)
    assert (audit.judge_success_rate, audit.true_success_rate) == (1, 0)


def test_a_simulator_that_is_asked_about_a_robots_episode_is_one_sentence(store):
    played(store, True, None)
    with pytest.raises(JudgeError, match="episode 0 is to be audited by the simulator, and no simulator recorded it"):
        looked(store, ALL.model_copy(update={"by": "simulator"}))


def test_the_simulators_word_stands_in_the_ledger_once_and_outlives_the_episode(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=2)
    audit = LedgerAudit(ALL, "classifier")
    for _ in range(5):
        played(store, True, False)
        audit.read_labels(store)
        audit.read_labels(store)
    assert len(store) == 2 and [v.source for v in store.ledger.history(0)] == ["classifier", "simulator"]
    again = looked(Store.open(store.folder))
    assert (again.num_episodes, again.gap) == (audit.num_episodes, audit.gap) == (5, 1.0)


def test_the_learner_never_sees_the_simulators_verdict(store):
    """Audited truth is on top in the ledger; a replay by the judge's source pays what the judge said."""
    several(store, 3, judged=True, true=False)
    several(store, 3, judged=False, true=True)
    replay = ReplaySampler(store, sources=({"classifier"},), seed=0)
    before = {name: array.tolist() for name, array in replay.sample(64).leaves().items()}
    looked(store)
    assert all(store.ledger.newest(i).source == "simulator" for i in store.ids)
    again = ReplaySampler(store, sources=({"classifier"},), seed=0)
    after = again.sample(64)
    assert before == {name: array.tolist() for name, array in after.leaves().items()}
    end = after.step >= 2
    assert np.array_equal(after.reward[end], after.episode[end] < 3), "paid by what was judged, not by what is true"
    replay.refresh()
    assert len(replay) == len(again)


def test_an_alarm_that_can_never_ring_is_refused():
    with pytest.raises(ConfigError, match="min_episodes is 20 and window 10; an alarm that waits for more episodes"):
        parse(AuditConfig, {"window": 10})


def test_an_audit_that_looks_after_every_episode_says_what_one_says_that_looks_at_the_end(store):
    config = ALL.model_copy(update={"by": "human"})
    often = LedgerAudit(config, "classifier")
    rng = np.random.default_rng(3)
    for judged, true in rng.random((25, 2)) < 0.5:
        played(store, bool(judged), None)
        often.read_labels(store)
        late = int(rng.integers(len(store)))  # whose truth is told, or told anew, in no order
        store.ledger.append(late, labels(bool(true), "human"))
        often.read_labels(store)
        once = looked(store, config)
        assert (often.status, often.num_episodes, often.blocks_learning) == (
            once.status,
            once.num_episodes,
            once.blocks_learning,
        )


# Counting alone, as a synchronous run does


def counted(predicted: int, actual: int, of: int, **options) -> Audit:
    """The first so many of `of` episodes succeed, by the judge and in truth."""
    audit = Audit(AuditConfig(**{"window": 50, "min_episodes": 20, **options}))
    for i in range(of):
        audit.add(i < predicted, i < actual)
    return audit


def test_the_alarm_is_raised_for_too_many_false_or_missed_successes():
    assert counted(12, 4, of=20).gap == pytest.approx(0.4)
    assert counted(12, 4, of=20).alarm and counted(12, 8, of=20).alarm is None  # 0.2 is not beyond 0.2
    strict = counted(4, 12, of=20).alarm
    assert strict is not None and "in 50% of the last 8 audited episodes, 100% succeed" in strict
    assert "50% are missed successes (limit 20%)" in strict and "false" not in strict


def test_rates_are_of_those_that_fail_and_of_those_that_succeed():
    metrics = counted(12, 4, of=20).metrics()
    assert metrics["audit/fpr"] == pytest.approx(8 / 16) and metrics["audit/fnr"] == 0
    assert (metrics["audit/false_successes"], metrics["audit/missed_successes"]) == (0.4, 0)


def test_rates_wait_for_enough_episodes_and_only_the_newest_count():
    assert counted(4, 0, of=4).alarm is None and counted(20, 15, of=19).alarm is None
    later = counted(20, 0, of=20, window=20)
    for _ in range(20):
        later.add(True, True)
    assert later.gap == 0 and later.alarm is not None, "it stays raised for this judge"
    assert math.isnan(counted(0, 0, of=0).gap)


def found_wrong(false: float, missed: float, episodes: int, runs: int = 300) -> float:
    """The fraction of runs in which the alarm is raised, of a judge that makes errors with these probabilities."""
    drawn, alarms = np.random.default_rng(7).random((runs, episodes)), 0
    for run in drawn:
        audit = Audit(AuditConfig())
        for value in run:
            audit.add(value < false, false <= value < false + missed)
        alarms += audit.alarm is not None
    return alarms / runs


def test_a_judge_that_is_wrong_half_the_time_is_found_within_20_audited_episodes_and_an_honest_one_is_not_stopped():
    assert min(found_wrong(0.25, 0.25, 20), found_wrong(0.5, 0, 20), found_wrong(0, 0.5, 20)) > 0.94
    assert max(found_wrong(0.02, 0.02, 100), found_wrong(0.05, 0, 100)) < 0.02


def test_another_judge_of_a_synchronous_run_begins_with_all_of_its_first_episodes():
    audit = Audit(AuditConfig(first_episodes=10))
    audit.restart(since=100)
    again = Audit(audit.config)
    again.load_state_dict(audit.state_dict())
    assert [audit.probability(i) for i in (100, 109, 110)] == [again.probability(i) for i in (100, 109, 110)]
    assert [again.probability(i) for i in (100, 109, 110)] == [1, 1, 0.25]


def test_an_audit_survives_a_checkpoint():
    audit = counted(12, 4, of=20, max_gap=0.3, window=30)
    again = Audit(audit.config)
    again.load_state_dict(audit.state_dict())
    assert (again.gap, again.alarm, again.metrics()) == (audit.gap, audit.alarm, audit.metrics())
