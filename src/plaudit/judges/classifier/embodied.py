"""The reward worker of a policy's training: rewards for whole rollouts, in place of the environment's own.

    with EmbodiedRewardWorker(RewardWorkerConfig(checkpoint_path="lift_reward")) as worker:
        judge = ModelJudge(worker, JudgeConfig(), num_envs, max_steps)      # while the rollout runs
        rewards = worker.compute_rewards(rollout)                           # afterwards: the same rewards, [T, N]

A rollout has an order, so several frames have to confirm a success before it is paid. `RewardWorker` by itself scores
frames that have nothing to do with each other.
"""

import numpy as np

from plaudit.judges.classifier.worker import RewardWorker
from plaudit.judges.detector import JudgeConfig, ModelJudge
from plaudit.rollout.rounds import Round
from plaudit.types import FloatArray, Observation


class EmbodiedRewardWorker(RewardWorker):
    """A `RewardWorker` that also knows the rewards of a rollout."""

    def compute_rewards(self, rollout: Round, config: JudgeConfig | None = None) -> FloatArray:
        """[T, N]: what a `ModelJudge` of this model would have paid while the rollout ran, whoever paid then.

        config: how success is confirmed and paid; None: as `JudgeConfig` has it, with this worker's reward type
        """
        config = JudgeConfig(reward_type=self.config.reward_type) if config is None else config
        steps, num_envs = rollout.actions.shape[:2]
        judge = ModelJudge(self, config, num_envs, steps)
        judge.start(_frames_at(rollout, 0))
        rewards = [
            judge(_frames_at(rollout, t + 1), {name: values[t] for name, values in rollout.privileged.items()}).reward
            for t in range(steps)
        ]
        return np.stack(rewards)


def _frames_at(rollout: Round, t: int) -> Observation:
    return Observation({camera: frames[t] for camera, frames in rollout.images.items()}, rollout.state[t])
