"""Episodes you can judge by eye: a frame shows success where a bright square stands on a dark, noisy ground."""

from pathlib import Path

import numpy as np

from plaudit.data.store import Store
from plaudit.types import ByteArray, Episode, Labels

SIZE, STEPS = 24, 11
CUTOFF = 6  # the first frame that shows success, in episodes that succeed


def square_frames(success: bool, seed: int, size: int = SIZE) -> ByteArray:
    """[T+1, H, W, 3]; in episodes that fail the square is small and dim, so that something moves there too."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 60, (STEPS + 1, size, size, 3), dtype=np.uint8)
    left = int(rng.integers(2, size // 2))
    shown = frames[CUTOFF:, size // 4 : 3 * size // 4, left : left + size // 2]
    if success:
        shown[:] = (230, 200, 40)
    else:
        shown[:, :3, :3] = 90
    return frames


def square_episode(success: bool, seed: int, cameras: tuple[str, ...] = ("front",), size: int = SIZE) -> Episode:
    frames = {camera: square_frames(success, seed, size) for camera in cameras}
    return Episode.of(frames=frames, state=np.zeros((STEPS + 1, 2)), actions=np.zeros((STEPS, 1)), fps=10.0)


def square_store(folder: Path, successes: int = 6, failures: int = 6, **looks: object) -> Store:
    """Successes and failures in turn, each labeled by a person."""
    store = Store.create(folder)
    kinds = [True] * successes + [False] * failures
    for number, success in enumerate(sorted(kinds, key=lambda kind: not kind)):
        labels = Labels.from_cutoff(steps=STEPS, cutoff=CUTOFF if success else None, source="human")
        store.ledger.append(store.append(square_episode(success, number, **looks)), labels)
    return store
