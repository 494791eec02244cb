"""Key scripts: what was done to one store, done again to another."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from counted_stores import counted_store, said_of
from plaudit.data.cutoffs import label_store, read_cutoffs
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.errors import DataError
from plaudit.judges.human.session import ACTIONS, BY_KEY, GROUPS, ActionLog, Session, replay_actions
from plaudit.types import Episode

REAL = Path(os.environ.get("PLAUDIT_TEST_DATA", Path(__file__).parents[4] / "shared/data")) / "g1_bottle"
RECORDED = Path(__file__).parent / "g1_bottle.keys"  # by the window, all 30 episodes
needs_real_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL}")


def bottles(folder: Path, lengths: dict[int, int]) -> Path:
    """Episodes as long as the real ones and a pixel large; LeRobot keeps no observation after the last action."""
    with Store.create(folder) as store:
        for length in lengths.values():
            frames = {"cam_high": np.zeros((length + 1, 1, 1, 3), np.uint8)}
            store.append(Episode.of(frames=frames, actions=np.zeros((length, 1)), fps=30.0, padded="last"))
    return folder


def cutoffs_of(folder: Path) -> dict[int, int]:
    store = Store.open(folder)
    return {i: int(store.ledger.labels(i, ("human",)).targets.argmax()) for i in store.ids}


def test_no_key_has_two_meanings():
    assert sum(len(act.keys) for act in ACTIONS.values()) == len(BY_KEY)
    assert sum(map(len, GROUPS.values())) == len(ACTIONS)


def test_the_document_has_every_key():
    page = (Path(__file__).parents[3] / "docs/judges.md").read_text().split("### Keys")[1].split("###")[0]
    assert [act.keys[0] for act in ACTIONS.values() if f"`{act.keys[0]}`" not in page] == []


def test_a_script_labels_a_store(tmp_path):
    folder = counted_store(tmp_path / "store")
    with Session.open(folder) as session:
        replay_actions(session, "Right Right S Return  F Return  End I Left Left O 1 Home 0 Return")
    assert [said_of(folder, i) for i in (0, 1)] == [[0, 0, 1, 1, 1], [0] * 6]
    assert np.array_equal(said_of(folder, 2), [0, np.nan, np.nan, np.nan, 1, 1, 1], equal_nan=True)


def test_a_word_that_is_no_key_is_named_and_the_nearest_said(tmp_path):
    sentence = "the key script says 'Rihgt', which is not a key name; did you mean 'Right'"
    with Session.open(counted_store(tmp_path / "store")) as session, pytest.raises(DataError, match=sentence):
        replay_actions(session, "Rihgt")


def test_a_log_of_one_session_replayed_on_another_store_gives_the_same_labels(tmp_path):
    one, other = (counted_store(tmp_path / name) for name in ("label_success", "other"))
    log = ActionLog(tmp_path / "keys")

    with Session.open(one) as session:
        for key in ("Right", "Right", "S", "Return"):
            log.do(session, BY_KEY[key])
        session.open_episode(2)  # with the mouse, from the list
        session.cursor.seek(5)  # and along the slider
        for key in ("S", "Return", "Z", "Z", "F", "Return"):
            log.do(session, BY_KEY[key])
        with pytest.raises(DataError):
            log.do(session, BY_KEY["Return"])  # nothing is judged: nothing was done, and nothing is written
        log.do(session, BY_KEY["X"])
    log.close()
    assert (tmp_path / "keys").read_text() == "=0 @0 Right Right S Return\n=2 @5 S Return\nZ Z F Return\nX "
    with Session.open(other) as session:
        replay_actions(session, (tmp_path / "keys").read_text())
        assert session.annotation.excluded
    assert [said_of(one, i) for i in (0, 2)] == [said_of(other, i) for i in (0, 2)] == [[0, 0, 1, 1, 1], [0] * 7]


def test_cutoffs_pressed_key_by_key_are_those_of_a_label_file(tmp_path):
    lengths, cutoffs = {0: 120, 1: 95, 2: 143}, {0: 87, 1: 12, 2: 142}
    by_keys, by_file = (bottles(tmp_path / name, lengths) for name in ("keys", "file"))
    script = " ".join("Shift+Right " * (c // 10) + "Right " * (c % 10) + "S Return" for c in cutoffs.values())
    with Session.open(by_keys) as session:
        replay_actions(session, script)
    store = Store.open(by_file)
    label_store(store, cutoffs)
    for i in cutoffs:
        assert np.array_equal(said_of(by_keys, i), store.ledger.labels(i).targets)


@needs_real_data
def test_the_recorded_session_on_g1_bottle_gives_its_30_cutoffs(tmp_path):
    lines = map(json.loads, (REAL / "meta/episodes.jsonl").read_text().splitlines())
    folder = bottles(tmp_path / "store", {line["episode_index"]: line["length"] for line in lines})
    with Session.open(folder) as session:
        replay_actions(session, RECORDED.read_text())
        assert (session.completed, len(session.queue)) == (30, 0)
    assert cutoffs_of(folder) == read_cutoffs(REAL / "cutoffs.json")


@needs_real_data
def test_and_on_the_first_of_its_episodes_as_they_are_imported(tmp_path):
    import_dataset(REAL, tmp_path / "store", progress=lambda sources: iter(sources[:2]))
    with Session.open(tmp_path / "store") as session:
        replay_actions(session, "\n".join(RECORDED.read_text().splitlines()[:2]))
    assert cutoffs_of(tmp_path / "store") == {i: read_cutoffs(REAL / "cutoffs.json")[i] for i in range(2)}
