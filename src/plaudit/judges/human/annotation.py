"""The labels of one episode in progress: 0, 1 or nothing for each recorded frame. Every edit makes a new object.

Frames are counted as people see them, from 0 over the recorded ones; a padded observation (types.py) is neither
shown nor labeled by hand, and gets its label the way label files give it (data/cutoffs.py).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from plaudit.data.cutoffs import over_all_frames
from plaudit.errors import DataError
from plaudit.types import Episode, FloatArray, Labels

SOURCE = "human"
EXCLUDED = "excluded"  # the text of an episode that is left out, and the word for it in a label's note
_SIGNS = {"0": 0.0, "1": 1.0, "?": float("nan")}


@dataclass(frozen=True, eq=False)
class FrameAnnotation:
    """
    >>> FrameAnnotation.unlabeled(5).success_from(3).rle
    '0x3 1x2'
    """

    frames: FloatArray  # [F] of 0, 1 and NaN for the F recorded frames
    excluded: bool = False  # on purpose, so that nothing learns from it; then all frames are NaN

    @classmethod
    def unlabeled(cls, count: int) -> Self:
        return cls(np.full(count, np.nan, np.float32))

    @classmethod
    def from_labels(cls, episode: Episode, labels: Labels) -> Self:
        """Existing labels, to start from."""
        frames = labels.targets[episode.observed]
        return cls(frames, excluded=bool(np.isnan(frames).all()))

    @classmethod
    def from_rle(cls, text: str, count: int) -> Self:
        """What `rle` wrote of an episode of `count` recorded frames."""
        if text == EXCLUDED:
            return cls(np.full(count, np.nan, np.float32), excluded=True)
        runs = [run.split("x") for run in text.split()]
        frames = np.concatenate([np.full(int(length), _SIGNS[sign], np.float32) for sign, length in runs])
        if len(frames) != count:
            raise DataError(f"the draft '{text}' covers {len(frames)} frames, the episode has {count}")
        return cls(frames)

    @property
    def rle(self) -> str:
        """Run-length encoding, `0x53 1x47`: a line of a journal that a person can read."""
        if self.excluded:
            return EXCLUDED
        return " ".join(f"{'?' if np.isnan(v) else int(v)}x{last - first + 1}" for first, last, v in self.runs)

    @property
    def runs(self) -> list[tuple[int, int, float]]:
        """(first, last, value) of each stretch of frames with the same label."""
        signs = np.nan_to_num(self.frames, nan=-1)
        firsts = [0, *(np.flatnonzero(np.diff(signs)) + 1).tolist()]
        return [(a, b - 1, float(self.frames[a])) for a, b in zip(firsts, [*firsts[1:], len(self.frames)])]

    @property
    def num_unlabeled(self) -> int:
        return int(np.isnan(self.frames).sum())

    @property
    def cutoff(self) -> int | None:
        """The first frame of success where it is one and stays so to the end; None otherwise."""
        hits = np.flatnonzero(self.frames == 1)
        return int(hits[0]) if len(hits) and len(hits) == len(self.frames) - hits[0] else None

    @property
    def summary(self) -> str:
        """For a person: `success from frame 53`."""
        if self.excluded:
            return "excluded"
        num_unlabeled = self.num_unlabeled
        if num_unlabeled == len(self.frames):
            return "nothing labeled"
        ranges = [(first, last) for first, last, value in self.runs if value == 1]
        if self.cutoff is not None:
            outcome = f"success from frame {self.cutoff}"
        elif len(ranges) > 3:
            outcome = f"success in {len(ranges)} ranges"
        else:
            parts = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)
            outcome = f"success in {parts}" if ranges else "no success"
        return f"{outcome}, {num_unlabeled} not labeled" if num_unlabeled else outcome

    def set_range(self, first: int, last: int, value: float) -> Self:
        """Both ends included."""
        frames = self.frames.copy()
        frames[first : last + 1] = value
        return type(self)(frames)

    def success_from(self, frame: int) -> Self:
        return type(self)((np.arange(len(self.frames)) >= frame).astype(np.float32))

    def all_failure(self) -> Self:
        return type(self)(np.zeros_like(self.frames))

    def as_excluded(self) -> Self:
        return type(self)(np.full_like(self.frames, np.nan), excluded=True)

    def labels(self, episode: Episode, name: str = "") -> Labels:
        """As the ledger takes it; the name of the labeler is in the note."""
        note = ", ".join(part for part in (f"by {name}" if name else "", EXCLUDED if self.excluded else "") if part)
        return Labels.from_targets(over_all_frames(episode, self.frames), SOURCE, note=note)
