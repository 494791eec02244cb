"""The reward worker of a policy's training: rewards for whole rollouts, in place of the environment's own.

    with EmbodiedRewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward")) as worker:
        rewards = worker.compute_rewards(rollout)        # [T, N], as a detector of this judge would have had them paid

A rollout has an order, so several frames have to confirm a success before it is paid. `RewardWorker` by itself scores
frames that have nothing to do with each other.
"""

import numpy as np

from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.judges.classifier.worker import RewardWorker
from plaudit.judges.detector import SuccessDetector
from plaudit.rollout.vector import RolloutBatch
from plaudit.types import FloatArray, Observation


class EmbodiedRewardWorker(RewardWorker):
    """A `RewardWorker` that also knows the rewards of a rollout."""

    def compute_rewards(
        self, rollout: RolloutBatch, config: RewardConfig | None = None, gamma: float = 0.99
    ) -> FloatArray:
        """[T, N]: what this model pays for the rollout, whoever paid while it ran.

        config: how success is paid; None: as `RewardConfig` has it, with this worker's reward type
        gamma: of the shaping
        """
        steps, num_envs = len(rollout.state) - 1, rollout.state.shape[1]
        detector = SuccessDetector(self.judge, num_envs)
        decided = [detector.reset(_frames_at(rollout, 0))]
        scores = [detector.scores]
        for t in range(1, steps + 1):
            decided.append(detector.step(_frames_at(rollout, t), {}))
            scores.append(detector.scores)
        progress = [score.progress for score in scores if score.progress is not None]
        decisions = Decisions(
            np.stack(decided),
            np.stack([score.success_prob for score in scores]),
            np.stack(progress) if progress else None,
        )
        config = RewardConfig(reward_type=self.config.reward_type) if config is None else config
        last = np.arange(steps)[:, None] == rollout.length - 1
        failed = rollout.privileged.get("failure", np.zeros_like(last))
        signal = learning_signal(
            decisions, last & failed, rollout.privileged, config, gamma, terminate_on_success=False, last=last
        )
        return np.where(rollout.valid, signal.reward, np.float32(0))


def _frames_at(rollout: RolloutBatch, t: int) -> Observation:
    return Observation({camera: frames[t] for camera, frames in rollout.images.items()}, rollout.state[t])
