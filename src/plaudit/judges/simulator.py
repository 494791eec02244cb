"""The simulator as a judge: its own success flag, live or as it was stored with the episode.

For measuring others against it, and for runs that need no other judge. No robot has one.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from plaudit.errors import DataError, PlauditError
from plaudit.judges.config import JudgeConfig
from plaudit.rule import DecisionRule, PartialRule
from plaudit.types import AnyArray, BoolArray, Episode, JudgeId, Observation, Scores

SOURCE = "simulator"
AS_IT_SAYS = DecisionRule(decode="per_frame")


class SimulatorJudge:
    """A `LiveJudge`; it and the noisy one made of it are the only ones that read `info` and `privileged`."""

    def __init__(self, rule: DecisionRule = AS_IT_SAYS):
        """rule: another than the flag as it is, for annotating data"""
        self.rule = rule
        self.id = JudgeId(SOURCE, rule="" if rule == AS_IT_SAYS else rule.key())

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """The flag of each episode; an error for one that no simulator recorded."""
        return [_score(episode) for episode in episodes]

    def stream(self, num_envs: int) -> "SimulatorStream":
        return SimulatorStream(num_envs)


class SimulatorStream:
    """A `ScoreStream` of the flag."""

    def __init__(self, num_envs: int):
        self._num_envs = num_envs

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        """Before any action nothing has succeeded."""
        prob = np.zeros(self._num_envs, np.float32)
        return Scores(prob if mask is None else np.where(mask, prob, np.float32(np.nan)))

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        return Scores(info["success"].astype(np.float32))


def _score(episode: Episode) -> Scores | DataError:
    if episode.success is None:
        return DataError(
            "no simulator knows of this episode (it has no 'success' among what is privileged); label it with another "
            "judge"
        )
    return Scores(np.concatenate([[0], episode.success]).astype(np.float32))


class SimulatorJudgeConfig(JudgeConfig):
    """Of the simulator's own flag."""

    needs_certificate: ClassVar[bool] = False
    reads_simulator: ClassVar[bool] = True

    type: Literal["simulator"] = "simulator"
    rule: PartialRule = Field(default=AS_IT_SAYS)

    def build(self) -> SimulatorJudge:
        return SimulatorJudge(self.rule)
