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
from plaudit.training.audit import Audit, AuditConfig, lot
from plaudit.types import JudgeId, Labels

ALL = AuditConfig(share=1.0, window=10, least=4)


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


def looked(store: Store, config: AuditConfig = ALL, **options) -> Audit:
    audit = Audit(config, "classifier", **options)
    audit.look(store)
    return audit


def test_before_anything_is_audited_there_is_nothing_to_say(store):
    audit = looked(store)
    assert math.isnan(audit.gap) and not audit.ringing and audit.waiting(store) == []
    assert audit.metrics() == {"audit/alarm": 0, "audit/episodes": 0, "audit/waiting": 0}
    assert audit.sentence == "no episode of the judge in charge was audited yet"


def test_it_rings_when_more_is_judged_than_true_and_says_who_and_what_follows(store):
    several(store, 2, True, True)
    several(store, 2, True, False)
    audit = looked(store)
    assert (audit.judged, audit.true, audit.gap) == (1.0, 0.5, 0.5)
    assert audit.ringing and audit.stops
    assert "called 100% of the last 4 audited episodes a success and 50% were" in audit.sentence
    assert audit.sentence.endswith("the learner has stopped until another judge replaces classifier one")


def test_it_rings_too_for_a_judge_that_sees_too_little(store):
    several(store, 4, False, True)
    audit = looked(store)
    assert audit.ringing and "does not see what the policy does right" in audit.sentence


def test_it_rings_for_a_judge_whose_mistakes_cancel_out(store):
    several(store, 2, True, False)
    several(store, 2, False, True)
    audit = looked(store)
    assert audit.gap == 0 and audit.ringing
    assert "false successes" in audit.sentence and "missed successes" in audit.sentence
    told = audit.metrics()
    assert (told["audit/false_successes"], told["audit/missed_successes"]) == (0.5, 0.5)


def test_a_warning_rings_and_does_not_stop(store):
    several(store, 4, True, False)
    audit = looked(store, ALL.model_copy(update={"on_alarm": "warn"}))
    assert audit.ringing and not audit.stops and audit.sentence.endswith("the learner goes on with classifier one")


def test_it_waits_for_enough_and_within_the_bound_it_is_silent(store):
    several(store, 3, True, False)
    assert not looked(store).ringing
    other = AuditConfig(share=1.0, bound=0.8, window=10, least=4)
    several(store, 1, True, True)
    assert not looked(store, other).ringing
    assert looked(store, other).sentence == "judged 100% and true 25% of the last 4 audited episodes"


def test_what_rang_stays_rung_for_that_judge(store):
    several(store, 4, True, False)
    several(store, 10, True, True)
    audit = looked(store)
    assert audit.gap == 0 and audit.ringing, "the learner would start and stop with every episode otherwise"


def test_another_judge_begins_anew_and_what_it_judges_again_does_not_count(store):
    ids = several(store, 4, True, False)
    for episode_id in ids:
        store.ledger.append(episode_id, labels(False, "classifier", "two"))  # it may have learned from these
    audit = looked(store)
    assert (audit.model, audit.episodes, audit.ringing) == ("two", 0, False)
    several(store, 4, False, False, model="two")
    audit.look(store)
    assert (audit.episodes, audit.gap, audit.ringing) == (4, 0, False)


def test_a_restart_comes_to_the_same_state_whatever_the_order_in_which_labels_came(store):
    audit = looked(store)
    ids = several(store, 6, True, None)
    for number, episode_id in enumerate([ids[i] for i in (5, 2, 0, 3, 1)]):
        store.ledger.append(episode_id, labels(number % 2 == 0, "human"))
        audit.look(store)
    again = looked(Store.open(store.folder))
    assert (again.metrics(), again.sentence, again.model) == (audit.metrics(), audit.sentence, audit.model)
    assert again.waiting(store) == audit.waiting(store) == [ids[4]]


def test_the_same_episodes_are_drawn_each_time_and_others_by_another_seed(store):
    config = AuditConfig(share=0.25)
    drawn = [i for i in range(2000) if Audit(config, "classifier", seed=3).picks(i)]
    assert drawn == [i for i in range(2000) if Audit(config, "classifier", seed=3).picks(i)]
    assert drawn != [i for i in range(2000) if Audit(config, "classifier", seed=4).picks(i)]
    assert 430 < len(drawn) < 570
    assert lot(0, "audit", 7) == pytest.approx(0.4320, abs=1e-4), "a run of last year draws as it did"


def test_only_the_drawn_ones_count_whoever_labels_others(store):
    none = AuditConfig(share=0.0, window=10, least=4)
    for episode_id in several(store, 6, True, None):
        store.ledger.append(episode_id, labels(False, "human"))
    audit = looked(store, none)
    assert audit.episodes == 0 and audit.waiting(store) == []


def test_on_a_robot_those_drawn_wait_for_a_person(store):
    ids = several(store, 5, True, None)
    audit = looked(store)
    assert audit.waiting(store) == ids and audit.metrics()["audit/waiting"] == 5
    for episode_id in ids[:4]:
        store.ledger.append(episode_id, labels(False, "human"))
    assert audit.waiting(store) == ids[4:] and audit.ringing
    store.ledger.append(ids[4], Labels.from_targets(np.full(5, np.nan), source="human"))  # excluded
    assert audit.waiting(store) == [] and audit.episodes == 4


def test_those_of_the_judge_in_charge_come_first(store):
    old, new = played(store, True, None, "one"), played(store, True, None, "two")
    assert looked(store).waiting(store) == [new, old]


def test_episodes_that_nobody_judged_yet_are_not_audited(store):
    store.append(counting_episode(4, privileged={"success": np.ones(4, bool)}))
    audit = looked(store)
    assert audit.episodes == 0 and len(store.ledger) == 0


def test_a_person_may_audit_a_simulation(store):
    episode_id = played(store, True, True)
    audit = looked(store, ALL.model_copy(update={"by": "human"}))
    assert audit.waiting(store) == [episode_id] and audit.episodes == 0
    store.ledger.append(episode_id, labels(False, "human"))
    audit.look(store)
    assert (audit.judged, audit.true) == (1, 0)


def test_a_simulator_that_is_asked_about_a_robots_episode_is_one_sentence(store):
    played(store, True, None)
    with pytest.raises(JudgeError, match="episode 0 is to be audited by the simulator, and none knows of it"):
        looked(store, ALL.model_copy(update={"by": "simulator"}))


def test_the_simulators_word_stands_in_the_ledger_once_and_outlives_the_episode(tmp_path):
    store = Store.create(tmp_path / "s", capacity_episodes=2)
    audit = Audit(ALL, "classifier")
    for _ in range(5):
        played(store, True, False)
        audit.look(store)
        audit.look(store)
    assert len(store) == 2 and [v.source for v in store.ledger.history(0)] == ["classifier", "simulator"]
    again = looked(Store.open(store.folder))
    assert (again.episodes, again.gap) == (audit.episodes, audit.gap) == (5, 1.0)


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
    with pytest.raises(ConfigError, match="least is 30 and window 10; an alarm that waits for more episodes"):
        parse(AuditConfig, {"window": 10})


def test_an_audit_that_looks_after_every_episode_says_what_one_says_that_looks_at_the_end(store):
    config = ALL.model_copy(update={"by": "human"})
    often = Audit(config, "classifier")
    rng = np.random.default_rng(3)
    for judged, true in rng.random((25, 2)) < 0.5:
        played(store, bool(judged), None)
        often.look(store)
        late = int(rng.integers(len(store)))  # whose truth is told, or told anew, in no order
        store.ledger.append(late, labels(bool(true), "human"))
        often.look(store)
        once = looked(store, config)
        assert (often.sentence, often.episodes, often.stops) == (once.sentence, once.episodes, once.stops)
