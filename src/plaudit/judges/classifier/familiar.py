"""What a reward model learned from, and whether an episode is unlike it.

    familiar = Familiar.fit(views, held_out)       # of the episodes that it was trained and measured on
    familiar.reason(view)                          # why an episode is unlike them; "" where it is not

A network answers whatever it is shown, with no less certainty on a table that it has never seen. Four signs say that it
is out of its depth: frames whose encoder features and colors (which an encoder may have learned to ignore, or not
learned at all) are far from those of all known episodes (nearest neighbors), a start
outside the range of known starts (Mahalanobis distance along the directions in which these differ: the neighbors of a
start are far apart anyway), members that disagree on whether the episode succeeds, and a start that already looks like
success where no known one did. Limits follow from the known episodes themselves, each compared with others only:
`FALSE_FLAGS` of them, by their rank, may lie beyond. Its own distance to what it learned from would flag every new one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from plaudit.errors import BadFile
from plaudit.torch_file import read_safetensors
from plaudit.types import AnyArray, Episode, FloatArray

FALSE_FLAGS = 0.03  # of familiar episodes; fewer than 32 can show no less than the highest of them
FRAMES = 16  # of an episode, evenly spread, that are compared
START_FRAMES = 3  # whose mean is the start
STARTS_LIKE_SUCCESS = 5  # first frames, of which two must reach the threshold
REFERENCES = 512  # frames of all known episodes that are kept, about
FOLDS = 20  # into which known episodes are dealt, each to be compared with the others
VARIANCE = 0.8  # of the starts, along the directions that count
CELLS, WIDTH = 4, 256  # of a feature map: so many rows and columns, and numbers of a camera in all
LEAST_DISAGREEMENT = 0.5  # between the members' probabilities of success


@dataclass(frozen=True, eq=False)
class EpisodeView:
    """What is compared of an episode."""

    frames: FloatArray  # [n, D] features, evenly spread over it
    start: FloatArray  # [D] of its first frames
    start_prob: float  # that it begins with success
    disagreement: float  # of the members on whether it succeeds, 0 to 1; 0 of a single one

    @classmethod
    def of(cls, features: FloatArray, prob: FloatArray, member_probs: Sequence[FloatArray]) -> Self:
        """features: of `compared_frames`; prob, member_probs: [F] P(success) of all frames, and by each member."""
        begun = np.sort(prob[:STARTS_LIKE_SUCCESS])[-2:][0]
        peaks = [_confirmed(one) for one in member_probs]
        return cls(features[START_FRAMES:], features[:START_FRAMES].mean(0), float(begun), max(peaks) - min(peaks))


def compared_frames(num_frames: int) -> AnyArray:
    """Of an episode of so many frames: the first ones, then some of all."""
    start = np.minimum(np.arange(START_FRAMES), num_frames - 1)
    return np.concatenate([start, np.linspace(0, num_frames - 1, min(FRAMES, num_frames)).astype(int)])


def first_steps(episode: Episode) -> Episode:
    """An episode up to where it can no longer start like success."""
    steps = min(episode.steps, STARTS_LIKE_SUCCESS)
    frames = {camera: images[: steps + 1] for camera, images in episode.frames.items()}
    cut = {name: getattr(episode, name)[:steps] for name in ("actions", "control_mode")}
    return replace(episode, frames=frames, state=episode.state[: steps + 1], privileged={}, padded="none", **cut)


def _confirmed(prob: FloatArray) -> float:
    """The highest probability that two of three frames in a row reach."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(prob, (2, 0)), 3)
    return float(np.sort(windows, axis=1)[:, 1].max())


def pooled(grid: Tensor) -> Tensor:
    """A camera's feature maps [B, C, h, w] as [B, at most WIDTH] numbers: cells are averaged, then summed up with
    random signs, which keeps distances as they are, nearly."""
    rows, columns = min(grid.shape[2], CELLS), min(grid.shape[3], CELLS)
    flat = F.adaptive_avg_pool2d(grid.float(), (rows, columns)).flatten(1)
    if flat.shape[1] <= WIDTH:
        return flat
    signs = 2 * np.random.RandomState(0).randint(0, 2, flat.shape[1]) - 1  # the same in every version
    signed = flat * torch.from_numpy(signs).to(flat)
    return F.pad(signed, (0, -signed.shape[1] % WIDTH)).unflatten(1, (-1, WIDTH)).sum(1)


@dataclass(frozen=True, eq=False)
class Familiar:
    """Known episodes, and how far from them others may be."""

    mean: FloatArray  # [D] of the features, and their deviation
    std: FloatArray
    frames: FloatArray  # [M, D] of the known episodes, standardized
    start: FloatArray  # [D] mean of the starts, standardized
    axes: FloatArray  # [K, D] along which starts differ, each by the inverse of how much
    limits: FloatArray  # [4] of frames, start, disagreement, and of P(success) at the start

    @classmethod
    def fit(cls, views: Sequence[EpisodeView], held_out: Sequence[int], threshold: float) -> Self:
        """
        held_out: of these views, those that no member learned from: where members agree by heart says nothing
        threshold: from which P(success) on a frame is called a success
        """
        distances = np.zeros((len(views), 2))
        for fold in range(min(FOLDS, len(views))):
            left_out = np.arange(len(views)) % FOLDS == fold
            others = cls._known([view for view, out in zip(views, left_out, strict=True) if not out])
            for number in np.flatnonzero(left_out).tolist():
                distances[number] = others._distances(views[number])
        limits = np.maximum(np.quantile(distances, 0.8, axis=0), 1e-6)  # of each, as units
        limits *= _limit((distances / limits).max(axis=1))  # of both together
        disagreement = max(LEAST_DISAGREEMENT, _limit(np.array([views[i].disagreement for i in held_out])))
        begun = max(threshold, *(view.start_prob for view in views))
        return cls._known(views, (*limits, disagreement, begun))

    @classmethod
    def _known(cls, views: Sequence[EpisodeView], limits: Sequence[float] = (0.0,) * 4) -> Self:
        features = np.concatenate([view.frames for view in views])
        mean, std = features.mean(axis=0), features.std(axis=0)
        std = std + max(0.01 * float(features.std()), 1e-6)
        per_episode = max(2, REFERENCES // len(views))
        kept = [view.frames[np.unique(np.linspace(0, len(view.frames) - 1, per_episode).astype(int))] for view in views]
        starts = (np.stack([view.start for view in views]) - mean) / std
        _, spread, axes = np.linalg.svd(starts - starts.mean(axis=0), full_matrices=False)
        variance = spread**2 / len(views)
        count = int(np.searchsorted(np.cumsum(variance), VARIANCE * variance.sum())) + 1
        count = min(count, max(1, len(views) // 5))
        axes = axes[:count] / np.maximum(np.sqrt(variance[:count, None]), 1e-6)
        arrays = (mean, std, (np.concatenate(kept) - mean) / std, starts.mean(axis=0), axes, np.array(limits))
        return cls(*(array.astype(np.float32) for array in arrays))

    def _distances(self, view: EpisodeView) -> tuple[float, float]:
        """Of its frames, and of its start."""
        frames = torch.from_numpy((view.frames - self.mean) / self.std)
        nearest = torch.cdist(frames, torch.from_numpy(self.frames)).min(dim=1).values
        start = self.axes @ ((view.start - self.mean) / self.std - self.start)
        return float(nearest.mean()), float(np.linalg.norm(start))

    def reason(self, view: EpisodeView) -> str:
        """Why an episode is unlike the known ones, in words; "" where nothing says so."""
        frames, start = self._distances(view)
        far, outside, disagreement, begun = self.limits.tolist()
        found = {
            f"it starts like success (P {view.start_prob:.2f}), and none did that it learned from": (
                view.start_prob > begun
            ),
            f"its frames look like none that it learned from ({frames / far:.1f} times as far as they may be)": (
                frames > far
            ),
            f"it starts like none that it learned from ({start / outside:.1f} times as far as it may be)": (
                start > outside
            ),
            f"its members disagree on success (by {view.disagreement:.2f})": view.disagreement > disagreement,
        }
        return "; ".join(sentence for sentence, holds in found.items() if holds)

    def tensors(self) -> dict[str, Tensor]:
        """To be saved; references in half precision."""
        arrays = {name: torch.from_numpy(values).contiguous() for name, values in vars(self).items()}
        return arrays | {"frames": arrays["frames"].half()}

    @property
    def fingerprint(self) -> str:
        """Of all that decides what is flagged."""
        tensors = sorted(self.tensors().items())
        return hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in tensors)).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path, width: int) -> Self:
        """From a file with `tensors`, of a model with so many features."""
        tensors = read_safetensors(path, "what the model learned from cannot be read ({}); train or copy it again")
        arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        wanted = {"mean": [width], "std": [width], "start": [width], "limits": [4]}
        wanted |= {name: [*shapes.get(name, ())[:1], width] for name in ("frames", "axes")}  # any number of them
        if shapes != wanted or not all(np.isfinite(array).all() for array in arrays.values()):
            raise BadFile(path, f"this is of another model, with other features than {width}; train or copy it again")
        return cls(**arrays)


def _limit(scores: AnyArray) -> float:
    """What at most `FALSE_FLAGS` of scores like these exceed (their conformal rank), or the highest of few."""
    count = len(scores)
    return float(np.sort(scores)[min(ceil((1 - FALSE_FLAGS) * (count + 1)), count) - 1]) if count else 0.0
