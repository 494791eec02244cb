"""From labeled episodes to a reward model with metrics.

    table = RewardDataset.from_store(store)        # frames and labels
    splits = split(table)                          # by episode: train, validation, test
    members: learn on train, keep the epoch with the least loss on validation
    cross-fitting: score train and validation by five models that did not learn from what they score
    these scores, or those of validation: calibrate, choose the threshold
    test: run the controls; test and what was cross-fitted: compute the metrics

The test episodes decide nothing, and an episode that was cross-fitted is counted by a threshold that the other folds
chose, so that the metrics hold for episodes to come.
"""

import hashlib
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit import __version__
from plaudit.data.episode_keys import episode_keys, pack_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.judges.calibration import (
    EnsembleCalibration,
    ThresholdChoice,
    by_others_thresholds,
    fit_cutoff_offset,
    promised_threshold,
)
from plaudit.judges.classifier.budget import Choice, choose_settings, largest_image_size, member_seconds
from plaudit.judges.classifier.checkpoint import Images, RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.cross_fit import OutOfFold, Scale, cross_fit
from plaudit.judges.classifier.dataset import (
    SPLITS,
    RewardDataset,
    Split,
    add_blank_negatives,
    split,
    subsample,
)
from plaudit.judges.classifier.familiar import Familiar, first_steps
from plaudit.judges.classifier.features import ProgressBars, cache_features
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.classifier.training import EnsembleMember, train_member
from plaudit.judges.controls import ControlResult, failed_controls, run_controls
from plaudit.judges.epochs import EpochMetrics, StepMetrics, never_stop, prepare_work
from plaudit.judges.forecast import Forecast, make_forecast
from plaudit.judges.metrics import (
    EpisodePrediction,
    FramePrediction,
    JudgeMetrics,
    compute_metrics,
    hstack_images,
    largest_errors,
    value_order,
)
from plaudit.judges.promise import Promise, episode_losses
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, FloatArray, ProgressFn


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A model and its metrics."""

    model: RewardModel
    config: RewardTrainConfig  # with what was chosen
    metrics: JudgeMetrics
    controls: Sequence[ControlResult]
    predictions: Sequence[EpisodePrediction]  # of the test episodes, and of those that were cross-fitted
    errors: Sequence[FramePrediction]  # the largest among these
    history: Sequence[EpochMetrics]  # of all members, one after the other
    optimizers: Sequence[Mapping[str, Any]]  # the state of each member's, after its last epoch


def train_reward_model(
    store: Store,
    config: RewardTrainConfig,
    work_dir: Path,
    on_epoch_end: Callable[[EpochMetrics], bool],
    progress: ProgressBars,
    on_step: Callable[[StepMetrics], bool] = never_stop,
    on_choice: Callable[[Choice], object] = never_stop,
    begun: float | None = None,
) -> TrainResult:
    """Train and evaluate; what takes long is kept in `work_dir`, from where the same call resumes after a stop.

    on_epoch_end, on_step: told how it goes; False stops it with `TrainingInterrupted`
    on_choice: told what was chosen to fit `config.max_minutes`, and how long it takes
    begun: when `config.max_minutes` began, by the monotonic clock; None: now
    """
    begun = time.monotonic() if begun is None else begun
    cache_dir = existing_parent(work_dir)
    image_size = partial(largest_image_size, config)
    table = RewardDataset.from_store(
        store,
        config.image_keys,
        image_size,
        config.label_sources,
        progress("reading"),
        cache_dir,
        demonstrations=not config.predict_success,
    )
    splits = split(table, config.seed, config.val_fraction, config.test_fraction)
    splits["train"] = subsample(table, splits["train"], config.train_fps)
    table, splits = add_blank_negatives(table, splits, config.seed, cache_dir)
    prepare_work(work_dir, {"config": config.model_dump(mode="json"), "data": table.fingerprint})
    elapsed_s = time.monotonic() - begun
    choice = choose_settings(config, table, splits, work_dir, progress("timing the encoder"), elapsed_s)
    if choice is not None:
        config = config.model_copy(update=choice.settings)
        if choice.settings or choice.seconds > 60 * (config.max_minutes or 0):
            on_choice(choice)
    cached = cache_features(table, splits, config, work_dir, progress) if config.frozen else None
    max_seconds = member_seconds(config, choice, time.monotonic() - begun)
    members: list[EnsembleMember] = []
    history: list[EpochMetrics] = []
    scales: list[Scale] = []
    for number in range(config.ensemble_size):
        member, features, epochs = train_member(
            number, config, table, splits, cached, work_dir, on_epoch_end, on_step, max_seconds
        )
        members.append(member)
        history += epochs
        if config.cross_fit:
            scales.append(Scale.of(member.model, features, table, splits["train"]))
    scored = None
    if config.cross_fit:
        scored = cross_fit(config, table, splits, cached, work_dir, scales, on_epoch_end, on_step, max_seconds)
    return _evaluate(store, config, table, splits, members, scored, history, begun, progress)


def existing_parent(path: Path) -> Path:
    """The nearest folder above that is there: the disk that it will lie on."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())


def _evaluate(
    store: Store,
    config: RewardTrainConfig,
    table: RewardDataset,
    splits: Mapping[Split, AnyArray],
    members: Sequence[EnsembleMember],
    scored: OutOfFold | None,
    history: Sequence[EpochMetrics],
    begun: float,
    progress: ProgressBars,
) -> TrainResult:
    """scored: by cross-fitting; begun: when it began, by the monotonic clock"""
    untested = RewardModelConfig.untested(
        members[0].model.config,
        frozen_encoder=config.frozen and not config.freezes_stem,
        members=len(members),
        threshold=1.0,
        data=_data_info(store, table, splits, config),
    )
    model = RememberingModel([m.model for m in members], untested, config.device)
    # Calibrate and choose the threshold by scores of episodes that were not learned from.
    if scored is None:
        rows = splits["validation"]
        scored = OutOfFold(rows, _logits(store, model, table, rows, progress("scoring validation")))
    chosen = choose_rule(config, table, scored)
    # Measure on episodes that decided nothing, or by thresholds that the others chose.
    logits = _logits(store, model, table, splits["test"], progress("scoring test"))
    predictions, at_threshold = held_out_predictions(config, table, scored, chosen, splits["test"], logits)
    metrics = compute_metrics(predictions, chosen.rule)
    promise = chosen.promise
    if scored.episodes or not np.array_equal(splits["test"], splits["validation"]):
        promise = promise.with_bound(episode_losses(predictions, chosen.threshold.value))
    calibration = chosen.calibration
    found = {
        "calibration": tuple((c.temperature, c.bias) for c in calibration.members),
        "ensemble_calibration": (calibration.lowest.temperature, calibration.lowest.bias),
        "threshold": {name: float(value) for name, value in vars(chosen.threshold).items()},
        "promise": promise,
        "forecast": _forecast(config, predictions, at_threshold, chosen.rule, scored.episodes),
        "cutoff_offset": chosen.rule.cutoff_offset,
        "scores": metrics.to_json(),
        "value_order": None if config.predict_success else _value_order(predictions),
        "training": {
            "config": config.model_dump(mode="json"),
            "epochs": [m.version for m in members],
            "best_epochs": [m.best_epoch for m in members],
            "seconds": round(time.monotonic() - begun, 1),
            "device": str(members[0].device),
            "versions": {"plaudit": __version__, "torch": torch.__version__, "python": platform.python_version()},
        },
    }
    tried = RememberingModel(model.members, model.config.model_copy(update=found), config.device)
    tried.known = model.known
    controls = _run_controls(store, tried, table, splits["test"], config, progress("negative controls"))
    outcome = {"controls": tuple(controls), "problems": tuple(failed_controls(controls))}
    tried.config = tried.config.model_copy(update=outcome)
    kept = tried.with_familiar(fit_familiar(store, tried, table, splits, progress("comparing episodes")))
    optimizers = [member.optimizer.state_dict() for member in members]
    errors = _largest_errors(table, predictions)
    return TrainResult(kept, config, metrics, controls, predictions, errors, history, optimizers)


class RememberingModel(RewardModel):
    """Encodes no frame twice: negative controls show those of their episodes in another order. For models that see a
    history; others have no embeddings to keep."""

    def __init__(self, members: Sequence[BinaryRewardClassifier], config: RewardModelConfig, device: str):
        super().__init__(members, config, device)
        self.known: dict[bytes, list[Tensor]] = {}

    def embed(self, images: Mapping[str, Images], state: FloatArray | None = None) -> list[Tensor]:
        shown: list[Any] = [images[self.camera_in(camera, images)] for camera in self.cameras]
        shown += [state] if self.classifier.state_dim else []
        keys = [hashlib.sha256(b"".join(one[i].tobytes() for one in shown)).digest() for i in range(len(shown[0]))]
        new = {key: i for i, key in enumerate(keys) if key not in self.known}
        if new:
            rows = list(new.values())
            some = {camera: np.asarray(frames)[rows] for camera, frames in images.items()}
            found = super().embed(some, None if state is None else state[rows])
            self.known |= {key: list(each) for key, each in zip(new, zip(*found, strict=True), strict=True)}
        return [torch.stack(one) for one in zip(*(self.known[key] for key in keys), strict=True)]


@dataclass(frozen=True)
class ChosenRule:
    """What turns logits into decisions, and what is promised of it."""

    calibration: EnsembleCalibration
    threshold: ThresholdChoice
    promise: Promise
    rule: DecisionRule


def choose_rule(config: RewardTrainConfig, table: RewardDataset, scored: OutOfFold) -> ChosenRule:
    """By scores of episodes that were not learned from."""
    calibration = EnsembleCalibration.fit(scored.logits, table.target[scored.rows])
    known = episode_predictions(table, scored.rows, calibration, scored.logits)
    labeled = len(np.unique(table.episode[table.episode >= 0]))
    threshold, promise = promised_threshold(known, config.target_fpr, config.promise_confidence, labeled=labeled)
    rule = DecisionRule(threshold=threshold.value, cutoff_offset=fit_cutoff_offset(known, threshold.value))
    return ChosenRule(calibration, threshold, promise, rule)


def held_out_predictions(
    config: RewardTrainConfig,
    table: RewardDataset,
    scored: OutOfFold,
    chosen: ChosenRule,
    test: AnyArray,
    logits: Sequence[FloatArray],
) -> tuple[list[EpisodePrediction], list[EpisodePrediction]]:
    """Of the test rows, by the kept model; and of each episode that was cross-fitted, by its fold's model: first by the
    threshold that the other folds choose, then by the chosen one."""
    tested = episode_predictions(table, test, chosen.calibration, logits)
    if not scored.episodes:
        return tested, tested
    known = episode_predictions(table, scored.rows, chosen.calibration, scored.logits)
    # A fifth fewer episodes may prove nothing: thresholds of the folds are as strict as the proven one is on all.
    rate = chosen.threshold.fpr if chosen.promise.kept else config.target_fpr
    moved = by_others_thresholds(known, chosen.threshold.value, rate, config.seed)
    ids = {one.episode for one in moved}
    unseen = [one for one in tested if one.episode not in ids]
    return [*moved, *unseen], [*known, *unseen]


def _forecast(
    config: RewardTrainConfig,
    predictions: Sequence[EpisodePrediction],
    at_threshold: Sequence[EpisodePrediction],
    rule: DecisionRule,
    cross_fitted: int,
) -> Forecast | None:
    """Of a model of success; and why no episode was cross-fitted, if none was."""
    if not config.predict_success:
        return None
    why_not = "the episodes are too few for five folds" if config.cross_fit else "they were not cross-fitted"
    return make_forecast(predictions, rule, at_threshold=at_threshold, cross_fitted=cross_fitted, why_not=why_not)


def _logits(
    store: Store, model: RewardModel, table: RewardDataset, rows: AnyArray, progress: ProgressFn
) -> list[FloatArray]:
    """Of each member, for these rows, which are whole episodes.

    Scored as it will be later, whole and from the recorded frames: the features that it was trained on were cached in
    half precision, and a threshold chosen on those would be one for other numbers.
    """
    logits = []
    for episode_id in progress(_episodes(table, rows)):
        episode = store.episode(episode_id)
        logits.append(model.logits(episode)[:, episode.observed, 0])
    return list(np.concatenate(logits, axis=1))


def _episodes(table: RewardDataset, rows: AnyArray) -> list[int]:
    """Their ids, in the order of their rows."""
    return list(dict.fromkeys(table.episode[rows].tolist()))


def episode_predictions(
    table: RewardDataset, rows: AnyArray, calibration: EnsembleCalibration, logits: Sequence[FloatArray]
) -> list[EpisodePrediction]:
    """Episode by episode."""
    prob, episode = calibration(logits), table.episode[rows]
    return [EpisodePrediction(prob[episode == i], table.target[rows[episode == i]], int(i)) for i in np.unique(episode)]


def _value_order(predictions: Sequence[EpisodePrediction]) -> float:
    """Mean over episodes, up to the first success: beyond it there is nothing left to rise."""
    return float(np.mean([value_order(one.success_prob[: (one.first_success or 0) + 1]) for one in predictions]))


def _data_info(
    store: Store, table: RewardDataset, splits: Mapping[Split, AnyArray], config: RewardTrainConfig
) -> TrainingDataInfo:
    episodes = {split_name: np.unique(table.episode[rows]) for split_name, rows in splits.items()}
    seen = [i for name in SPLITS[:2] for i in episodes[name].tolist() if i >= 0]
    return TrainingDataInfo(
        fingerprint=table.fingerprint,
        episodes={split_name: int((ids >= 0).sum()) for split_name, ids in episodes.items()},
        frames={split_name: int((~np.isnan(table.target[rows])).sum()) for split_name, rows in splits.items()},
        sources=config.label_sources,
        seen=pack_keys(chain.from_iterable(episode_keys(store, seen).values())),
    )


def _run_controls(
    store: Store,
    model: RewardModel,
    table: RewardDataset,
    rows: AnyArray,
    config: RewardTrainConfig,
    progress: ProgressFn,
) -> list[ControlResult]:
    found = []
    for episode_id in np.unique(table.episode[rows]).tolist():
        episode, own_rows = store.episode(episode_id), rows[table.episode[rows] == episode_id]
        target = np.full(episode.steps + 1, np.nan, np.float32)
        target[table.frame_index[own_rows]] = table.target[own_rows]
        found.append((episode, target))
    results, failures = run_controls(
        ClassifierJudge(model), found, model.threshold, seed=config.seed, batch_size=1, progress=progress
    )
    if failures:
        raise JudgeError(f"the negative controls could not be scored: {failures[0]}")
    return results


def fit_familiar(
    store: Store, model: RewardModel, table: RewardDataset, splits: Mapping[Split, AnyArray], progress: ProgressFn
) -> Familiar:
    """What the episodes look like that a model was trained and measured on."""
    held_out = {i for name in SPLITS[1:] for i in _episodes(table, splits[name])}
    known = sorted(held_out | {i for i in _episodes(table, splits["train"]) if i >= 0})
    views = []
    for episode_id in progress(known):
        episode = store.episode(episode_id)
        scored = episode if episode_id in held_out and len(model.members) > 1 else first_steps(episode)
        views.append(model.view(episode, model.logits(scored)))
    begun = [n for n, i in enumerate(known) if table.target[table.rows_of([i])[0]] == 1]
    return Familiar.fit(views, [n for n, i in enumerate(known) if i in held_out], model.threshold, begun)


def _largest_errors(table: RewardDataset, predictions: Sequence[EpisodePrediction]) -> list[FramePrediction]:
    found = []
    for prediction, place in largest_errors(predictions):
        row = table.rows_of([prediction.episode])[place]
        image = hstack_images([table.images[camera][row] for camera in sorted(table.images)])
        target, prob = float(prediction.target[place]), float(prediction.success_prob[place])
        found.append(FramePrediction(prediction.episode, int(table.frame_index[row]), target, prob, image))
    return found
