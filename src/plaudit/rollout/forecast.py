"""Whether a running episode is likely to fail: its task progress by a model, and a hint to take over when it stalls.

    forecast = load_forecast(config)             # chooses the threshold on episodes that the model has not seen
    with forecast.watch(engine, operator):       # the operator's screen shows progress and hint

The rise of an episode is how much its best progress grew within the last `window_s`. A hint appears where the rise is
below a threshold. The threshold is chosen on held-out labeled episodes: at most `max_false` of the successful ones have
a hint before they succeed. A thread scores the frames as they are recorded. Neither control nor inference waits for it,
and an error of the model ends the forecast and not the episode.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from plaudit.config import Config, Fraction, PositiveFloat
from plaudit.data.store import Store
from plaudit.errors import DataError, PlauditError
from plaudit.judges.classifier.config import ProgressJudgeConfig
from plaudit.judges.evaluation import unseen_reference
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.processes import run_thread
from plaudit.protocols import InferenceEngine, LiveJudge, ScoreStream
from plaudit.rollout.operator import Operator
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.trust import print_plain
from plaudit.types import PEOPLE, Episode, FloatArray, Observation, Scores

POLL_S = 0.1  # between looks at new frames
AT_A_TIME = 20  # held-out episodes that are scored at once
SOURCES = (*sorted(PEOPLE), SIMULATOR)  # whose labels tell successes from failures


class ForecastConfig(Config):
    """A hint when the policy is likely to fail."""

    progress: Path  # a model of progress (plaudit train-progress)
    store: Path  # labeled episodes at the robot's control rate, which the model has not seen
    window_s: PositiveFloat = 2.0  # over which the rise of progress is measured
    max_false: Fraction = 0.1  # of the successful episodes, those in which a hint may appear
    device: str = "auto"  # cpu, cuda, or auto: a GPU if there is one


def rises(progress: FloatArray, window: int) -> FloatArray:
    """[T+1] how much the best progress grew within the last `window` steps; infinity before there are so many.

    >>> rises(np.array([0.0, 0.2, 0.1, 0.2, 0.5]), 2).tolist()
    [inf, inf, 0.2, 0.0, 0.3]
    """
    best = np.maximum.accumulate(np.nan_to_num(np.asarray(progress, float)))
    grown = np.full(len(best), np.inf)
    grown[window:] = best[window:] - best[:-window]
    return grown


@dataclass(frozen=True)
class Threshold:
    """The rise below which a hint appears, and what it does on the held-out episodes."""

    value: float
    successes: int
    failures: int
    false: float  # fraction of the successes with a hint before they succeed
    caught: float  # fraction of the failures with a hint; NaN without failures

    @classmethod
    def choose(cls, lowest: FloatArray, success: Sequence[bool], max_false: float) -> "Threshold":
        """The largest with at most `max_false` false hints. lowest: rise of each episode, up to its success"""
        of_successes = np.sort(lowest[np.asarray(success, bool)])
        of_failures = lowest[~np.asarray(success, bool)]
        needed = int(np.ceil(1 / max(max_false, 1e-3)))
        if len(of_successes) < needed:
            raise DataError(
                f"a threshold with at most {max_false:.0%} false hints needs {needed} successful episodes that the "
                f"model has not seen, but there are {len(of_successes)}; label more, or raise forecast.max_false"
            )
        value = float(of_successes[int(max_false * len(of_successes))])
        if not np.isfinite(value):
            raise DataError("successes are shorter than forecast.window_s, so nothing is learned from them; lower it")
        caught = float(np.mean(of_failures < value)) if len(of_failures) else float("nan")
        return cls(value, len(of_successes), len(of_failures), float(np.mean(of_successes < value)), caught)

    @property
    def summary(self) -> str:
        """For people."""
        failures = f" and {self.caught:.0%} of {self.failures} failures" if self.failures else ""
        return f"hints on held-out episodes: in {self.false:.0%} of {self.successes} successes{failures}"


class Forecast:
    """Shows how far a running episode is."""

    def __init__(self, judge: LiveJudge, threshold: Threshold, window_s: float):
        self.threshold, self._judge, self._window_s = threshold, judge, window_s

    @contextmanager
    def watch(self, engine: InferenceEngine, operator: Operator) -> Iterator[None]:
        """Advise the operator during the episodes of this block."""
        print_plain(self.threshold.summary)
        with run_thread("forecast", partial(self._follow, engine, operator)):
            yield

    def _follow(self, engine: InferenceEngine, operator: Operator, done: threading.Event) -> None:
        buffer: EpisodeBuffer | None = None
        stream, progress = self._judge.stream(1), list[float]()
        try:
            while not done.wait(POLL_S):
                if engine.recording is not buffer:
                    buffer, progress = engine.recording, []
                if buffer is not None and self._read(buffer, stream, progress):
                    operator.advise(*self.describe(progress, buffer.env_spec.fps))
        except PlauditError as error:
            print_plain(f"hints stopped: {error}")

    def _read(self, buffer: EpisodeBuffer, stream: ScoreStream, progress: list[float]) -> bool:
        """Score the frames that are new; returns whether there were any."""
        before = len(progress)
        for row in range(before, buffer.num_observations):
            scores = score_row(stream, buffer.observation(row), first=row == 0)
            progress.append(float(np.nan if scores.progress is None else scores.progress[0]))
        return len(progress) > before

    def describe(self, progress: Sequence[float], fps: float) -> tuple[str, str]:
        """How far an episode is, and why a person should take over; "" where they need not."""
        stalls = rises(np.asarray(progress), max(1, round(self._window_s * fps)))[-1] < self.threshold.value
        hint = f"take over: no progress for {self._window_s:g} s" if stalls else ""
        return f"progress {progress[-1]:.0%}", hint


def score_row(stream: ScoreStream, observation: Observation, *, first: bool) -> Scores:
    """The scores of one frame of one episode."""
    images = {camera: frame[None] for camera, frame in observation.images.items()}
    one = Observation(images, observation.state[None])
    return stream.reset(one) if first else stream.step(one, {})


def load_forecast(config: ForecastConfig) -> Forecast:
    """Load the model, and choose the threshold on the labeled episodes that it has not seen."""
    judge_config = ProgressJudgeConfig(model=config.progress, device=config.device)
    judge: LiveJudge = judge_config.build()
    store = Store.open(config.store)
    targets = unseen_reference(store, judge_config, judge, SOURCES, store.ids, include=None).targets
    lowest: list[float] = []
    success: list[bool] = []
    ids = sorted(targets)
    for start in range(0, len(ids), AT_A_TIME):
        chosen = [(i, store.episode(i)) for i in ids[start : start + AT_A_TIME]]
        for (i, episode), scores in zip(chosen, judge.score([episode for _, episode in chosen]), strict=True):
            if not isinstance(scores, Scores) or scores.progress is None:
                raise scores if isinstance(scores, PlauditError) else DataError(f"{config.progress} has no progress")
            success.append(bool((targets[i] == 1).any()))
            lowest.append(lowest_rise(scores.progress, targets[i], episode, config.window_s))
    return Forecast(judge, Threshold.choose(np.array(lowest), success, config.max_false), config.window_s)


def lowest_rise(progress: FloatArray, target: FloatArray, episode: Episode, window_s: float) -> float:
    """The lowest rise of an episode, up to its success if it has one. target: 1, 0 or NaN for each frame"""
    end = int(np.argmax(target == 1)) if (target == 1).any() else len(progress)
    grown = rises(progress, max(1, round(window_s * episode.fps)))[:end]
    return float(grown.min(initial=np.inf))
