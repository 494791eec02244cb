"""Folders of files that follow a store, and what a kill leaves of them."""

import os
from pathlib import Path

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.formats import open_dataset
from plaudit.data.store import Store
from plaudit.errors import BadFile, TargetNotEmpty
from plaudit.rollout.collector import EpisodeFolders
from plaudit.types import Labels

OUTCOMES = (True, False, False, True)


def fill(store: Store) -> None:
    """Episode n has 2 + n steps, and those of OUTCOMES end in success."""
    for number, success in enumerate(OUTCOMES):
        episode_id = store.append(counting_episode(2 + number))
        targets = np.zeros(3 + number, np.float32)
        targets[-1] = success
        store.ledger.append(episode_id, Labels.from_targets(targets, "simulator"))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*") if path.suffix in (".npy", ".pkl"))


def lengths(folder: Path) -> list[int]:
    """Of the steps of the episodes, which tell them apart; each must be whole."""
    return [episode.steps for episode, _ in (source.load() for source in open_dataset(folder).sources)]


def npy_folders(tmp_path: Path) -> EpisodeFolders:
    return EpisodeFolders.npy(tmp_path / "data/positive", tmp_path / "data/negative")


def test_both_layouts_have_the_names_that_their_readers_expect(tmp_path, store: Store):
    fill(store)
    npy_folders(tmp_path).update(store)
    EpisodeFolders.pkl(tmp_path / "save").update(store)
    assert files(tmp_path / "data") == [f"{kind}/{n:06d}.npy" for kind in ("negative", "positive") for n in (0, 1)]
    assert files(tmp_path / "save") == [
        *("failure/episode_000001.pkl", "failure/episode_000002.pkl"),
        *("success/episode_000000.pkl", "success/episode_000003.pkl"),
    ]
    assert lengths(tmp_path / "data") == [2, 5, 3, 4]  # positives first
    assert lengths(tmp_path / "save") == [2, 3, 4, 5]


@pytest.mark.parametrize("layout", ["data", "save"])
@pytest.mark.parametrize("kill_at", range(8))
def test_a_kill_at_any_moment_leaves_whole_files_and_the_next_update_adds_the_rest(
    tmp_path, store: Store, monkeypatch, layout: str, kill_at: int
):
    folders = npy_folders(tmp_path) if layout == "data" else EpisodeFolders.pkl(tmp_path / "save")
    rename, left = os.replace, [kill_at]

    def killed(*args, **options):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        rename(*args, **options)

    fill(store)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        folders.update(store)
    if files(tmp_path / layout):
        assert set(lengths(tmp_path / layout)) <= {2, 3, 4, 5}
    folders.update(store)
    assert sorted(lengths(tmp_path / layout)) == [2, 3, 4, 5]


def test_episodes_without_labels_wait_for_them_and_others_keep_their_names(tmp_path, store: Store):
    folders, bare = npy_folders(tmp_path), store.append(counting_episode(9))
    fill(store)
    folders.update(store)
    store.ledger.append(bare, Labels.from_targets(np.ones(10, np.float32), "simulator"))
    folders.update(store)
    assert lengths(tmp_path / "data") == [2, 5, 9, 3, 4]


def test_a_folder_of_something_else_is_refused_and_stays_as_it_is(tmp_path, store: Store):
    fill(store)
    folders = npy_folders(tmp_path)
    folders.failure.mkdir(parents=True)
    (folders.failure / "000000.npy").write_bytes(b"of yesterday")
    for attempt in (lambda: folders.check(store.folder), lambda: folders.update(store)):
        with pytest.raises(TargetNotEmpty, match="negative holds something already"):
            attempt()
    assert (folders.failure / "000000.npy").read_bytes() == b"of yesterday"


def test_a_folder_belongs_to_one_store(tmp_path, store: Store):
    fill(store)
    folders = npy_folders(tmp_path)
    folders.update(store)
    folders.check(store.folder)
    with pytest.raises(TargetNotEmpty, match="positive holds episodes of another store"):
        folders.check(tmp_path / "new")
    (folders.success / ".collected").write_text("what is this")
    with pytest.raises(BadFile, match="not a list of the episodes next to it"):
        folders.check(store.folder)
