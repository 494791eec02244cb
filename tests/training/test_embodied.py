"""The worker of a policy's training: rewards of whole rollouts."""

import numpy as np
import pytest

from glow import GlowConfig, bright_model, saved
from plaudit.data.rewards import RewardConfig
from plaudit.judges.classifier.judge import RewardWorkerConfig
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import RolloutBatch, collect_rollout
from plaudit.training.rollout_judge import EmbodiedRewardWorker


@pytest.fixture
def worker(tmp_path):
    """It calls a lamp bright from 0.5 on."""
    with EmbodiedRewardWorker(RewardWorkerConfig(checkpoint_path=saved(bright_model(0.5), tmp_path / "judge"))) as it:
        yield it


def rollout(judge, **options) -> RolloutBatch:
    """Three lamps, turned up at three speeds."""
    speeds = np.float32([[0.1], [0.3], [0.6]])
    return collect_rollout(GlowConfig().build(3), lambda seen: speeds, range(3), SuccessDetector(judge, 3), **options)


def test_success_is_paid_once_two_of_three_frames_show_it_and_not_by_the_simulators_flag(worker):
    played = rollout(SimulatorJudge(), terminate_on_success=False)
    bright = played.images["front"][:, :, 0, 0, 0] >= 0.5 * 255  # [T+1, N]
    recent = np.stack([bright[max(t - 2, 0) : t + 1].sum(axis=0) for t in range(1, len(bright))])
    rewards = worker.compute_rewards(played)
    assert rewards.shape == played.reward.shape and rewards.tolist() == (recent >= 2).astype(float).tolist()
    assert (rewards != played.reward).any()


@pytest.mark.parametrize(
    "config", [RewardConfig(reward_type="continuous"), RewardConfig(mode="add"), RewardConfig(mode="terminal")]
)
def test_rewards_of_a_rollout_are_those_that_were_paid_while_it_ran(worker, config):
    played = rollout(worker.judge, reward=config)
    assert played.reward.any() and worker.compute_rewards(played, config).tolist() == played.reward.tolist()
