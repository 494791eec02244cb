"""A square that is pushed to the right, and five judges of it: success is from 80% of the way on.

Episodes last equally long and succeed at different times, so that a clock is often right. `good` and `weak` look for
the square, `overfit` knows the episodes of a store by heart and guesses at others, `clock` counts frames, and
`constant` says the same to all.
"""

import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from plaudit.data.episode_keys import episode_keys, pack_keys
from plaudit.data.store import Store
from plaudit.judges.config import JudgeConfig
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, Episode, JudgeId, Labels, Scores

NAME = "five_judges:PushJudgeConfig"
KINDS = ("good", "weak", "overfit", "clock", "constant")  # the best first
STEPS, GOAL, HEIGHT, WIDTH = 20, 0.8, 8, 40


def push_episode(seed: int, success: bool) -> tuple[Episode, int | None]:
    """An episode, and its first success frame."""
    rng = np.random.default_rng(seed)
    onset = int(rng.integers(7, 16)) if success else None
    end = 1.0 if success else rng.uniform(0.2, 0.7)
    place = np.linspace(0, GOAL + 0.02 if success else end, onset or STEPS // 2)
    place = np.concatenate([place[:-1], np.linspace(place[-1], end, STEPS + 2 - len(place))])
    frames = {camera: _draw(place, rng) for camera in ("front", "wrist")}
    state = rng.normal(size=(STEPS + 1, 2))
    found = Episode.of(frames=frames, state=state, actions=np.zeros((STEPS, 1)), fps=10.0, task="push")
    hits = np.flatnonzero(place >= GOAL)
    return found, int(hits[0]) if len(hits) else None


def _draw(place: AnyArray, rng: np.random.Generator) -> AnyArray:
    frames = rng.integers(0, 60, (len(place), HEIGHT, WIDTH, 3), dtype=np.uint8)
    for frame, x in zip(frames, place):
        left = round(float(x) * (WIDTH - 4))
        frame[2:6, left : left + 4] = (200, 160, 40)
    return frames


def push_store(folder: Path, successes: int, failures: int, first_seed: int = 0) -> Store:
    """Successes and failures in turn, labeled by a human."""
    store = Store.create(folder)
    for number in range(successes + failures):
        succeeds = number < 2 * min(successes, failures) and number % 2 == 0
        succeeds = succeeds or (number >= 2 * min(successes, failures) and successes > failures)
        episode, cutoff = push_episode(first_seed + number, succeeds)
        labels = Labels.from_cutoff(steps=STEPS, cutoff=cutoff, source="human")
        store.ledger.append(store.append(episode), labels)
    return store


class PushJudgeConfig(JudgeConfig):
    kind: Literal["good", "weak", "overfit", "clock", "constant"] = "good"
    memory: Path | None = None  # overfit: a store that it learned from

    def build(self) -> "PushJudge":
        return PushJudge(self)


class PushJudge:
    """A `Judge`."""

    def __init__(self, config: PushJudgeConfig):
        self._kind = config.kind
        rule = config.rule if config.rule.model_fields_set else DecisionRule(threshold=0.7)
        self.rule, self.trained_on = rule, ""
        self.id = JudgeId(f"push_{config.kind}", f"push {config.kind}", rule.key())
        self._known: dict[int, AnyArray] = {}
        if config.memory is not None:
            store = Store.open(config.memory)
            self.trained_on = pack_keys(chain.from_iterable(episode_keys(store, store.ids).values()))
            for i in store.ids:
                labels = store.ledger.labels(i)
                assert labels is not None
                self._known[_key(store.episode(i).frames["front"])] = labels.targets

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores]:
        return [Scores(np.clip(self._score(episode), 0, 1).astype(np.float32)) for episode in episodes]

    def _score(self, episode: Episode) -> AnyArray:
        front, frames = episode.frames["front"], np.arange(episode.steps + 1)
        if self._kind == "constant":
            return np.full(len(frames), 0.3)
        if self._kind == "clock":
            return _sigmoid(0.8 * (frames - 11.0))
        if self._kind == "overfit":
            return self._known.get(_key(front), 0.9 * _noise(front))
        sure, doubt = (30.0, 0.0) if self._kind == "good" else (6.0, 4.0)
        red, blue = front[:, 2:6, :, 0].astype(float), front[:, 2:6, :, 2]
        columns = (red - blue).min(axis=1)  # of a column of the square they are all yellow
        place = columns.argmax(axis=1) / (WIDTH - 4)
        seen = columns.max(axis=1) > 100
        guess = sure * (np.minimum(place, 1) - GOAL + 0.03) + doubt * (_noise(front) - 0.5)
        return np.where(seen, _sigmoid(guess), 0.02)


def _sigmoid(z: AnyArray) -> AnyArray:
    return 1 / (1 + np.exp(-z))


def _key(frames: AnyArray) -> int:
    return zlib.crc32(np.ascontiguousarray(frames).tobytes())


def _noise(frames: AnyArray) -> AnyArray:
    """[F] from 0 to 1, of each frame always the same."""
    return np.array([_key(frame) % 1000 / 1000 for frame in frames])
