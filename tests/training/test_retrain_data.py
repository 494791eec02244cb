"""What is kept to learn from and to compare on."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.training.retrain_data import Lessons, part_of
from plaudit.types import Labels

SOURCES = ("human", "simulator")


def said(cutoff: int | None, source: str = "human") -> Labels:
    return Labels.from_cutoff(steps=4, cutoff=cutoff, source=source)


@pytest.fixture
def lessons(tmp_path) -> Lessons:
    return Lessons(tmp_path / "lessons", share=0.25)


def fill(store: Store, count: int, **facts) -> list[int]:
    ids = [store.append(counting_episode(first=n, **facts)) for n in range(count)]
    for episode_id in ids:
        store.ledger.append(episode_id, said(3))
    return ids


def counts(lessons: Lessons) -> tuple[int, int, int]:
    train, held_out = Store.open(lessons.train), Store.open(lessons.held_out)
    return len(train), len(held_out), len(train.ledger) + len(held_out.ledger)


def test_a_share_is_held_out_and_stays_so_whatever_comes_later(store, lessons):
    fill(store, 40)
    lessons.take(store, SOURCES, "run")
    held = [Store.open(lessons.held_out).episode(i).state[0, 0] for i in Store.open(lessons.held_out).ids]
    assert 4 <= len(held) <= 16 and counts(lessons)[0] == 40 - len(held)
    for n in range(40, 50):
        store.ledger.append(store.append(counting_episode(first=n)), said(None))
    lessons.take(store, SOURCES, "run")
    again = Store.open(lessons.held_out)
    assert [again.episode(i).state[0, 0] for i in again.ids][: len(held)] == held
    assert part_of(again, 0) == "run"


def test_taking_the_same_twice_or_from_a_copy_elsewhere_adds_nothing(store, lessons, tmp_path):
    fill(store, 12)
    lessons.take(store, SOURCES, "run")
    before = counts(lessons)
    lessons.take(store, SOURCES, "run")
    elsewhere = Store.create(tmp_path / "copy")
    for episode_id, episode in store:
        elsewhere.ledger.append(elsewhere.append(episode), store.ledger.labels(episode_id))
    lessons.take(elsewhere, SOURCES, "data")
    assert counts(lessons) == before == (before[0], before[1], 12)


def test_what_a_judge_said_is_never_learned_from(store, lessons):
    (first,) = fill(store, 1)
    store.ledger.append(first, said(None, "classifier"))  # newer, and not believed
    store.ledger.append(store.append(counting_episode(first=9)), said(3, "classifier"))
    lessons.take(store, SOURCES, "run")
    kept = Store.open(lessons.held_out if lessons.holds_out(store, first) else lessons.train)
    assert sum(counts(lessons)[:2]) == 1 and kept.ledger.labels(0).success_once


def test_a_changed_mind_is_taken_over_and_an_excluded_episode_left_out(store, lessons):
    (first,) = fill(store, 1)
    store.ledger.append(
        store.append(counting_episode(first=9)), Labels.from_targets(np.full(5, np.nan), source="human")
    )
    lessons.take(store, SOURCES, "run")
    store.ledger.append(first, said(None))
    lessons.take(store, SOURCES, "run")
    kept = Store.open(lessons.held_out if lessons.holds_out(store, first) else lessons.train)
    assert counts(lessons)[2] == 2 and not kept.ledger.labels(0).success_once


def test_lessons_outlive_the_runs_store_and_what_the_simulator_knows_stays_there(tmp_path, lessons):
    store = Store.create(tmp_path / "small", capacity_episodes=2)
    for n in range(6):
        store.ledger.append(store.append(counting_episode(first=n, privileged={"success": np.ones(4, bool)})), said(3))
        lessons.take(store, SOURCES, "run")
    assert len(store) == 2 and sum(counts(lessons)[:2]) == 6
    assert all(episode.success is None for _, episode in Store.open(lessons.train))
