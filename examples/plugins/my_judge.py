"""A judge to copy: success is a bright image (docs/add_a_judge.md)."""

from collections.abc import Sequence

import numpy as np

from plaudit.judges.config import JudgeConfig
from plaudit.types import Episode, JudgeId, Scores


class BrightnessConfig(JudgeConfig):  # has `rule` and `calibration`
    white: float = 255.0

    def build(self) -> "Brightness":
        return Brightness(self)


class Brightness:
    """Success is a bright picture."""

    def __init__(self, config: BrightnessConfig):
        self.rule = config.rule
        self.id = JudgeId("brightness", f"white {config.white:g}", self.rule.key())
        self._white = config.white

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores]:
        lights = [episode.frames["front"].mean(axis=(1, 2, 3)) for episode in episodes]
        return [Scores(np.clip(light / self._white, 0, 1).astype(np.float32)) for light in lights]
