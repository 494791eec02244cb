"""Demonstrations you can order by eye: a bright square slides from the left edge to the right one."""

from pathlib import Path

import numpy as np

from plaudit.data.store import Store
from plaudit.types import Episode, FloatArray

SIZE, EDGE = 24, 8


def sliding_episode(places: FloatArray, seed: int = 0) -> Episode:
    """places: [T+1] 0 at the left edge to 1 at the right one"""
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 60, (len(places), SIZE, SIZE, 3), dtype=np.uint8)
    top = int(rng.integers(0, SIZE - EDGE))
    for frame, left in zip(frames, np.rint(places * (SIZE - EDGE)).astype(int), strict=True):
        frame[top : top + EDGE, left : left + EDGE] = (230, 200, 40)
    steps = len(places) - 1
    return Episode.of(frames={"front": frames}, state=np.zeros((steps + 1, 2)), actions=np.zeros((steps, 1)), fps=10.0)


def sliding_store(folder: Path, episodes: int = 12) -> Store:
    """Demonstrations of different lengths, without labels."""
    store = Store.create(folder)
    for seed in range(episodes):
        store.append(sliding_episode(np.linspace(0, 1, 8 + seed % 5), seed))
    return store
