"""A judge's P(success) of an episode's frames beside the reference: what metrics, calibration and reports start from.

A frame without a reference label has a target of NaN and is never counted. A frame is predicted a success where its
probability is at least the threshold.
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
    """The recorded frames of one held-out episode."""

    success_prob: FloatArray  # [F] by the judge
    target: FloatArray  # [F] 1 success, 0 failure, NaN without a reference label
    episode: int  # its id

    def __post_init__(self) -> None:
        prob, target = np.asarray(self.success_prob, np.float32), np.asarray(self.target, np.float32)
        object.__setattr__(self, "success_prob", prob)
        object.__setattr__(self, "target", target)
        where = f"episode {self.episode}"
        if prob.ndim != 1 or prob.shape != target.shape:
            raise JudgeError(
                f"{where}: success_prob and target must be [F], got {list(prob.shape)} and {list(target.shape)}"
            )
        if not ((prob >= 0) & (prob <= 1)).all():
            raise JudgeError(f"{where}: a probability is NaN or outside [0, 1]; apply PlattScaling to logits first")
        if not np.isin(target[~np.isnan(target)], (0, 1)).all():
            raise JudgeError(f"{where}: a target must be 1, 0 or NaN")

    @property
    def has_target(self) -> BoolArray:
        """[F] the frames with a reference label."""
        return ~np.isnan(self.target)

    @property
    def first_success(self) -> int | None:
        """The first frame that shows success."""
        return first_true(self.target == 1)

    @property
    def errors(self) -> FloatArray:
        """[F] |success_prob - target|; 0 without a reference label."""
        return np.nan_to_num(np.abs(self.success_prob - self.target))

    def predicted(self, threshold: float) -> BoolArray:
        """[F] the frames predicted a success."""
        return above_threshold(self.success_prob, threshold)

    def to_json(self) -> dict[str, Any]:
        """NaN becomes None: JSON has no NaN."""
        target = [None if np.isnan(value) else int(value) for value in self.target]
        return {"episode": self.episode, "target": target, "success_prob": self.success_prob.tolist()}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> Self:
        """What `to_json` returned."""
        return cls(np.array(tree["success_prob"], np.float32), np.array(tree["target"], np.float32), tree["episode"])


@dataclass(frozen=True, eq=False)
class FramePrediction:
    """One frame, to be looked at."""

    episode: int
    frame: int
    target: float  # 1 or 0
    success_prob: float  # by the judge
    image: ByteArray  # uint8 [H, W, 3]


def hstack_images(images: Sequence[ByteArray]) -> ByteArray:
    """[..., H, W, 3] of several cameras side by side, on white where one is lower than the others."""
    height = max(image.shape[-3] for image in images)
    padded = [
        np.pad(
            image,
            [*[(0, 0)] * (image.ndim - 3), (0, height - image.shape[-3]), (0, 0), (0, 0)],
            constant_values=255,
        )
        for image in images
    ]
    return np.concatenate(padded, axis=-2)


def largest_errors(episodes: Sequence[EpisodePrediction], max_frames: int = 24) -> list[tuple[EpisodePrediction, int]]:
    """Frames with the largest errors, at most four of an episode and these apart: neighbors look alike."""
    places = [(error, episode, frame) for episode in episodes for error, frame in _largest_of(episode)]
    places.sort(key=lambda place: -place[0])
    return [(episode, frame) for error, episode, frame in places[:max_frames] if error >= 0.05]


def _largest_of(episode: EpisodePrediction) -> list[tuple[float, int]]:
    """At most four frames, with their errors."""
    errors = episode.errors
    min_distance = len(errors) // 20
    chosen: list[int] = []
    for frame in np.argsort(-errors, kind="stable").tolist():
        if len(chosen) < 4 and all(abs(frame - other) > min_distance for other in chosen):
            chosen.append(frame)
    return [(float(errors[frame]), frame) for frame in chosen]


def first_true(mask: BoolArray) -> int | None:
    """The first index that is True; None where there is none."""
    return int(mask.argmax()) if mask.any() else None


def drop_unlabeled(target: AnyArray, values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Both in float64, without the frames that have no target."""
    target, values = np.asarray(target, np.float64), np.asarray(values, np.float64)
    if target.shape != values.shape or target.ndim != 1:
        raise JudgeError(f"targets {list(target.shape)} and scores {list(values.shape)} must be of one length, [F]")
    labeled = ~np.isnan(target)
    return target[labeled], values[labeled]
