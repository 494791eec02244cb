"""An audit you can count by eye: episodes of 4 steps, judged and true by what they were made with."""

from dataclasses import replace

import numpy as np
import pytest

from conftest import counting_episode
from leaves import leaves
from plaudit.data.ledger import counted_sources
from plaudit.data.replay import ReplaySampler
from plaudit.data.step_table import Returns, StepTable
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.training.audit import AuditConfig, LedgerAudit
from plaudit.types import JudgeId, Labels, Scores

ALL = AuditConfig(fraction=1.0, window=10)
BY_HUMAN = AuditConfig(fraction=1.0, by="human")


def labels(success: bool, source: str, model: str = "", time: float = 0.0) -> Labels:
    found = Labels.from_cutoff(steps=4, cutoff=3 if success else None, source=source, time=time)
    return replace(found, judge=JudgeId(source, model))


def played(store: Store, judged: bool, true: bool | None, model: str = "one", time: float = 0.0) -> int:
    """An episode of a simulator (true is None: of a robot) and the judge's label of it."""
    flags = {} if true is None else {"success": np.array([False, False, true, true])}
    episode_id = store.append(counting_episode(4, privileged=flags))
    store.ledger.append(episode_id, labels(judged, "classifier", model, time))
    return episode_id


def several(store: Store, count: int, judged: bool, true: bool | None, model: str = "one") -> list[int]:
    return [played(store, judged, true, model) for _ in range(count)]


def looked(store: Store, config: AuditConfig = ALL, **options) -> LedgerAudit:
    audit = LedgerAudit(config, "classifier", **options)
    audit.read_labels(store)
    return audit


def test_before_anything_is_audited_there_is_nothing_to_say(store):
    audit = looked(store)
    assert audit.current.alarm is None and audit.requested(store) == []
    assert audit.metrics() == {"audit/alarm": 0, "audit/episodes": 0, "audit/pending_episodes": 0}
    assert audit.status == "no episode of the current judge is audited yet"


def test_the_alarm_says_whose_it_is_and_what_follows(store):
    several(store, 3, True, True)
    assert looked(store).status == "success rate 100% (judge), 100% [100-100] (corrected), after 3 audited episodes"
    several(store, 6, True, False)
    assert looked(store).current.blocks_learning
    assert looked(store).status.endswith("learning stops until another judge replaces classifier one")
    warned = looked(store, ALL.model_copy(update={"on_alarm": "warn"}))
    assert not warned.current.blocks_learning and warned.status.endswith("learning goes on with classifier one")


def test_what_rang_stays_rung_for_that_judge(store):
    several(store, 6, True, False)
    several(store, 40, True, True)
    audit = looked(store).current
    assert audit.gap == 0 and audit.alarm is not None, "the learner would start and stop with every episode otherwise"


def test_another_judge_begins_anew_and_what_it_judges_again_does_not_count(store):
    ids = several(store, 6, True, False)
    for episode_id in ids:
        store.ledger.append(episode_id, labels(False, "classifier", "two"))  # it may have learned from these
    audit = looked(store)
    assert (audit.fingerprint, audit.current.num_episodes, audit.current.alarm) == ("two", 0, None)
    several(store, 4, False, False, model="two")
    audit.read_labels(store)
    assert (audit.current.num_episodes, audit.current.gap, audit.current.alarm) == (4, 0, None)
    assert audit.current.number == 2, "it has its own part of the run's false alarms"


def test_a_restart_comes_to_the_same_state_whatever_the_order_in_which_labels_came(store):
    audit = looked(store)
    ids = several(store, 6, True, None)
    for number, episode_id in enumerate([ids[i] for i in (5, 2, 0, 3, 1)]):
        store.ledger.append(episode_id, labels(number % 2 == 0, "human"))
        audit.read_labels(store)
    again = looked(Store.open(store.folder))
    assert (again.metrics(), again.status, again.fingerprint) == (audit.metrics(), audit.status, audit.fingerprint)
    assert again.requested(store) == audit.requested(store) == [ids[4]]


def test_the_first_episodes_of_every_judge_are_all_audited(store):
    config = AuditConfig(fraction=0.25, first_episodes=3)
    often = LedgerAudit(config, "classifier", seed=2)
    for model in ("one", "two"):
        for _ in range(12):
            played(store, True, None, model)
            often.read_labels(store)
        store.ledger.append(0, labels(True, "classifier", "two"))  # an old episode, which says nothing of a new judge
    drawn = looked(store, config, seed=2).requested(store)
    assert {0, 1, 2, 12, 13, 14} < set(drawn) and len(drawn) < 18
    assert drawn == often.requested(store)


def test_only_the_drawn_ones_count_whoever_labels_others(store):
    for episode_id in several(store, 6, True, None):
        store.ledger.append(episode_id, labels(False, "human"))
    audit = looked(store, AuditConfig(fraction=0.0))
    assert audit.current.num_episodes == 0 and audit.requested(store) == []


def test_on_a_robot_those_drawn_wait_for_a_person(store):
    ids = several(store, 6, True, None)
    audit = looked(store)
    assert audit.requested(store) == ids and audit.metrics()["audit/pending_episodes"] == 6
    for episode_id in ids[:5]:
        store.ledger.append(episode_id, labels(False, "human"))
    assert audit.requested(store) == ids[5:] and audit.current.alarm is not None
    store.ledger.append(ids[5], Labels.from_targets(np.full(5, np.nan), source="human"))  # excluded
    assert audit.requested(store) == [] and audit.current.num_episodes == 5


def test_what_nobody_has_told_of_might_be_right_or_wrong(store):
    ids = several(store, 4, True, None)
    audit = looked(store)
    for episode_id in ids[:3]:
        store.ledger.append(episode_id, labels(True, "human"))
    audit.read_labels(store)
    corrected = audit.current.corrected_success
    assert (corrected.value, corrected.low, corrected.high) == (1, 0.75, 1)


def test_an_answer_counts_however_late_it_comes(store):
    ids = several(store, 30, True, None)
    audit = looked(store)
    for episode_id in ids:
        store.ledger.append(episode_id, labels(True, "human"))
    audit.read_labels(store)
    assert audit.current.num_episodes == 30 and audit.current.false_successes.high == 0


def test_the_time_of_a_person_is_kept_to(store):
    """Two minutes an hour at half a minute each are four audits; an episode takes four minutes."""
    config = AuditConfig(fraction=1.0, by="human", minutes_per_hour=2, minutes_per_episode=0.5)
    for number in range(1, 76):
        played(store, True, None, time=240.0 * number)
    asked = looked(store, config, seed=1).requested(store)
    assert asked[:4] == [0, 1, 2, 3], "an hour's worth is there at the start"
    assert 12 <= len(asked) - 4 <= 28, "four more in each of five hours, by lot"
    assert asked == looked(store, config, seed=1).requested(store)


def test_where_another_judge_said_otherwise_before_it_is_audited(store):
    config = AuditConfig(fraction=0.01, first_episodes=0, by="human")
    several(store, 10, True, None)
    disputed = store.append(counting_episode(4))
    store.ledger.append(disputed, labels(False, "vlm"))
    store.ledger.append(disputed, labels(True, "classifier", "one"))
    assert disputed in looked(store, config).requested(store)


def test_those_of_the_judge_in_charge_come_first(store):
    old, new = played(store, True, None, "one"), played(store, True, None, "two")
    assert looked(store).requested(store) == [new, old]


def test_episodes_that_nobody_judged_yet_are_not_audited(store):
    store.append(counting_episode(4, privileged={"success": np.ones(4, bool)}))
    audit = looked(store)
    assert audit.current.num_episodes == 0 and len(store.ledger) == 0


def test_a_person_may_audit_a_simulation(store):
    episode_id = played(store, True, True)
    audit = looked(store, BY_HUMAN)
    assert audit.requested(store) == [episode_id] and audit.current.num_episodes == 0
    store.ledger.append(episode_id, labels(False, "human"))
    audit.read_labels(store)
    assert (audit.current.judge_success_rate, audit.current.corrected_success.value) == (1, 0)


def test_a_simulator_that_is_asked_about_a_robots_episode_is_one_sentence(store):
    played(store, True, None)
    with pytest.raises(JudgeError, match="episode 0 should be audited by the simulator, but no simulator recorded it"):
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
    assert again.metrics() == audit.metrics() and (again.current.num_episodes, again.current.gap) == (5, 1.0)


def test_the_learner_never_sees_the_simulators_label(store):
    """Audited truth is on top in the ledger; a replay by the judge's source pays what the judge said."""
    several(store, 3, judged=True, true=False)
    several(store, 3, judged=False, true=True)
    replay = ReplaySampler(store, sources=({"classifier"},), seed=0)
    before = {name: array.tolist() for name, array in leaves(replay.sample(64)).items()}
    looked(store)
    assert all(store.ledger.newest(i).source == "simulator" for i in store.ids)
    again = ReplaySampler(store, sources=({"classifier"},), seed=0)
    after = again.sample(64)
    assert before == {name: array.tolist() for name, array in leaves(after).items()}
    end = after.step >= 2
    assert np.array_equal(after.reward[end], after.episode[end] < 3), "paid by what was judged, not by what is true"
    replay.refresh()
    assert len(replay) == len(again)


def test_an_audit_that_looks_after_every_episode_says_what_one_says_that_looks_at_the_end(store):
    config = AuditConfig(fraction=0.5, first_episodes=3, by="human")
    often = LedgerAudit(config, "classifier")
    rng = np.random.default_rng(3)
    for judged, true in rng.random((25, 2)) < 0.5:
        played(store, bool(judged), None)
        often.read_labels(store)
        late = int(rng.integers(len(store)))  # whose truth is told, or told anew, in no order
        store.ledger.append(late, labels(bool(true), "human"))
        often.read_labels(store)
        once = looked(store, config)
        assert (often.status, often.metrics(), often.requested(store)) == (
            once.status,
            once.metrics(),
            once.requested(store),
        )


# Episodes that are out of distribution


def strange(store: Store, judged: bool, true: bool | None, setting: str = "audit") -> int:
    """The same with an episode that the judge has never seen the like of."""
    flags = {} if true is None else {"success": np.array([False, False, true, true])}
    episode, rule = counting_episode(4, privileged=flags), DecisionRule(threshold=0.7, ood=setting)
    prob = np.array([0, 0, 0, 0.9, 0.9] if judged else [0] * 5, np.float32)
    scores = Scores(prob, ood="another table")
    episode_id = store.append(episode)
    judge = JudgeId("classifier", "one", rule.key())
    store.ledger.append(episode_id, labels_from_scores(judge, rule, episode, scores))
    return episode_id


def sampled(store: Store) -> set[int]:
    """Episodes that a learner of this judge's labels learns from."""
    table = StepTable(store, Returns(), counted_sources("classifier"), 0, ())
    table.refresh()
    return set(table[table.valid]["episode"].tolist())


def test_the_simulator_never_decides_which_strange_episodes_count(store):
    for true in (True, False):
        strange(store, True, true)
    audit = looked(store, AuditConfig(fraction=0.001, first_episodes=0))
    assert audit.current.num_episodes == 2  # all are audited, whatever the draws
    assert sampled(store) == set()


def test_what_nobody_was_paid_for_rings_no_alarm(store):
    for _ in range(30):
        strange(store, True, False)
    assert looked(store).current.alarm is None and looked(store).current.false_successes.value == 1


def test_a_person_is_asked_about_strange_episodes_first_and_their_label_counts(store):
    plain, odd = played(store, True, None), strange(store, True, None)
    audit = looked(store, BY_HUMAN)
    assert audit.requested(store) == [odd, plain] and sampled(store) == {plain}
    store.ledger.append(odd, labels(True, "human"))
    audit.read_labels(store)
    assert audit.requested(store) == [plain] and sampled(store) == {plain, odd}


def test_what_is_skipped_for_good_costs_no_audit(store):
    strange(store, True, False, setting="abstain")
    assert looked(store).current.num_episodes == 0
