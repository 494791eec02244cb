"""Rewards from labels: all modes, on numbers that can be worked out by hand."""

import numpy as np
import pytest

from conftest import counting_episode
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig, compute_episode_rewards
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.rule import DecisionRule, labels_from_scores
from plaudit.types import JudgeId, Labels, Scores


def labels(*prob: float, progress: tuple[float, ...] = (), padded: str = "none") -> Labels:
    """By two of three frames at a half."""
    scores = Scores(np.array(prob, np.float32), np.array(progress, np.float32) if progress else None)
    rule = DecisionRule()
    return labels_from_scores(
        JudgeId("told", "", rule.key()), rule, counting_episode(len(prob) - 1, padded=padded), scores
    )


def rewards(made: Labels, env_info=None, gamma: float = 0.99, **config) -> list[float]:
    return compute_episode_rewards(made, env_info or {}, RewardConfig(**config), gamma).tolist()


def test_binary_pays_one_where_success_was_decided_and_nothing_else():
    assert rewards(labels(0, 0.9, 0.2, 0.9)) == [0, 0, 1]


def test_continuous_pays_the_probability_and_yes_and_no_where_there_is_none():
    assert rewards(labels(0, 0.25, 0.75), reward_type="continuous") == [0.25, 0.75]
    said = Labels.from_cutoff(steps=2, cutoff=2, source="human")
    assert rewards(said, reward_type="continuous") == [0, 1]


def test_terminal_pays_only_at_the_end():
    assert rewards(labels(0, 0.25, 0.5, 0.25, 0.25), mode="terminal", reward_type="continuous") == [0, 0, 0, 0.25]
    assert rewards(labels(0, 0.75, 0.75, 0.25, 0.25), mode="terminal") == [0, 1, 1, 0]


def test_add_pays_on_top_of_the_simulations_shaping():
    assert rewards(labels(1, 1, 1), {"shaping": np.float32([0.25, 0.5])}, mode="add") == [1.25, 1.5]


def test_add_refuses_a_simulation_whose_reward_pays_for_success():
    with pytest.raises(
        JudgeError, match=r"does not pay for success from the simulation, which gives none \('shaping'\)"
    ):
        rewards(labels(0, 0), {"reward": np.float32([1])}, mode="add")


def test_shaping_pays_for_progress_and_counts_success_as_all_of_it():
    labeled = labels(0, 0, 1, 1, progress=(0.25, 0.5, 0.75, 1))
    shaping = [2 * (0.25 - 0.25), 2 * (0.375 - 0.5), 2 * (0.5 - 0.75)]
    assert rewards(labeled, shaping=2.0, gamma=0.5) == [shaping[0], shaping[1], 1 + shaping[2]]


def test_shaping_pays_nothing_for_where_a_lost_episode_ends():
    lost = {"failure": np.array([False, True])}
    assert rewards(labels(0, 0, 0, progress=(0.5, 0.75, 1)), lost, shaping=1.0, gamma=1.0) == [0.25, -0.75]


def test_shaping_needs_a_judge_that_measures_progress():
    with pytest.raises(JudgeError, match="shaping needs a judge that measures progress"):
        rewards(labels(0, 0), shaping=0.5)


@pytest.mark.parametrize("mode", ["replace", "add", "terminal"])
def test_what_the_simulation_knows_of_success_changes_nothing(mode):
    def paid(success: bool):
        known = {name: np.full(4, success, np.float32) for name in ("success", "reward")}
        known["shaping"] = np.full(4, 0.5, np.float32)
        return rewards(labels(0.1, 0.9, 0.4, 0.8, 0.2), known, mode=mode, reward_type="continuous")

    assert paid(True) == paid(False)


def test_a_frame_that_is_not_labeled_pays_nothing_that_anybody_could_learn_from():
    assert np.isnan(rewards(labels(0, 1, 1, 1, padded="last"))).tolist() == [False, False, True]


def test_replay_pays_as_it_is_told_and_a_change_of_mode_labels_nothing_anew(tmp_path):
    with Store.create(tmp_path / "s") as store:
        episode = counting_episode(3, privileged={"reward": np.float32([0.5, 0.25, 0.125])})
        store.ledger.append(store.append(episode), labels(0, 0.25, 0.5, 0.75))
    for config, paid in (
        ({}, [0, 0, 1]),
        ({"reward_type": "continuous"}, [0.25, 0.5, 0.75]),
        ({"env_reward": "dense"}, [0.5, 0.25, 0.125]),
    ):
        replay = ReplaySampler(store, reward=RewardConfig(**config), terminate_on_success=False, seed=0)
        batch = replay.sample(200)
        assert dict(zip(batch.step.tolist(), batch.reward.tolist())) == dict(enumerate(paid))
    assert len(store.ledger) == 1
