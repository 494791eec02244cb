"""DraftStore: what a session leaves behind, however it ends, and what the next one finds."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import counting_episode
from counted_stores import counted_store
from plaudit.data.store import Store
from plaudit.errors import StoreFull
from plaudit.judges.human.session import OpenEpisodes, Session
from processes import Forked


@pytest.fixture
def folder(tmp_path):
    return counted_store(tmp_path / "store")


@pytest.fixture
def session(folder):
    with Session.open(folder) as session:
        yield session


def test_drafts_of_several_episodes_are_found_again_with_place_and_way_back(folder):
    with Session.open(folder) as session:
        session.cursor.seek(1)
        session.success_from_here()
        session.move(1)
        session.fail()
        session.cursor.seek(5)
    with Session.open(folder) as session:
        assert session.status == "2 drafts were found again"
        assert (session.episode_id, session.cursor.frame, session.annotation.rle) == (1, 5, "0x6")
        session.undo()
        assert session.annotation.rle == "?x6"
        session.undo()
        assert (session.episode_id, session.cursor.frame, session.annotation.rle) == (0, 1, "?x5")


def test_a_session_without_drafts_leaves_nothing_behind(folder):
    with Session.open(folder) as session:
        session.fail()
        session.complete()
    assert list((folder / "drafts").iterdir()) == []


def test_another_persons_drafts_are_left_alone(folder):
    with Session.open(folder, name="lab") as session:
        session.fail()
    with Session.open(folder, name="bert") as session:
        assert session.annotation.rle == "?x5"
    with Session.open(folder, name="lab") as session:
        assert session.annotation.rle == "0x5"


def label_and_wait(folder: Path) -> None:
    """In a child process, until it is killed."""
    session = Session.open(folder)
    for frame in range(3):
        session.cursor.seek(frame)
        session.label(True)
        print(session.annotation.rle, flush=True)
    time.sleep(60)


def test_after_kill_9_every_change_is_there(folder):
    with Forked(label_and_wait, folder) as process:
        told = [process.readline().strip() for _ in range(3)]
    with Session.open(folder) as session:
        assert session.annotation.rle == told[-1] == "1x3 ?x2"
        assert session.cursor.frame == 2
        session.undo()
        assert session.annotation.rle == told[1]
        session.redo()
        session.complete()
    assert len(Store.open(folder).ledger) == 1


def test_a_label_whose_draft_was_not_crossed_out_before_a_crash_is_not_asked_for_again(folder):
    with Session.open(folder) as session:
        session.fail()
        draft = session.annotation
        session.store.ledger.append(0, draft.labels(session.episode))  # and here the power went
    with Session.open(folder) as session:
        assert session.episode_id == 1 and not session.queue.needs_label(0)


def test_a_power_cut_in_the_middle_of_a_write_leaves_the_state_before_it(folder):
    with Session.open(folder) as session:
        session.fail()
        path = session.drafts.path
    path.with_name(f"{path.name}.tmp").write_bytes(path.read_bytes()[:40])
    with Session.open(folder) as session:
        assert session.annotation.rle == "0x5"


def test_two_sessions_at_once_are_given_different_episodes_and_both_write(folder):
    with Session.open(folder) as one, Session.open(folder) as other:
        assert (one.episode_id, other.episode_id) == (0, 1)
        for session in (one, other):
            session.fail()
            session.complete()
        assert (one.episode_id, other.episode_id) == (2, 2), "there is no other left"
        assert len(Store.open(folder).ledger) == 2


def test_sessions_of_one_process_share_a_store_and_complete_at_once(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.extend([counting_episode(4)] * 60)
        beside, names = OpenEpisodes(), ("ada", "bert", "cora", "dan")

        def work(name: str) -> list[int]:
            done = []
            with Session.open(store, name=name, beside=beside) as session:
                while session.episode_id is not None and len(done) < 10:
                    done.append(session.episode_id)
                    session.fail()
                    session.complete()
            return done

        with ThreadPoolExecutor(len(names)) as threads:
            done = [i for ids in threads.map(work, names) for i in ids]
        assert len(done) == 40 and {len(store.ledger.history(i)) for i in done} == {1} and not beside.sessions


def test_drafts_of_two_killed_sessions_are_brought_together(folder):
    with Forked(label_and_wait, folder) as one:
        assert one.readline()
        with Forked(label_and_wait, folder) as other:
            assert other.readline()
    with Session.open(folder) as session:
        assert set(session.drafts.state.drafts) == {0, 1}
        assert len(list((folder / "drafts").glob("*.json"))) == 1


def test_a_full_disk_makes_no_change_and_says_so(session, monkeypatch):
    session.fail()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plaudit.data.disk.write_at", full)
    with pytest.raises(StoreFull, match="this change was not saved and not made"):
        session.success_from_here()
    monkeypatch.undo()
    assert session.annotation.rle == "0x5"
    session.undo()
    assert session.annotation.rle == "?x5"


def test_the_file_of_drafts_is_text_that_a_person_can_read(session):
    session.cursor.seek(3)
    session.success_from_here()
    state = json.loads(session.drafts.path.read_text())
    assert state["drafts"] == {"0": "0x3 1x2"}
    assert (state["done"][0]["before"], state["done"][0]["after"]) == (None, "0x3 1x2")
