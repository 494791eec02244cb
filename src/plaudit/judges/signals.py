"""What a judge's scores mean: their unit, direction and bounds, and which of them may be compared.

    config.signals["progress"].scope      # "episode": comparable only within one episode
    check_compared(config); check_rewarded(config, reward)

A score that was scaled by the smallest and the largest value of its own episode ends near 1 in every episode, also in
one that fails. It shows the order within an episode and nothing about which episode succeeds, so it is refused where
episodes are compared or rewarded.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plaudit.data.rewards import RewardConfig
from plaudit.errors import JudgeError

SUCCESS, PROGRESS = "success_prob", "progress"  # the arrays of `Scores`


@dataclass(frozen=True)
class Signal:
    """The meaning of one array of scores."""

    description: str
    unit: Literal["probability", "fraction", "score"] = "probability"
    direction: Literal["higher", "lower"] = "higher"  # which values are better
    bounds: tuple[float, float] = (0.0, 1.0)
    scope: Literal["any", "task", "episode"] = "any"  # episodes whose values may be compared: any, of one task, itself


DEFAULT: Mapping[str, Signal] = {SUCCESS: Signal("probability that the frame shows success")}


def check_compared(config: Any) -> None:
    """Refuse a judge whose scores mean nothing outside of their own episode, where episodes are compared.

    config: a `JudgeConfig`
    """
    if config.signals[SUCCESS].scope == "episode":
        raise JudgeError(
            f"judge '{config.type}' scales its scores by the smallest and the largest of each episode, so a failure "
            "ends near 1 like a success. Episodes cannot be compared by such scores; leave the scaling out (scale=none)"
        )


def check_rewarded(config: Any, reward: RewardConfig) -> None:
    """Refuse rewards that a judge's scores must not become."""
    check_compared(config)
    progress = config.signals.get(PROGRESS)
    if reward.shaping and progress is not None and progress.scope == "episode":
        raise JudgeError(
            f"the progress of judge '{config.type}' is scaled within each episode, so it would pay failures like "
            "successes; set reward.shaping=0, or leave the scaling out (scale=none)"
        )
    paid = reward.reward_type == "continuous" and reward.mode != "terminal"
    if paid and config.signals[SUCCESS].unit != "probability":
        raise JudgeError(
            f"the scores of judge '{config.type}' are progress, and reward.reward_type=continuous would pay it at "
            "every step. A policy then earns most by staying almost finished for as long as it can. Use "
            "reward.reward_type=binary, and reward.shaping for progress: it pays only for changes, so the best policy "
            "stays the same"
        )
