"""A reward model as a judge of stored episodes.

What its rule does not say is the model's own: the threshold that its training chose, and the frames that its cutoffs
were found to be late by. Its probabilities are calibrated already, so temperature 1 and bias 0 leave them as they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.errors import PlauditError
from plaudit.judges.classifier.judge import RewardModel
from plaudit.judges.config import FrameLabelerConfig
from plaudit.judges.frames import FrameLabeler, Rule
from plaudit.types import Episode, FloatArray

_SURE = 1e-9  # a probability of 1 has log-odds of 20.7, and comes back as 1


class ClassifierScorer:
    """A `FrameScorer`."""

    source = "classifier"

    def __init__(self, model: RewardModel):
        self.model = model

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        return [self._score(episode) for episode in episodes]

    def _score(self, episode: Episode) -> FloatArray | PlauditError:
        try:
            said = self.model.judge(episode).probability[episode.recorded].astype(np.float64)
        except PlauditError as error:  # a camera that is not there, frames of another size
            return error
        said = np.clip(said, _SURE, 1 - _SURE)
        return np.log(said / (1 - said)).astype(np.float32)


class ClassifierLabelerConfig(FrameLabelerConfig):
    type: Literal["classifier"] = "classifier"
    model: Path  # a reward model: its folder, or a .pt
    force: bool = False  # take it although it failed a control
    device: str = "auto"

    def build(self) -> FrameLabeler:
        model = RewardModel.load(self.model, self.device, force=self.force)
        return FrameLabeler(ClassifierScorer(model), self._rule_for(model))

    def _rule_for(self, model: RewardModel) -> Rule:
        said = {name: getattr(self.rule, name) for name in self.rule.model_fields_set}
        return Rule(**{"threshold": model.threshold, "shift": model.facts.cutoff_shift, **said})
