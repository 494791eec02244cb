"""Which episode comes next: those nobody judged, or those on which judges disagree."""

import numpy as np
import pytest
from pytest import approx

from counted_stores import counted_store, judged
from plaudit.data.store import Store
from plaudit.judges.human import queue as queue_module
from plaudit.judges.human.queue import Queue, disagreement, write_requests
from plaudit.judges.human.session import Session
from plaudit.types import Labels


@pytest.fixture
def store(tmp_path):
    return Store.open(counted_store(tmp_path / "store", 5))


def judge(store: Store, episode_id: int, **cutoffs: int | None) -> None:
    """classifier=3, vlm=None, ..."""
    steps = store.entry(episode_id).steps
    for source, cutoff in cutoffs.items():
        store.ledger.append(episode_id, judged(steps, cutoff, source))


def test_unlabeled_episodes_come_first_and_those_done_last(store):
    judge(store, 0, human=1)
    judge(store, 1, classifier=1)
    judge(store, 3, human=None)
    queue = Queue(store, "unlabeled")
    assert queue.rows == [1, 2, 4, 0, 3] and len(queue) == 3


def test_the_next_one_is_below_and_after_the_last_comes_the_first_that_was_passed_over(store):
    queue = Queue(store, "unlabeled")
    assert [queue.next_episode(i) for i in (None, 0, 4)] == [0, 1, 0]
    judge(store, 0, human=1)
    queue.update()
    assert queue.rows == [0, 1, 2, 3, 4], "what is done keeps its place"
    assert queue.next_episode(4) == 1
    assert queue.next_episode(4, taken={1, 2}) == 3
    assert queue.next_episode(4, taken={1, 2, 3}) == 1, "taken, but there is no other"


def test_an_episode_with_a_draft_is_left_whatever_the_ledger_says(store):
    judge(store, 0, human=1)
    drafts = {0: "0x5"}
    queue = Queue(store, "unlabeled", drafts.__contains__)
    assert queue.rows == [1, 2, 3, 4, 0] and queue.next_episode(4) == 0
    drafts.clear()
    assert queue.next_episode(4) == 1


def test_opposite_outcomes_come_first_then_the_larger_difference_then_the_rest(store):
    judge(store, 0, classifier=2, vlm=2)  # one mind
    judge(store, 1, classifier=2, vlm=3)  # one frame of 6
    judge(store, 2, classifier=1, vlm=4)  # three frames of 7
    judge(store, 3, classifier=7, vlm=None)  # one frame of 8, and the outcome
    queue = Queue(store, "disagreement")
    assert queue.rows == [3, 2, 1, 0, 4]
    assert [queue.score(i) for i in queue.rows] == approx([1 + 1 / 8, 3 / 7, 1 / 6, 0, 0])


def test_two_judges_are_compared_by_probability_where_they_gave_one():
    sure, unsure = judged(4, 2, "vlm", sure=0.9), judged(4, 2, "classifier", sure=0.6)
    assert disagreement([sure, unsure]) == approx(0.3)
    assert disagreement([sure, judged(4, 2, "human")]) == approx(0.1)
    assert disagreement([sure]) == 0 == disagreement([])
    assert disagreement([sure, judged(5, None, "human")]) == 0, "of another episode"


def test_frames_that_one_of_them_did_not_judge_do_not_count():
    labels = judged(4, 2, "human")
    half = Labels.from_targets(np.where([1, 1, 1, 0, 0], labels.targets, np.nan), "human")
    assert disagreement([half, judged(4, 1, "vlm")]) == approx(1 / 3)


def test_the_three_judges_that_are_furthest_apart_count():
    assert disagreement([judged(9, c, s) for c, s in ((2, "a"), (3, "b"), (7, "c"))]) == approx(0.5)


def test_a_persons_newest_word_settles_it_until_a_judge_contradicts(store):
    judge(store, 1, classifier=2, vlm=None)
    queue = Queue(store, "disagreement")
    judge(store, 1, human=2)
    assert queue.update() and not queue.needs_label(1)
    judge(store, 1, classifier=None)
    queue.update()
    assert queue.needs_label(1) and queue.next_episode(None) == 1
    judge(store, 1, classifier=2, vlm=2)
    queue.update()
    assert not queue.needs_label(1), "all agree, and a person has judged"


def test_labels_that_arrive_put_what_is_left_in_order_again(store, monkeypatch):
    monkeypatch.setattr(queue_module, "AT_A_TIME", 2)
    with Session.open(store.folder, order="disagreement") as session:
        assert session.queue.rows == [0, 1, 2, 3, 4]
        session.fail()
        session.complete()
        for episode_id in (2, 4):
            judge(store, episode_id, classifier=1, vlm=episode_id)
        judge(store, 3, classifier=0, vlm=None)
        while session.poll():  # two at a time
            pass
        assert session.queue.rows == [0, 3, 4, 2, 1] and session.episode_id == 1


# What somebody waits for


@pytest.mark.parametrize("order", ["unlabeled", "disagreement"])
def test_what_somebody_waits_for_comes_first_the_most_wanted_before_all(store, order):
    judge(store, 1, classifier=2, vlm=None)
    write_requests(store.folder, [4, 2])
    queue = Queue(store, order)
    assert queue.rows == [4, 2, *([0, 1] if order == "unlabeled" else [1, 0]), 3]


def test_who_asks_while_one_works_is_served_next_and_then_it_goes_on_below(store):
    with Session.open(store.folder) as session:
        session.fail()
        session.complete()
        assert session.episode_id == 1 and not session.poll()
        write_requests(store.folder, [3])
        assert session.poll() and not session.poll()
        assert session.queue.rows == [0, 3, 1, 2, 4], "what is done keeps its place"
        for following in (3, 2, 4):
            session.fail()
            session.complete()
            assert session.episode_id == following


def test_what_is_asked_for_no_more_goes_back_to_its_place(store):
    queue = Queue(store, "unlabeled")
    for ids, rows in (([3], [3, 0, 1, 2, 4]), ([99, 4, 3], [4, 3, 0, 1, 2]), ([], [0, 1, 2, 3, 4])):
        write_requests(store.folder, ids)
        assert queue.update() and queue.rows == rows
