"""Rewards, computed from labels when they are needed and never stored: changing the mode needs no relabeling.

    replace    1 where success was decided, or the judge's probability
    terminal   the same, but only at the step that ends the episode
    add        the same as replace, on top of the environment's own shaping reward

With `shaping`, w * (gamma * phi(next) - phi(now)) is added, where phi is the judge's progress, 1 once success is
decided and 0 where an episode is lost: that speeds learning up and leaves the best policy the best (Ng, 1999). A
success is then worth 1 + w, less the progress at the start. With a phi of 0 there, success would take back what was
paid on the way: with w = 1 hardly anything would be left of it, and until its value is learned, hovering would look
better.

What the environment knows of success is never read here, unless its own dense reward is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plaudit.config import Config, NonNegativeFloat
from plaudit.errors import JudgeError
from plaudit.types import AnyArray, BoolArray, FloatArray, Labels

Mode = Literal["replace", "add", "terminal"]
RewardType = Literal["binary", "continuous"]


class RewardConfig(Config):
    """How rewards follow from labels."""

    mode: Mode = "replace"
    reward_type: RewardType = "binary"  # 1 where success was decided and 0 elsewhere, or the judge's probability
    shaping: NonNegativeFloat = 0.0  # weight of the judge's progress; 0: none
    env_reward: Literal["sparse", "dense"] = "sparse"  # dense: the environment's own reward, and no label is read

    @property
    def reads_env(self) -> bool:
        """Whether what only a simulator knows is needed beside the labels."""
        return self.mode == "add" or self.env_reward == "dense"


@dataclass(frozen=True, eq=False)
class Decisions:
    """What rewards are computed from: an episode's arrays [T+1], or [T+1, N] of N environments side by side."""

    success: BoolArray
    success_prob: FloatArray | None = None  # None: of a judge that says only yes and no
    progress: FloatArray | None = None


def compute_episode_rewards(
    labels: Labels, env_info: Mapping[str, AnyArray], config: RewardConfig, gamma: float
) -> FloatArray:
    """[T] the reward of each action; NaN where the observation that it led to is not labeled.

    env_info: what only the simulator knows, [T] each, as `Episode.privileged` has it
    """
    scores = labels.scores
    prob, progress = (None, None) if scores is None else (scores.success_prob, scores.progress)
    reward = compute_rewards(Decisions(labels.success, prob, progress), env_info, config, gamma)
    return np.where(labels.labeled[1:], reward, np.float32(np.nan))


def compute_rewards(
    decided: Decisions,
    env_info: Mapping[str, AnyArray],
    config: RewardConfig,
    gamma: float,
    last: BoolArray | None = None,
) -> FloatArray:
    """[T] or [T, N] rewards: reward[t] is for what action t led to.

    last: [T, N] the step that ends each environment's episode; None: the last of all
    """
    if config.env_reward == "dense":
        return _env_value(env_info, "reward", "a dense reward of its own").astype(np.float32)
    success = decided.success
    reward = success[1:].astype(np.float32)
    if config.reward_type == "continuous" and decided.success_prob is not None:
        reward = decided.success_prob[1:].astype(np.float32)
    if config.mode == "terminal":
        ends = success[1:].copy()
        if last is None:
            ends[-1] = True
        else:
            ends |= last
        reward = np.where(ends, reward, np.float32(0))
    if config.mode == "add":
        why = "a reward of its own that does not pay for success"
        reward = reward + _env_value(env_info, "shaping", why).astype(np.float32)
    if config.shaping:
        phi = potential(decided, env_info)
        reward = reward + np.float32(config.shaping) * (np.float32(gamma) * phi[1:] - phi[:-1])
    return reward


def potential(decided: Decisions, env_info: Mapping[str, AnyArray]) -> FloatArray:
    """The judge's progress, 1 once success is decided, and 0 where the episode is lost: what was paid is taken back."""
    if decided.progress is None:
        raise JudgeError(
            "shaping needs a judge that measures progress; set reward.shaping to 0, or name one that does "
            "(judge.progress=runs/progress, which plaudit train-progress makes)"
        )
    phi = np.where(decided.success, np.float32(1), decided.progress)
    if "failure" in env_info:
        phi[1:][env_info["failure"]] = 0
    return phi


def _env_value(env_info: Mapping[str, AnyArray], name: str, what: str) -> AnyArray:
    if name not in env_info:
        raise JudgeError(
            f"this reward needs {what} from the simulation, which gives none ('{name}'); use mode 'replace' and "
            "env_reward 'sparse'"
        )
    return env_info[name]
