"""Weights on their way to robots: versions count up, and nobody is told of one that could be lost."""

import errno

import numpy as np
import pytest

from plaudit.errors import StoreFull
from plaudit.policies.loader import read_weights
from plaudit.training.replay_buffer import StateManager
from plaudit.types import PolicyWeights


def weights(value: float, version: int = 1) -> PolicyWeights:
    return PolicyWeights(version, {"actor/w": np.full(3, value, np.float32)})


def test_each_push_is_one_version_whatever_the_learner_counts(tmp_path):
    state = StateManager(tmp_path)
    assert [state.publish(weights(1.0, version=900)), state.publish(weights(2.0, version=4))] == [1, 2]


def test_a_reader_gets_what_is_newer_and_its_version(tmp_path):
    state = StateManager(tmp_path)
    assert state.get_weights(0) is None
    state.publish(weights(1.0))
    found = state.get_weights(0)
    assert found.version == 1
    assert found.tensors["actor/w"].tolist() == [1, 1, 1]
    assert state.get_weights(1) is None


def test_one_that_was_killed_goes_on_from_its_version(tmp_path):
    state = StateManager(tmp_path)
    for value in (1.0, 2.0):
        state.publish(weights(value))
    again = StateManager(tmp_path)
    assert again.version == 2
    assert again.get_weights(0).tensors["actor/w"].tolist() == [2, 2, 2]
    assert again.publish(weights(3.0)) == 3


def test_a_full_disk_keeps_the_version_before(tmp_path, monkeypatch):
    state = StateManager(tmp_path)
    state.publish(weights(1.0))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("plaudit.policies.loader.write_atomic", full)
    with pytest.raises(StoreFull, match="these weights were not published"):
        state.publish(weights(2.0))
    monkeypatch.undo()
    assert (state.version, StateManager(tmp_path).version) == (1, 1)
    assert state.publish(weights(2.0)) == 2


def test_every_version_that_a_robot_got_stays_on_disk_up_to_a_limit(tmp_path):
    state = StateManager(tmp_path, versions_bytes=250)
    for value in (1.0, 2.0, 3.0, 4.0):
        version = state.publish(weights(value))
        if value != 2.0:  # which no robot asked for
            state.get_weights(version - 1)
    kept = sorted((tmp_path / "versions").iterdir())
    assert [read_weights(path).version for path in kept] == [3, 4]
    assert read_weights(kept[0]).tensors["actor/w"].tolist() == [3, 3, 3]
