import errno
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.ledger import Ledger, decode_labels, encode_labels
from plaudit.data.store import Store
from plaudit.errors import DataError, StoreFull
from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Labeler, Labels, Scores
from processes import Forked


def make_labels(cutoff: int | None, source: str = "human", **rest) -> Labels:
    return Labels.from_cutoff(steps=4, cutoff=cutoff, source=source, **rest)


@pytest.mark.parametrize("progress", [None, np.array([0, 0.25, 0.5, 0.75, 1], "f4")])
def test_every_field_of_labels_comes_back(store, progress):
    labels = Labels(
        success=np.array([False, False, False, False, True]),
        labeled=np.array([True, True, True, False, True]),
        judge=JudgeId("vlm", "cosmos-8b@1234", DecisionRule(threshold=0.7).key()),
        scores=Scores(np.array([0.25, 0.1, 0.2, np.nan, 0.9], "f4"), progress, ood="a red table"),
        time=1234.5,
        note="night shift",
        labeler=Labeler("ada", repeat=True),
    )
    store.ledger.append(3, labels)
    found = Store.open(store.folder).ledger.labels(3)
    assert np.array_equal(found.success, labels.success) and np.array_equal(found.labeled, labels.labeled)
    assert np.array_equal(found.scores.success_prob, labels.scores.success_prob, equal_nan=True)
    assert (found.scores.progress is None) == (progress is None) and found.scores.ood == "a red table"
    assert progress is None or np.array_equal(found.scores.progress, progress)
    assert (found.judge, found.time, found.note) == (labels.judge, 1234.5, "night shift")
    assert store.ledger.newest(3).judge == labels.judge
    assert found.labeler == labels.labeler and found.remark == "by ada, a second time, night shift"


@pytest.mark.parametrize("labeler", [Labeler(3), Labeler("ada", repeat="yes")])
def test_a_labeler_that_is_none_is_not_stored(store, labeler):
    with pytest.raises(DataError, match="cannot be stored"):
        store.ledger.append(0, replace(make_labels(3), labeler=labeler))


@pytest.mark.parametrize("labeler", ["ada", None, {}, {"name": "ada", "age": 7}, {"name": ["ada"]}])
def test_a_line_with_another_kind_of_labeler_is_refused(labeler):
    line = encode_labels(0, replace(make_labels(3), labeler=Labeler("ada")), None)
    assert decode_labels(line).labeler == Labeler("ada")
    with pytest.raises((TypeError, ValueError)):
        decode_labels(line | {"labeler": labeler})


def test_the_newest_label_wins_and_none_is_lost(store):
    assert [store.ledger.append(0, make_labels(c)) for c in (3, 2, None)] == [1, 2, 3]
    assert not store.ledger.labels(0).success_once
    assert [v.labels().success.sum() for v in store.ledger.history(0)] == [2, 3, 0]


def test_any_version_can_be_restored_and_restoring_is_a_version_too(store):
    store.ledger.append(0, make_labels(3))
    store.ledger.append(0, make_labels(None, source="classifier"))
    assert store.ledger.restore(0, 1) == 3
    newest = store.ledger.newest(0)
    assert (newest.number, newest.restored_from, newest.source) == (3, 1, "human")
    assert store.ledger.labels(0).targets.tolist() == [0, 0, 0, 1, 1]
    assert len(store.ledger.history(0)) == 3


def test_the_newest_of_certain_judges_can_be_asked_for(store):
    store.ledger.append(0, make_labels(3, source="human"))
    store.ledger.append(0, make_labels(1, source="classifier"))
    assert store.ledger.newest(0).source == "classifier"
    assert store.ledger.newest(0, sources={"human"}).number == 1
    assert store.ledger.labels(0, sources={"vlm"}) is None


def test_labels_without_a_time_get_the_time_they_were_given(store):
    store.ledger.append(0, make_labels(3))
    assert store.ledger.labels(0).time > 1.7e9


def test_an_unknown_version_is_named(store):
    store.ledger.append(0, make_labels(3))
    with pytest.raises(DataError, match="episode 0 has versions 1 to 1, not version 2"):
        store.ledger.restore(0, 2)
    with pytest.raises(DataError, match="episode 5 has no labels, not version 1"):
        store.ledger.restore(5, 1)


def test_a_full_disk_stores_no_label_and_says_so(store, monkeypatch):
    store.ledger.append(0, make_labels(3))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(StoreFull, match=r"is full .*: these labels were not stored"):
        patch.setattr("plaudit.data.journal.write_at", full)
        store.ledger.append(0, make_labels(1))
    assert len(store.ledger.history(0)) == len(Store.open(store.folder).ledger.history(0)) == 1
    assert store.ledger.append(0, make_labels(1)) == 2


def test_two_versions_of_one_episode_in_one_call_are_numbered_in_order(store):
    assert store.ledger.extend([(0, make_labels(3)), (1, make_labels(3)), (0, make_labels(2))]) == [1, 1, 2]


def label_thirty_times(path: Path, source: str) -> None:
    """In a child process."""
    ledger = Ledger(path)
    for count in range(30):
        ledger.append(0, Labels.from_cutoff(steps=4, cutoff=3, source=source, note=str(count)))


def test_several_processes_label_at_once(store):
    store.append(counting_episode(4))
    path = store.folder / "labels"
    with Forked(label_thirty_times, path, "human") as one, Forked(label_thirty_times, path, "vlm") as other:
        assert [one.wait(), other.wait()] == [0, 0]
    history = Ledger(path).history(0)
    assert [v.number for v in history] == list(range(1, 61))
    for name in ("human", "vlm"):
        assert [v.line["note"] for v in history if v.source == name] == [str(c) for c in range(30)]


def test_versions_are_found_in_the_order_they_came(store):
    for episode_id, source in ((1, "human"), (0, "vlm"), (1, "vlm")):
        store.ledger.append(episode_id, make_labels(1, source))
    assert [(v.episode, v.source, v.number) for v in store.ledger.since(1)] == [(0, "vlm", 1), (1, "vlm", 2)]
    assert store.ledger.since(3) == []
