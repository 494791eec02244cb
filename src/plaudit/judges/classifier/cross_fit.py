"""Cross-fitting: every episode is scored by a model that did not learn from it, nor chose its epoch by it.

    scored = cross_fit(config, table, splits, cached, work_dir, kept, on_epoch_end, on_step)
    scored.logits            # of each member, for scored.rows: all frames of the training and validation episodes

A few validation episodes say little about a threshold. So the training and the validation episodes are dealt into five
folds, and five more models are trained like the one that is kept, each without one fold: inside it, some of the other
episodes choose the epoch. What such a model says of the fold it never saw is what the kept one would say of an episode
to come, or a little worse, since it learned from fewer. The models themselves are thrown away.

One threshold is to fit all six, and each has a scale of its own: smoothed targets end their logits near 3, one model's
at 2.8 and another's at 3.2, and the successes lie so close together there that a threshold between the two finds all of
them or none. So the logits of a fold's model are moved and stretched until the frames that it learned from, successes
and failures, have the medians that those of the kept model have. Calibrating each model on its own validation episodes
instead, which are two or three, made it worse (docs/log.md).

Frames are scored at the rate that is learned from, those between by interpolation: neighbors are nearly alike, and
encoding every frame of every episode would take longer than all five trainings.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np

from plaudit.data.disk import write_atomic
from plaudit.errors import JudgeError
from plaudit.judges.calibration import folds
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import RewardDataset, Split, split, subsample
from plaudit.judges.classifier.features import CachedFeatures, FeatureSource, predict_logits
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.classifier.training import train_member
from plaudit.judges.epochs import EpochMetrics, StepMetrics
from plaudit.judges.metrics import EpisodePrediction
from plaudit.types import AnyArray, FloatArray
from plaudit.untrusted import read_json

_LEAST_WIDTH = 0.1  # between the logits of successes and failures: less is no scale to go by


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """What was said of episodes that were not learned from."""

    rows: AnyArray  # [F] of whole episodes
    logits: list[FloatArray]  # of each member, [F]
    episodes: int = 0  # that were cross-fitted; 0: they are validation episodes, scored by the kept model


@dataclass(frozen=True)
class Scale:
    """Of a model's logits, by the frames that it learned from."""

    failure: float  # median of the failure frames
    success: float  # and of the success frames

    @classmethod
    def of(
        cls, model: BinaryRewardClassifier, features: FeatureSource, table: RewardDataset, learned: AnyArray
    ) -> "Scale":
        """learned: the rows; frames that show nothing have no episode and do not count"""
        rows = learned[table.episode[learned] >= 0]
        logits, target = predict_logits(model, features, table, rows)[:, 0], table.target[rows]
        return cls(*(float(np.median(logits[target == kind])) for kind in (0, 1)))

    @property
    def width(self) -> float:
        return self.success - self.failure

    def to(self, other: "Scale", logits: FloatArray) -> FloatArray:
        """Logits on the other scale; as they are where one of the models has not learned to tell the two apart."""
        if min(self.width, other.width) < _LEAST_WIDTH:
            return logits
        return (other.failure + (logits - self.failure) * (other.width / self.width)).astype(np.float32)


def fold_splits(
    config: RewardTrainConfig, table: RewardDataset, splits: Mapping[Split, AnyArray]
) -> list[dict[Split, AnyArray]]:
    """Of each fold: rows to learn from, to choose the epoch by, and to score; [] where there are too few episodes."""
    ids = np.unique(table.episode[np.concatenate([splits["train"], splits["validation"]])])
    unscored = [
        EpisodePrediction(np.zeros(len(rows), np.float32), table.target[rows], int(i))
        for i in ids[ids >= 0]
        for rows in [table.rows_of([i])]
    ]
    blank = splits["train"][table.episode[splits["train"]] < 0]
    found = []
    for others, held_out in folds(unscored, config.seed):
        try:
            inner = split(table, config.seed, config.val_fraction, 0.0, [one.episode for one in others])
        except JudgeError:  # one of its parts has frames of one kind only
            return []
        parts: dict[Split, AnyArray] = {**inner, "test": table.rows_of([one.episode for one in held_out])}
        rows = {name: subsample(table, part, config.train_fps) for name, part in parts.items()}
        found.append(rows | {"train": np.concatenate([rows["train"], blank])})
    return found


def cross_fit(
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    cached: CachedFeatures | None,
    work_dir: Path,
    kept: Sequence[Scale],
    on_epoch_end: Callable[[EpochMetrics], bool],
    on_step: Callable[[StepMetrics], bool],
    max_seconds: float = inf,
) -> OutOfFold | None:
    """Train and score fold by fold; resumes where an earlier run stopped. None where there are too few episodes.

    kept: the scale of each member of the kept model, on which the logits are given
    max_seconds: of each member of each fold
    """
    parts = fold_splits(config, table, splits)
    if not parts:
        return None
    scored = [
        _fold_logits(
            number, config, table, part, cached, work_dir / f"fold_{number}", kept, on_epoch_end, on_step, max_seconds
        )
        for number, part in enumerate(parts, 1)
    ]
    places, values = np.concatenate([part["test"] for part in parts]), np.concatenate(scored, axis=1)
    episodes = np.unique(table.episode[places]).tolist()
    rows = table.rows_of(episodes)
    return OutOfFold(rows, [_interpolated(table, rows, places, member) for member in values], len(episodes))


def _fold_logits(
    number: int,
    config: RewardTrainConfig,
    table: RewardDataset,
    parts: Mapping[Split, AnyArray],
    cached: CachedFeatures | None,
    work_dir: Path,
    kept: Sequence[Scale],
    on_epoch_end: Callable[[EpochMetrics], bool],
    on_step: Callable[[StepMetrics], bool],
    max_seconds: float,
) -> FloatArray:
    """[members, n] of the rows that are held out, on the scale of the kept model."""
    done = work_dir / "scaled_logits.json"
    if done.exists():
        return np.array(read_json(done), np.float32)
    logits = []
    for member in range(config.ensemble_size):
        trained, features, _ = train_member(
            member,
            config,
            table,
            parts,
            cached,
            work_dir,
            lambda epoch: on_epoch_end(replace(epoch, fold=number)),
            lambda step: on_step(replace(step, fold=number)),
            max_seconds,
        )
        held_out = predict_logits(trained.model, features, table, parts["test"])[:, 0]
        logits.append(Scale.of(trained.model, features, table, parts["train"]).to(kept[member], held_out))
    found = np.stack(logits)
    work_dir.mkdir(parents=True, exist_ok=True)
    write_atomic(done, json.dumps(found.tolist()).encode())
    return found


def _interpolated(table: RewardDataset, rows: AnyArray, scored: AnyArray, logits: FloatArray) -> FloatArray:
    """For all rows of episodes of which some are scored."""
    values = np.empty(len(rows), np.float32)
    for episode in np.unique(table.episode[rows]):
        mine, known = table.episode[rows] == episode, table.episode[scored] == episode
        order = np.argsort(scored[known])
        values[mine] = np.interp(rows[mine], scored[known][order], logits[known][order])
    return values
