"""From labelled episodes to a reward model that was measured.

    table = read_frames(store)                     # frames and verdicts
    parts = split(table)                           # by episode: train, validation, test
    members: learn on train, keep the epoch with the least loss on validation
    validation: calibrate, choose the threshold
    test: measure, and run the controls

The test episodes decide nothing, so that what is said of them holds for episodes to come.
"""

import json
import platform
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plaudit import __version__
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import EnsembleCalibration, choose_threshold, fit_cutoff_offset
from plaudit.judges.classifier.checkpoint import RewardModel, RewardModelConfig, TrainingDataInfo, threshold_facts
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import (
    PARTS,
    Part,
    RewardDataset,
    add_blank_negatives,
    read_frames,
    split,
    subsample,
)
from plaudit.judges.classifier.features import FeatureSource, Track, cache_features
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.network import classifier_config
from plaudit.judges.classifier.training import EnsembleMember, EpochMetrics, train_member
from plaudit.judges.controls import ControlResult, failed_controls, run_controls
from plaudit.judges.metrics import JudgeMetrics, compute_metrics
from plaudit.judges.predictions import EpisodePrediction, FramePrediction, hstack_images, largest_errors
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, FloatArray


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A model and everything that was found out about it."""

    model: RewardModel
    scores: JudgeMetrics
    controls: Sequence[ControlResult]
    tested: Sequence[EpisodePrediction]
    worst: Sequence[FramePrediction]  # among those tested
    curve: Sequence[EpochMetrics]  # of all members, one after the other
    optimizers: Sequence[Mapping[str, Any]]  # the state of each member's, after its last epoch


def fit(
    store: Store, config: RewardTrainConfig, work: Path, watch: Callable[[EpochMetrics], bool], track: Track
) -> TrainResult:
    """Train and measure; what takes long is kept in `work`, where the same call goes on after a stop."""
    begun = time.monotonic()
    scratch = existing_parent(work)
    table = read_frames(store, config.image_keys, config.image_size, config.label_sources, track("reading"), scratch)
    parts = split(table, config.seed, config.val_fraction, config.test_fraction)
    parts["train"] = subsample(table, parts["train"], config.train_fps)
    table, parts = add_blank_negatives(table, parts, config.seed, scratch)
    _prepare(work, config, table)
    kept = cache_features(table, parts, config, work, track) if config.frozen else None
    trained: list[tuple[EnsembleMember, FeatureSource]] = []
    curve: list[EpochMetrics] = []
    for number in range(config.ensemble_size):
        member, grids, epochs = train_member(number, config, table, parts, kept, work, watch)
        trained.append((member, grids))
        curve += epochs
    return _measured(store, config, table, parts, trained, curve, time.monotonic() - begun)


def existing_parent(path: Path) -> Path:
    """The nearest folder above that is there: the disk that it will lie on."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())


def _prepare(work: Path, config: RewardTrainConfig, table: RewardDataset) -> None:
    """What an earlier try with the same config and data left is used; what another left is not."""
    asked = json.dumps({"config": config.model_dump(mode="json"), "data": table.fingerprint}, sort_keys=True)
    told = work / "asked.json"
    if work.exists() and not (told.exists() and told.read_text() == asked):
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    told.write_text(asked)


def _measured(
    store: Store,
    config: RewardTrainConfig,
    table: RewardDataset,
    parts: Mapping[Part, AnyArray],
    trained: Sequence[tuple[EnsembleMember, FeatureSource]],
    curve: Sequence[EpochMetrics],
    seconds: float,
) -> TrainResult:
    network = RewardModel([m.model for m, _ in trained], _unmeasured(config, table, parts, len(trained)), config.device)
    logits = {part: _logits(store, network, table, parts[part]) for part in PARTS[1:]}
    chosen, tested = parts["validation"], parts["test"]
    calibration = EnsembleCalibration.fit(logits["validation"], table.truth[chosen])
    looked_at = _scored(table, chosen, calibration, logits["validation"])
    threshold = choose_threshold(looked_at, config.target_fpr)
    rule = DecisionRule(threshold=threshold.value, cutoff_offset=fit_cutoff_offset(looked_at, threshold.value))
    held_out = _scored(table, tested, calibration, logits["test"])
    scores = compute_metrics(held_out, rule)
    found = {
        "calibration": tuple((c.temperature, c.bias) for c in calibration.members),
        "ensemble_calibration": (calibration.lowest.temperature, calibration.lowest.bias),
        "threshold": threshold_facts(threshold),
        "cutoff_offset": rule.cutoff_offset,
        "scores": scores.to_json(),
        "training": {
            "config": config.model_dump(mode="json"),
            "epochs": [m.version for m, _ in trained],
            "best_epochs": [m.best_epoch for m, _ in trained],
            "seconds": round(seconds, 1),
            "device": str(trained[0][0].device),
            "versions": {"plaudit": __version__, "torch": torch.__version__, "python": platform.python_version()},
        },
    }
    model = RewardModel(network.members, network.facts.model_copy(update=found), config.device)
    controls = _controls(store, model, table, tested, config)
    told = {"controls": tuple(asdict(c) for c in controls), "problems": tuple(failed_controls(controls))}
    model.facts = model.facts.model_copy(update=told)
    optimizers = [member.optimizer.state_dict() for member, _ in trained]
    return TrainResult(model, scores, controls, held_out, _worst(table, tested, held_out), curve, optimizers)


def _unmeasured(
    config: RewardTrainConfig, table: RewardDataset, parts: Mapping[Part, AnyArray], members: int
) -> RewardModelConfig:
    """What is known of a model before anything was asked of it."""
    return RewardModelConfig(
        classifier=classifier_config(config, table),
        frozen_encoder=config.frozen and not config.freezes_stem,
        calibration=((1.0, 0.0),) * members,
        threshold={"value": 1.0},
        scores={},
        controls=(),
        problems=(),
        data=_data_facts(table, parts, config),
        training={},
    )


def _logits(store: Store, model: RewardModel, table: RewardDataset, rows: AnyArray) -> list[FloatArray]:
    """Of each member, for these rows, which are whole episodes.

    Asked as it is asked later, whole and from the recorded frames: the features that it was trained on were kept in
    half precision, and a threshold chosen on those would be one for other numbers.
    """
    parts = []
    for episode_id in _episodes(table, rows):
        episode = store.episode(episode_id)
        parts.append(model.logits(episode)[:, episode.recorded, 0])
    return list(np.concatenate(parts, axis=1))


def _episodes(table: RewardDataset, rows: AnyArray) -> list[int]:
    """Their ids, in the order of their rows."""
    return list(dict.fromkeys(table.episode[rows].tolist()))


def _scored(
    table: RewardDataset, rows: AnyArray, calibration: EnsembleCalibration, logits: Sequence[FloatArray]
) -> list[EpisodePrediction]:
    """Episode by episode."""
    probability, mine = calibration(logits), table.episode[rows]
    return [EpisodePrediction(probability[mine == i], table.truth[rows[mine == i]], int(i)) for i in np.unique(mine)]


def _data_facts(table: RewardDataset, parts: Mapping[Part, AnyArray], config: RewardTrainConfig) -> TrainingDataInfo:
    episodes = {part: np.unique(table.episode[rows]) for part, rows in parts.items()}
    return TrainingDataInfo(
        fingerprint=table.fingerprint,
        episodes={part: int((ids >= 0).sum()) for part, ids in episodes.items()},
        frames={part: int((~np.isnan(table.truth[rows])).sum()) for part, rows in parts.items()},
        sources=config.label_sources,
    )


def _controls(
    store: Store, model: RewardModel, table: RewardDataset, rows: AnyArray, config: RewardTrainConfig
) -> list[ControlResult]:
    found = []
    for episode_id in np.unique(table.episode[rows]).tolist():
        labels = store.ledger.labels(episode_id, config.label_sources)
        assert labels is not None
        found.append((store.episode(episode_id), labels.targets))
    results, failures = run_controls(ClassifierJudge(model), found, model.threshold, seed=config.seed)
    if failures:
        raise JudgeError(f"the negative controls could not be scored: {failures[0]}")
    return results


def _worst(table: RewardDataset, rows: AnyArray, scored: Sequence[EpisodePrediction]) -> list[FramePrediction]:
    first = {int(episode): int(row) for row, episode in zip(rows[::-1], table.episode[rows][::-1])}
    shown = []
    for episode, place in largest_errors(scored):
        row = first[episode.episode] + place  # an episode's rows lie together
        said = float(episode.success_prob[place])
        image = hstack_images([table.images[camera][row] for camera in sorted(table.images)])
        shown.append(FramePrediction(episode.episode, int(table.frame[row]), float(episode.target[place]), said, image))
    return shown
