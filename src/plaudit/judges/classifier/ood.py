"""What a reward model learned from, and whether an episode is out of distribution.

    detector = OodDetector.fit(views, held_out)       # of the episodes that it was trained and measured on
    detector.reason(view)                          # why an episode is out of distribution; "" if it is not

A network returns a confident score even for scenes it has never seen. Four signs show that it cannot judge an episode:

- frames whose encoder features and colors are far from those of all training episodes (nearest neighbors); an encoder
  may have learned to ignore colors;
- a start with something in a new place: each cell of the first frame is compared with the same cell of all starts. A
  whole start has no near neighbor, since objects are placed in ever new ways, and features forget where things are;
- members that disagree on whether the episode succeeds;
- a start that already looks like success although no training episode starts so.

Limits come from the training episodes themselves, each compared with others only: a fraction `FALSE_FLAGS` of them, by
rank, may exceed the limits.
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

from plaudit.data.weights import read_safetensors
from plaudit.errors import BadFile
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, ByteArray, Episode, FloatArray

FALSE_FLAGS = 0.02  # of training episodes, by frames and start; with fewer than 49, the limit is the highest of them
FALSE_DISAGREEMENTS = 0.01  # likewise, by members
FRAMES = 16  # of an episode, evenly spread, that are compared
STARTS_LIKE_SUCCESS = 5  # first frames, of which two must reach the threshold
REFERENCES = 512  # frames of all known episodes that are kept, about, and starts at most
FOLDS = 20  # into which known episodes are dealt, each to be compared with the others
CELLS, WIDTH = 4, 256  # rows and columns of a feature map, and numbers of a camera in all
START_CELLS = 20  # rows and columns of a start's image
STRANGEST = 8  # cells, whose mean counts
TWO_OF_THREE = DecisionRule(k=2, n=3)  # frames by which members are compared
LEAST_DISAGREEMENT = 0.5  # between the members' probabilities of success


@dataclass(frozen=True, eq=False)
class EpisodeView:
    """The features of an episode that the detector compares."""

    frames: FloatArray  # [n, D] features, evenly spread over it
    start: ByteArray  # [C, 3] colors of its first frame, see `start_cells`
    start_prob: float  # that it begins with success
    disagreement: float  # of the members on whether it succeeds, 0 to 1; 0 of a single one

    @classmethod
    def of(cls, features: FloatArray, start: ByteArray, prob: FloatArray, member_probs: Sequence[FloatArray]) -> Self:
        """features: of `compared_frames`; prob, member_probs: [F] P(success) of all frames, and by each member."""
        begun = np.sort(prob[:STARTS_LIKE_SUCCESS])[-2:][0]
        peaks = [TWO_OF_THREE.episode_score(one) for one in member_probs]
        return cls(features, start, float(begun), max(peaks) - min(peaks))


def compared_frames(num_frames: int) -> AnyArray:
    """The frames of an episode that are compared, the first and the last among them."""
    return np.linspace(0, num_frames - 1, min(FRAMES, num_frames)).astype(int)


def start_cells(images: Sequence[AnyArray]) -> ByteArray:
    """[C, 3] mean colors of the cells of images [H, W, 3] of all cameras."""
    cells = [F.adaptive_avg_pool2d(torch.tensor(image).permute(2, 0, 1).float(), START_CELLS) for image in images]
    return torch.cat([one.flatten(1).T for one in cells]).round().to(torch.uint8).numpy()


def first_steps(episode: Episode) -> Episode:
    """An episode up to where it can no longer start like success."""
    steps = min(episode.steps, STARTS_LIKE_SUCCESS)
    frames = {camera: images[: steps + 1] for camera, images in episode.frames.items()}
    cut = {name: getattr(episode, name)[:steps] for name in ("actions", "control_mode")}
    return replace(episode, frames=frames, state=episode.state[: steps + 1], privileged={}, padded="none", **cut)


def pooled(grid: Tensor) -> Tensor:
    """A camera's feature maps [B, C, h, w] as [B, at most WIDTH] numbers: cells are averaged, then summed up with
    random signs, which nearly keeps distances."""
    rows, columns = min(grid.shape[2], CELLS), min(grid.shape[3], CELLS)
    flat = F.adaptive_avg_pool2d(grid.float(), (rows, columns)).flatten(1)
    if flat.shape[1] <= WIDTH:
        return flat
    signs = 2 * np.random.RandomState(0).randint(0, 2, flat.shape[1]) - 1  # the same in every version
    signed = flat * torch.from_numpy(signs).to(flat)
    return F.pad(signed, (0, -signed.shape[1] % WIDTH)).unflatten(1, (-1, WIDTH)).sum(1)


@dataclass(frozen=True, eq=False)
class OodDetector:
    """Known episodes, and how far from them others may be."""

    mean: FloatArray  # [D] of the features, and their deviation
    std: FloatArray
    frames: FloatArray  # [M, D] of the known episodes, standardized
    starts: FloatArray  # [N, C, 3] of the known episodes, see `start_cells`
    cell_units: FloatArray  # [C] how near known starts are to each other there
    limits: FloatArray  # [4] of frames, start, disagreement, and of P(success) at the start

    @classmethod
    def fit(
        cls, views: Sequence[EpisodeView], held_out: Sequence[int], threshold: float, begun: Sequence[int] = ()
    ) -> Self:
        """
        held_out: of these views, those that no member learned from: only there does disagreement mean something
        threshold: from which P(success) on a frame is called a success
        begun: of these views, those that begin with success by their labels
        """
        fold = np.arange(len(views)) % FOLDS
        starts, kept = np.stack([view.start for view in views]).astype(np.float32), _spread(len(views), REFERENCES)
        cells = np.stack([_cell_distances(start, starts[kept[fold[kept] != own]]) for start, own in zip(starts, fold)])
        distances = np.zeros((len(views), 2))
        for own in range(min(FOLDS, len(views))):
            others = cls._of_frames([view for view, one in zip(views, fold, strict=True) if one != own])
            units = _cell_units(cells[fold != own])
            for number in np.flatnonzero(fold == own).tolist():
                distances[number] = others._frame_distance(views[number]), _strangest(cells[number] / units)
        # The same rank in both, so that neither a wide spread of the one nor of the other hides what is far.
        ranks = distances.argsort(axis=0).argsort(axis=0).max(axis=1)
        limits = np.maximum(np.sort(distances, axis=0)[int(_limit(ranks, FALSE_FLAGS))], 1e-6)
        disagreements = np.array([views[i].disagreement for i in held_out])
        disagreement = max(LEAST_DISAGREEMENT, _limit(disagreements, FALSE_DISAGREEMENTS))
        start_prob = max([threshold, *(views[i].start_prob for i in begun)])
        return replace(
            cls._of_frames(views),
            starts=starts[kept],
            cell_units=_cell_units(cells),
            limits=np.array([*limits, disagreement, start_prob], np.float32),
        )

    @classmethod
    def _of_frames(cls, views: Sequence[EpisodeView]) -> Self:
        """With frames to compare others with, and nothing else."""
        features = np.concatenate([view.frames for view in views])
        mean, std = features.mean(axis=0), features.std(axis=0)
        std = std + max(0.01 * float(features.std()), 1e-6)
        per_episode = max(2, REFERENCES // len(views))
        kept = [view.frames[_spread(len(view.frames), per_episode)] for view in views]
        arrays = (mean, std, (np.concatenate(kept) - mean) / std, np.zeros(0), np.zeros(0), np.zeros(4))
        return cls(*(array.astype(np.float32) for array in arrays))

    def _frame_distance(self, view: EpisodeView) -> float:
        frames = torch.from_numpy((view.frames - self.mean) / self.std)
        return float(torch.cdist(frames, torch.from_numpy(self.frames)).min(dim=1).values.mean())

    def reason(self, view: EpisodeView) -> str:
        """Why an episode is out of distribution; "" if it is not."""
        frames = self._frame_distance(view)
        start = _strangest(_cell_distances(view.start.astype(np.float32), self.starts) / self.cell_units)
        far, outside, disagreement, begun = self.limits.tolist()
        signs = []
        if view.start_prob > begun:
            signs.append(f"it looks successful from the first frame (P = {view.start_prob:.2f}, limit {begun:.2f})")
        if frames > far:
            signs.append(f"its frames look like no training frames (distance {frames / far:.1f} times the limit)")
        if start > outside:
            signs.append(f"it starts with something in a new place (distance {start / outside:.1f} times the limit)")
        if view.disagreement > disagreement:
            signs.append(f"its members disagree on success (by {view.disagreement:.2f})")
        return "; ".join(signs)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors to save, with compact references."""
        arrays = {name: torch.from_numpy(values).contiguous() for name, values in vars(self).items()}
        return arrays | {"frames": arrays["frames"].half(), "starts": arrays["starts"].to(torch.uint8)}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of everything that affects which episodes are flagged."""
        tensors = sorted(self.tensors().items())
        return hashlib.sha256(b"".join(tensor.numpy().tobytes() for _, tensor in tensors)).hexdigest()[:16]

    @classmethod
    def load(cls, path: Path, width: int, cameras: int) -> Self:
        """From a file with `tensors`. width, cameras: features and cameras of the model"""
        tensors = read_safetensors(path, "what the model learned from cannot be read ({}); train or copy it again")
        arrays = {name: tensor.float().numpy() for name, tensor in tensors.items()}
        shapes, cells = {name: list(array.shape) for name, array in arrays.items()}, cameras * START_CELLS**2
        wanted = {"mean": [width], "std": [width], "cell_units": [cells], "limits": [4]}
        wanted |= {"frames": [*shapes.get("frames", ())[:1], width]}  # any number of them
        wanted |= {"starts": [*shapes.get("starts", ())[:1], cells, 3]}
        if shapes != wanted or not all(np.isfinite(array).all() for array in arrays.values()):
            raise BadFile(path, f"this is of another model, with other features than {width}; train or copy it again")
        return cls(**arrays)


def _spread(count: int, most: int) -> AnyArray:
    """At most `most` of the numbers below `count`, evenly spread."""
    return np.unique(np.linspace(0, count - 1, most).astype(int))


def _cell_distances(start: FloatArray, references: FloatArray) -> FloatArray:
    """[C] from each cell of a start [C, 3] to the nearest of the same cell of other starts [N, C, 3]."""
    return np.sqrt(np.square(references - start).sum(axis=2).min(axis=0))


def _cell_units(distances: FloatArray) -> FloatArray:
    """[C] the usual distances [N, C] of known starts, to divide by; at least 1 of 255 levels, and a quarter of the
    mean."""
    usual = np.sqrt(np.square(distances).mean(axis=0))
    return np.maximum(usual + 0.25 * usual.mean(), 1.0)


def _strangest(cells: FloatArray) -> float:
    """The mean of the largest."""
    return float(np.sort(cells)[-STRANGEST:].mean())


def _limit(scores: AnyArray, share: float) -> float:
    """What at most this share of scores like these exceeds (their conformal rank), or the highest of few."""
    count = len(scores)
    return float(np.sort(scores)[min(ceil((1 - share) * (count + 1)), count) - 1]) if count else 0.0
