"""The frames a reward model learns from: every recorded frame of the chosen episodes, with what a judge said of it.

Frames of one episode lie together and in order, so that a moment before is a row before. They are copied out of the
store once, resized to what the model takes; verdicts are those of judges one may learn from, and a model's own are not.
"""

import hashlib
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.classifier.model import resized
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.judges.evaluation import check_covers
from plaudit.types import AnyArray, ByteArray, FloatArray, ProgressFn

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
FEWEST = 4  # episodes, of which one each is held back for validation and test

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class RewardDataset:
    """F frames of E episodes; each row is a sample of frame-level training: episode, frame and label."""

    cameras: Mapping[str, Size]  # the frames as they were recorded
    images: Mapping[str, ByteArray]  # camera -> [F, h, w, 3], resized
    state: FloatArray  # [F, S]
    truth: FloatArray  # [F] 1, 0, or NaN where nobody said
    progress: FloatArray  # [F] 0 at an episode's start to 1 at its first success; NaN where there was none
    episode: AnyArray  # [F] id in the store
    fps: FloatArray  # [F] of the episode; 0 where unknown
    frame: AnyArray  # [F] number in the episode
    first: AnyArray  # [F] row of the episode's first frame
    fingerprint: str  # of episodes and verdicts

    def __len__(self) -> int:
        return len(self.truth)

    def windows(self, rows: AnyArray, moments: int, stride: int) -> AnyArray:
        """[B, moments] rows of each frame and of those before it, the newest first; before the start, the first."""
        back = np.arange(moments) * stride
        return np.maximum(rows[:, None] - back, self.first[rows][:, None])

    def rows_of(self, episodes: Collection[int]) -> AnyArray:
        return np.flatnonzero(np.isin(self.episode, list(episodes)))


def read_frames(
    store: Store,
    cameras: Sequence[str] = (),
    image_size: Size | None = None,
    sources: Collection[str] = REFERENCE_SOURCES,
    progress: ProgressFn = iter,
    scratch: Path | None = None,
) -> RewardDataset:
    """
    cameras: which to take; () for all that the store has
    sources: whose labels count, the newest of them for each episode
    scratch: a folder on a disk with room for the frames; None: where temporary files go
    """
    labelled = [i for i in store.ids if store.ledger.newest(i, sources) is not None]
    if not labelled:
        raise JudgeError(f"{store.folder} has no labels of {', '.join(sources)}; label it first (plaudit data label)")
    cameras = cameras or sorted(store.episode(labelled[0]).frames)
    sizes = _sizes(store, labelled, cameras)
    rows = [np.arange(store.entry(i).rows)[store.episode(i).recorded] for i in labelled]
    total = sum(map(len, rows))
    images = {camera: _scratch((total, *(image_size or size), 3), scratch) for camera, size in sizes.items()}
    columns: dict[str, list[AnyArray]] = {
        name: [] for name in ("state", "truth", "progress", "episode", "fps", "frame", "first")
    }
    digest = hashlib.sha256()
    start = 0
    for number, episode_id in enumerate(progress(labelled)):
        kept = rows[number]
        episode, labels = store.episode(episode_id), store.ledger.labels(episode_id, sources)
        assert labels is not None
        check_covers(store, episode_id, episode, labels)
        truth = labels.targets[kept]
        for camera in cameras:
            images[camera][start : start + len(kept)] = _resized(episode.frames[camera][kept], image_size)
        columns["state"].append(episode.state[kept])
        columns["truth"].append(truth)
        columns["progress"].append(_progress(truth))
        columns["episode"].append(np.full(len(kept), episode_id))
        columns["fps"].append(np.full(len(kept), episode.fps, np.float32))
        columns["frame"].append(kept)
        columns["first"].append(np.full(len(kept), start))
        digest.update(repr(sorted(store.entry(episode_id).line["crc"].items())).encode() + truth.tobytes())
        start += len(kept)
    dims = {state.shape[1] for state in columns["state"]}
    if len(dims) > 1:
        raise JudgeError(
            f"{store.folder}: episodes have states of {sorted(dims)} numbers; keep them in separate stores"
        )
    whole: dict[str, Any] = {name: np.concatenate(parts) for name, parts in columns.items()}
    return RewardDataset(cameras=sizes, images=images, fingerprint=digest.hexdigest()[:16], **whole)


def split(table: RewardDataset, seed: int, validation: float = 0.15, test: float = 0.15) -> dict[Part, AnyArray]:
    """Rows for training, for choosing and for the final measure, with these shares of the episodes.

    An episode is in one of them, never in two: its frames are so alike that one seen in training gives the others away.
    Successes and failures are shared out alike. Without a share of their own, tests are on the validation episodes.
    """
    rng = np.random.default_rng(seed)
    ids = np.unique(table.episode)
    succeeded = np.array([np.any(table.truth[table.episode == i] == 1) for i in ids])
    chosen: dict[Part, list[int]] = {part: [] for part in PARTS}
    for kind in (True, False):
        mine = rng.permutation(ids[succeeded == kind]).tolist()
        total = len(mine)
        for part, share in zip(PARTS[1:], (validation, test), strict=True):
            count = max(round(share * total), 1 if share and total >= 3 else 0)
            chosen[part] += mine[:count]
            mine = mine[count:]
        chosen["train"] += mine
    chosen["test"] = chosen["test"] or chosen["validation"]
    rows: dict[Part, AnyArray] = {part: table.rows_of(episodes) for part, episodes in chosen.items()}
    _check(table, rows, len(ids))
    return rows


def subsample(table: RewardDataset, rows: AnyArray, fps: float | None) -> AnyArray:
    """Of these, the rows that somebody judged, and at most so many a second."""
    rows = rows[~np.isnan(table.truth[rows])]
    if fps is None:
        return rows
    every = np.maximum(np.rint(table.fps[rows] / fps), 1).astype(int)
    return rows[table.frame[rows] % every == 0]


def add_blank_negatives(
    table: RewardDataset, parts: Mapping[Part, AnyArray], seed: int, scratch: Path | None = None
) -> tuple[RewardDataset, dict[Part, AnyArray]]:
    """The same with some training frames that show nothing, as failures: a camera that is covered, dark or broken must
    not be paid, and no robot ever records one. They are episodes of one frame with ids below 0."""
    rng = np.random.default_rng([seed, 2])
    count = max(16, len(parts["train"]) // 50)
    images = {
        camera: _longer(known, _blank(rng, count, known.shape[1:]), scratch) for camera, known in table.images.items()
    }
    rows = len(table) + np.arange(count)
    chosen = rng.choice(parts["train"], count)
    added = {
        "state": table.state[chosen],
        "truth": np.zeros(count, np.float32),
        "progress": np.full(count, np.nan, np.float32),
        "episode": -1 - np.arange(count),
        "fps": np.zeros(count, np.float32),
        "frame": np.zeros(count, int),
        "first": rows,
    }
    longer = {name: np.concatenate([getattr(table, name), values]) for name, values in added.items()}
    return replace(table, images=images, **longer), {**parts, "train": np.concatenate([parts["train"], rows])}


def _blank(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> ByteArray:
    """Plain colours, from black to white, and noise, half of each."""
    plain = rng.integers(0, 256, (count, 1, 1, 1)) + rng.integers(-20, 21, (count, 1, 1, 3))
    plain[: count // 8], plain[count // 8 : count // 4] = 0, 255
    noisy = np.broadcast_to(np.clip(plain, 0, 255), (count, *shape)).astype(np.uint8)
    noisy[count // 2 :] = rng.integers(0, 256, (count - count // 2, *shape), np.uint8)
    return noisy


def _check(table: RewardDataset, rows: Mapping[Part, AnyArray], episodes: int) -> None:
    for truth, name in ((1, "success"), (0, "failure")):
        if not (table.truth == truth).any():
            other = "failure" if truth else "success"
            raise JudgeError(
                f"all {int((~np.isnan(table.truth)).sum())} labelled frames of these {episodes} episodes are {other}; "
                f"a classifier needs frames of both kinds, record or label some that are {name}"
            )
    if episodes < FEWEST:
        raise JudgeError(
            f"{episodes} episodes are too few: at least {FEWEST} are needed to hold some back for measuring, and 20 or "
            "more to learn something that lasts"
        )
    for part in PARTS:
        for truth, name in ((1, "success"), (0, "failure")):
            if not (table.truth[rows[part]] == truth).any():
                raise JudgeError(
                    f"these {episodes} episodes leave no {name} frames for {part}; record or label at least three "
                    f"episodes that have some"
                )


def _sizes(store: Store, ids: Sequence[int], cameras: Sequence[str]) -> dict[str, Size]:
    found: dict[str, Size] = {}
    for episode_id in ids:
        place = store.entry(episode_id)
        there = {camera: (h, w) for camera, h, w in store.segment(place.segment).schema.cameras}
        for camera in cameras:
            if camera not in there:
                raise JudgeError(
                    f"{store.folder}: episode {episode_id} has no camera '{camera}', it has: "
                    f"{', '.join(sorted(there)) or 'none'}; name cameras that all episodes have (--image-key)"
                )
            if found.setdefault(camera, there[camera]) != there[camera]:
                raise JudgeError(
                    f"{store.folder}: camera '{camera}' is {_by(there[camera])} in episode {episode_id} and "
                    f"{_by(found[camera])} in others; a model learns from one size"
                )
    return found


def _by(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def _resized(frames: ByteArray, size: Size | None) -> ByteArray:
    return frames if size is None else resized(torch.from_numpy(np.ascontiguousarray(frames)), size).numpy()


def _progress(truth: FloatArray) -> FloatArray:
    """How far each frame is on the way to the first success."""
    successes = np.flatnonzero(truth == 1)
    if not len(successes):
        return np.full(len(truth), np.nan, np.float32)
    return np.minimum(np.arange(len(truth)) / max(successes[0], 1), 1).astype(np.float32)


def _scratch(shape: tuple[int, ...], folder: Path | None) -> ByteArray:
    """Room for frames, in a file without a name: more of them than memory holds go to the disk."""
    return np.memmap(tempfile.TemporaryFile(dir=folder), np.uint8, "w+", shape=shape)


def _longer(frames: ByteArray, more: ByteArray, folder: Path | None) -> ByteArray:
    both = _scratch((len(frames) + len(more), *frames.shape[1:]), folder)
    both[: len(frames)], both[len(frames) :] = frames, more
    return both
