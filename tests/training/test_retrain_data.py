"""What is kept to learn from and to compare on."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.training.retrain import RetrainData, episode_origin
from plaudit.types import Labels

SOURCES = ("human", "simulator")


def said(cutoff: int | None, source: str = "human") -> Labels:
    return Labels.from_cutoff(steps=4, cutoff=cutoff, source=source)


@pytest.fixture
def data(tmp_path) -> RetrainData:
    return RetrainData(tmp_path / "data", val_fraction=0.25)


def fill(store: Store, count: int, **facts) -> list[int]:
    ids = [store.append(counting_episode(first=n, **facts)) for n in range(count)]
    for episode_id in ids:
        store.ledger.append(episode_id, said(3))
    return ids


def counts(data: RetrainData) -> tuple[int, int, int]:
    train, held_out = Store.open(data.train), Store.open(data.val)
    return len(train), len(held_out), len(train.ledger) + len(held_out.ledger)


def test_a_share_is_held_out_and_stays_so_whatever_comes_later(store, data):
    fill(store, 40)
    data.add_labeled(store, SOURCES, "online")
    held = [Store.open(data.val).episode(i).state[0, 0] for i in Store.open(data.val).ids]
    assert 4 <= len(held) <= 16 and counts(data)[0] == 40 - len(held)
    for n in range(40, 50):
        store.ledger.append(store.append(counting_episode(first=n)), said(None))
    data.add_labeled(store, SOURCES, "online")
    again = Store.open(data.val)
    assert [again.episode(i).state[0, 0] for i in again.ids][: len(held)] == held
    assert episode_origin(again, 0) == "online"


def test_taking_the_same_twice_or_from_a_copy_elsewhere_adds_nothing(store, data, tmp_path):
    fill(store, 12)
    data.add_labeled(store, SOURCES, "online")
    before = counts(data)
    data.add_labeled(store, SOURCES, "online")
    elsewhere = Store.create(tmp_path / "copy")
    for episode_id, episode in store:
        elsewhere.ledger.append(elsewhere.append(episode), store.ledger.labels(episode_id))
    data.add_labeled(elsewhere, SOURCES, "initial")
    assert counts(data) == before == (before[0], before[1], 12)


def test_what_a_judge_said_is_never_learned_from(store, data):
    (first,) = fill(store, 1)
    store.ledger.append(first, said(None, "classifier"))  # newer, and not believed
    store.ledger.append(store.append(counting_episode(first=9)), said(3, "classifier"))
    data.add_labeled(store, SOURCES, "online")
    kept = Store.open(data.val if data.is_held_out(store, first) else data.train)
    assert sum(counts(data)[:2]) == 1 and kept.ledger.labels(0).success_once


def test_a_changed_mind_is_taken_over_and_an_excluded_episode_left_out(store, data):
    (first,) = fill(store, 1)
    store.ledger.append(
        store.append(counting_episode(first=9)), Labels.from_targets(np.full(5, np.nan), source="human")
    )
    data.add_labeled(store, SOURCES, "online")
    store.ledger.append(first, said(None))
    data.add_labeled(store, SOURCES, "online")
    kept = Store.open(data.val if data.is_held_out(store, first) else data.train)
    assert counts(data)[2] == 2 and not kept.ledger.labels(0).success_once


def test_lessons_outlive_the_runs_store_and_what_the_simulator_knows_stays_there(tmp_path, data):
    store = Store.create(tmp_path / "small", capacity_episodes=2)
    for n in range(6):
        store.ledger.append(store.append(counting_episode(first=n, privileged={"success": np.ones(4, bool)})), said(3))
        data.add_labeled(store, SOURCES, "online")
    assert len(store) == 2 and sum(counts(data)[:2]) == 6
    assert all(episode.success is None for _, episode in Store.open(data.train))


def test_what_a_cascade_sent_to_a_human_by_lot_is_held_out(store, tmp_path):
    data = RetrainData(tmp_path / "data", val_fraction=0.25, lots=0.999)
    fill(store, 8)
    data.add_labeled(store, SOURCES, "online")
    assert counts(data)[:2] == (0, 8)


def test_the_word_of_a_later_stage_is_learned_from_and_measures_nobody(store, data):
    for n in range(40):
        store.ledger.append(store.append(counting_episode(first=n)), said(3, "vlm"))
    data.add_labeled(store, (*SOURCES, "vlm"), "online")
    learned, held_out, _ = counts(data)
    assert held_out == 0 and 24 <= learned <= 36  # those that would be held out are left out


def test_only_episodes_that_no_judge_has_chosen_are_held_out(store, data):
    ids = fill(store, 60)
    unchosen = set(ids[::3])
    data.add_labeled(store, SOURCES, "online", unchosen)
    held = Store.open(data.val)
    origins = {held.entry(i).line["meta"]["retrain"]["episode"] for i in held.ids}
    assert origins and origins <= unchosen and counts(data)[0] == 60 - len(origins)
