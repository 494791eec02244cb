"""Frame t of an episode is filled with t, so a judge can read the time off the pixels; success begins at frame 14."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.errors import JudgeError
from plaudit.judges.controls import ControlResult, blank, failed, reversed_, run_controls, still, truncated
from plaudit.types import Episode

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


def names_of_failures(score) -> list[str]:
    return [result.name for result in run_controls(score, held_out(), 0.5) if not result.passed]


BLANKS = ["blank black", "blank white", "blank grey", "blank noise"]


# Judges


def test_an_honest_judge_passes_all_controls():
    results = run_controls(
        lambda e: np.where(np.ptp(e.frames["front"], axis=(1, 2, 3)), 0.1, honest(e)), held_out(), 0.5
    )
    assert [r.name for r in results] == ["still", "reversed", "truncated", *BLANKS]
    assert [(r.called, r.passed) for r in results] == [(0, True)] * 7
    assert [r.frames for r in results] == [2 * 21, 2 * 11, 2 * 11, 8, 8, 8, 8]


def test_a_judge_that_says_yes_to_everything_fails_all_of_them():
    assert names_of_failures(lambda e: np.ones(e.steps + 1)) == ["still", "reversed", "truncated", *BLANKS]


def test_a_clock_is_found_by_what_takes_as_long_and_shows_nothing():
    failures = names_of_failures(lambda e: np.arange(e.steps + 1) / (2 * FIRST))  # 50% at frame 14
    assert failures == ["still", "reversed"]


def test_a_judge_of_how_far_the_episode_has_come_is_found_by_cutting_it():
    assert "truncated" in names_of_failures(lambda e: np.linspace(0, 1, e.steps + 1))


def test_a_judge_that_believes_dark_frames_is_found_by_the_black_one():
    assert names_of_failures(lambda e: (numbers(e) == 0) * 1.0) == ["still", "reversed", "truncated", "blank black"]
    assert names_of_failures(lambda e: honest(e) + 0.1 * (numbers(e) == 255) * 9) == ["blank white"]


def test_a_memory_of_success_is_found_backwards():
    def once_seen(episode: Episode) -> np.ndarray:
        return np.maximum.accumulate(honest(episode))

    assert "reversed" in names_of_failures(once_seen)
    assert "truncated" not in names_of_failures(once_seen)


# What they are shown


def test_still_is_the_first_frame_and_state_all_the_time():
    control = still(*held_out()[0])
    assert (numbers(control.episode) == 0).all() and (control.episode.state == 0).all()
    assert control.asked.tolist() == [True] * 21


def test_backwards_only_what_comes_after_the_success_was_undone_is_asked():
    control = reversed_(*held_out()[0])
    assert numbers(control.episode).tolist() == list(range(20, -1, -1))
    assert numbers(control.episode)[control.asked].tolist() == list(range(10, -1, -1))
    assert control.episode.state[0, 0] == 200


def test_truncated_ends_three_frames_before_the_first_success():
    control = truncated(*held_out()[0])
    assert numbers(control.episode).tolist() == list(range(11))
    assert control.asked.all() and control.episode.steps == 10


def test_blank_episodes_are_short_and_stand_where_the_episode_begins():
    controls = blank(counting_episode(LAST, first=3), np.random.default_rng(0))
    assert [c.name for c in controls] == BLANKS
    assert [numbers(c.episode).tolist() for c in controls[:3]] == [[0] * 8, [255] * 8, [128] * 8]
    assert np.ptp(controls[3].episode.frames["front"]) > 200
    assert all((c.episode.state == [30, -3]).all() for c in controls)


def test_a_repeated_observation_is_not_asked():
    (first, truth), (last, _) = held_out(1, repeated="first")[0], held_out(1, repeated="last")[0]
    assert (numbers(still(first, truth).episode) == 1).all()
    assert truncated(first, truth).asked.tolist() == [False] + [True] * 10
    assert not reversed_(first, truth).asked[-1] and reversed_(first, truth).episode.repeated == "last"
    assert reversed_(last, truth).episode.repeated == "first"
    assert truncated(last, truth).episode.repeated == "none"


def test_frames_without_a_truth_are_not_asked():
    episode, truth = held_out()[0]
    truth = truth.copy()
    truth[:4] = np.nan
    assert (numbers(still(episode, truth).episode) == 4).all()
    assert np.flatnonzero(truncated(episode, truth).asked).tolist() == list(range(4, 11))
    assert reversed_(episode, truth).asked.sum() == 7


def test_an_episode_that_begins_with_success_makes_no_control_but_blank():
    episode = counting_episode(6)
    results = run_controls(lambda e: np.ones(e.steps + 1), [(episode, np.ones(7, "f4"))], 0.5)
    assert [(r.name, r.frames, r.passed) for r in results[:3]] == [
        (n, 0, True) for n in ("still", "reversed", "truncated")
    ]
    assert [r.frames for r in results[3:]] == [8] * 4


# The run


def test_at_most_twenty_episodes_are_shown():
    shown = []
    run_controls(lambda e: shown.append(e) or np.zeros(e.steps + 1), held_out(50), 0.5)
    assert len(shown) == 3 * 20 + 4


def test_failures_are_named_in_sentences():
    results = [ControlResult("still", 500, 200, 0.05), ControlResult("reversed", 100, 5, 0.05)]
    assert failed(results) == ["still: 40% of 500 frames called success, at most 5% may be"]


def test_a_run_without_a_success_or_with_a_judge_of_the_wrong_length_says_so():
    episode = counting_episode(6)
    with pytest.raises(JudgeError, match="none of these 1 does"):
        run_controls(honest, [(episode, np.zeros(7, "f4"))], 0.5)
    with pytest.raises(JudgeError, match=r"gave \[20\] probabilities for an episode of 21 frames"):
        run_controls(lambda e: np.zeros(e.steps), held_out(), 0.5)
    with pytest.raises(JudgeError, match=r"truth must be \[7\]"):
        run_controls(honest, [(episode, np.zeros(6, "f4"))], 0.5)
