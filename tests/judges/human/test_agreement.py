"""Labels that a person gives twice, the second time without seeing the first."""

import numpy as np
import pytest

from counted_stores import counted_store
from plaudit.data.store import Store
from plaudit.judges.human.queue import Queue, SelfAgreement, uncertainty
from plaudit.judges.human.session import Session, replay_actions
from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Labels, Scores


def label(folder, name: str, script: str, order="unlabeled") -> None:
    with Session.open(folder, name=name, order=order) as session:
        replay_actions(session, script)


def test_ones_own_labels_come_back_once_and_hide_the_first_answer(tmp_path):
    folder = counted_store(tmp_path / "s", 4)
    label(folder, "ada", "=0 @1 S Return =1 @2 S Return =2 F Return")
    label(folder, "grace", "=3 F Return")
    with Session.open(folder, name="ada", order="repeat") as session:
        assert set(session.queue.rows[: len(session.queue)]) == {0, 1, 2}  # not what grace has labeled
        session.open_episode(0)
        assert session.annotation.summary == "nothing labeled" and session.existing_labels() == []
        replay_actions(session, "=0 @3 S Return =1 F Return =2 F Return")
        assert len(session.queue) == 0 and session.episode is None
    with Store.open(folder) as store:
        agreement = SelfAgreement.of(store, "ada")
        assert agreement == SelfAgreement(3, 2, (2,))
        assert agreement.describe().startswith("Your two labels agree in 2 of 3 episodes")
        assert SelfAgreement.of(store, "grace").describe() == "You have not labeled any episode twice yet."
        assert len(store.ledger.history(0)) == 2


def test_a_draft_of_a_repeated_label_is_kept_although_it_equals_the_first(tmp_path):
    folder = counted_store(tmp_path / "s", 1)
    label(folder, "ada", "=0 F Return")
    label(folder, "ada", "=0 F", order="repeat")
    with Session.open(folder, name="ada", order="repeat") as session:
        assert session.episode_id == 0 and session.annotation.summary == "no success"


def test_a_name_with_a_comma_and_a_note_that_looks_like_a_name_are_told_apart(tmp_path):
    folder = counted_store(tmp_path / "s", 2)
    label(folder, "ada, repeated", "=0 F Return")
    with Store.open(folder, write=True) as store:
        store.ledger.append(
            1, Labels.from_cutoff(steps=store.entry(1).steps, cutoff=None, source="human", note="by ada")
        )
        assert len(Queue(store, "repeat", name="ada")) == 0
        assert Queue(store, "repeat", name="ada, repeated").next_episode(None) == 0


def test_a_name_that_begins_alike_is_somebody_else(tmp_path):
    folder = counted_store(tmp_path / "s", 2)
    label(folder, "ada lovelace", "=0 F Return")
    assert len(Queue(Store.open(folder), "repeat", name="ada")) == 0
    assert len(Queue(Store.open(folder), "repeat")) == 0


def scored(*prob: float, ood: str = "") -> Labels:
    judge = JudgeId("classifier", "m", DecisionRule(threshold=0.8, k=1, n=1))
    values = np.array(prob, np.float32)
    return Labels(values >= 0.8, np.ones(len(prob), bool), judge, Scores(values, ood=ood))


def test_the_least_certain_come_first(tmp_path):
    assert uncertainty([scored(0.1, 0.8)]) == pytest.approx(1)
    assert uncertainty([scored(0.1, 0.1)]) < uncertainty([scored(0.1, 0.5)]) < 1.0
    assert uncertainty([scored(0.1, 0.1, ood="unlike the rest")]) == 1.0
    with Store.open(counted_store(tmp_path / "s", 3)) as store:
        for i, prob in enumerate((0.1, 0.75, 0.99)):
            steps = store.entry(i).steps
            store.ledger.append(i, scored(*[0.0] * steps, prob))
        queue = Queue(store, "uncertain")
        assert queue.rows == [1, 2, 0]
        store.ledger.append(1, Labels.from_cutoff(steps=store.entry(1).steps, cutoff=None, source="human"))
        queue.update()
        assert len(queue) == 2
