"""What is said of one episode, and how it becomes a label."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.cutoffs import label_store
from plaudit.data.store import Store
from plaudit.errors import DataError
from plaudit.judges.human.drafts import FrameAnnotation
from plaudit.types import Labeler

NAN = float("nan")


def annotation(*frames: float) -> FrameAnnotation:
    return FrameAnnotation(np.array(frames, np.float32))


@pytest.mark.parametrize(
    "said, text, words",
    [
        (FrameAnnotation.unlabeled(4), "?x4", "nothing labeled"),
        (FrameAnnotation.unlabeled(4).success_from(1), "0x1 1x3", "success from frame 1"),
        (FrameAnnotation.unlabeled(4).success_from(0), "1x4", "success from frame 0"),
        (FrameAnnotation.unlabeled(4).all_failure(), "0x4", "no success"),
        (FrameAnnotation.unlabeled(4).as_excluded(), "excluded", "excluded"),
        (FrameAnnotation.unlabeled(4).all_failure().set_range(1, 2, 1), "0x1 1x2 0x1", "success in 1 to 2"),
        (annotation(0, 1, 0, 1), "0x1 1x1 0x1 1x1", "success in 1, 3"),
        (annotation(NAN, 1, 0, NAN), "?x1 1x1 0x1 ?x1", "success in 1, 2 not labeled"),
        (annotation(1, 0, 1, 0, 1, 0, 1, 0), "1x1 0x1 1x1 0x1 1x1 0x1 1x1 0x1", "success in 4 ranges"),
    ],
)
def test_a_label_is_a_short_text_that_reads_back_and_a_few_words(said, text, words):
    back = FrameAnnotation.from_rle(said.rle, len(said.frames))
    assert (said.rle, said.summary) == (text, words)
    assert np.array_equal(back.frames, said.frames, equal_nan=True) and back.excluded == said.excluded


def test_a_text_of_another_length_is_refused():
    with pytest.raises(DataError, match="covers 4 frames, the episode has 5"):
        FrameAnnotation.from_rle("0x1 1x3", 5)


def test_saying_something_of_an_excluded_episode_takes_it_in_again():
    assert FrameAnnotation.unlabeled(3).as_excluded().set_range(1, 1, 1).rle == "?x1 1x1 ?x1"


@pytest.mark.parametrize("padded", ["none", "first", "last"])
@pytest.mark.parametrize("cutoff", [0, 3, None])
def test_labels_are_those_that_a_label_file_gives(tmp_path, padded, cutoff):
    with Store.create(tmp_path / "store") as store:
        store.append(counting_episode(steps=6, padded=padded))
        label_store(store, {0: cutoff})
    nothing = FrameAnnotation.unlabeled(7 if padded == "none" else 6)
    said = nothing.all_failure() if cutoff is None else nothing.success_from(cutoff)
    mine, theirs = said.labels(store.episode(0), "lab"), store.ledger.labels(0)
    assert np.array_equal(mine.targets, theirs.targets, equal_nan=True)
    assert np.array_equal(mine.success, theirs.success)
    assert (mine.judge.source, mine.labeler) == ("human", Labeler("lab"))


def test_an_excluded_episode_has_no_reward_anywhere_and_says_why():
    labels = FrameAnnotation.unlabeled(5).as_excluded().labels(counting_episode(steps=4))
    assert not labels.labeled.any() and not labels.success.any()
    assert labels.note == "excluded"
    assert FrameAnnotation.from_labels(counting_episode(steps=4), labels).excluded
