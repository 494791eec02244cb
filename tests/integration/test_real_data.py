"""From a LeRobot v2.1 data set to labels, to v3.0 and back: on real robot episodes where they are at hand, and on a
small generated data set everywhere."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from lerobot_v21 import write_v21

from plaudit.data.check import check
from plaudit.data.cutoffs import label_store, read_cutoffs
from plaudit.data.replay import Replay
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset

REAL = Path(os.environ.get("PLAUDIT_TEST_DATA", Path(__file__).parents[3] / "shared/data")) / "g1_bottle"


@pytest.fixture(
    params=["generated", pytest.param("g1_bottle", marks=pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL}"))]
)
def source(request, tmp_path) -> tuple[Path, Path]:
    """A v2.1 data set and its cutoffs."""
    if request.param == "g1_bottle":
        return REAL, REAL / "cutoffs.json"
    folder = write_v21(tmp_path / "generated", lengths=(30, 25, 40))
    (tmp_path / "cutoffs.json").write_text('{"0": 12, "1": 20, "2": 33}')
    return folder, tmp_path / "cutoffs.json"


def decibels(one: np.ndarray, other: np.ndarray) -> float:
    error = ((one.astype(np.float32) - other) ** 2).mean()
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def test_a_data_set_is_imported_labelled_exported_and_comes_back(source, tmp_path):
    folder, cutoffs = source
    lengths = [json.loads(line)["length"] for line in (folder / "meta/episodes.jsonl").read_text().splitlines()]
    report = import_dataset(folder, tmp_path / "store")
    assert (len(report.ids), report.failed) == (len(lengths), [])
    store = Store.open(tmp_path / "store")
    label_store(store, read_cutoffs(cutoffs))
    assert export_dataset(store, tmp_path / "v3", "lerobot") == []
    assert import_dataset(tmp_path / "v3", tmp_path / "back").failed == []
    back = Store.open(tmp_path / "back")
    assert [e.steps for _, e in store] == [e.steps for _, e in back] == lengths
    first_frames = {int(k): v for k, v in json.loads(cutoffs.read_text()).items()}
    for i in store.ids:
        one, other = store.episode(i), back.episode(i)
        assert np.array_equal(one.state, other.state) and np.array_equal(one.actions, other.actions)
        assert (one.task, one.fps, one.robot) == (other.task, other.fps, other.robot)
        mine, theirs = store.ledger.labels(i), back.ledger.labels(i)
        assert mine is not None and theirs is not None
        assert np.array_equal(mine.reward, theirs.reward) and np.array_equal(mine.frames, theirs.frames)
        assert mine.frames[:-1].sum() == lengths[i] - first_frames[i]
        assert int(mine.frames.argmax()) == first_frames[i]
        for camera in one.frames:
            assert decibels(one.frames[camera], other.frames[camera]) > 30
    assert check(tmp_path / "back").ok


def test_batches_come_out_of_it(source, tmp_path):
    folder, cutoffs = source
    import_dataset(folder, tmp_path / "store", track=lambda sources: iter(sources[:3]))
    store = Store.open(tmp_path / "store")
    wanted = {i: value for i, value in read_cutoffs(cutoffs).items() if i < 3}
    label_store(store, wanted)
    batch = Replay(store, seed=0).sample(256)
    cutoff = np.array([wanted[i] for i in range(3)])[batch.episode]
    assert np.array_equal(batch.reward == 1, batch.step + 1 >= cutoff)
    for b in range(0, 256, 32):
        frames = store.episode(int(batch.episode[b])).frames["cam_high"]
        assert np.array_equal(batch.next_images["cam_high"][b], frames[batch.step[b] + 1])
