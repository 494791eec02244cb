"""Frame t of an episode is filled with t, so a judge can read the time off the pixels; success begins at frame 14."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.errors import ContractError, JudgeError
from plaudit.judges.certificate import MAX_FPR, ControlResult, failed_controls
from plaudit.judges.controls import (
    ScoredControl,
    blank_images,
    control_results,
    frozen_frame,
    run_controls,
    time_reversed,
    truncate,
)
from plaudit.judges.stats import Interval
from plaudit.rule import DecisionRule
from plaudit.types import Episode, JudgeId, Labels, Scores

FIRST, LAST = 14, 20


def success(episode: Episode) -> np.ndarray:
    """[T+1] the truth of an episode of twenty steps."""
    return (np.arange(episode.steps + 1) >= FIRST).astype("f4")


def held_out(count: int = 2, **facts: object) -> list[tuple[Episode, np.ndarray]]:
    episode = counting_episode(LAST, **facts)
    return [(episode, success(episode))] * count


def numbers(episode: Episode) -> np.ndarray:
    return episode.frames["front"][:, 0, 0, 0]


def honest(episode: Episode) -> np.ndarray:
    """Knows the frames that show success, and that others are none."""
    return np.isin(numbers(episode), range(FIRST, LAST + 1)) * 0.8 + 0.1


class FunctionJudge:
    """A `Judge` of a function from an episode to P(success) of its frames."""

    id, rule = JudgeId("function"), DecisionRule()

    def __init__(self, score):
        self._score = score

    def score(self, episodes):
        return [Scores(np.asarray(self._score(episode), "f4")) for episode in episodes]


def results_of(score, episodes, threshold: float = 0.5) -> list[ControlResult]:
    results, failures = run_controls(FunctionJudge(score), episodes, threshold)
    assert not failures
    return results


def names_of_failures(score) -> list[str]:
    return [result.name for result in results_of(score, held_out()) if not result.passed]


BLANKS = ["blank black", "blank white", "blank gray", "blank noise"]


# Judges


def test_an_honest_judge_passes_all_controls():
    results = results_of(lambda e: np.where(np.ptp(e.frames["front"], axis=(1, 2, 3)), 0.1, honest(e)), held_out())
    assert [r.name for r in results] == ["frozen frame", "time reversed", "truncated", *BLANKS]
    assert [(r.fpr.value, r.passed) for r in results] == [(0, True)] * 7
    assert [r.frames for r in results] == [2 * 21, 2 * 11, 2 * 11, 8, 8, 8, 8]


def test_a_judge_that_says_yes_to_everything_fails_all_of_them():
    assert names_of_failures(lambda e: np.ones(e.steps + 1)) == ["frozen frame", "time reversed", "truncated", *BLANKS]


def test_a_clock_is_found_by_what_takes_as_long_and_shows_nothing():
    failures = names_of_failures(lambda e: np.arange(e.steps + 1) / (2 * FIRST))  # 50% at frame 14
    assert failures == ["frozen frame", "time reversed"]


def test_a_judge_of_how_far_the_episode_has_come_is_found_by_cutting_it():
    assert "truncated" in names_of_failures(lambda e: np.linspace(0, 1, e.steps + 1))


def test_a_judge_that_believes_dark_frames_is_found_by_the_black_one():
    assert names_of_failures(lambda e: (numbers(e) == 0) * 1.0) == [
        "frozen frame",
        "time reversed",
        "truncated",
        "blank black",
    ]
    assert names_of_failures(lambda e: honest(e) + 0.1 * (numbers(e) == 255) * 9) == ["blank white"]


def test_a_memory_of_success_is_found_backwards():
    def once_seen(episode: Episode) -> np.ndarray:
        return np.maximum.accumulate(honest(episode))

    assert "time reversed" in names_of_failures(once_seen)
    assert "truncated" not in names_of_failures(once_seen)


# What they are shown


def test_still_is_the_first_frame_and_state_all_the_time():
    control = frozen_frame(*held_out()[0])
    assert (numbers(control.episode) == 0).all() and (control.episode.state == 0).all()
    assert control.mask.tolist() == [True] * 21


def test_backwards_only_what_comes_after_the_success_was_undone_is_asked():
    control = time_reversed(*held_out()[0])
    assert numbers(control.episode).tolist() == list(range(20, -1, -1))
    assert numbers(control.episode)[control.mask].tolist() == list(range(10, -1, -1))
    assert control.episode.state[0, 0] == 200


def test_truncated_ends_three_frames_before_the_first_success():
    control = truncate(*held_out()[0])
    assert numbers(control.episode).tolist() == list(range(11))
    assert control.mask.all() and control.episode.steps == 10


def test_blank_episodes_are_short_and_stand_where_the_episode_begins():
    controls = blank_images(counting_episode(LAST, first=3), np.random.default_rng(0))
    assert [c.name for c in controls] == BLANKS
    assert [numbers(c.episode).tolist() for c in controls[:3]] == [[0] * 8, [255] * 8, [128] * 8]
    assert np.ptp(controls[3].episode.frames["front"]) > 200
    assert all((c.episode.state == [30, -3]).all() for c in controls)


def test_a_repeated_observation_is_not_asked():
    (first, truth), (last, _) = held_out(1, padded="first")[0], held_out(1, padded="last")[0]
    assert (numbers(frozen_frame(first, truth).episode) == 1).all()
    assert truncate(first, truth).mask.tolist() == [False] + [True] * 10
    assert not time_reversed(first, truth).mask[-1] and time_reversed(first, truth).episode.padded == "last"
    assert time_reversed(last, truth).episode.padded == "first"
    assert truncate(last, truth).episode.padded == "none"


def test_frames_without_a_truth_are_not_asked():
    episode, truth = held_out()[0]
    truth = truth.copy()
    truth[:4] = np.nan
    assert (numbers(frozen_frame(episode, truth).episode) == 4).all()
    assert np.flatnonzero(truncate(episode, truth).mask).tolist() == list(range(4, 11))
    assert time_reversed(episode, truth).mask.sum() == 7


def test_an_episode_that_begins_with_success_makes_no_control_but_blank():
    episode = counting_episode(6)
    results = results_of(lambda e: np.ones(e.steps + 1), [(episode, np.ones(7, "f4"))])
    assert [(r.name, r.frames, r.passed) for r in results[:3]] == [
        (n, 0, True) for n in ("frozen frame", "time reversed", "truncated")
    ]
    assert [r.frames for r in results[3:]] == [8] * 4


def test_a_control_whose_success_frames_stay_unlabeled_has_no_recall():
    """A cascade may decide none of them."""
    target = np.array([0, 0, 1, 1], "f4")
    labels = Labels.from_targets(np.array([0, 0, np.nan, np.nan], "f4"), "cascade")
    *_, dark = control_results([ScoredControl("darker", labels, target == 0, target == 1)], 0.5, fpr=0.1)
    assert (dark.recall, dark.frames, dark.fpr.value) == (None, 2, 0)
    assert dark.max_fpr == MAX_FPR, "a certificate refuses a higher limit for it"


# The run


def test_at_most_twenty_episodes_are_shown():
    shown = []
    results_of(lambda e: shown.append(e) or np.zeros(e.steps + 1), held_out(50))
    assert len(shown) == 3 * 20 + 4


def test_failures_are_named_in_sentences():
    rates = {"frozen frame": (500, 0.4), "time reversed": (100, 0.05)}
    results = [
        ControlResult(name=name, episodes=5, frames=frames, fpr=Interval(fpr, 0, 1), max_fpr=0.05)
        for name, (frames, fpr) in rates.items()
    ]
    assert failed_controls(results) == ["frozen frame: 40% of 500 frames predicted a success, at most 5% may be"]


def test_a_run_without_a_success_or_with_a_judge_of_the_wrong_length_says_so():
    episode = counting_episode(6)
    with pytest.raises(JudgeError, match="none of these 1 does"):
        results_of(honest, [(episode, np.zeros(7, "f4"))])
    with pytest.raises(ContractError, match="scored 20 frames of an episode that has 21"):
        results_of(lambda e: np.zeros(e.steps), held_out())
    with pytest.raises(JudgeError, match=r"target must be \[7\]"):
        results_of(honest, [(episode, np.zeros(6, "f4"))])
