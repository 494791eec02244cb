import numpy as np
import pytest

from conftest import counting_episode
from plaudit.errors import DataError, InvalidEpisode
from plaudit.types import Episode, Labels

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
    assert labels.frames.tolist() == [0, 0, 0, 1, 1]
    assert labels.reward.tolist() == [0, 0, 1, 1]  # action 2 led to frame 3


def test_no_cutoff_is_a_failure():
    labels = Labels.from_cutoff(steps=2, cutoff=None, source="human")
    assert labels.reward.tolist() == [0, 0]
    assert not labels.succeeded


def test_a_step_that_was_not_judged_has_no_verdict():
    labels = Labels.from_frames(np.array([0, np.nan, 1]), source="human")
    assert labels.judged.tolist() == [False, True]
    assert np.isnan(labels.frames[1])


@pytest.mark.parametrize(("threshold", "succeeded"), [(None, True), (0.6, True), (0.9, False)])
def test_the_first_frame_is_called_at_the_threshold_like_any_other(threshold, succeeded):
    said = np.array([0.6, 0.3, 0.2], np.float32)
    labels = Labels(
        reward=np.zeros(2, "f4"), success=np.zeros(2, bool), probability=said[1:], start=said[0], threshold=threshold
    )
    assert labels.succeeded == succeeded
    assert labels.frames.tolist() == [succeeded, 0, 0]


def test_a_verdict_made_of_probabilities_is_called_at_its_threshold():
    assert Labels.from_frames([0.6, 0.6, 0.95], threshold=0.9).frames.tolist() == [0, 0, 1]


@pytest.mark.parametrize("probability", [[-0.1, 0.5], [0.5, 1.1]])
def test_a_probability_outside_zero_and_one_is_refused(probability):
    with pytest.raises(DataError, match="probability"):
        Labels(reward=np.zeros(2, "f4"), success=np.zeros(2, bool), probability=np.array(probability, "f4"))


@pytest.mark.parametrize(("repeated", "seen"), [("none", 5), ("first", 4), ("last", 4)])
def test_a_repeated_observation_is_not_one_that_was_recorded(repeated, seen):
    episode = counting_episode(steps=4, repeated=repeated)
    assert len(episode.state[episode.recorded]) == seen
