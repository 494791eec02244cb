"""From a LeRobot v2.1 data set to labels, to v3.0 and back: on real robot episodes where they are at hand, and on a
small generated data set everywhere."""

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lerobot_v21 import write_v21

from plaudit.data.check import check
from plaudit.data.cutoffs import label_store, read_cutoffs
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset

REAL = Path(os.environ.get("PLAUDIT_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "g1_bottle"
HERE = pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL}")


class Imported(NamedTuple):
    store: Store
    lengths: list[int]  # steps of each episode, as the data set tells them
    first_success: dict[int, int]  # frame, as the cutoffs tell it


@pytest.fixture(
    scope="module",
    params=["generated", pytest.param("g1_bottle", marks=[HERE, pytest.mark.slow])],
)
def imported(request, tmp_path_factory) -> Imported:
    """All of a v2.1 data set in a store, with its labels; not to be changed."""
    path = tmp_path_factory.mktemp("imported")
    folder, cutoffs = REAL, REAL / "cutoffs.json"
    if request.param == "generated":
        folder, cutoffs = write_v21(path / "generated", lengths=(30, 25, 40)), path / "cutoffs.json"
        cutoffs.write_text('{"0": 12, "1": 20, "2": 33}')
    report = import_dataset(folder, path / "store")
    assert report.failed == []
    store = Store.open(path / "store")
    label_store(store, read_cutoffs(cutoffs))
    lengths = [json.loads(line)["length"] for line in (folder / "meta/episodes.jsonl").read_text().splitlines()]
    return Imported(store, lengths, {int(k): v for k, v in json.loads(cutoffs.read_text()).items()})


def decibels(one: np.ndarray, other: np.ndarray) -> float:
    error = ((one.astype(np.float32) - other) ** 2).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def test_every_episode_is_imported_and_labeled(imported):
    store = imported.store
    assert [episode.steps for _, episode in store] == imported.lengths
    for i in store.ids:
        success = store.ledger.labels(i).targets
        assert int(success.argmax()) == imported.first_success[i]
        assert success[:-1].sum() == imported.lengths[i] - imported.first_success[i]


def test_what_is_exported_comes_back(imported, tmp_path):
    """The first, the last and one between: encoding a video takes seconds an episode."""
    store, chosen = imported.store, [0, len(imported.store) // 2, len(imported.store) - 1]
    assert export_dataset(store, tmp_path / "v3", "lerobot", ids=chosen) == []
    assert import_dataset(tmp_path / "v3", tmp_path / "back").failed == []
    back = Store.open(tmp_path / "back")
    assert len(back) == len(chosen)
    for i, again in zip(chosen, back.ids):
        one, other = store.episode(i), back.episode(again)
        assert np.array_equal(one.state, other.state) and np.array_equal(one.actions, other.actions)
        assert (one.task, one.fps, one.robot) == (other.task, other.fps, other.robot)
        mine, theirs = store.ledger.labels(i), back.ledger.labels(again)
        assert np.array_equal(mine.targets, theirs.targets)
        for camera in one.frames:
            assert decibels(one.frames[camera], other.frames[camera]) > 30
    assert check(tmp_path / "back").ok


def test_batches_come_out_of_it(imported):
    batch = ReplaySampler(imported.store, seed=0).sample(256)
    cutoff = np.array([imported.first_success[i] for i in imported.store.ids])[batch.episode]
    assert np.array_equal(batch.reward == 1, batch.step + 1 >= cutoff)
    for b in range(0, 256, 32):
        frames = imported.store.episode(int(batch.episode[b])).frames["cam_high"]
        assert np.array_equal(batch.next_images["cam_high"][b], frames[batch.step[b] + 1])
