"""A judge with the values of a model of progress added, for potential-based shaping.

    judge = JudgeWithProgress(SimulatorJudge(), progress)     # of `judge.progress=runs/progress`

The judge alone says what succeeded; the model, which `plaudit train-progress` makes, says how far it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from plaudit.errors import JudgeError, PlauditError
from plaudit.protocols import Judge, LiveJudge, ScoreStream
from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, Observation, Scores

STALLED = 0.05  # a smaller rise of progress does not count
STALL_FRACTION = 1 / 3  # of an episode, at its end: so long without a rise is a stall


class JudgeWithProgress:
    """A `LiveJudge` where the judge is one: its own scores, with the progress of another."""

    def __init__(self, judge: Judge, progress: LiveJudge):
        self.judge, self.progress, self.rule = judge, progress, judge.rule
        # Labels have both judges' numbers, so either of them changed makes other labels.
        self.id = replace(judge.id, progress=progress.id.fingerprint)
        self.uncalibrated = getattr(judge, "uncalibrated", judge.id.fingerprint)
        self.warnings: Sequence[str] = getattr(judge, "warnings", ())
        self.trained_on: str | None = getattr(judge, "trained_on", None)

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """The first error of the two where one of them has one."""
        answers: list[Scores | PlauditError | None] = []
        for one, value in zip(self.judge.score(episodes), self.progress.score(episodes), strict=True):
            if isinstance(one, Scores) and isinstance(value, Scores):
                answers.append(replace(one, progress=value.progress))
            else:
                answers.append(value if isinstance(one, Scores) else one)
        return answers

    def stream(self, num_envs: int) -> "StreamWithProgress":
        if not isinstance(self.judge, LiveJudge):
            raise JudgeError(f"judge '{self.id.source}' scores whole episodes, and cannot follow one")
        return StreamWithProgress(self.judge.stream(num_envs), self.progress.stream(num_envs))


class StreamWithProgress:
    """A `ScoreStream` of two."""

    def __init__(self, judge: ScoreStream, progress: ScoreStream):
        self._judge, self._progress = judge, progress

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        value = self._progress.reset(observation, mask)
        return replace(self._judge.reset(observation, mask), progress=value.progress)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        return replace(self._judge.step(observation, info), progress=self._progress.step(observation, {}).progress)


def describe_progress(values: FloatArray) -> str:
    """How far an episode came, and whether it stalled: '62%, stalled'."""
    values = values[~np.isnan(values)]
    if not len(values):
        return ""
    before = values[: max(1, round(len(values) * (1 - STALL_FRACTION)))]
    stalled = values[len(before) :].max(initial=0.0) <= before.max() + STALLED and values[-1] < 1 - STALLED
    return f"{values[-1]:.0%}{', stalled' if stalled else ''}"
