import numpy as np
import pytest

from conftest import counting_episode
from plaudit.errors import DataError, InvalidEpisode
from plaudit.types import Episode, JudgeId, Labels, Scores

FRAMES = {"front": np.zeros((3, 8, 10, 3), np.uint8)}


def test_an_episode_has_one_observation_more_than_actions():
    episode = counting_episode(steps=4)
    assert episode.steps == 4
    assert len(episode.frames["front"]) == len(episode.state) == 5
    assert episode.observation(3).state[0] == 30


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actions": np.zeros((3, 1))}, "camera 'front' has 3 frames for 3 actions; it needs 4"),
        ({"actions": np.zeros((0, 1))}, "at least one action"),
        ({"actions": np.zeros(2)}, r"actions must be \[T, A\]"),
        ({"actions": np.full((2, 1), np.nan)}, "actions hold NaN or infinity at step 0"),
        ({"state": np.zeros((2, 5))}, r"state must be \[3, S\]"),
        ({"state": np.full((3, 1), np.inf)}, "state hold NaN or infinity"),
        ({"frames": {"front": np.zeros((3, 8, 10, 3), np.float32)}}, "camera 'front' must be uint8"),
        ({"frames": {"front": np.zeros((3, 0, 10, 3), np.uint8)}}, "empty frames"),
        ({"control_mode": np.array([0, 2])}, "control_mode"),
        ({"privileged": {"success": np.zeros(3)}}, "privileged 'success' must have one row an action"),
        ({"meta": {"seed": np.int64(3)}}, "meta must hold what JSON can: Object of type int64"),
        ({"privileged": {"name": np.array(["a", "b"])}}, "numbers or booleans"),
    ],
)
def test_arrays_that_make_no_episode_are_refused_with_a_sentence(changes, sentence):
    with pytest.raises(InvalidEpisode, match=sentence):
        Episode.of(**{"frames": FRAMES, "actions": np.zeros((2, 1)), **changes})


def test_a_cutoff_counts_frames_and_rewards_the_action_that_led_there():
    labels = Labels.from_cutoff(steps=4, cutoff=3, source="human")
    assert labels.targets.tolist() == [0, 0, 0, 1, 1]
    assert labels.first_success == 3


def test_no_cutoff_is_a_failure():
    labels = Labels.from_cutoff(steps=2, cutoff=None, source="human")
    assert labels.targets.tolist() == [0, 0, 0]
    assert not labels.success_once and labels.first_success is None


def test_a_frame_that_was_not_labeled_has_no_target():
    labels = Labels.from_targets(np.array([0, np.nan, 1]), source="human")
    assert labels.labeled.tolist() == [True, False, True]
    assert np.isnan(labels.targets[1])


@pytest.mark.parametrize("probability", [[-0.1, 0.5], [0.5, 1.1]])
def test_a_probability_outside_zero_and_one_is_refused(probability):
    with pytest.raises(DataError, match="probability"):
        Scores(np.array(probability, "f4"))


def test_an_observation_that_is_not_labeled_cannot_show_success():
    with pytest.raises(DataError, match="shows success and is not labeled"):
        Labels(np.array([True, False]), np.array([False, True]), JudgeId("human"))


@pytest.mark.parametrize(("padded", "seen"), [("none", 5), ("first", 4), ("last", 4)])
def test_a_padded_observation_is_not_one_that_was_observed(padded, seen):
    episode = counting_episode(steps=4, padded=padded)
    assert len(episode.state[episode.observed]) == seen
