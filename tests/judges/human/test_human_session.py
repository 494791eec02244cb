"""A labeling session without a window: edits, undo, what is left behind and found again, what arrives meanwhile."""

import numpy as np
import pytest

from conftest import counting_episode
from counted_stores import add_episode, counted_store, judged, said_of
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.judges.human.session import Session
from plaudit.types import Labeler


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "store")


@pytest.fixture
def session(folder):
    with Session.open(folder) as session:
        yield session


EDITS = {
    "0": (lambda s: s.label(False), "?x2 0x1 ?x2"),
    "1": (lambda s: s.label(True), "?x2 1x1 ?x2"),
    "from here": (lambda s: s.success_from_here(), "0x2 1x3"),
    "all fail": (lambda s: s.fail(), "0x5"),
    "exclude": (lambda s: s.exclude(), "excluded"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_is_made_saved_undone_and_done_again(folder, session, edit):
    act, text = EDITS[edit]
    session.cursor.seek(2)
    act(session)
    assert session.annotation.rle == text
    session.undo()
    assert session.annotation.rle == "?x5"
    session.redo()
    assert session.annotation.rle == text
    session.clear()
    assert session.annotation.rle == "?x5"
    assert len(Store.open(folder).ledger) == 0, "a draft is not a label"


def test_a_range_is_marked_and_judged_at_once(session):
    session.fail()
    session.cursor.seek(3)
    session.cursor.start_selection()
    session.cursor.seek(1)
    assert session.cursor.selection == (1, 3), "it reaches to where one stands until its end is marked"
    session.cursor.end_selection()
    session.cursor.seek(0)
    session.label(True)
    assert session.annotation.rle == "0x1 1x3 0x1"
    assert session.cursor.selection is None
    session.label(True)
    assert session.annotation.rle == "1x4 0x1", "without a range, the frame one stands at"


def test_a_mark_can_be_taken_back_and_an_end_alone_marks_its_frame(session):
    session.cursor.start_selection()
    session.cursor.clear_selection()
    assert session.cursor.selection is None
    session.cursor.seek(4)
    session.cursor.end_selection()
    assert session.cursor.selection == (4, 4)


def test_one_cannot_leave_the_episode_on_either_side(session):
    session.cursor.step(-10)
    assert session.cursor.frame == 0
    session.cursor.step(100)
    assert session.cursor.frame == 4


def test_complete_writes_one_version_and_the_next_episode_comes(folder, session):
    session.cursor.seek(3)
    session.success_from_here()
    session.complete()
    ledger = Store.open(folder).ledger
    assert len(ledger) == 1 and ledger.newest(0).source == "human"
    assert said_of(folder, 0) == [0, 0, 0, 1, 1]
    assert (session.episode_id, session.cursor.frame, session.completed, len(session.queue)) == (1, 0, 1, 2)
    assert session.status == "episode 0 is labeled: success from frame 3"


def test_the_data_stay_as_they_were(folder, session):
    before = {path: path.read_bytes() for path in (folder / "segments").rglob("*.bin")}
    session.fail()
    session.complete()
    assert before == {path: path.read_bytes() for path in (folder / "segments").rglob("*.bin")}


def test_an_episode_of_which_nothing_was_said_is_not_completed(session):
    with pytest.raises(DataError, match=r"nothing is labeled in episode 0 yet: .* exclude it \(X\)"):
        session.complete()
    assert session.episode_id == 0 and len(session.store.ledger) == 0


def test_frames_that_were_not_judged_stay_so_in_the_label(folder, session):
    session.label(False)
    session.complete()
    assert np.array_equal(said_of(folder, 0), [0] + [np.nan] * 4, equal_nan=True)
    assert session.status == "episode 0 is labeled: no success, 4 not labeled"


def test_an_excluded_episode_is_labeled_with_nothing_to_learn_from(folder, session):
    session.exclude()
    session.complete()
    labels = Store.open(folder).ledger.labels(0)
    assert not labels.labeled.any() and labels.note == "excluded"
    assert session.episode_id == 1 and not session.queue.needs_label(0)


def test_a_label_has_the_name_of_its_labeler(folder):
    with Session.open(folder, name="lab") as session:
        session.fail()
        session.complete()
    labels = Store.open(folder).ledger.labels(0)
    assert labels.labeler == Labeler("lab") and (labels.note, labels.remark) == ("", "by lab")


@pytest.mark.parametrize("padded, cutoff, frames", [("last", 3, [0, 0, 0, 1, 1]), ("first", 2, [np.nan, 0, 0, 1, 1])])
def test_a_repeated_frame_is_not_asked_about(tmp_path, padded, cutoff, frames):
    folder = counted_store(tmp_path / "store", 1, padded=padded)
    with Session.open(folder) as session:
        assert session.cursor.count == 4, "of 5 observations"
        session.cursor.seek(cutoff)
        session.success_from_here()
        session.complete()
    assert np.array_equal(said_of(folder, 0), frames, equal_nan=True)


def test_everything_can_be_undone_and_redone_over_150_edits_and_three_episodes(session):
    seen = []
    for n in range(150):
        seen.append((session.episode_id, session.annotation.rle))
        session.cursor.seek(n % session.cursor.count)
        session.label(n % 3 == 0)
        if n in (40, 90):
            session.move(1)
    last = (session.episode_id, session.annotation.rle)
    for expected in reversed(seen):
        session.undo()
        assert (session.episode_id, session.annotation.rle) == expected
    session.undo()
    assert session.status == "there is nothing to undo"
    for _ in range(150):
        session.redo()
    assert (session.episode_id, session.annotation.rle) == last
    session.redo()
    assert session.status == "there is nothing to redo"


def test_a_new_edit_after_an_undo_ends_the_way_forward(session):
    session.label(True)
    session.undo()
    session.label(False)
    session.redo()
    assert session.annotation.rle == "0x1 ?x4"


def test_undoing_a_complete_opens_the_episode_again_and_completing_it_anew_is_a_second_version(folder, session):
    session.fail()
    session.complete()
    session.undo()
    assert (session.episode_id, session.annotation.rle) == (0, "0x5")
    assert "its label counts until it is completed anew" in session.status
    session.success_from_here()
    session.complete()
    assert [v.labels().success_once for v in Store.open(folder).ledger.history(0)] == [False, True]
    assert session.episode_id == 1


def test_a_complete_that_was_undone_can_be_redone_without_a_second_version(folder, session):
    session.fail()
    session.complete()
    session.undo()
    session.redo()
    assert len(Store.open(folder).ledger) == 1 and not session.queue.needs_label(0)


def test_an_episode_labeled_before_shows_what_was_said_of_it(session):
    session.cursor.seek(2)
    session.success_from_here()
    session.complete()
    session.move(-1)
    assert (session.episode_id, session.annotation.rle) == (0, "0x2 1x3")
    session.clear()
    session.undo()
    assert session.annotation.rle == "0x2 1x3"


def test_an_episode_that_arrives_is_counted_and_does_not_disturb(folder, session):
    session.success_from_here()
    assert not session.poll()
    assert add_episode(folder) == 3
    assert session.poll()
    assert (session.episode_id, session.annotation.rle, len(session.queue)) == (0, "1x5", 4)
    assert session.queue.rows == [0, 1, 2, 3]


def test_an_episode_that_arrives_when_all_is_done_is_opened(folder, session):
    for _ in range(3):
        session.fail()
        session.complete()
    assert session.episode_id is None and len(session.queue) == 0
    with pytest.raises(DataError, match="no episode is open; new ones appear here"):
        session.fail()
    session.cursor.step(1)
    add_episode(folder)
    session.poll()
    assert (session.episode_id, session.status) == (3, "a new episode has arrived")


def test_a_store_without_episodes_waits_for_the_first(tmp_path):
    Store.create(tmp_path / "store").close()
    with Session.open(tmp_path / "store") as session:
        assert session.episode is None
        add_episode(tmp_path / "store")
        session.poll()
        assert session.episode_id == 0


def test_an_episode_that_somebody_else_labeled_is_not_asked_for(folder, session):
    Store.open(folder).ledger.append(1, judged(5, 2, "human"))
    session.fail()
    session.complete()
    assert session.episode_id == 2


def test_an_episode_that_is_evicted_while_it_is_open_is_left_and_not_labeled(tmp_path):
    with Store.create(tmp_path / "store", capacity_episodes=2) as store:
        for n in range(2):
            store.append(counting_episode(first=50 * n))
        with Session.open(store.folder) as session:
            session.success_from_here()
            store.append(counting_episode(first=100))
            session.complete()
            assert len(store.ledger) == 0 and session.episode_id == 1
            assert session.status.startswith("episode 0 was removed from the store while it was open")
            session.undo()
            assert session.status == "there is nothing to undo"


def test_a_change_in_an_episode_that_is_gone_is_not_undone(tmp_path):
    with Store.create(tmp_path / "store", capacity_episodes=2) as store:
        for n in range(2):
            store.append(counting_episode(first=50 * n))
        with Session.open(store.folder) as session:
            session.fail()
            session.move(1)
            store.append(counting_episode(first=100))
            session.poll()
            session.undo()
            assert session.status == "that was in episode 0, which is no longer in the store"
            assert session.episode_id == 1
        with Session.open(store.folder) as session:
            assert session.episode_id == 1


def test_polling_an_unchanged_store_reads_nothing_new_however_large(tmp_path):
    """No assertion on time here: what is asked of the disk is a constant, two reads of no bytes (0.1 ms measured)."""
    with Session.open(counted_store(tmp_path / "store", 2)) as session:
        rows = session.queue.rows
        assert not any(session.poll() for _ in range(50))
        assert session.queue.rows is rows
