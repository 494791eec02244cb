"""What an episode means for the learner: rewards, where it ends, and which of its steps may be learned from.

`learning_signal` is the only place that decides this, for `plaudit train` and `plaudit online`, for rollouts and for
replay. Rewards are computed from labels when they are needed and never stored, so changing the mode needs no
relabeling. docs/reward_model.md has a table of every case.

    replace    1 where success was decided, or the judge's probability
    terminal   the same, but only at the step that ends the episode
    add        the same as replace, added to the environment's own shaping reward

With `shaping`, w * (gamma * phi(next) - phi(now)) is added. phi is the judge's progress, 1 once success is decided, and
0 at the end of an episode that is lost. This speeds up learning and does not change which policy is best (Ng, 1999). A
success is worth 1 + w minus the progress at the start. With a phi of 0 at success, success would take back what was
paid before, and hovering would look better. The environment's own success is never read here.
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

    mode: Mode = "replace"  # replace the env's reward, add to it, or pay the label of the last step only (terminal)
    reward_type: RewardType = "binary"  # 1 where success was decided and 0 elsewhere, or the judge's probability
    shaping: NonNegativeFloat = 0.0  # weight of the judge's progress; 0: none
    env_reward: Literal["sparse", "dense"] = "sparse"  # dense: the environment's own reward, and no label is read

    @property
    def reads_env(self) -> bool:
        """Whether the simulator's own values are needed besides the labels."""
        return self.mode == "add" or self.env_reward == "dense"


@dataclass(frozen=True, eq=False)
class Decisions:
    """What rewards are computed from: arrays [T+1] of an episode, or [T+1, N] of N environments side by side."""

    success: BoolArray
    success_prob: FloatArray | None = None  # None: the judge only decides yes or no
    progress: FloatArray | None = None
    labeled: BoolArray | None = None  # None: all frames

    @classmethod
    def of(cls, labels: Labels, progress: FloatArray | None = None) -> "Decisions":
        """From labels; `progress` is the judge's, for labels of a person, which have none."""
        if labels.scores is None:
            return cls(labels.success, None, progress, labels.labeled)
        own = labels.scores.progress
        return cls(labels.success, labels.scores.success_prob, progress if own is None else own, labels.labeled)


@dataclass(frozen=True, eq=False)
class LearningSignal:
    """What each action led to: arrays [T] of an episode, or [T, N]."""

    reward: FloatArray  # NaN where the observation after the action is not labeled
    terminal: BoolArray  # nothing follows: success, failure, or the operator ended the episode
    used: BoolArray  # whether the step may be learned from


def learning_signal(
    decided: Decisions,
    ended: BoolArray,
    env_info: Mapping[str, AnyArray],
    config: RewardConfig,
    gamma: float,
    *,
    terminate_on_success: bool = True,
    last: BoolArray | None = None,
) -> LearningSignal:
    """Rewards, ends and usable steps of an episode, or of N episodes side by side.

    ended: [T] or [T, N] steps that ended an episode for good: the environment's failure, or the operator's mark.
        A time limit is not one of them; a value function looks past it
    env_info: what only the simulator knows, [T] or [T, N] each
    terminate_on_success: the first success is terminal, and no step after it is used
    last: the last step of each episode; None: the last of all
    """
    success = decided.success[1:]
    labeled = np.ones_like(success) if decided.labeled is None else decided.labeled[1:]
    earlier = (np.cumsum(success, axis=0) - success) > 0  # steps after the first success
    terminal, used = ended.copy(), labeled
    if terminate_on_success:
        terminal, used = terminal | (success & ~earlier), used & ~earlier
    reward = _rewards(decided, ended & ~success, env_info, config, gamma, last)
    return LearningSignal(np.where(labeled, reward, np.float32(np.nan)), terminal, used)


def _rewards(
    decided: Decisions,
    failed: BoolArray,
    env_info: Mapping[str, AnyArray],
    config: RewardConfig,
    gamma: float,
    last: BoolArray | None,
) -> FloatArray:
    """[T] or [T, N] rewards: reward[t] is for what action t led to."""
    if config.env_reward == "dense":
        return _env_value(env_info, "reward", "a dense reward of its own")
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
        reward = reward + _env_value(env_info, "shaping", "a reward of its own that does not pay for success")
    if config.shaping:
        if decided.progress is None:
            raise JudgeError(
                "shaping needs a judge that measures progress; set reward.shaping to 0, or name one that does "
                "(judge.progress=runs/progress, which plaudit train-progress makes)"
            )
        phi = np.where(success, np.float32(1), decided.progress)
        phi[1:][failed] = 0  # shaping is taken back where the episode is lost
        reward = reward + np.float32(config.shaping) * (np.float32(gamma) * phi[1:] - phi[:-1])
    return reward


def _env_value(env_info: Mapping[str, AnyArray], name: str, what: str) -> FloatArray:
    if name not in env_info:
        raise JudgeError(
            f"this reward needs {what} from the simulation, which has none ('{name}'); use reward.mode=replace and "
            "reward.env_reward=sparse"
        )
    return env_info[name].astype(np.float32)
