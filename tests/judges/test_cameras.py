"""A model of one stack's main camera looks at another's."""

import numpy as np
import pytest
import torch

from plaudit.errors import JudgeError
from plaudit.judges.classifier.judge import RewardManager
from plaudit.types import name_of_camera
from tiny_reward import noise_episode, tiny_model


@pytest.mark.parametrize(
    ("camera", "there", "others", "found"),
    [
        ("main", ["front", "wrist"], ["main"], "front"),
        ("base_camera", ["main"], ["base_camera"], "main"),
        ("front", ["front", "main"], ["front"], "front"),
        ("main", ["front", "base_camera"], ["main"], "main"),  # two could be meant: none is taken
        ("main", ["front"], ["main", "front"], "main"),  # the model looks at both
        ("wrist", ["front"], ["wrist"], "wrist"),
    ],
)
def test_the_main_camera_is_known_by_its_other_names(camera, there, others, found):
    assert name_of_camera(camera, there, others) == found


def test_a_model_of_front_scores_episodes_of_main_alike_and_no_others():
    model, episode = tiny_model(), noise_episode()
    frames = np.asarray(episode.frames["front"])
    expected = model.score_frames({"front": frames}).success_prob
    assert np.array_equal(model.score_frames({"main": frames}).success_prob, expected)
    assert np.array_equal(RewardManager(model, "continuous").compute_rewards({"base_camera": frames}), expected)
    assert torch.equal(model.embed({"main": frames})[0], model.embed({"front": frames})[0])
    with pytest.raises(JudgeError, match="looks at camera 'front', which is not there; there are: wrist"):
        model.score_frames({"wrist": frames})
