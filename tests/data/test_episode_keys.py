"""An episode is recognized in a copy of it, and in nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from bright_square import square_episode
from conftest import counting_episode
from plaudit.data.episode_keys import episode_keys, pack_keys, unpack_keys
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.types import Episode


def moving(seed: int) -> Episode:
    """An episode of noise, images and states."""
    episode = square_episode(True, seed)
    return replace(episode, state=np.random.default_rng(seed).normal(size=episode.state.shape).astype("f4"))


def keys_of(folder, *episodes: Episode) -> list[frozenset[bytes]]:
    store = Store.create(folder)
    store.extend(episodes)
    return [*episode_keys(store, store.ids).values()]


def known(tmp_path, episode: Episode, copy: Episode) -> bool:
    (one,), (other,) = keys_of(tmp_path / "one", episode), keys_of(tmp_path / "other", copy)
    return bool(one & other)


def resized(episode: Episode) -> Episode:
    return replace(episode, frames={"front": episode.frames["front"][:, ::2, ::2]})


def renamed(episode: Episode) -> Episode:
    return replace(episode, frames={"top": episode.frames["front"]}, state=np.zeros((episode.steps + 1, 0), "f4"))


def without_flags(episode: Episode) -> Episode:
    return replace(episode, privileged={}, meta={"retrain": 1})


@pytest.mark.parametrize("change", [resized, renamed, without_flags])
def test_a_copy_is_known_by_what_it_has_left(tmp_path, change):
    episode = replace(moving(0), privileged={"success": np.zeros(moving(0).steps, bool)})
    assert known(tmp_path, episode, change(episode))


def test_an_export_that_is_imported_again_is_known(tmp_path):
    store = Store.create(tmp_path / "store")
    store.extend([moving(0), moving(1)])
    export_dataset(store, tmp_path / "set", "lerobot", WriteOptions(video=False))
    import_dataset(tmp_path / "set", tmp_path / "copy")
    copy = Store.open(tmp_path / "copy")
    theirs = episode_keys(copy, copy.ids)
    for episode_id, keys in episode_keys(store, store.ids).items():
        assert [i for i in copy.ids if keys & theirs[i]] == [episode_id]


def test_other_episodes_are_not(tmp_path):
    assert not known(tmp_path, moving(0), moving(1))


def test_a_dead_camera_and_a_robot_that_stood_still_say_nothing(tmp_path):
    dark = replace(moving(0), frames={"front": np.zeros((12, 8, 8, 3), "u1")}, state=np.zeros((12, 2), "f4"))
    assert not known(tmp_path, dark, dark)
    (here,) = keys_of(tmp_path / "third", dark)
    third = Store.open(tmp_path / "third")
    assert episode_keys(third, [0])[0] == here and len(here) == 1  # in its own store it is known by its place


def test_states_that_different_episodes_share_say_nothing(tmp_path):
    """A robot that repeats a motion exactly, in front of other things."""
    same = [replace(moving(seed), state=moving(0).state) for seed in (1, 2)]
    a, b = keys_of(tmp_path / "s", *same)
    assert not a & b


def test_a_copy_of_a_store_that_went_on_has_other_episodes_under_the_same_ids(tmp_path):
    import shutil

    first = Store.create(tmp_path / "first")
    first.append(moving(0))
    first.close()
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    stores = [Store.open(tmp_path / name, write=True) for name in ("first", "second")]
    for seed, store in enumerate(stores, start=1):
        store.append(moving(seed))
    ours, theirs = (episode_keys(store, [0, 1]) for store in stores)
    assert ours[0] == theirs[0] and not ours[1] & theirs[1]


def test_keys_are_a_short_text_and_come_back(tmp_path):
    keys = frozenset().union(*keys_of(tmp_path / "s", *(counting_episode(4, first=10 * i) for i in range(3))))
    assert unpack_keys(pack_keys(keys)) == keys and len(pack_keys(keys)) == 8 * len(keys)
    assert unpack_keys("") == frozenset()
    for bad in ("abc", "abcd", "????????"):
        with pytest.raises(ValueError):
            unpack_keys(bad)
