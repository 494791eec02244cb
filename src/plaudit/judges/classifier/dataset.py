"""The frames a reward model learns from: every recorded frame of a store's labeled episodes, or of its successes.

Frames of one episode are consecutive rows. They are copied out of the store once, resized to what the model takes.
"""

import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch

from plaudit.data.formats.base import size_text
from plaudit.data.store import Store
from plaudit.encoders import resize_images
from plaudit.errors import JudgeError
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.judges.evaluation import check_covers
from plaudit.types import AnyArray, ByteArray, FloatArray, ProgressFn, name_of_camera

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
RESIZED_AT_ONCE = 128  # frames: a long episode does not fit into memory as floats
MIN_EPISODES = 4  # of which one each is held out for validation and test

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class RewardDataset:
    """F frames of E episodes; each row is a sample of frame-level training: episode, frame and label."""

    store: Store
    cameras: Mapping[str, Size]  # the frames as they were recorded
    images: Mapping[str, ByteArray]  # camera -> [F or more, h, w, 3], resized; the rest is room for blank frames
    state: FloatArray  # [F, S]; S is 0 where episodes have states of different sizes, as .npy trajectories have none
    target: FloatArray  # [F] 1, 0, or NaN without a label
    progress: FloatArray  # [F] 0 at an episode's start to 1 at its first success; NaN where there was none
    episode: AnyArray  # [F] id in the store
    fps: FloatArray  # [F] of the episode; 0 where unknown
    frame_index: AnyArray  # [F] in the episode
    episode_start: AnyArray  # [F] row of the episode's first frame
    fingerprint: str  # of episodes and labels

    @classmethod
    def from_store(
        cls,
        store: Store,
        cameras: Sequence[str] = (),
        image_size: Size | Callable[[Mapping[str, Size]], Size | None] | None = None,
        sources: Collection[str] = REFERENCE_SOURCES,
        progress: ProgressFn = iter,
        cache_dir: Path | None = None,
        *,
        demonstrations: bool = False,
    ) -> Self:
        """
        cameras: which to take; () for all that the store has
        image_size: to resize to, or what it is for the cameras' sizes
        sources: whose labels count; of several on an episode, by the store's order of sources
        cache_dir: a folder on a disk with room for the frames; None: where temporary files go
        demonstrations: successes alone, and episodes without labels are successes that end with their last frame
        """
        ids = _demonstrations(store, sources) if demonstrations else _labeled_ids(store, sources)
        cameras = cameras or sorted(store.episode(ids[0]).frames)
        if not cameras:
            raise JudgeError(f"{store.folder} has no camera, and a reward model learns from images; record some")
        sizes = _sizes(store, ids, cameras)
        image_size = image_size(sizes) if callable(image_size) else image_size
        recorded = [np.arange(store.entry(i).rows)[store.episode(i).observed] for i in ids]
        counts = [len(frames) for frames in recorded]
        starts = np.cumsum([0, *counts])
        num_rows = starts[-1] + _num_blanks(starts[-1])
        shapes = {camera: (num_rows, *(image_size or size), 3) for camera, size in sizes.items()}
        folder = cache_dir or Path(tempfile.gettempdir())
        check_space(folder, sum(math.prod(shape) for shape in shapes.values()), "the frames to learn from")
        images = {camera: _memmap(shape, folder) for camera, shape in shapes.items()}
        states, targets, ways, fps = [], [], [], []  # of each episode
        digest = hashlib.sha256()
        for number, episode_id in enumerate(progress(ids)):
            frames, start = recorded[number], starts[number]
            episode = store.episode(episode_id)
            for camera in cameras:
                shown = episode.frames[name_of_camera(camera, episode.frames, cameras)]
                for begin in range(0, len(frames), RESIZED_AT_ONCE):
                    pixels = np.ascontiguousarray(shown[frames[begin : begin + RESIZED_AT_ONCE]])
                    if image_size is not None:
                        pixels = resize_images(torch.from_numpy(pixels), image_size).numpy()
                    images[camera][start + begin : start + begin + len(pixels)] = pixels
            labels = store.ledger.labels(episode_id, sources)
            if labels is None:  # a demonstration: success at its last frame
                target = (frames == frames[-1]).astype(np.float32)
            else:
                check_covers(store, episode_id, episode, labels)
                target = labels.targets[frames]
            successes = np.flatnonzero(target == 1)
            way = np.minimum(np.arange(len(target)) / max(successes[0], 1), 1) if len(successes) else np.nan
            states.append(episode.state[frames])
            targets.append(target)
            ways.append(np.full(len(target), way, np.float32))
            fps.append(episode.fps)
            digest.update(repr(sorted(store.entry(episode_id).line["crc"].items())).encode() + target.tobytes())
        if len({state.shape[1] for state in states}) > 1:
            states = [state[:, :0] for state in states]
        return cls(
            store=store,
            cameras=sizes,
            images=images,
            state=np.concatenate(states),
            target=np.concatenate(targets),
            progress=np.concatenate(ways),
            episode=np.repeat(ids, counts),
            fps=np.repeat(np.array(fps, np.float32), counts),
            frame_index=np.concatenate(recorded),
            episode_start=np.repeat(starts[:-1], counts),
            fingerprint=digest.hexdigest()[:16],
        )

    def __len__(self) -> int:
        return len(self.target)

    @property
    def state_dim(self) -> int:
        return self.state.shape[1]

    def history_indices(self, rows: AnyArray, num_frames: int, stride: int) -> AnyArray:
        """[B, num_frames] rows of each frame and of those before it, the newest first; before the start, the first."""
        back = np.arange(num_frames) * stride
        return np.maximum(rows[:, None] - back, self.episode_start[rows][:, None])

    def rows_of(self, episodes: Collection[int]) -> AnyArray:
        return np.flatnonzero(np.isin(self.episode, list(episodes)))


def check_labels(
    store: Store, sources: Collection[str], seed: int, validation: float, test: float, *, demonstrations: bool
) -> None:
    """Refuse labels that nothing can be learned from, by the ledger alone: no frame is read.

    The arguments are those of `RewardDataset.from_store` and `split`.
    """
    if demonstrations:
        _demonstrations(store, sources)
        return
    targets = {i: labels.targets for i in _labeled_ids(store, sources) if (labels := store.ledger.labels(i, sources))}
    split_episodes(targets, seed, validation, test)


def _labeled_ids(store: Store, sources: Collection[str]) -> list[int]:
    """Episodes with a label of these sources. Those that a person has excluded have no labeled frame."""
    ids = [i for i in store.ids if (one := store.ledger.labels(i, sources)) is not None and one.labeled.any()]
    if not ids:
        raise JudgeError(f"{store.folder} has no labels of {', '.join(sources)}; label it first (plaudit data label)")
    return ids


def _demonstrations(store: Store, sources: Collection[str]) -> list[int]:
    """Episodes that come to a success; one that begins with it shows no way there."""
    ids = []
    for episode_id in store.ids:
        labels = store.ledger.labels(episode_id, sources)
        if labels is None or ((labels.targets == 1).any() and labels.targets[labels.labeled][0] == 0):
            ids.append(episode_id)
    if not ids:
        raise JudgeError(
            f"none of the {len(store.ids)} episodes of {store.folder} ends in success; record some that do"
        )
    return ids


def split(
    table: RewardDataset,
    seed: int,
    validation: float = 0.15,
    test: float = 0.15,
    episodes: Collection[int] | None = None,
) -> dict[Split, AnyArray]:
    """The rows of each split (`split_episodes`). episodes: to split; None: all"""
    ids = np.unique(table.episode if episodes is None else list(episodes)).tolist()
    chosen = split_episodes({i: table.target[table.episode == i] for i in ids}, seed, validation, test)
    return {part: table.rows_of(members) for part, members in chosen.items()}


def split_episodes(
    targets: Mapping[int, FloatArray], seed: int, validation: float, test: float
) -> dict[Split, list[int]]:
    """The episodes of each split, by shares of all; refuses what nothing can be learned from or measured on.

    An episode is in one split only, as its frames are similar. Successes and failures are split by the same shares.
    Without a share of its own, the test split is the validation split.
    targets: of the frames of each episode
    """
    rng = np.random.default_rng(seed)
    ids, kinds = np.array(list(targets)), np.array([bool((target == 1).any()) for target in targets.values()])
    chosen: dict[Split, list[int]] = {part: [] for part in SPLITS}
    for kind in (True, False):
        members = rng.permutation(ids[kinds == kind]).tolist()
        total = len(members)
        for part, share in zip(SPLITS[1:], (validation, test), strict=True):
            count = max(round(share * total), 1 if share and total >= 3 else 0)
            chosen[part] += members[:count]
            members = members[count:]
        chosen["train"] += members
    chosen["test"] = chosen["test"] or chosen["validation"]
    outcomes = {1: "success", 0: "failure"}
    for value, name in outcomes.items():
        if not any((target == value).any() for target in targets.values()):
            total = sum(int((~np.isnan(target)).sum()) for target in targets.values())
            all_frames = f"all {total} labeled frames of these {len(targets)} episodes are {outcomes[1 - value]}"
            raise JudgeError(f"{all_frames}; a judge learns from frames of both kinds, label some that are {name}")
    if len(targets) < MIN_EPISODES:
        raise JudgeError(f"{len(targets)} episodes are too few: at least {MIN_EPISODES} are needed, better 20 or more")
    for (part, members), (value, name) in product(chosen.items(), outcomes.items()):
        if not any((targets[i] == value).any() for i in members):
            missing = f"these {len(targets)} episodes leave no {name} frames for {part}"
            raise JudgeError(f"{missing}; record or label at least three episodes that have some")
    return chosen


def subsample(table: RewardDataset, rows: AnyArray, fps: float | None) -> AnyArray:
    """The rows that have a label, at most `fps` per second.

    A frame whose label differs from the one before always stays: an episode may have a single success frame.
    """
    rows = rows[~np.isnan(table.target[rows])]
    if fps is None:
        return rows
    every = np.maximum(np.rint(table.fps[rows] / fps), 1).astype(int)
    changes = np.diff(table.target[rows], prepend=np.nan) != 0
    return rows[(table.frame_index[rows] % every == 0) | changes]


def rows_to_learn(
    table: RewardDataset, splits: Mapping[Split, AnyArray], fps: float | None, *, cross_fit: bool
) -> AnyArray:
    """Rows that some model learns from; with cross-fitting also those of the validation episodes."""
    more = [subsample(table, splits["validation"], fps)] if cross_fit else []
    return np.concatenate([splits["train"], *more])


def add_blank_negatives(
    table: RewardDataset, splits: Mapping[Split, AnyArray], seed: int
) -> tuple[RewardDataset, dict[Split, AnyArray]]:
    """Add training frames that show nothing, as failures: recordings do not have a covered, dark or broken camera, and
    it must not be rewarded. They are episodes of one frame with ids below 0."""
    rng = np.random.default_rng([seed, 2])
    count = _num_blanks(len(splits["train"]))
    for frames in table.images.values():
        frames[len(table) : len(table) + count] = blank_images(rng, count, frames.shape[1:])
    rows = len(table) + np.arange(count)
    chosen = rng.choice(splits["train"], count)
    added = {
        "state": table.state[chosen],
        "target": np.zeros(count, np.float32),
        "progress": np.zeros(count, np.float32),
        "episode": -1 - np.arange(count),
        "fps": np.zeros(count, np.float32),
        "frame_index": np.zeros(count, int),
        "episode_start": rows,
    }
    longer = {name: np.concatenate([getattr(table, name), values]) for name, values in added.items()}
    return replace(table, **longer), {**splits, "train": np.concatenate([splits["train"], rows])}


def _num_blanks(num_rows: int) -> int:
    """How many blank frames are added to these training frames."""
    return max(16, num_rows // 25)


def blank_images(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> ByteArray:
    """Plain colors, from black to white, and noise with a grain of 1 to 8 pixels, half of each."""
    plain = rng.integers(0, 256, (count, 1, 1, 1)) + rng.integers(-20, 21, (count, 1, 1, 3))
    plain[: count // 8], plain[count // 8 : count // 4] = 0, 255
    images = np.broadcast_to(np.clip(plain, 0, 255), (count, *shape)).astype(np.uint8)
    height, width = shape[:2]
    for number in range(count // 2, count):
        grain = 2 ** (number % 4)
        noise = rng.integers(0, 256, (height // grain + 1, width // grain + 1, 3), np.uint8)
        images[number] = noise.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return images


def _sizes(store: Store, ids: Sequence[int], cameras: Sequence[str]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for episode_id in ids:
        place = store.entry(episode_id)
        recorded = {camera: (h, w) for camera, h, w in store.segment(place.segment).schema.cameras}
        for camera in cameras:
            size = recorded.get(name_of_camera(camera, recorded, cameras))
            if size is None:
                names = f"it has: {', '.join(sorted(recorded)) or 'none'}"
                advice = "name cameras that all episodes have (--image-key)"
                raise JudgeError(f"{store.folder}: episode {episode_id} has no camera '{camera}', {names}; {advice}")
            if (other := sizes.setdefault(camera, size)) != size:
                sizes_of = f"{size[0]}x{size[1]} in episode {episode_id} and {other[0]}x{other[1]} in others"
                advice = f"a model learns from one size; record in one, or import with --resize {other[0]}x{other[1]}"
                raise JudgeError(f"{store.folder}: camera '{camera}' is {sizes_of}; {advice}")
    return sizes


def check_space(folder: Path, num_bytes: int, what: str) -> None:
    """Refuse an array in a file that does not fit on the disk: writing to it would kill the process."""
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise JudgeError(
            f"{what} take {size_text(num_bytes)} in {folder}, and {size_text(free)} are free. Free some space, set a "
            "smaller image_size (--image-size 3 192 256), or use fewer cameras (--image-key)"
        )


def _memmap(shape: tuple[int, ...], folder: Path) -> ByteArray:
    """An array in a temporary file, because frames may not fit into memory."""
    return np.memmap(tempfile.TemporaryFile(dir=folder), np.uint8, "w+", shape=shape)
