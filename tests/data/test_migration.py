"""Stores of version 1: read as they are, written only after nothing of them can be lost."""

import os
from contextlib import suppress
from io import StringIO

import numpy as np
import pytest

from conftest import counting_episode, same_episode
from old_store import write_old_store
from plaudit.cli.common import PlainConsole
from plaudit.data.check import check
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.errors import StoreDamaged
from plaudit.report.tables import store_table
from plaudit.types import Labels

EPISODES = [counting_episode(4, first=10 * i) for i in range(5)]
LABELS = Labels.from_cutoff(steps=4, cutoff=2, source="human")


@pytest.fixture
def old(tmp_path):
    return write_old_store(tmp_path / "old", EPISODES, LABELS, capacity_episodes=9)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def holds_everything(store):
    return (
        all(same_episode(store.episode(i), episode) for i, episode in enumerate(EPISODES))
        and all(store.ledger.labels(i).success[1:].tolist() == [0, 1, 1, 1] for i in range(5))
        and store.settings.capacity_episodes == 9
    )


def test_reading_and_checking_an_old_store_changes_nothing(old):
    before = contents(old)
    assert holds_everything(Store.open(old))
    assert check(old).ok
    assert contents(old) == before


def test_the_first_writer_migrates_it_and_keeps_every_old_line(old):
    before = contents(old)
    with Store.open(old, write=True) as store:
        assert "a store of version 1 is one of version 2 now" in store.repaired[0]
        assert holds_everything(store)
        assert store.append(counting_episode(4, first=90)) == 5
    again = Store.open(old)
    assert holds_everything(again) and again.ids == [0, 1, 2, 3, 4, 5] and again.settings.version == 2
    after = contents(old)
    assert all(after[name].startswith(before[name]) for name in ("journal", "labels"))
    (aside,) = (old / "quarantine").iterdir()
    assert (aside / "store.json").read_bytes() == before["store.json"]
    assert (aside / "segments-000000-schema.json").read_bytes() == before["segments/000000/schema.json"]
    assert check(old).ok
    with Store.open(old, write=True) as store:
        assert store.repaired == []


def test_from_then_on_an_old_line_that_is_lost_is_named(old):
    Store.open(old, write=True).close()
    lines = (old / "journal").read_bytes().splitlines(keepends=True)
    (old / "journal").write_bytes(b"".join(lines[:1] + lines[2:]))
    with pytest.raises(StoreDamaged, match="line 5 is missing"):
        Store.open(old)


@pytest.mark.parametrize("nth", range(0, 24, 2))
def test_a_migration_that_is_interrupted_anywhere_begins_again(old, monkeypatch, nth):
    calls, real = 0, os.pwrite

    def failing(*arguments):
        nonlocal calls
        calls += 1
        if calls == nth:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing)
        with suppress(KeyboardInterrupt):
            Store.open(old, write=True).close()
    assert holds_everything(Store.open(old))
    with Store.open(old, write=True) as store:
        assert holds_everything(store) and store.append(EPISODES[0]) == 5
    assert check(old).ok


def test_an_old_ledger_that_is_labeled_before_anybody_writes_keeps_its_lines(old):
    Store.open(old).ledger.append(0, Labels.from_cutoff(steps=4, cutoff=None, source="vlm"))
    assert len(Store.open(old).ledger) == 6
    with Store.open(old, write=True) as store:
        assert len(store.ledger) == 6 and holds_everything_but_the_first(store)
    assert check(old).ok


def holds_everything_but_the_first(store):
    return store.ledger.newest(0).source == "vlm" and same_episode(store.episode(4), EPISODES[4])


def test_a_schema_that_is_wrong_is_noticed_before_anything_is_cut_or_migrated(old):
    path = old / "segments/000000/schema.json"
    path.write_text(path.read_text().replace('"state_dim": 2', '"state_dim": 0'))
    before = contents(old)
    with pytest.raises(StoreDamaged, match=r"its schema.json or its arrays are damaged; nothing was changed"):
        Store.open(old, write=True)
    (old / "writer.lock").unlink()
    assert contents(old) == before
    with pytest.raises(StoreDamaged, match="episode 0 is damaged"):
        Store.open(old).episode(0)


@pytest.mark.parametrize("migrated", [False, True])
def test_dense_rewards_of_an_old_ledger_are_learned_from_and_told(tmp_path, migrated):
    old = write_old_store(tmp_path / "old", EPISODES, LABELS, rewards=[-0.4, -0.3, 0.2, 1.0])
    if migrated:
        Store.open(old, write=True).close()
    store = Store.open(old)
    assert store.ledger.newest(0).recorded_rewards().tolist() == pytest.approx([-0.4, -0.3, 0.2, 1.0])
    batch = ReplaySampler(store, reward=RewardConfig(env_reward="dense"), terminate_on_success=False, seed=0).sample(50)
    expected = np.array([-0.4, -0.3, 0.2, 1.0])[batch.step]
    np.testing.assert_allclose(batch.reward, expected, rtol=1e-6)
    text = StringIO()
    PlainConsole(file=text).print(*store_table(store))
    assert "5 episodes, recorded by an earlier version" in text.getvalue()


def test_rewards_that_say_no_more_than_success_are_not_told(old):
    assert Store.open(old).ledger.newest(0).recorded_rewards() is None
