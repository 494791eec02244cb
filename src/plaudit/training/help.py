"""How much a person helps the robot, and whether it succeeds without help."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from plaudit.types import HUMAN, Episode


class HelpedEpisode(NamedTuple):
    """What a person did in an episode, and how it ended."""

    steps: int
    by_person: int  # steps
    interventions: int
    fps: float
    success: bool  # by the judge or the operator
    true_success: bool | None  # by the simulator; None on a robot


@dataclass
class HelpStats:
    """Interventions in the newest episodes.

    Success with and without help are told apart: help makes the robot look better than its policy is.
    """

    window: int  # episodes
    _episodes: deque[HelpedEpisode] = field(init=False, repr=False)
    _since_s: float = 0.0  # the last intervention

    def __post_init__(self) -> None:
        self._episodes = deque(maxlen=self.window)

    def add(self, episode: Episode, success: bool) -> None:
        """Count an episode, the newest."""
        human = episode.control_mode == HUMAN
        starts = int(np.count_nonzero(human[1:] & ~human[:-1])) + int(human[0])
        true_success = None if episode.success is None else bool(episode.success.any())
        self._episodes.append(HelpedEpisode(len(human), int(human.sum()), starts, episode.fps, success, true_success))
        acted = np.flatnonzero(human)
        since, before = (len(human) - 1 - int(acted[-1]), 0.0) if len(acted) else (len(human), self._since_s)
        self._since_s = before + since / episode.fps

    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md."""
        if not self._episodes:
            return {}
        steps = sum(one.steps for one in self._episodes)
        interventions = sum(one.interventions for one in self._episodes)
        numbers = {
            "person/intervention_rate": sum(one.by_person for one in self._episodes) / steps,
            "person/helped_episodes": float(np.mean([one.by_person > 0 for one in self._episodes])),
            "person/seconds_since": self._since_s,
        }
        unaided = [one.success and not one.by_person for one in self._episodes]
        numbers["judge/success_unaided"] = float(np.mean(unaided))
        if interventions:
            acted_s = sum(one.by_person / one.fps for one in self._episodes)
            numbers["person/intervention_s"] = acted_s / interventions
        helped, alone = ([one for one in self._episodes if bool(one.by_person) is by] for by in (True, False))
        numbers |= _rates(helped, "judge/success_with_help", "env/success_with_help")
        numbers |= _rates(alone, "judge/success_without_help", "env/success_without_help")
        return numbers


def _rates(episodes: list[HelpedEpisode], judged: str, true: str) -> dict[str, float]:
    """Success of these by the judge and by the simulator, under two names; of none where there are none."""
    known = [one.true_success for one in episodes if one.true_success is not None]
    rates = {judged: float(np.mean([one.success for one in episodes]))} if episodes else {}
    return rates | ({true: float(np.mean(known))} if known else {})
