import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.cutoffs import label_store, read_cutoffs
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError
from plaudit.judges.classifier.dataset import RewardDataset
from plaudit.judges.evaluation import load_reference_labels
from plaudit.types import Origin


@pytest.fixture
def five(store: Store) -> Store:
    for _ in range(5):
        store.append(counting_episode(4))
    return store


def frames(store: Store, episode: int) -> list[float]:
    return store.ledger.labels(episode).targets.tolist()


def test_a_cutoff_ranges_and_null(five, tmp_path):
    (tmp_path / "l.json").write_text('{"0": 3, "1": [[0, 1], [4, 4]], "2": null, "3-4": [1, 2]}')
    assert label_store(five, read_cutoffs(tmp_path / "l.json"), note="by eye") == [0, 1, 2, 3, 4]
    assert frames(five, 0) == [0, 0, 0, 1, 1]
    assert frames(five, 1) == [1, 1, 0, 0, 1]
    assert frames(five, 2) == [0, 0, 0, 0, 0]
    assert frames(five, 3) == frames(five, 4) == [0, 1, 1, 0, 0]
    assert (five.ledger.labels(0).judge.source, five.ledger.labels(0).note) == ("cutoff", "by eye")


def test_frames_can_be_left_unknown(five, tmp_path):
    (tmp_path / "l.yaml").write_text(
        "{0: [[1, 2], [3, null, unknown]], 1: [[2, null]], 2: unknown, 3: [0, 1, unknown]}"
    )
    label_store(five, read_cutoffs(tmp_path / "l.yaml"))
    assert [str(frame) for frame in frames(five, 0)] == ["0.0", "1.0", "1.0", "nan", "nan"]
    assert frames(five, 1) == [0, 0, 1, 1, 1]
    assert not five.ledger.labels(2).labeled.any()
    assert [str(frame) for frame in frames(five, 3)] == ["nan", "nan", "0.0", "0.0", "0.0"]


def test_all_frames_after_the_last_range_can_be_left_unknown(five):
    label_store(five, {0: [[1, 2]], 1: 3, 2: None}, after="unknown")
    assert [str(frame) for frame in frames(five, 0)] == ["0.0", "1.0", "1.0", "nan", "nan"]
    assert frames(five, 1) == [0, 0, 0, 1, 1] and frames(five, 2) == [0] * 5


def test_nothing_learns_from_unknown_frames(five):
    label_store(five, {0: [[1, 2], [3, None, "unknown"]]})
    truth = load_reference_labels(five, ("cutoff",))[0]
    assert np.isnan(truth).tolist() == [False, False, False, True, True]
    table = RewardDataset.from_store(five, sources=("cutoff",))
    assert np.isnan(table.target).sum() == 2


def test_a_dictionary_with_whole_numbers_for_keys_is_fine(five, tmp_path):
    (tmp_path / "l.yaml").write_text("{0: 3, 1: null}")
    assert read_cutoffs(tmp_path / "l.yaml") == {0: 3, 1: None}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{0: 9}", "episode 0: frames 9 to 9 are not in it: its frames are 0 to 4; null means failure. Nothing was"),
        ("{0: -1}", "episode 0: frames -1 to 4 are not in it"),
        ("{0: [[3, 1]]}", "episode 0: frames 3 to 1 are not in it"),
        ("{0: soon}", "episode 0: 'soon' is not a frame, a list of"),
        ("{0: true}", "episode 0: True is not a frame"),
        ("{0: [[1, 2, perhaps]]}", r"is not a frame, a list of \[first, last\] or \[first, last, .unknown.\] ranges"),
        ("{0: [[3, null], [9, null, unknown]]}", "episode 0: frames 9 to 9 are not in it"),
        ("{0: 1, 7: 1}", r"has no episode 7; it has 0 to 4 \(5 in all\). Nothing was labeled"),
        ("{first: 1}", "'first' is not an episode number or a range"),
        ("{0: 1, 0-2: 3}", "episode 0 is labeled twice, the second time under '0-2'"),
        ("[1, 2]", "a label file maps episodes to frames"),
        ("{0: ", "a label file is JSON or YAML, this is neither"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_labeled(five, tmp_path, text, sentence):
    (tmp_path / "l.yaml").write_text(text)
    with pytest.raises(DataError, match=sentence):
        label_store(five, read_cutoffs(tmp_path / "l.yaml"))
    assert len(five.ledger) == 0


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadFile, match="no such label file"):
        read_cutoffs(tmp_path / "none.json")


def test_numbers_that_could_mean_two_things_must_be_told_apart(store):
    """Episode 1 of the source was broken, so everything after it has another number here."""
    for source_index in (0, 2, 3):
        store.append(counting_episode(4, origin=Origin("lerobot", "x", source_index, str(source_index))))
    with pytest.raises(DataError, match=r"episode 2 of the imported data is episode 1 of .*--by source or --by id"):
        label_store(store, {2: 1})
    assert label_store(store, {2: 1}, by="source") == [1]
    assert label_store(store, {2: 1}, by="id") == [2]


def test_frames_are_counted_as_they_were_recorded(store):
    store.append(counting_episode(4, padded="first"))  # its frame 0 is a copy: the source's frame 0 is our frame 1
    store.append(counting_episode(4, padded="last"))
    label_store(store, {0: 2, 1: 3})
    assert frames(store, 0)[1:] == [0, 0, 1, 1]
    assert store.ledger.labels(0).targets[1:].tolist() == [0, 0, 1, 1]
    assert frames(store, 1) == [0, 0, 0, 1, 1]
    with pytest.raises(DataError, match="its frames are 0 to 3"):
        label_store(store, {1: 4})
