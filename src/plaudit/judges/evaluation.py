"""How good is any judge? Its labels and scores of episodes beside reference labels, and of negative controls.

    targets = load_reference_labels(store, resolve_reference(None, judge.id.source))   # of others, never its own
    found = evaluate(store, judge, targets)
    found.metrics, found.label_metrics, found.controls, found.failed

A judge is its labels: everything is measured on them, so a person, a simulator and last month's labels in the ledger
are measured as a model is. Where labels have probabilities of one judge, frames are scored by these; otherwise by yes
and no.

Three ways lead from frames to an episode's first success, and each is measured: the labels; k of n frames at the
threshold, as decided live; and one cutoff, decoded from the whole episode.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from plaudit.data.store import Store
from plaudit.errors import DataError, JudgeError
from plaudit.judges.config import REFERENCE_SOURCES
from plaudit.judges.controls import UNRELATED_TASK, ControlResult, failed_controls, run_controls
from plaudit.judges.labeling import BATCH, batches, label_episodes, label_ids
from plaudit.judges.metrics import (
    CalibrationCurve,
    EpisodeMetrics,
    JudgeMetrics,
    causal_metrics,
    compute_metrics,
    nan_to_none,
)
from plaudit.judges.predictions import EpisodePrediction, FramePrediction, hstack_images, largest_errors
from plaudit.judges.simulator import SOURCE as SIMULATOR
from plaudit.judges.simulator import SimulatorJudge
from plaudit.protocols import Judge
from plaudit.rule import DecisionRule, release
from plaudit.types import Episode, FloatArray, Labels, ProgressFn

BINARY_RULE = DecisionRule(decode="per_frame")  # of labels that are only yes and no

# The reference


def resolve_reference(requested: Sequence[str] | None, judge: str) -> tuple[str, ...]:
    """Whose labels count: those asked for, or all that a model may learn from; never the judge's own."""
    if requested is not None and judge in requested:
        raise JudgeError(f"the judge is '{judge}' itself; compare it with labels of somebody else (--reference)")
    return tuple(source for source in requested or REFERENCE_SOURCES if source != judge)


def load_reference_labels(
    store: Store, sources: Collection[str], ids: Sequence[int] | None = None
) -> dict[int, FloatArray]:
    """Of each episode that has one: 1, 0 or NaN for each of its frames, [T+1].

    The label of these sources that counts; where there is none and the simulator is one of them, its stored flag.
    """
    targets: dict[int, FloatArray] = {}
    for episode_id in store.ids if ids is None else ids:
        episode = store.episode(episode_id)
        labels = store.ledger.labels(episode_id, sources)
        if labels is None and SIMULATOR in sources:
            (answer,) = label_episodes(SimulatorJudge(), [episode])
            labels = answer if isinstance(answer, Labels) else None
        if labels is None:
            continue
        check_covers(store, episode_id, episode, labels)
        target = np.full(episode.steps + 1, np.nan, np.float32)
        target[episode.observed] = labels.targets[episode.observed]
        if not np.isnan(target).all():
            targets[episode_id] = target
    if not targets:
        raise JudgeError(
            f"{store.folder} has no labels of {', '.join(sources)} to compare with; label some episodes first (plaudit "
            f"label {store.folder} --judge human, or plaudit data label), or name others with --reference"
        )
    return targets


def describe_coverage(
    store: Store, sources: Collection[str], ids: Collection[int], episodes: int, left_out: int = 0
) -> str:
    """What the intervals of a judge's figures hold for: for which episodes, and how these were chosen.

    ids: the episodes to choose from
    episodes: how many of them were compared
    left_out: how many were left out because the judge learned from them
    """
    which = "all" if set(ids) >= set(store.ids) else "those chosen with --episodes"
    learned = f", without {left_out} that the judge learned from" if left_out else ""
    return (
        f"The 95% intervals hold for new episodes drawn like these {episodes}: {which} of {store.folder} that have "
        f"labels of {', '.join(sources)}{learned}. They do not cover other tasks, scenes or policies."
    )


def check_covers(store: Store, episode_id: int, episode: Episode, labels: Labels) -> None:
    """Refuse labels of another length than their episode."""
    if labels.steps != episode.steps:
        raise DataError(
            f"{store.folder}: the labels of episode {episode_id} cover {labels.steps} steps, it has "
            f"{episode.steps}; label it again"
        )


# The judge beside it


@dataclass(frozen=True, eq=False)
class JudgeEvaluation:
    """A judge's metrics, and what they were computed from."""

    metrics: JudgeMetrics
    label_metrics: EpisodeMetrics  # of its labels
    calibration_curve: CalibrationCurve
    has_probabilities: bool  # if not, it was scored by yes and no
    labels: Mapping[int, Labels]  # of the episodes that were compared
    predictions: Sequence[EpisodePrediction]
    errors: Sequence[FramePrediction]  # the largest
    failed: Mapping[int, str]  # episodes that it could not label, and why
    notes: Sequence[str]  # what could not be measured, and why
    controls: Sequence[ControlResult] = ()

    @property
    def failed_controls(self) -> list[str]:
        """A message for each."""
        return failed_controls(self.controls)

    def to_json(self) -> dict[str, Any]:
        """All but labels, predictions and images."""
        columns = ("success_prob", "success_rate", "count")
        bins = zip(*(getattr(self.calibration_curve, name).tolist() for name in columns))
        return {
            "scores": self.metrics.to_json(),
            "label_metrics": nan_to_none(asdict(self.label_metrics)),
            "calibration": [nan_to_none(dict(zip(columns, values))) for values in bins],
            "controls": [asdict(control) | {"passed": control.passed} for control in self.controls],
            "failed_controls": self.failed_controls,
            "failed": dict(self.failed),
            "notes": list(self.notes),
        }


def evaluate(
    store: Store,
    judge: Judge,
    targets: Mapping[int, FloatArray],
    *,
    wrong_task: str | None = None,
    with_controls: bool = True,
    batch_size: int = BATCH,
    progress: ProgressFn = iter,
) -> JudgeEvaluation:
    """Label the episodes that have a target, and the controls made of those that succeed.

    targets: episode -> 1, 0 or NaN for each frame, see `load_reference_labels`
    wrong_task: for a judge that uses the task text, see `control_task`
    """
    labels: dict[int, Labels] = {}
    failed: dict[int, str] = {}
    for ids in batches(progress(list(targets)), batch_size):
        labeled, not_labeled = label_ids(store, judge, ids)
        labels |= labeled
        failed |= not_labeled
    found = compare_labels(store, labels, targets, judge.rule, failed)
    if not with_controls:
        return found
    if not any((target == 1).any() for target in targets.values()):
        note = "Controls are made from episodes that succeed, and no reference episode does: none was run."
        return replace(found, notes=[*found.notes, note])
    episodes = [(store.episode(i), target) for i, target in targets.items()]
    controls, failures = run_controls(
        judge, episodes, found.metrics.threshold, wrong_task=wrong_task, batch_size=batch_size, progress=progress
    )
    note = [f"{len(failures)} controls could not be scored: {failures[0]}."] if failures else []
    return replace(found, controls=controls, notes=[*found.notes, *note])


def compare_labels(
    store: Store,
    labels: Mapping[int, Labels],
    targets: Mapping[int, FloatArray],
    rule: DecisionRule,
    failed: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
) -> JudgeEvaluation:
    """Labels beside their targets; no judge is asked, so there are no controls."""
    failed, notes = failed or {}, list(notes)
    labels = {i: release(found) for i, found in labels.items() if i in targets}
    if not labels:
        why = next(iter(failed.values()), "it has labeled none of them")
        raise JudgeError(f"the judge has no label on any of the {len(targets)} episodes to compare: {why}")
    if not any(found.labeled.any() for found in labels.values()):
        why = next((f" ({found.note})" for found in labels.values() if found.note), "")
        raise JudgeError(f"the judge decides none of the {len(labels)} episodes, so there is nothing to compare{why}")
    has_probabilities, mixed = _has_probabilities(labels)
    notes += mixed
    binary = [_prediction(i, found.targets, targets[i]) for i, found in labels.items()]
    graded = [_prediction(i, found.frame_probs, targets[i]) for i, found in labels.items()]
    predictions = graded if has_probabilities else binary
    threshold = rule.threshold if has_probabilities else BINARY_RULE.threshold
    metrics = compute_metrics(predictions, rule.model_copy(update={"threshold": threshold}))
    notes += _unlike(labels, targets)
    if metrics.success_frames in (0, metrics.frames):
        kind = "success" if metrics.success_frames else "failure"
        notes.append(f"All frames of the reference are {kind}: how the judge does on the others was not measured.")
    return JudgeEvaluation(
        metrics,
        causal_metrics(binary, BINARY_RULE),
        CalibrationCurve.of(predictions),
        has_probabilities,
        labels,
        predictions,
        [_frame(store.episode(p.episode), p, frame) for p, frame in largest_errors(predictions)],
        dict(failed),
        notes,
    )


def _unlike(labels: Mapping[int, Labels], targets: Mapping[int, FloatArray]) -> list[str]:
    """How many episodes the judge says are unlike what it learned from, and whether it is wrong on these."""
    flagged = {i for i, found in labels.items() if found.unlike}
    if not flagged:
        return []
    wrong = {i for i, found in labels.items() if found.success_once != bool((targets[i] == 1).any())}
    return [
        f"{len(flagged)} of {len(labels)} episodes are unlike what the judge learned from, by itself; "
        f"{len(flagged & wrong)} of its {len(wrong)} wrong episodes are among them (unlike=skip leaves them unlabeled)."
    ]


def _has_probabilities(labels: Mapping[int, Labels]) -> tuple[bool, list[str]]:
    """Whether frames can be scored by probabilities of one judge; if they are there and cannot, why not."""
    if any(found.scores is None for found in labels.values()):
        return False, []
    probs = np.concatenate([found.frame_probs[found.labeled] for found in labels.values()])
    if np.isin(probs, (0, 1)).all():
        return False, []
    judges = {found.judge for found in labels.values()}
    if len(judges) > 1:
        return False, [
            f"These labels are of {len(judges)} models, thresholds or rules, so they are compared by yes and no and "
            "not by their probabilities."
        ]
    return True, []


def _prediction(episode_id: int, values: FloatArray, target: FloatArray) -> EpisodePrediction:
    """A frame without a label counts neither for nor against."""
    return EpisodePrediction(np.nan_to_num(values), np.where(np.isnan(values), np.nan, target), episode_id)


def _frame(episode: Episode, prediction: EpisodePrediction, frame: int) -> FramePrediction:
    images = [episode.frames[camera][frame] for camera in sorted(episode.frames)]
    image = hstack_images(images or [np.full((8, 8, 3), 255, np.uint8)])
    target, prob = float(prediction.target[frame]), float(prediction.success_prob[frame])
    return FramePrediction(prediction.episode, frame, target, prob, image)


def control_task(uses_task: bool, requested: str | None) -> str | None:
    """The wrong task that a judge is tried with; None for one that uses no task text."""
    return (requested or UNRELATED_TASK) if uses_task else None


def score_episodes(
    store: Store, judge: Judge, targets: Mapping[int, FloatArray], progress: ProgressFn = iter
) -> tuple[list[EpisodePrediction], dict[int, str]]:
    """The judge's scores of the frames that have a target; and the episodes that it could not score, and why."""
    predictions: list[EpisodePrediction] = []
    failed: dict[int, str] = {}
    for ids in batches(progress(list(targets)), BATCH):
        labels, not_scored = label_ids(store, judge, ids)
        failed |= not_scored | {i: "there is no answer yet" for i in ids if i not in labels and i not in not_scored}
        for i, found in labels.items():
            prob, target = release(found).frame_probs, targets[i]
            labeled = ~np.isnan(target) & ~np.isnan(prob)
            predictions.append(EpisodePrediction(prob[labeled], target[labeled], i))
    return predictions, failed
