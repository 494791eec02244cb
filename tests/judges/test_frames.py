"""Log-odds to labels: the three rules, and what stands on the labels."""

from typing import Any

import numpy as np
from pytest import approx

from plaudit.contracts import check_labeler
from plaudit.errors import RewardError
from plaudit.judges.frames import FrameLabeler, Rule
from plaudit.types import Episode


def episode(steps: int = 5, repeated: str = "none") -> Episode:
    return Episode.of(
        frames={"front": np.zeros((steps + 1, 4, 4, 3), np.uint8)},
        state=np.zeros((steps + 1, 2)),
        actions=np.zeros((steps, 2)),
        repeated=repeated,
    )


class Said:
    """A scorer that says what it was told to."""

    source, fingerprint = "vlm", "abc"

    def __init__(self, *log_odds):
        self._said = log_odds

    def score(self, episodes):
        return [s if isinstance(s, Exception) else np.array(s, np.float32) for s in self._said]


def labels(log_odds, repeated: str = "none", **rule) -> Any:
    return FrameLabeler(Said(log_odds), Rule(**rule)).label([episode(repeated=repeated)])[0]


def test_one_cutoff_ignores_a_flicker():
    assert labels([-3, 2, -3, -3, 3, 3]).frames.tolist() == [0, 0, 0, 0, 1, 1]


def test_a_cutoff_that_is_late_is_moved_back():
    assert labels([-3, 2, -3, -3, 3, 3], shift=1).frames.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_strict_threshold_counts_doubtful_frames_as_failure():
    log_odds = [-3, -3, 1, 1, 4, 4]  # sigmoid(1) is 0.73
    assert labels(log_odds).frames.tolist() == [0, 0, 1, 1, 1, 1]
    assert labels(log_odds, threshold=0.9).frames.tolist() == [0, 0, 0, 0, 1, 1]


def test_an_episode_without_a_convincing_end_fails():
    verdict = labels([-3, 2, -3, -3, -3, -3])
    assert not verdict.succeeded
    assert verdict.reward.tolist() == [0, 0, 0, 0, 0]


def test_k_of_n_counts_once_confirmed():
    assert labels([-3, 2, -3, 2, 2, -3], decode="confirm").frames.tolist() == [0, 0, 0, 1, 1, 1]
    assert labels([-3, 2, -3, 2, 2, -3], decode="frames").frames.tolist() == [0, 1, 0, 1, 1, 0]


def test_a_first_frame_below_the_threshold_is_no_success():
    verdict = labels([0.4, -3, -3, -3, -3, -3], threshold=0.9, decode="frames")  # sigmoid(0.4) is 0.6
    assert not verdict.succeeded and verdict.start == approx(0.6, abs=0.01)
    called = labels([3, -3, -3, -3, -3, -3], threshold=0.9, decode="cutoff")  # called, and one cutoff passes it over
    assert not called.succeeded and called.frames.tolist() == [0, 0, 0, 0, 0, 0]


def test_a_probability_is_the_calibrated_sigmoid():
    verdict = labels([0, 0, 4, 4, 4, 4], temperature=2.0, bias=-1.0)
    assert verdict.probability.tolist() == approx(1 / (1 + np.exp(-np.array([-1, 1, 1, 1, 1]))))
    assert (verdict.source, verdict.model, verdict.threshold) == ("vlm", "abc", 0.5)


def test_a_repeated_frame_is_not_judged():
    verdict = labels([-3, -3, 3, 3, 3], repeated="last")
    assert np.isnan(verdict.reward).tolist() == [False, False, False, False, True]
    assert np.isnan(verdict.frames).tolist() == [False] * 5 + [True]


def test_an_episode_that_could_not_be_judged_keeps_its_error():
    labeler = FrameLabeler(Said([0, 0, 0, 0, 0, 3], RewardError("too dark")), Rule())
    said = labeler.label([episode(), episode()])
    assert str(said[1]) == "too dark"
    check_labeler(labeler, [episode(), episode()])
