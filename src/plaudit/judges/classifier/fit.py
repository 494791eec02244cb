"""From labeled episodes to a reward model with metrics.

    table = RewardDataset.from_store(store)        # frames and labels
    splits = split(table)                          # by episode: train, validation, test
    members: learn on train, keep the epoch with the least loss on validation
    cross-fitting: score train and validation by five models that did not learn from what they score
    these scores, or those of validation: calibrate, choose the threshold
    test: run the controls; test and what was cross-fitted: compute the metrics

The test episodes decide nothing, and a cross-fitted episode is counted by a threshold that the other folds chose, so
the metrics hold for new episodes.

Cross-fitting: a few validation episodes say little about a threshold. So the training and validation episodes are
divided into five folds, and five more models are trained like the kept one, each without one fold, whose episodes it
then scores. Each model has its own scale of logits, so one threshold would fit some and not others. The logits of a
fold are shifted and stretched until the medians of the model's training successes and failures are those of the kept
model. (Rejected: calibrating each model on its own few validation episodes, see docs/results.md.) Frames are scored at
the rate that is learned from and interpolated, because encoding every frame takes longer than the five trainings.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plaudit.data.disk import write_atomic
from plaudit.data.episode_keys import episode_keys, pack_keys
from plaudit.data.store import Store
from plaudit.errors import JudgeError
from plaudit.files import read_json
from plaudit.judges.calibration import (
    EnsembleCalibration,
    ThresholdChoice,
    by_others_thresholds,
    fit_cutoff_offset,
    fit_window,
    folds,
    guaranteed_threshold,
)
from plaudit.judges.certificate import ControlResult, failed_controls
from plaudit.judges.classifier.budget import Choice, choose_settings, largest_image_size, member_seconds
from plaudit.judges.classifier.checkpoint import Images, RewardModel, RewardModelConfig, TrainingDataInfo
from plaudit.judges.classifier.config import RewardTrainConfig
from plaudit.judges.classifier.dataset import (
    SPLITS,
    RewardDataset,
    Split,
    add_blank_negatives,
    split,
    subsample,
)
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.classifier.ood import OodDetector, first_steps
from plaudit.judges.classifier.training import EnsembleMember, ProgressBars, TrainRun, cache_features, train_member
from plaudit.judges.controls import run_controls
from plaudit.judges.epochs import EpochMetrics, Watch, never_stop, prepare_work, training_record
from plaudit.judges.guarantee import Guarantee, episode_losses, make_forecast
from plaudit.judges.metrics import (
    EpisodePrediction,
    FramePrediction,
    JudgeMetrics,
    compute_metrics,
    hstack_images,
    largest_errors,
    value_order,
)
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, FloatArray, ProgressFn

_LEAST_WIDTH = 0.1  # between the logits of successes and failures; less is no scale


@dataclass(frozen=True, eq=False)
class TrainResult:
    """A model and its metrics."""

    model: RewardModel
    config: RewardTrainConfig  # with what was chosen
    rule: DecisionRule
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
    watch: Watch,
    progress: ProgressBars,
    on_choice: Callable[[Choice], object] = never_stop,
    begun: float | None = None,
) -> TrainResult:
    """Train and evaluate; the same call resumes from `work_dir` after a stop.

    watch: called after each step and epoch; False stops the training with `TrainingInterrupted`
    on_choice: called with what was chosen to fit `config.max_minutes`, and how long it takes
    begun: when `config.max_minutes` began, by the monotonic clock; None: now
    """
    begun = time.monotonic() if begun is None else begun
    # Read the frames and split them by episode.
    cache_dir = existing_parent(work_dir)
    table = RewardDataset.from_store(
        store,
        config.image_keys,
        partial(largest_image_size, config),
        config.label_sources,
        progress("reading"),
        cache_dir,
        demonstrations=not config.predict_success,
    )
    splits = split(table, config.seed, config.val_fraction, config.test_fraction)
    splits["train"] = subsample(table, splits["train"], config.train_fps)
    table, splits = add_blank_negatives(table, splits, config.seed)
    # Choose the settings that were left open.
    prepare_work(work_dir, {"config": config.model_dump(mode="json"), "data": table.fingerprint})
    elapsed_s = time.monotonic() - begun
    choice = choose_settings(config, table, splits, work_dir, progress("timing the encoder"), elapsed_s)
    if choice is not None:
        config = config.model_copy(update=choice.settings)
        if choice.settings or choice.seconds > 60 * (config.max_minutes or 0):
            on_choice(choice)
    # Train the members and the models of the folds.
    cached = cache_features(table, splits, config, work_dir, progress) if config.frozen else None
    max_seconds = member_seconds(config, choice, time.monotonic() - begun)
    run = TrainRun(config, table, splits, cached, work_dir, watch, max_seconds)
    members, histories = zip(*(train_member(number, run) for number in range(config.ensemble_size)), strict=True)
    scored = cross_fit(run, members) if config.cross_fit else None
    return _evaluate(run, members, scored, list(chain(*histories)), begun, progress)


def existing_parent(path: Path) -> Path:
    """The nearest existing folder above, on the disk that the path will be on."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())


# Cross-fitting


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Scores of episodes that were not learned from."""

    rows: AnyArray  # [F] of whole episodes
    logits: list[FloatArray]  # of each member, [F]
    episodes: int = 0  # that were cross-fitted; 0: they are validation episodes, scored by the kept model


@dataclass(frozen=True)
class Scale:
    """The scale of a model's logits, by the frames that it learned from."""

    failure: float  # median of the failure frames
    success: float  # and of the success frames

    @classmethod
    def of(cls, member: EnsembleMember) -> "Scale":
        """Of a trained member; blank frames have no episode and do not count."""
        table, rows = member.table, member.splits["train"]
        rows = rows[table.episode[rows] >= 0]
        logits, target = member.predict(rows), table.target[rows]
        return cls(*(float(np.median(logits[target == kind])) for kind in (0, 1)))

    @property
    def width(self) -> float:
        return self.success - self.failure

    def to(self, other: "Scale", logits: FloatArray) -> FloatArray:
        """Logits on the other scale; unchanged if one of the models has not learned to separate the two."""
        if min(self.width, other.width) < _LEAST_WIDTH:
            return logits
        return (other.failure + (logits - self.failure) * (other.width / self.width)).astype(np.float32)


def fold_splits(
    config: RewardTrainConfig, table: RewardDataset, splits: Mapping[Split, AnyArray]
) -> list[dict[Split, AnyArray]]:
    """Of each fold: rows to learn from, to choose the epoch by, and to score; [] if there are too few episodes."""
    ids = np.unique(table.episode[np.concatenate([splits["train"], splits["validation"]])])
    unscored = [
        EpisodePrediction(np.zeros(len(rows), np.float32), table.target[rows], int(i))
        for i in ids[ids >= 0]
        for rows in [table.rows_of([i])]
    ]
    blank = splits["train"][table.episode[splits["train"]] < 0]
    parts = []
    for others, held_out in folds(unscored, config.seed):
        try:
            inner = split(table, config.seed, config.val_fraction, 0.0, [one.episode for one in others])
        except JudgeError:  # one of its parts has frames of one kind only
            return []
        whole: dict[Split, AnyArray] = {**inner, "test": table.rows_of([one.episode for one in held_out])}
        rows = {name: subsample(table, part, config.train_fps) for name, part in whole.items()}
        parts.append(rows | {"train": np.concatenate([rows["train"], blank])})
    return parts


def cross_fit(run: TrainRun, kept: Sequence[EnsembleMember]) -> OutOfFold | None:
    """Train and score fold by fold; resumes where an earlier run stopped. None if there are too few episodes.

    kept: the members of the kept model, to whose scale the logits are converted
    """
    table = run.table
    parts = fold_splits(run.config, table, run.splits)
    if not parts:
        return None
    scales = [Scale.of(member) for member in kept]
    scored = []
    for number, part in enumerate(parts, 1):
        fold = replace(
            run,
            splits=part,
            work_dir=run.work_dir / f"fold_{number}",
            watch=lambda now, fold=number: run.watch(replace(now, fold=fold)),
        )
        done = fold.work_dir / "scaled_logits.json"
        if not done.exists():
            logits = []
            for member, scale in enumerate(scales):
                trained, _ = train_member(member, fold)
                logits.append(Scale.of(trained).to(scale, trained.predict(part["test"])).tolist())
            fold.work_dir.mkdir(parents=True, exist_ok=True)
            write_atomic(done, json.dumps(logits).encode())
        scored.append(np.array(read_json(done), np.float32))
    places, values = np.concatenate([part["test"] for part in parts]), np.concatenate(scored, axis=1)
    episodes = np.unique(table.episode[places]).tolist()
    rows = table.rows_of(episodes)
    return OutOfFold(rows, [_interpolate(table, rows, places, member) for member in values], len(episodes))


def _interpolate(table: RewardDataset, rows: AnyArray, scored: AnyArray, logits: FloatArray) -> FloatArray:
    """Logits of all rows of episodes of which some rows are scored."""
    values = np.empty(len(rows), np.float32)
    for episode in np.unique(table.episode[rows]):
        inside, given = table.episode[rows] == episode, table.episode[scored] == episode
        order = np.argsort(scored[given])
        values[inside] = np.interp(rows[inside], scored[given][order], logits[given][order])
    return values


# Calibration, metrics and controls


class RememberingModel(RewardModel):
    """Encodes no frame twice: negative controls show those of their episodes in another order."""

    def __init__(self, members: Sequence[BinaryRewardClassifier], config: RewardModelConfig, device: str):
        super().__init__(members, config, device)
        self.embeddings: dict[bytes, list[Tensor]] = {}

    def embed(self, images: Mapping[str, Images], state: FloatArray | None = None) -> list[Tensor]:
        shown: list[Any] = [images[self.camera_in(camera, images)] for camera in self.cameras]
        shown += [state] if self.classifier.state_dim else []
        keys = [hashlib.sha256(b"".join(one[i].tobytes() for one in shown)).digest() for i in range(len(shown[0]))]
        new = {key: i for i, key in enumerate(keys) if key not in self.embeddings}
        if new:
            rows = list(new.values())
            some = {camera: np.asarray(frames)[rows] for camera, frames in images.items()}
            embeddings = super().embed(some, None if state is None else state[rows])
            self.embeddings |= {key: list(each) for key, each in zip(new, zip(*embeddings, strict=True), strict=True)}
        return [torch.stack(one) for one in zip(*(self.embeddings[key] for key in keys), strict=True)]


def _evaluate(
    run: TrainRun,
    members: Sequence[EnsembleMember],
    scored: OutOfFold | None,
    history: Sequence[EpochMetrics],
    begun: float,
    progress: ProgressBars,
) -> TrainResult:
    """scored: by cross-fitting"""
    config, table, splits = run.config, run.table, run.splits
    untested = RewardModelConfig.untested(
        members[0].model.config,
        frozen_encoder=config.frozen and not config.freezes_stem,
        members=len(members),
        threshold=1.0,
        data=_data_info(run),
    )
    model = RememberingModel([m.model for m in members], untested, config.device)
    # Calibrate and choose the threshold by scores of episodes that were not learned from.
    if scored is None:
        scored = _score(model, table, splits["validation"], progress("scoring validation"))
    chosen = choose_rule(config, table, scored)
    # Measure on episodes that decided nothing, or by thresholds that the others chose.
    tested = _score(model, table, splits["test"], progress("scoring test"))
    predictions, at_threshold = held_out_predictions(config, table, scored, chosen, tested)
    metrics = compute_metrics(predictions, chosen.rule)
    promise, chosen_by_test = chosen.promise, np.array_equal(splits["test"], splits["validation"])
    if scored.episodes or not chosen_by_test:
        promise = promise.with_bound(episode_losses(predictions, chosen.threshold.value))
    forecast = order = None
    if config.predict_success:
        why_not = "the episodes are too few for five folds" if config.cross_fit else "they were not cross-fitted"
        why_not = "they also chose the threshold, since test_fraction is 0" if chosen_by_test else why_not
        forecast = make_forecast(
            predictions, chosen.rule, at_threshold=at_threshold, cross_fitted=scored.episodes, why_not=why_not
        )
    else:  # up to the first success: beyond it there is nothing left to rise
        order = float(np.mean([value_order(p.success_prob[: (p.first_success or 0) + 1]) for p in predictions]))
    calibration = chosen.calibration
    measured = {
        "calibration": tuple((c.temperature, c.bias) for c in calibration.members),
        "ensemble_calibration": (calibration.lowest.temperature, calibration.lowest.bias),
        "threshold": {name: float(value) for name, value in vars(chosen.threshold).items()},
        "promise": promise,
        "forecast": forecast,
        "cutoff_offset": chosen.rule.cutoff_offset,
        "scores": metrics.to_json(),
        "value_order": order,
        "training": training_record(
            config,
            begun,
            members[0].device,
            epochs=[m.version for m in members],
            best_epochs=[m.best_epoch for m in members],
        ),
    }
    tried = RememberingModel(model.members, model.config.model_copy(update=measured), config.device)
    tried.embeddings = model.embeddings
    controls = _run_controls(tried, run, progress("negative controls"))
    outcome = {"controls": tuple(controls), "problems": tuple(failed_controls(controls))}
    tried.config = tried.config.model_copy(update=outcome)
    kept = tried.with_ood(fit_ood(tried, table, splits, progress("comparing episodes")))
    optimizers = [member.optimizer.state_dict() for member in members]
    errors = []
    for prediction, place in largest_errors(predictions):
        row = table.rows_of([prediction.episode])[place]
        image = hstack_images([table.images[camera][row] for camera in sorted(table.images)])
        target, prob = float(prediction.target[place]), float(prediction.success_prob[place])
        errors.append(FramePrediction(prediction.episode, int(table.frame_index[row]), target, prob, image))
    return TrainResult(kept, config, chosen.rule, metrics, controls, predictions, errors, history, optimizers)


@dataclass(frozen=True)
class ChosenRule:
    """The rule from logits to decisions, and its guarantee."""

    calibration: EnsembleCalibration
    threshold: ThresholdChoice
    promise: Guarantee
    rule: DecisionRule


def choose_rule(config: RewardTrainConfig, table: RewardDataset, scored: OutOfFold) -> ChosenRule:
    """Choose the rule from scores of episodes that were not trained on."""
    calibration = EnsembleCalibration.fit(scored.logits, table.target[scored.rows])
    predictions = episode_predictions(table, scored, calibration)
    labeled = len(np.unique(table.episode[table.episode >= 0]))
    threshold, promise = guaranteed_threshold(
        predictions, config.target_fpr, config.promise_confidence, labeled=labeled
    )
    rule = DecisionRule(threshold=threshold.value, cutoff_offset=fit_cutoff_offset(predictions, threshold.value))
    rule = fit_window(predictions, rule) if config.predict_success else rule
    return ChosenRule(calibration, threshold, promise, rule)


def held_out_predictions(
    config: RewardTrainConfig, table: RewardDataset, scored: OutOfFold, chosen: ChosenRule, test: OutOfFold
) -> tuple[list[EpisodePrediction], list[EpisodePrediction]]:
    """Of the test rows, by the kept model; and of each cross-fitted episode, by its fold's model: first by the
    threshold that the other folds choose, then by the chosen one."""
    tested = episode_predictions(table, test, chosen.calibration)
    if not scored.episodes:
        return tested, tested
    crossed = episode_predictions(table, scored, chosen.calibration)
    # A fifth fewer episodes may prove nothing: thresholds of the folds are as strict as the proven one is on all.
    rate = chosen.threshold.fpr if chosen.promise.kept else config.target_fpr
    moved = by_others_thresholds(crossed, chosen.threshold.value, rate, config.seed)
    ids = {one.episode for one in moved}
    unseen = [one for one in tested if one.episode not in ids]
    return [*moved, *unseen], [*crossed, *unseen]


def _score(model: RewardModel, table: RewardDataset, rows: AnyArray, progress: ProgressFn) -> OutOfFold:
    """Score these rows, which are whole episodes.

    They are scored from the recorded frames, as later in use: the cached features of the training are in half
    precision, and a threshold chosen on those would be one for other numbers.
    """
    logits = []
    for episode_id in progress(_episodes(table, rows)):
        episode = table.store.episode(episode_id)
        logits.append(model.logits(episode)[:, episode.observed, 0])
    return OutOfFold(rows, list(np.concatenate(logits, axis=1)))


def _episodes(table: RewardDataset, rows: AnyArray) -> list[int]:
    """Their ids, in the order of their rows."""
    return list(dict.fromkeys(table.episode[rows].tolist()))


def episode_predictions(
    table: RewardDataset, scored: OutOfFold, calibration: EnsembleCalibration
) -> list[EpisodePrediction]:
    """Predictions episode by episode."""
    rows = scored.rows
    prob, episode = calibration(scored.logits), table.episode[rows]
    return [EpisodePrediction(prob[episode == i], table.target[rows[episode == i]], int(i)) for i in np.unique(episode)]


def _data_info(run: TrainRun) -> TrainingDataInfo:
    table = run.table
    episodes = {name: np.unique(table.episode[rows]) for name, rows in run.splits.items()}
    seen = [i for name in SPLITS[:2] for i in episodes[name].tolist() if i >= 0]
    return TrainingDataInfo(
        fingerprint=table.fingerprint,
        episodes={name: int((ids >= 0).sum()) for name, ids in episodes.items()},
        frames={name: int((~np.isnan(table.target[rows])).sum()) for name, rows in run.splits.items()},
        sources=run.config.label_sources,
        seen=pack_keys(chain.from_iterable(episode_keys(table.store, seen).values())),
    )


def _run_controls(model: RewardModel, run: TrainRun, progress: ProgressFn) -> list[ControlResult]:
    table, rows = run.table, run.splits["test"]
    episodes = []
    for episode_id in np.unique(table.episode[rows]).tolist():
        episode, own_rows = table.store.episode(episode_id), rows[table.episode[rows] == episode_id]
        target = np.full(episode.steps + 1, np.nan, np.float32)
        target[table.frame_index[own_rows]] = table.target[own_rows]
        episodes.append((episode, target))
    results, failures = run_controls(
        ClassifierJudge(model), episodes, model.threshold, seed=run.config.seed, batch_size=1, progress=progress
    )
    if failures:
        raise JudgeError(f"the negative controls could not be scored: {failures[0]}")
    return results


def fit_ood(
    model: RewardModel, table: RewardDataset, splits: Mapping[Split, AnyArray], progress: ProgressFn
) -> OodDetector:
    """What the episodes look like that a model was trained and measured on."""
    held_out = {i for name in SPLITS[1:] for i in _episodes(table, splits[name])}
    ids = sorted(held_out | {i for i in _episodes(table, splits["train"]) if i >= 0})
    views = []
    for episode_id in progress(ids):
        episode = table.store.episode(episode_id)
        scored = episode if episode_id in held_out and len(model.members) > 1 else first_steps(episode)
        views.append(model.view(episode, model.logits(scored)))
    begun = [n for n, i in enumerate(ids) if table.target[table.rows_of([i])[0]] == 1]
    return OodDetector.fit(views, [n for n, i in enumerate(ids) if i in held_out], model.threshold, begun)
