"""A person as a judge: requests, answers that come later, and the same labels as the window wrote."""

import pytest

from counted_stores import counted_store
from plaudit.contracts import check_judge
from plaudit.data.store import Store
from plaudit.judges.human.judge import HumanJudge, with_window_id
from plaudit.judges.human.session import Session, replay_actions
from plaudit.judges.labeling import label_episodes
from plaudit.types import Labeler, Labels


@pytest.fixture
def store(tmp_path) -> Store:
    """Episodes 0 to 2 of 4, 5 and 6 steps."""
    return Store.open(counted_store(tmp_path / "store"))


def press(store: Store, script: str, **options) -> None:
    with Session.open(store.folder, **options) as session:
        replay_actions(session, script)


def asked(store: Store, *ids: int):
    return [with_window_id(store.episode(i), i) for i in ids]


def test_there_is_no_answer_until_the_person_has_completed_the_episode(store):
    judge = HumanJudge(store)
    assert judge.score(asked(store, 2, 0)) == [None, None]
    press(store, "Right Right S Return", name="lab")
    (labels, other) = label_episodes(judge, asked(store, 2, 0))
    assert isinstance(labels, Labels)
    assert labels.targets.tolist() == [0, 0, 1, 1, 1, 1, 1] and other is None
    written = store.ledger.labels(2)
    assert (labels.judge, labels.labeler) == (written.judge, written.labeler) == (judge.id, Labeler("lab"))


def test_what_is_asked_about_comes_first_in_the_window_until_it_is_asked_for_no_more(store):
    judge = HumanJudge(store)
    judge.score(asked(store, 2, 1))
    with Session.open(store.folder) as session:
        assert session.episode_id == 2
    judge.request([])
    with Session.open(store.folder) as session:
        assert session.episode_id == 0


def test_the_window_is_shown_for_as_long_as_answers_are_missing(store):
    shown = []
    judge = HumanJudge(store, show=lambda: shown.append(True))
    judge.score(asked(store, 0))
    press(store, "F Return")
    judge.score(asked(store, 0))
    assert len(shown) == 1


def test_a_success_from_the_first_frame_on_is_taken_from_a_person(store):
    judge = HumanJudge(store)
    judge.score(asked(store, 0))
    press(store, "S Return")
    (labels,) = label_episodes(judge, asked(store, 0))
    assert isinstance(labels, Labels)
    assert labels.success.all() and labels.note == ""


def test_an_excluded_episode_is_answered_and_has_no_labels(store):
    judge = HumanJudge(store)
    judge.score(asked(store, 0))
    press(store, "X Return")
    (labels,) = label_episodes(judge, asked(store, 0))
    assert isinstance(labels, Labels)
    assert not labels.labeled.any() and "excluded" in labels.note


def test_an_episode_that_is_not_in_the_window_has_no_answer(store):
    assert HumanJudge(store).score([store.episode(0)]) == [None]


def test_it_keeps_the_contract_of_a_judge(store):
    judge = HumanJudge(store)
    judge.score(asked(store, 0, 1))
    press(store, "Right S Return")
    check_judge(judge, asked(store, 0, 1))
