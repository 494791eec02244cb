"""A judge you can follow by eye: frames of `counting_episode` are as bright as their number, success is from `cut` on.

It says log-odds of 2 * (brightness - cut + 1/2), and -5 to anything brighter than a counting episode can be.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.config import JudgeConfig
from plaudit.types import Episode, JudgeId, Labels, Scores

CUT, STEPS = 4, 7  # episodes of frames 0 to 7; those that fail are all dark
NAME = "brightness:BrightnessConfig"


class Brightness:
    """A `Judge`."""

    def __init__(self, config: "BrightnessConfig"):
        self._config, self.rule = config, config.rule
        self.uncalibrated = f"cut {config.cut:g}"
        self.id = JudgeId("brightness", fingerprint_of(self.uncalibrated, config.calibration), config.rule.key())
        self.asked = 0  # episodes

    def score(self, episodes: Sequence[Episode]):
        if self.asked == self._config.stuck_after:
            time.sleep(1e6)
        self.asked += len(episodes)
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode):
        if not episode.task:
            return JudgeError("this episode has no task text; give it one")
        light = episode.frames["front"].mean(axis=(1, 2, 3))
        said = 2 * (light - self._config.cut + 0.5)
        told = episode.task == "count" or not self._config.obeys
        logit = np.where((light <= self._config.brightest) & told, said, -5)
        return Scores((self._config.calibration or PlattScaling())(logit))


class BrightnessConfig(JudgeConfig):
    cut: float = CUT
    brightest: float = 60
    obeys: bool = True  # whether it goes by the instruction
    stuck_after: int | None = None  # episodes

    @property
    def uses_task(self) -> bool:
        return True

    def build(self) -> Brightness:
        return Brightness(self)


def bright_store(folder: Path, successes: int = 3, failures: int = 3, source: str = "human", **facts: object) -> Store:
    """Episodes that get bright, and some that stay dark; each labeled as it is."""
    store = Store.create(folder)
    for number in range(successes + failures):
        episode = counting_episode(STEPS, **facts)
        if number >= successes:
            episode = replace(episode, frames={"front": np.minimum(episode.frames["front"], 2)})
        labels = Labels.from_cutoff(steps=STEPS, cutoff=CUT if number < successes else None, source=source)
        store.ledger.append(store.append(episode), labels)
    return store


def ramp(top: int, **facts: object) -> Episode:
    """Brighter with every frame, up to a brightness."""
    episode = counting_episode(STEPS, **facts)
    return replace(episode, frames={"front": np.minimum(episode.frames["front"], top)})
