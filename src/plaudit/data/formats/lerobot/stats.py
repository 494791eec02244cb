"""Statistics of features as LeRobot keeps them: min, max, mean, std, count and five quantiles, of vectors and of
images."""

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from plaudit.types import AnyArray, ByteArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
SAMPLED_FRAMES = 100  # of an episode, evenly spaced: neighbors say the same


def describe(values: AnyArray) -> dict[str, Any]:
    """Of a column `[N]` or `[N, D]`: each statistic is a list of D numbers. NaN (not judged) does not count."""
    values = np.asarray(values).reshape(len(values), -1)
    numbers = values.astype(np.float64)
    numbers = numbers[~np.isnan(numbers).any(axis=1)]
    if not len(numbers):
        numbers = np.zeros((1, values.shape[1]))
    low, high = (edge.astype(values.dtype).tolist() for edge in (numbers.min(axis=0), numbers.max(axis=0)))
    found = {"min": low, "max": high, "mean": numbers.mean(axis=0).tolist(), "std": numbers.std(axis=0).tolist()}
    quantiles = np.quantile(numbers, list(QUANTILES.values()), axis=0)
    return found | {"count": [len(values)]} | {name: q.tolist() for name, q in zip(QUANTILES, quantiles)}


@dataclass
class ImageHistogram:
    """Counts of each byte value in each channel: exact statistics that add up over episodes."""

    counts: AnyArray = field(default_factory=lambda: np.zeros((3, 256), np.int64))
    frames: int = 0

    @classmethod
    def of(cls, frames: ByteArray) -> Self:
        chosen = frames[np.unique(np.linspace(0, len(frames) - 1, SAMPLED_FRAMES).astype(int))]
        return cls(np.stack([np.bincount(chosen[..., c].reshape(-1), minlength=256) for c in range(3)]), len(chosen))

    def __add__(self, other: Self) -> "ImageHistogram":
        return ImageHistogram(self.counts + other.counts, self.frames + other.frames)

    def describe(self) -> dict[str, Any]:
        """Each statistic `[3, 1, 1]` in [0, 1]; `count` is of frames."""
        level = np.arange(256) / 255
        share = self.counts / self.counts.sum(axis=1, keepdims=True)
        mean = share @ level
        std = np.sqrt(np.maximum(share @ level**2 - mean**2, 0))
        below = share.cumsum(axis=1)
        seen = self.counts > 0
        found = {"min": level[seen.argmax(axis=1)], "max": level[255 - seen[:, ::-1].argmax(axis=1)]}
        found |= {"mean": mean, "std": std}
        found |= {name: level[(below >= q - 1e-12).argmax(axis=1)] for name, q in QUANTILES.items()}
        shaped = {name: values.reshape(3, 1, 1).tolist() for name, values in found.items()}
        return shaped | {"count": [self.frames]}
