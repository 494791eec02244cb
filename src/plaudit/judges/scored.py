"""What a judge said of an episode beside what is true of it: all that measuring, calibrating and controls begin with.

All that is asked of a judge is P(success) of each frame, and of the truth 1, 0 or NaN; a frame without a truth counts
neither for nor against. A frame is called a success where its probability is at least the threshold, everywhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from plaudit.errors import JudgeError
from plaudit.rule import above_threshold
from plaudit.types import AnyArray, BoolArray, ByteArray, FloatArray


@dataclass(frozen=True, eq=False)
class EpisodePrediction:
    """One held-out episode: what the judge said of its recorded frames, and what is true."""

    probability: FloatArray  # [F] the judge's P(success) of each frame
    truth: FloatArray  # [F] 1 success, 0 failure, NaN where not known
    episode: int  # its id

    def __post_init__(self) -> None:
        probability, truth = np.asarray(self.probability, np.float32), np.asarray(self.truth, np.float32)
        object.__setattr__(self, "probability", probability)
        object.__setattr__(self, "truth", truth)
        where = f"episode {self.episode}"
        if probability.ndim != 1 or probability.shape != truth.shape:
            raise JudgeError(
                f"{where}: probability and truth must be [F], got {list(probability.shape)} and {list(truth.shape)}"
            )
        if not ((probability >= 0) & (probability <= 1)).all():
            raise JudgeError(
                f"{where}: a probability is NaN or lies outside [0, 1]; give logits to a Calibration first"
            )
        if not np.isin(truth[~np.isnan(truth)], (0, 1)).all():
            raise JudgeError(f"{where}: truth must be 1, 0 or NaN")

    @property
    def judged(self) -> BoolArray:
        """[F] the frames whose truth is known."""
        return ~np.isnan(self.truth)

    @property
    def first(self) -> int | None:
        """The first frame that shows success."""
        return first_true(self.truth == 1)

    def called(self, threshold: float) -> BoolArray:
        """[F]"""
        return above_threshold(self.probability, threshold)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        truth = [None if np.isnan(value) else int(value) for value in self.truth]
        return {"episode": self.episode, "truth": truth, "probability": self.probability.tolist()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        return cls(np.array(tree["probability"], np.float32), np.array(tree["truth"], np.float32), tree["episode"])


@dataclass(frozen=True, eq=False)
class FramePrediction:
    """A frame and what the judge said of it, to be looked at."""

    episode: int
    frame: int
    truth: float  # 1 or 0
    probability: float  # that the judge gave it
    image: ByteArray  # uint8 [H, W, 3]


def side_by_side(pictures: Sequence[ByteArray]) -> ByteArray:
    """[..., H, W, 3] of several cameras as one, on white where one is lower than the others."""
    tallest = max(picture.shape[-3] for picture in pictures)
    room = [
        np.pad(p, [*[(0, 0)] * (p.ndim - 3), (0, tallest - p.shape[-3]), (0, 0), (0, 0)], constant_values=255)
        for p in pictures
    ]
    return np.concatenate(room, axis=-2)


def largest_errors(episodes: Sequence[EpisodePrediction], most: int = 24) -> list[tuple[EpisodePrediction, int]]:
    """Frames with the largest error, worst first, at most four of an episode and these apart: neighbours look alike."""
    places = [(error, episode, frame) for episode in episodes for error, frame in _worst_of(episode)]
    places.sort(key=lambda place: -place[0])
    return [(episode, frame) for error, episode, frame in places[:most] if error >= 0.05]


def _worst_of(episode: EpisodePrediction) -> list[tuple[float, int]]:
    """Four frames at most, with their errors."""
    error = np.nan_to_num(np.abs(episode.probability - episode.truth))
    apart = len(error) // 20
    chosen: list[int] = []
    for frame in np.argsort(-error, kind="stable").tolist():
        if len(chosen) < 4 and all(abs(frame - other) > apart for other in chosen):
            chosen.append(frame)
    return [(float(error[frame]), frame) for frame in chosen]


def first_true(yes: BoolArray) -> int | None:
    return int(yes.argmax()) if yes.any() else None


def drop_unlabeled(truth: AnyArray, other: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Both, where the truth is known."""
    truth, other = np.asarray(truth, np.float64), np.asarray(other, np.float64)
    if truth.shape != other.shape or truth.ndim != 1:
        raise JudgeError(
            f"truth {list(truth.shape)} and what is measured {list(other.shape)} must be of one length, [F]"
        )
    known = ~np.isnan(truth)
    return truth[known], other[known]
