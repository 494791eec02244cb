"""A judge that is wrong on purpose: as often as it was told, about the same episodes each time."""

import numpy as np
import pytest

from conftest import counting_episode
from counting import CountingSimulation
from plaudit.contracts import check_judge
from plaudit.errors import ConfigError
from plaudit.judges.labeling import label_episodes
from plaudit.judges.simulator import NoisyJudgeConfig
from plaudit.types import Episode, Labels
from training_runs import train_config

STEPS = 5  # of an episode here
MANY = 250


def episodes(success: bool, near: float = 0.0) -> list[Episode]:
    """Episodes that differ in their first frame, and succeed with their last action or not at all."""
    last = np.arange(STEPS) == STEPS - 1
    told = {"success": last & success, "shaping": np.full(STEPS, near, np.float32)}
    return [counting_episode(STEPS, first=7 * i, privileged=told) for i in range(MANY)]


def called(success: bool, near: float = 0.0, **noise: float) -> np.ndarray:
    """Which of them it calls a success."""
    judge = NoisyJudgeConfig(horizon=STEPS, **noise).build()
    answers = label_episodes(judge, episodes(success, near))
    return np.array([labels.success_once for labels in answers if isinstance(labels, Labels)])


def test_it_says_the_same_live_afterwards_and_again():
    noise = {"false_positives": 0.5, "misses": 0.5, "tricks": 0.5}
    judge = NoisyJudgeConfig(horizon=STEPS, **noise).build()
    for episode in episodes(True, near=0.7)[:8]:
        check_judge(judge, [episode])
    first = called(False, **noise)
    assert (first == called(False, **noise)).all() and (first != called(False, seed=1, **noise)).any()


def test_failures_are_called_successes_as_often_as_told():
    assert called(False, false_positives=0.3).mean() == pytest.approx(0.3, abs=0.09)
    assert not called(False, misses=0.5).any()


def test_successes_are_missed_as_often_as_told():
    assert called(True, misses=0.3).mean() == pytest.approx(0.7, abs=0.09)
    assert called(True).all()


def test_a_trick_passes_only_where_success_is_near():
    assert called(False, near=0.6, tricks=0.3).mean() == pytest.approx(0.3, abs=0.09)
    assert called(False, near=0.6, tricks=1).all() and not called(False, near=0.5, tricks=1).any()


def test_a_simulator_without_a_dense_reward_has_no_near_success():
    (answer,) = label_episodes(
        NoisyJudgeConfig(tricks=0.5).build(), [counting_episode(2, privileged={"success": np.zeros(2, bool)})]
    )
    assert "this one reports none ('shaping')" in str(answer)


def test_late_labels_are_for_learners_of_replay_in_lockstep():
    words = "env=lift demos.scripted=2 judge=noisy judge.late_by=16 learner="
    assert train_config(f"{words}sac").labels_late_by == 16
    with pytest.raises(ConfigError, match="use sac or qchunk"):
        train_config(f"{words}ppo")


def test_a_rollout_of_a_simulation_is_judged_by_it():
    judge = NoisyJudgeConfig(false_positives=1, horizon=1).build()
    simulation, stream = CountingSimulation(3), judge.stream(3)
    assert stream.reset(simulation.reset([1, 2, 3])).success_prob.tolist() == [0, 0, 0]
    observation, info = simulation.step(np.ones((3, simulation.action_dim)), np.ones(3, bool))
    assert stream.step(observation, info).success_prob.tolist() == [1, 1, 1]
